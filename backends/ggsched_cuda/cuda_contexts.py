"""The GPUs of this process: each is opened once, and kept until the process ends.

A GPU has a pool of memory, streams and machine code of its own, and CUDA gives pools of a process
back no sooner than at its end. So schedulers that open and close devices take turns with one.
"""

import threading
from itertools import permutations
from typing import Final

from ggsched_cuda import driver
from ggsched_cuda.cuda_context import CudaContext, EnqueuedWork
from ggsched_cuda.driver import DeviceInfo
from ggsched_cuda.pinned import PinnedMemory


class CudaContexts:
    """GPUs by number, and what all of them share: host memory, what is enqueued."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, CudaContext] = {}
        self._pinned = PinnedMemory()
        self._work = EnqueuedWork()

    def open(self, found: DeviceInfo, count: int) -> CudaContext:
        """Return a GPU of ``count``; the same one each time.

        Raises:
            CudaError: it cannot be used, or can no longer be.
        """
        with self._lock:
            gpu = self._open.get(found.ordinal)
            if gpu is None:
                mine, others = found.ordinal, [i for i in range(count) if i != found.ordinal]
                peers = [i for i in others if driver.can_reach(i, mine)]
                all_reach = all(driver.can_reach(a, b) for a, b in permutations(range(count), 2))
                gpu = self._open[mine] = CudaContext(
                    found, peers, self._pinned, self._work, reads_peers=all_reach
                )
            gpu.require_use()
            return gpu


CUDA_CONTEXTS: Final = CudaContexts()
