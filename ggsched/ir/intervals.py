"""Intervals: ranges of bytes that overlap, and a map from ranges to values.

A leaf that planner and checker may both use: it holds what it is given and decides nothing.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class ByteRange(Protocol):
    """Bytes ``[offset, end)`` of some memory."""

    @property
    def offset(self) -> int:
        """First byte."""

    @property
    def end(self) -> int:
        """One past the last."""


def overlap(a: ByteRange, b: ByteRange) -> bool:
    """Whether two ranges of the same memory have a byte in common."""
    return a.offset < b.end and b.offset < a.end


class IntervalMap(Generic[T]):
    """A value for each byte of one memory, stored for segments of consecutive bytes.

    Segment ``k`` begins at ``starts[k]`` and has ``values[k]``; it ends where the next one begins,
    and the last one has no end. Segments stay as they were cut until ``put`` joins them. Both lists
    may be read, and values that can change may be changed in place.

    Args:
        value: The value of all bytes so far.
        copy: Returns the value of the second part of a segment that is cut in two. By default both
            parts have the same object.
    """

    __slots__ = ("_copy", "starts", "values")

    def __init__(self, value: T, copy: Callable[[T], T] | None = None) -> None:
        self.starts = [0]
        self.values = [value]
        self._copy = copy

    def copy(self) -> "IntervalMap[T]":
        """Return a map of its own, with copies of the values."""
        other = IntervalMap(self.values[0], self._copy)
        other.starts = list(self.starts)
        other.values = list(self.values if self._copy is None else map(self._copy, self.values))
        return other

    def cut(self, start: int, end: int) -> tuple[int, int]:
        """Let segments begin at ``start`` and ``end``; return the indices of those in between."""
        starts = self.starts
        if starts[0] == start and len(starts) > 1 and starts[1] == end:  # as of a whole memory
            return 0, 1
        first = bisect_left(starts, start)
        if first == len(starts) or starts[first] != start:
            self._insert(first, start)
        last = first + 1
        if last < len(starts) and starts[last] == end:  # mostly the segment is there already
            return first, last
        last = bisect_left(starts, end, first)
        if last == len(starts) or starts[last] != end:
            self._insert(last, end)
        return first, last

    def put(self, start: int, end: int, value: T) -> None:
        """Let the bytes ``[start, end)`` have one value, as one segment."""
        first, last = self.cut(start, end)
        if first < last:
            self.starts[first:last] = [start]
            self.values[first:last] = [value]

    def pieces(self, start: int, end: int) -> Iterator[tuple[int, int, T]]:
        """Yield (first byte, one past the last, value) of each segment within ``[start, end)``."""
        starts, values = self.starts, self.values
        k = bisect_right(starts, start) - 1
        while start < end:
            following = min(starts[k + 1], end) if k + 1 < len(starts) else end
            yield start, following, values[k]
            start, k = following, k + 1

    def _insert(self, k: int, start: int) -> None:
        value = self.values[k - 1]
        self.starts.insert(k, start)
        self.values.insert(k, value if self._copy is None else self._copy(value))
