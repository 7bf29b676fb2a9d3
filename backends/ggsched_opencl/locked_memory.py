"""Host memory whose pages the driver has locked, so that GPUs copy from and to it by themselves."""

import weakref
from collections import defaultdict
from typing import Any, Final

from ggsched.backend.arrays import Array
from ggsched.backend.protocols import HostMemory
from ggsched_opencl import driver
from ggsched_opencl.driver import Handle

MOST_NBYTES: Final = 8 << 20
"""Larger memory is not locked: what is locked is kept for as long as its context."""

_LEAST_NBYTES: Final = 4096


class LockedMemory:
    """Memory of one context that is given out again when nobody has it any more (BUF-6).

    Args:
        context: Of the device.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._free: defaultdict[int, list[Array]] = defaultdict(list)

    def take(self, queue: Handle, nbytes: int) -> HostMemory | None:
        """Return memory, or None if it is too much or the driver has none.

        Args:
            queue: Of the context, by which fresh memory is mapped.
            nbytes: How much.
        """
        if not 0 < nbytes <= MOST_NBYTES:
            return None
        size = max(_LEAST_NBYTES, 1 << (nbytes - 1).bit_length())
        try:
            whole: Array | None = self._free[size].pop()
        except IndexError:
            whole = driver.locked_memory(self._context, queue, size)
        if whole is None:
            return None
        piece = whole[:nbytes]  # whoever has a part of it, keeps it
        weakref.finalize(piece, self._free[size].append, whole).atexit = False
        memory: HostMemory = piece.data
        return memory
