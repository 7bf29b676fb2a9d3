"""What lies where in one memory."""

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class ContentMap(Generic[T]):
    """Whose bytes lie where in one memory, or what they are."""

    __slots__ = ("_owners", "_starts")

    def __init__(self, owner: T) -> None:
        self._starts = [0]
        self._owners = [owner]

    def foreign(self, start: int, end: int, owner: T) -> tuple[T, int, int] | None:
        """Return the first range with another owner, as (owner, first byte, one past the last)."""
        starts, owners = self._starts, self._owners
        k = bisect_right(starts, start) - 1
        while k < len(starts) and starts[k] < end:
            if owners[k] != owner:
                following = starts[k + 1] if k + 1 < len(starts) else end
                return owners[k], max(start, starts[k]), min(end, following)
            k += 1
        return None

    def pieces(self, start: int, end: int) -> Iterator[tuple[T, int, int]]:
        """Yield the ranges of one owner each, as (owner, first byte, one past the last)."""
        starts, owners = self._starts, self._owners
        k = bisect_right(starts, start) - 1
        while k < len(starts) and starts[k] < end:
            following = starts[k + 1] if k + 1 < len(starts) else end
            yield owners[k], max(start, starts[k]), min(end, following)
            k += 1

    def give(self, start: int, end: int, owner: T) -> None:
        """Let the bytes be those of an owner."""
        starts, owners = self._starts, self._owners
        first = bisect_left(starts, start)
        last = bisect_left(starts, end, first)
        if last == len(starts) or starts[last] != end:
            starts.insert(last, end)
            owners.insert(last, owners[last - 1])
        starts[first:last] = [start]
        owners[first:last] = [owner]
