"""The plug-in ``ggml``: the devices of ggml's own backends, by its library."""

from ggsched.backend.protocols import Backend


def open_backend() -> Backend:
    """Return the backend; the entry point of the plug-in.

    Raises:
        BackendUnavailable: there is no library of ggml.
    """
    from ggsched_ggml.backend import GgmlBackend

    return GgmlBackend()
