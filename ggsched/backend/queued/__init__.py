"""For plug-ins over a library with queues and events of its own: what such a library does not have.

``stream`` and ``device`` are the contract's calls, for every such library. A plug-in supplies a
``command_queue``, which hands commands to the library. It is built on these: ``polling`` waits for
the library with a timeout, ``error_state`` keeps errors that its queue does not report, for
the next wait, ``events`` are points of queues that are recorded once, ``backlog`` keeps what stands
behind a wait for an event of another backend, ``times`` are those of commands. The plug-ins
``cuda`` and ``opencl`` use all of it.
"""
