"""Who touched which bytes last: enough to notice a race wherever there is one.

Lanes are in order by themselves, and whoever is ordered after the last write is ordered after
everything that this write was ordered after. So the last write to a byte and, since then, the
last read of each lane are all that has to be kept.
"""

from bisect import bisect_left

from ggsched.sanitize.clock import Clock

Mark = tuple[int, int]
"""A piece of work: its lane and its number there."""

Found = list[tuple[bool, Mark, int, int]]
"""(whether the earlier access reads, the earlier access, first byte, one past the last)."""


class AccessMap:
    """Last accesses to one memory: parallel lists over ranges that follow each other."""

    __slots__ = ("_readers", "_starts", "_writer")

    def __init__(self) -> None:
        self._starts = [0]
        self._writer: list[Mark | None] = [None]
        self._readers: list[dict[int, int] | None] = [None]

    def read(self, start: int, end: int, mark: Mark, clock: Clock, found: Found) -> None:
        """Note a read; add the write before it if that is not known to be done."""
        first, last = self._cut(start, end)
        lane, number = mark
        for k in range(first, last):
            writer = self._writer[k]
            if writer is not None and writer[1] > clock[writer[0]]:
                found.append((False, writer, *self._range(k, end)))
            readers = self._readers[k]
            if readers is None:
                self._readers[k] = {lane: number}
            else:
                readers[lane] = number

    def write(self, start: int, end: int, mark: Mark, clock: Clock, found: Found) -> None:
        """Note a write; add the write and the reads before it that are not known to be done."""
        first, last = self._cut(start, end)
        for k in range(first, last):
            writer, readers = self._writer[k], self._readers[k]
            if writer is not None and writer[1] > clock[writer[0]]:
                found.append((False, writer, *self._range(k, end)))
            if readers is not None:
                for lane, number in readers.items():
                    if number > clock[lane]:
                        found.append((True, (lane, number), *self._range(k, end)))
        if last - first == 1:
            self._writer[first] = mark
            self._readers[first] = None
        else:
            self._starts[first:last] = [start]
            self._writer[first:last] = [mark]
            self._readers[first:last] = [None]

    def _range(self, k: int, end: int) -> tuple[int, int]:
        following = self._starts[k + 1] if k + 1 < len(self._starts) else end
        return self._starts[k], min(end, following)

    def _cut(self, start: int, end: int) -> tuple[int, int]:
        """Let ranges begin at both places; return the indices in between."""
        starts = self._starts
        first = bisect_left(starts, start)
        if first == len(starts) or starts[first] != start:
            self._insert(first, start)
        last = bisect_left(starts, end, first)
        if last == len(starts) or starts[last] != end:
            self._insert(last, end)
        return first, last

    def _insert(self, k: int, at: int) -> None:
        readers = self._readers[k - 1]
        self._starts.insert(k, at)
        self._writer.insert(k, self._writer[k - 1])
        self._readers.insert(k, None if readers is None else dict(readers))
