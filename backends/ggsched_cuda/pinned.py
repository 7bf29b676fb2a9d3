"""Page-locked host memory: what callers get, what transfers are staged through, single words."""

import ctypes
import threading
import weakref
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ggsched.backend.host_borrow import address_of
from ggsched.backend.protocols import HostMemory
from ggsched_cuda import driver

SMALLEST: Final = 4096
EXACT_NBYTES: Final = 16 << 20
"""Longer blocks are multiples of this: a power of two would waste up to half of it."""

WORDS: Final = SMALLEST // 16
"""Groups of four words in a block."""


class PinnedBlock:
    """A piece of pinned memory.

    Attributes:
        address: Where it starts, for the host and for every GPU.
        nbytes: Its length, a power of two up to ``EXACT_NBYTES``.
    """

    __slots__ = ("address", "nbytes")

    def __init__(self, address: int, nbytes: int) -> None:
        self.address = address
        self.nbytes = nbytes


class PinnedMemory:
    """Blocks of pinned memory, kept for reuse: locking a page takes a third of a microsecond.

    Giving memory back to the system would wait for all work of the GPU, so that is never done.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._idle: defaultdict[int, list[PinnedBlock]] = defaultdict(list)
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}
        self._quads: list[Quad] = []

    def take(self, nbytes: int) -> PinnedBlock:
        """Return a block of ``nbytes`` or more.

        Raises:
            OutOfDeviceMemory: the system gives no more.
        """
        size = _block_nbytes(nbytes)
        with self._lock:
            idle = self._idle[size]
            if idle:
                return idle.pop()
            block = PinnedBlock(driver.take_pinned(size), size)
            self._know(block.address, size)
            return block

    def give(self, block: PinnedBlock) -> None:
        """Take a block back, which no command uses any more."""
        with self._lock:
            self._idle[block.nbytes].append(block)

    def view(self, nbytes: int) -> HostMemory:
        """Return writable pinned memory that lives as long as the view."""
        if not nbytes:
            return memoryview(bytearray())
        block = self.take(nbytes)
        array = np.frombuffer(_bytes_at(block.address, nbytes), np.uint8)
        weakref.finalize(array, self.give, block).atexit = False
        view: HostMemory = array.data
        return view

    def lock(self, memory: HostMemory) -> Callable[[], None] | None:
        """Lock pages of memory of others; return how to unlock them, or None if they cannot be."""
        address, nbytes = address_of(memory), memory.nbytes
        with self._lock:
            if self.holds(address, nbytes) or not driver.lock_pages(address, nbytes):
                return None
            self._know(address, nbytes)
        return lambda: self._unlock(address)

    def _unlock(self, address: int) -> None:
        with self._lock:
            self._starts = [start for start in self._starts if start != address]
            del self._ends[address]
            driver.unlock_pages(address)

    def _know(self, address: int, nbytes: int) -> None:
        self._ends[address] = address + nbytes
        self._starts = sorted([*self._starts, address])  # replaced: ``holds`` takes no lock

    def holds(self, address: int, nbytes: int) -> bool:
        """Whether bytes of the host lie in one of these blocks, or in pages that were locked."""
        starts = self._starts
        i = bisect_right(starts, address)
        return i > 0 and address + nbytes <= self._ends.get(starts[i - 1], 0)

    def take_quad(self) -> "Quad":
        """Return four words, all zero."""
        with self._lock:
            if not self._quads:
                block = self.take(SMALLEST)
                self._quads = [Quad(block.address + 16 * i) for i in range(WORDS)]
            quad = self._quads.pop()
        quad.words[:] = 0
        return quad

    def give_quad(self, quad: "Quad") -> None:
        """Take four words back."""
        with self._lock:
            self._quads.append(quad)


class Quad:
    """Four words that the host and kernels both see.

    Attributes:
        address: Where they are.
        words: An i32 array over them.
    """

    __slots__ = ("address", "words")

    def __init__(self, address: int) -> None:
        self.address = address
        self.words: npt.NDArray[np.int32] = np.frombuffer(_bytes_at(address, 16), np.int32)


def _block_nbytes(nbytes: int) -> int:
    if nbytes > EXACT_NBYTES:
        return -(-nbytes // EXACT_NBYTES) * EXACT_NBYTES
    return max(SMALLEST, 1 << (nbytes - 1).bit_length())


def _bytes_at(address: int, nbytes: int) -> Any:
    return (ctypes.c_uint8 * nbytes).from_address(address)


class HostCalls:
    """Copies between two places in host memory, made by the driver in the order of a stream."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[int, int, int, bool, Any]] = {}
        self._next = 0
        self._lock = threading.Lock()
        self._function = driver.HOST_CALL(self._run)

    def enqueue(
        self, stream: int, to: int, source: int, nbytes: int, holds: Any, *, often: bool
    ) -> Callable[[], None]:
        """Copy on a stream, from and to addresses.

        Args:
            to: Where to.
            source: Where from.
            nbytes: How much.
            holds: What has to live until then.
            often: Whether it runs more than once, as in a graph.

        Returns:
            A call that forgets it, for those that run often.
        """
        with self._lock:
            self._next += 1
            key = self._next
            self._copies[key] = (to, source, nbytes, often, holds)
        driver.enqueue_host_call(stream, self._function, key)
        return lambda: self._forget(key)

    def _run(self, key: int) -> None:
        to, source, nbytes, often, _ = self._copies[key]
        ctypes.memmove(to, source, nbytes)
        if not often:
            del self._copies[key]

    def _forget(self, key: int) -> None:
        self._copies.pop(key, None)
