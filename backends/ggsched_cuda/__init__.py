"""The plug-in ``cuda``: every NVIDIA GPU, with kernels from ``ggsched_kernels`` and cuBLAS."""

from typing import Any

from ggsched.backend.protocols import Backend


def open_backend() -> Backend:
    """Return the backend; the entry point of the plug-in.

    Raises:
        BackendUnavailable: the CUDA bindings are not installed, or there is no driver or no GPU.
    """
    from ggsched_cuda.backend import CudaBackend

    return CudaBackend()


def conformance_harness() -> Any:
    """Return how the conformance kit opens pairs of devices and holds streams by a kernel."""
    from ggsched_cuda.harness import CudaHarness

    return CudaHarness()
