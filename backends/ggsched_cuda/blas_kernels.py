"""Kernels of cuBLAS are loaded when a product is compiled, not when it is first launched.

The driver loads a library's kernel when it is first launched, and loading may wait for all work of
the context (CUDA C++ Programming Guide, "Lazy Loading"): a launch beside a stream that is held
would not return, though what is held may need the caller (STR-4). So each product is captured once
on a stream that runs nothing, which lets cuBLAS choose, and the kernels of the graph are loaded.
"""

import logging
import threading
from collections.abc import Hashable
from typing import Final

from ggsched_cuda import driver
from ggsched_cuda.capture import driver as capturing
from ggsched_cuda.driver import CudaError
from ggsched_cuda_kernels.blas import driver as blas
from ggsched_cuda_kernels.blas.driver import Product

_LOG: Final = logging.getLogger("ggsched.cuda")


class BlasKernels:
    """Kernels that cuBLAS has chosen in one context; safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: set[Hashable] = set()
        self._stream: int | None = None

    def load(self, product: Product, workspace: int, stream: int) -> None:
        """Load what a product will launch, unless one like it was loaded before.

        Args:
            product: The product. Its handle is used, so no other thread may use it.
            workspace: The workspace of the handle.
            stream: The stream of the handle, which it has again afterwards.
        """
        with self._lock:
            if product.kind_of_call in self._loaded:
                return
            self._loaded.add(product.kind_of_call)
            if self._stream is None:
                self._stream = driver.make_stream()
            blas.bind_handle(product.handle, self._stream, workspace)
            try:
                _load(product, self._stream)
            except CudaError as error:  # then the first launch loads them
                _LOG.warning("kernels of cuBLAS were not loaded ahead of their launch: %s", error)
            finally:
                blas.bind_handle(product.handle, stream, workspace)


def _load(product: Product, stream: int) -> None:
    capturing.begin_capture(stream)
    try:
        product()
    finally:
        graph = capturing.end_capture(stream)
    try:
        capturing.load_kernels(graph)
    finally:
        capturing.close_graph(graph)


__all__ = ["BlasKernels"]
