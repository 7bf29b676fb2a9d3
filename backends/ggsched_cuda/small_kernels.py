"""Kernels of the plug-in's own that a stream launches: transfers, and copies of fault words."""

import ctypes
from collections.abc import Sequence

from ggsched_cuda import driver
from ggsched_cuda.cuda_context import CudaContext
from ggsched_cuda.deferred import MAX_MOVES, Move
from ggsched_cuda.pinned import Quad
from ggsched_cuda_kernels.sources import OWN


def make_transfers(gpu: CudaContext, handle: int, moves: Sequence[Move]) -> None:
    """Enqueue a kernel that makes up to ``MAX_MOVES`` transfers."""
    function = gpu.programs.function(OWN, (), "move")
    words = (ctypes.c_int64 * (3 * MAX_MOVES))()
    for i, (to, source, nbytes) in enumerate(moves):
        words[3 * i : 3 * i + 3] = [to, source, nbytes]
    params = (ctypes.c_void_p * 1)(ctypes.addressof(words))
    longest = max(m.nbytes for m in moves)
    grid = (max(1, min(128, longest // 8192)), len(moves), 1)
    at = ctypes.addressof(params)
    driver.check(
        driver.launch_kernel(function, *grid, 256, 1, 1, 0, handle, at, 0), "cuLaunchKernel"
    )


def take_snapshot(gpu: CudaContext, handle: int, source: Quad, to: Quad) -> None:
    """Copy fault words in the order of a stream."""
    function = gpu.programs.function(OWN, (), "snapshot")
    values = (ctypes.c_uint64(source.address), ctypes.c_uint64(to.address))
    params = (ctypes.c_void_p * 2)(*(ctypes.addressof(v) for v in values))
    at = ctypes.addressof(params)
    driver.check(driver.launch_kernel(function, 1, 1, 1, 32, 1, 1, 0, handle, at, 0), "snapshot")
