"""For plug-ins over a library with queues and events of its own: what such a library does not have.

``polling`` waits for it with a timeout, ``faults`` remembers what its queue does not tell and hands
it to whoever waits, ``events`` are points of queues that are recorded once, ``waiter`` opens gates
for events of other backends. The plug-ins ``cuda`` and ``opencl`` are built on these.
"""
