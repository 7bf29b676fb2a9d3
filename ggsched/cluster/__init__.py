"""Several machines behind one scheduler: workers that run parts of plans, and who drives them.

``messages`` says what is sent, ``link`` carries it over sockets (ZeroMQ), ``worker`` serves the
devices of one machine, ``remote_devices``, ``remote_store`` and ``remote_run`` are what a
``Scheduler`` has in the place of devices, a store and an executor. Who starts workers and notices
that one is gone is a ``Member``: a process of this host (``local``), or an actor of Ray in the
plug-in ``ray``.
"""
