"""Copies in two pieces; the destination is poison from the first on (CPY-2).

Each piece reads its part of the source when it is its turn, so the source of an upload is read as
late as that (CPY-4), and the target of a download is torn until the end (CPY-5).
"""

from collections.abc import Callable

import numpy as np

from ggsched.backend.protocols import HostMemory
from ggsched_testing.sim.engine import Step
from ggsched_testing.sim.memory import POISON, Bytes, SimBuffer
from ggsched_testing.sim.state import SimOwner


def pieces(nbytes: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return two pieces, as (first byte, one past the last); the cut goes through a number."""
    cut = nbytes // 2 - (nbytes >= 8)
    return (0, cut), (cut, nbytes)


def upload(device: SimOwner, source: HostMemory, target: SimBuffer, offset: int) -> list[Step]:
    """Return the steps of an upload."""
    memory = _HostBytes(device, source)
    nbytes = source.nbytes
    if device.facts.snapshots_uploads:
        snapshot = memory.read(0, nbytes).copy()
        return _steps(nbytes, lambda a, b: snapshot[a:b], target, offset)
    return _steps(nbytes, memory.read, target, offset)


def copy(
    source: SimBuffer, source_offset: int, target: SimBuffer, offset: int, nbytes: int
) -> list[Step]:
    """Return the steps of a copy between buffers."""

    def read(first: int, last: int) -> Bytes:
        return source.read(source_offset + first, last - first)

    return _steps(nbytes, read, target, offset)


def fill(target: SimBuffer, offset: int, nbytes: int, pattern: bytes) -> list[Step]:
    """Return the steps of a fill."""
    content = np.frombuffer(pattern * (nbytes // len(pattern)), np.uint8)
    return _steps(nbytes, lambda a, b: content[a:b], target, offset)


def download(
    device: SimOwner, source: SimBuffer, source_offset: int, target: HostMemory
) -> list[Step]:
    """Return the steps of a download."""
    memory = _HostBytes(device, target)

    def read(first: int, last: int) -> Bytes:
        return source.read(source_offset + first, last - first)

    return _steps(target.nbytes, read, memory, 0)


class _HostBytes:
    """Host memory that a command borrows."""

    def __init__(self, device: SimOwner, memory: HostMemory) -> None:
        self._world = device.world
        self._memory = memory  # keeps it alive
        empty = np.empty(0, np.uint8)
        self._array: Bytes = np.frombuffer(memory, np.uint8) if memory.nbytes else empty
        self._place = self._world.place_of(memory)

    def read(self, first: int, last: int) -> Bytes:
        """Return bytes of it as they are now."""
        space, base = self._place
        self._world.touch(space, base + first, base + last, writes=False)
        return self._array[first:last]

    def write(self, offset: int, nbytes: int) -> Bytes:
        """Return bytes of it, to be written."""
        space, base = self._place
        self._world.touch(space, base + offset, base + offset + nbytes, writes=True)
        return self._array[offset : offset + nbytes]


def _steps(
    nbytes: int, read: Callable[[int, int], Bytes], target: SimBuffer | _HostBytes, offset: int
) -> list[Step]:
    (_, cut), _ = pieces(nbytes)

    def begin() -> None:
        first = read(0, cut).copy()
        everything = target.write(offset, nbytes)
        everything.fill(POISON)
        everything[:cut] = first

    def end() -> None:
        target.write(offset + cut, nbytes - cut)[:] = read(cut, nbytes)

    return [begin, end]
