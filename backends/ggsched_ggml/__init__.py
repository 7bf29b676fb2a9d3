"""The plug-in ``ggml``: the devices of ggml's own backends, by its library."""

from typing import Any

from ggsched.backend.protocols import Backend


def open_backend() -> Backend:
    """Return the backend; the entry point of the plug-in.

    Raises:
        BackendUnavailable: there is no library of ggml.
    """
    from ggsched_ggml.backend import GgmlBackend

    return GgmlBackend()


def conformance_harness() -> Any:
    """Return what the conformance kit needs: an assertion of ggml ends the process."""
    from ggsched_ggml.harness import conformance_harness as found

    return found
