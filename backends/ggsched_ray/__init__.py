"""The plug-in ``ray``: devices of the nodes of a Ray cluster, ``--devices ray://``.

Ray says which nodes there are, starts a worker on each, and notices when one is gone. Commands and
bytes take another way, see ``ggsched_cluster``.
"""

from ggsched.backend.protocols import Backend


def open_backend() -> Backend:
    """Return the backend; the entry point of the plug-in.

    Raises:
        BackendUnavailable: ray is not installed.
    """
    from ggsched_ray.backend import open_cluster

    return open_cluster()
