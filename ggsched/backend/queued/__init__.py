"""For plug-ins over a library with queues and events of its own: what such a library does not have.

``polling`` waits for it with a timeout, ``faults`` remembers what its queue does not tell and hands
it to whoever waits, ``events`` are points of queues that are recorded once, ``backlog`` keeps what
stands behind a wait for an event of another backend. The plug-ins ``cuda`` and ``opencl`` are built
on these.
"""
