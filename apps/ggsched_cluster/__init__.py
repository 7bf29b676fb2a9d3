"""Several machines behind one scheduler: a driver, and workers that run parts of plans.

``messages`` defines the messages, ``link`` sends them over TCP (``stream``, ``outbox``), and
``worker`` serves the devices of one machine. ``remote_devices`` and
``remote_store`` replace the devices, the store and the runs of a ``Scheduler``. A ``Member``
starts a worker and notices its loss: a process of this host (``local``), or an actor of Ray in the
plug-in ``ray``.
"""
