"""Access intervals: the last accesses to each byte of an arena.

For each range its last writer and, since that write, the last reader of each lane. A write joins
the ranges that it covers into one, so their number stays near the number of live values. The idea
is that of tinygrad's dependency tracker, on byte ranges instead of buffers.
"""

import msgspec

from ggsched.ir.intervals import IntervalMap
from ggsched.plan.effects import HazardKind

_NOBODY = -1


class Conflict(msgspec.Struct, frozen=True, gc=False):
    """That an item must follow an earlier one, which touches the same bytes of an arena."""

    kind: HazardKind
    arena: int
    start: int
    end: int
    earlier: int


class _Last:
    """The last accesses to a range.

    Attributes:
        writer: The item that wrote it, or -1.
        readers: Since then the last item of each lane that read it.
    """

    __slots__ = ("readers", "writer")

    def __init__(self, writer: int, readers: dict[int, int]) -> None:
        self.writer = writer
        self.readers = readers

    def copy(self) -> "_Last":
        return _Last(self.writer, dict(self.readers))


class ArenaHistory(IntervalMap[_Last]):
    """Last accesses of one arena. Items are integers in program order."""

    __slots__ = ("_arena",)

    def __init__(self, arena: int = 0) -> None:
        super().__init__(_Last(_NOBODY, {}), _Last.copy)
        self._arena = arena

    def read(self, start: int, end: int, item: int, lane: int, found: list[Conflict]) -> None:
        """Note a read; append a RAW conflict for each last writer."""
        first, last = self.cut(start, end)
        starts, values = self.starts, self.values
        for k in range(first, last):
            at = values[k]
            if at.writer >= 0:
                found.append(Conflict("RAW", self._arena, starts[k], starts[k + 1], at.writer))
            at.readers[lane] = item

    def write(self, start: int, end: int, item: int, lane: int, found: list[Conflict]) -> None:
        """Note a write; append WAR conflicts for readers and WAW for writers without readers."""
        first, last = self.cut(start, end)
        starts, values = self.starts, self.values
        arena = self._arena
        for k in range(first, last):
            at = values[k]
            for reader in at.readers.values():
                if reader != item:
                    found.append(Conflict("WAR", arena, starts[k], starts[k + 1], reader))  # noqa: PERF401  # mostly one
            if at.writer >= 0:
                found.append(Conflict("WAW", arena, starts[k], starts[k + 1], at.writer))
        at = values[first]
        at.writer = item
        if at.readers:
            at.readers = {}
        if last > first + 1:
            del starts[first + 1 : last], values[first + 1 : last]

    def copy(self) -> "ArenaHistory":
        """Return what goes on by itself from here."""
        other = ArenaHistory(self._arena)
        other.starts, other.values = list(self.starts), list(map(_Last.copy, self.values))
        return other

    def is_all_since(self, item: int) -> bool:
        """Whether every access that is remembered is that of an item or of a later one."""
        return all(
            (at.writer == _NOBODY or at.writer >= item)
            and all(reader >= item for reader in at.readers.values())
            for at in self.values
        )
