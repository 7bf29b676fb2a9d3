"""The plug-in ``opencl``: every OpenCL device, with kernels from ``ggsched_kernels``."""

from typing import Any

from ggsched.backend.protocols import Backend


def open_backend() -> Backend:
    """Return the backend; the entry point of the plug-in.

    Raises:
        BackendUnavailable: pyopencl is not installed, or there is no platform or no device.
    """
    from ggsched_opencl.backend import OpenClBackend

    return OpenClBackend()


def conformance_harness() -> Any:
    """Return how the conformance kit holds streams: by user events of their queues."""
    from ggsched_opencl.harness import OpenClHarness

    return OpenClHarness()
