"""Device memory that is poison until it is written, and again when it is freed."""

from bisect import bisect_right
from collections.abc import Hashable
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from ggsched.backend.checks import closed_error
from ggsched.backend.protocols import Device, HostMemory
from ggsched.errors import UsageError

POISON: Final = 0xFF
"""NaN in every float type, and no row number."""

_ENDS: Final = 1 << 26

Bytes = npt.NDArray[np.uint8]


class MemoryWorld(Protocol):
    """What buffers report to their world."""

    def free(self, buffer: "SimBuffer") -> None:
        """Take note that a buffer is freed."""

    def report_use_after_free(self, buffer: "SimBuffer") -> None:
        """Take note that a step uses a buffer that was freed."""

    def touch(self, space: Hashable, start: int, end: int, *, writes: bool) -> None:
        """Take note that the step under way uses bytes."""


class MemoryDevice(Device, Protocol):
    """A device of a world."""

    @property
    def world(self) -> MemoryWorld:
        """The world."""


def poison(array: Bytes) -> None:
    """Fill memory with poison; of gigabytes the first and last 64 MiB: all takes seconds."""
    for part in (array,) if array.nbytes <= 4 * _ENDS else (array[:_ENDS], array[-_ENDS:]):
        part.fill(POISON)


class SimBuffer:
    """Bytes of one device (BUF-1..4).

    Attributes:
        number: Number of the allocation in the world.
        array: The bytes. They outlive ``close``, as poison.
        is_imported: Whether they are borrowed host memory, not to be written.
        is_closed: Whether they have been freed.
        space: Name of the memory for ``SchedulePolicy.touch``.
        base: First byte there.
    """

    def __init__(
        self,
        device: MemoryDevice,
        number: int,
        array: Bytes,
        *,
        is_imported: bool = False,
        place: tuple[str, int] | None = None,
    ) -> None:
        self.nbytes = array.nbytes
        self.device = device
        self.number = number
        self.array = array
        self.is_imported = is_imported
        self.is_closed = False
        self.space, self.base = place or (f"m{number}", 0)

    def host_view(self) -> HostMemory:
        """Return the bytes themselves (BUF-4).

        Raises:
            UsageError: the memory is not host memory, or it was freed.
        """
        if self.is_closed:
            raise closed_error("buffer")
        if not self.device.facts.is_host:
            raise UsageError(
                "the memory is not host memory", where=self.device.facts.name, hint="download it"
            )
        view: HostMemory = self.array.data
        return view

    def close(self) -> None:
        """Release the memory: from now on it is poison. Legal twice (ERR-3)."""
        if not self.is_closed:
            self.is_closed = True
            self.device.world.free(self)
            if not self.is_imported:
                poison(self.array)

    def read(self, offset: int, nbytes: int) -> Bytes:
        """Let the step that is under way read bytes; return a view of them."""
        self._touch(offset, nbytes, writes=False)
        return self.array[offset : offset + nbytes]

    def write(self, offset: int, nbytes: int) -> Bytes:
        """Let the step that is under way write bytes; return a view of them."""
        self._touch(offset, nbytes, writes=True)
        return self.array[offset : offset + nbytes]

    def label(self, offset: int, nbytes: int) -> str:
        """Return e.g. ``m3[64:128]``."""
        return f"{self.space}[{self.base + offset}:{self.base + offset + nbytes}]"

    def _touch(self, offset: int, nbytes: int, *, writes: bool) -> None:
        world = self.device.world
        if self.is_closed:
            world.report_use_after_free(self)
        start = self.base + offset
        world.touch(self.space, start, start + nbytes, writes=writes)


class HostPlaces:
    """Names for host memory, the same in every execution of a deterministic program.

    Memory is known by the object that owns it. Owners are numbered when they are first seen and
    kept alive, so that an address means one thing only. Bytes count from where an owner was first
    seen, because where its own bytes begin may be a matter of alignment.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._known: list[tuple[int, int, str, Any]] = []  # origin, end, name, owner
        self._count = 0

    def add(self, array: Bytes, name: str) -> None:
        """Give the bytes of an array a name."""
        start = array.ctypes.data
        self._insert(start, start + array.nbytes, (start, name, array))

    def find(self, memory: HostMemory) -> tuple[str, int]:
        """Return the name of some memory and where in it the first byte is."""
        start = np.frombuffer(memory, np.uint8).ctypes.data if memory.nbytes else 0
        at = bisect_right(self._starts, start) - 1
        if at >= 0:
            origin, last, name, _ = self._known[at]
            if start + memory.nbytes <= last:
                return name, start - origin
        owner = _owner(memory)
        first, last = _extent(owner, start, memory.nbytes)
        name = f"h{self._count}"
        self._count += 1
        self._insert(first, last, (start, name, owner))
        return name, 0

    def _insert(self, start: int, end: int, named: tuple[int, str, Any]) -> None:
        origin, name, owner = named
        at = bisect_right(self._starts, start)
        self._starts.insert(at, start)
        self._known.insert(at, (origin, end, name, owner))


def _owner(memory: HostMemory) -> Any:
    """Return the object that owns the bytes of a view."""
    owner: Any = memory
    while True:
        inner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
        if inner is None:
            return owner
        owner = inner


def _extent(owner: Any, start: int, nbytes: int) -> tuple[int, int]:
    """Return the addresses of an owner's bytes, those requested among them."""
    if isinstance(owner, np.ndarray) and owner.flags.c_contiguous:
        first = owner.ctypes.data
        if first <= start and start + nbytes <= first + owner.nbytes:
            return first, first + owner.nbytes
    return start, start + nbytes
