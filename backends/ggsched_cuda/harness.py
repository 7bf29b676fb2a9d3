"""What the conformance kit needs to know: pairs of devices on one GPU, a kernel that holds."""

import ctypes
from collections.abc import Sequence
from typing import Any, Final

from ggsched.backend.protocols import Device, Stream
from ggsched_cuda import driver
from ggsched_cuda.backend import CudaBackend
from ggsched_cuda.stream import CudaStream
from ggsched_cuda_kernels.sources import OWN

LONGEST_HOLD_NS: Final = 20_000_000_000
"""After this long the kernel lets go by itself, lest a GPU stands still for good."""


class KernelLatch:
    """A kernel that runs until a word in host memory is set. Behind a backlog it takes its turn."""

    def __init__(self, stream: CudaStream) -> None:
        gpu = stream.gpu
        gpu.enter()
        self._quad = gpu.pinned.take_quad()
        function, word = gpu.programs.function(OWN, (), "hold"), self._quad.address

        def enqueue() -> None:
            values = (ctypes.c_uint64(word), ctypes.c_int64(LONGEST_HOLD_NS))
            params = (ctypes.c_void_p * 2)(*(ctypes.addressof(v) for v in values))
            at = ctypes.addressof(params)
            result = driver.launch_kernel(function, 1, 1, 1, 1, 1, 1, 0, stream.handle, at, 0)
            driver.check(result, "cuLaunchKernel")

        stream.queue.give("hold", enqueue)

    def release(self) -> None:
        """Let the stream go on; legal twice."""
        self._quad.words[0] = 1


class CudaHarness:
    """Opens logical devices of the first GPU, or GPUs where several are wanted."""

    def __init__(self, *, gpus: bool = False) -> None:
        self._backend = CudaBackend()
        self._gpus = gpus

    def open(self, count: int, seed: int) -> Sequence[Device]:
        """Open up to ``count`` devices that can be used together."""
        if self._gpus:
            most = min(count, self._backend.device_count())
            return [self._backend.open_device(i) for i in range(most)]
        if count == 1:
            return [self._backend.open_device(0)]
        return [self._backend.open_part(0, i) for i in range(count)]

    def latch(self, stream: Stream) -> Any:
        """Hold a stream by a kernel."""
        assert isinstance(stream, CudaStream)
        return KernelLatch(stream)
