"""The plug-in ``cuda``: every NVIDIA GPU, with kernels from ``ggsched_kernels`` and cuBLAS."""

from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any

from ggsched.backend.protocols import Backend
from ggsched.errors import BackendUnavailable


def open_backend() -> Backend:
    """Return the backend; the entry point of the plug-in.

    Raises:
        BackendUnavailable: the CUDA bindings are not installed, or there is no driver or no GPU.
    """
    from ggsched_cuda import driver

    starts = Thread(target=_start_driver, args=(driver.find_gpus,), daemon=True)
    starts.start()  # the driver starts while the rest is imported
    from ggsched_cuda.backend import CudaBackend

    starts.join()
    return CudaBackend()


def _start_driver(find_gpus: Callable[[], object]) -> None:
    with suppress(BackendUnavailable):  # raised again by the backend
        find_gpus()


def conformance_harness() -> Any:
    """Return how the conformance kit opens pairs of devices and holds streams by a kernel."""
    from ggsched_cuda.harness import CudaHarness

    return CudaHarness()
