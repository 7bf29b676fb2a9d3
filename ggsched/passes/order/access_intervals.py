"""History: who touched which bytes of an arena last.

An interval map over one arena: disjoint segments that cover it, each with its last writer and,
since that write, the last reader of each lane. A write joins the segments that it covers into
one, so their number stays near the number of live values. Kept as parallel lists with binary
search, whose last entry is an empty segment that stands for the arena's end; the idea is that of
tinygrad's dependency tracker, on byte ranges instead of buffers.
"""

from bisect import bisect_left

Conflict = tuple[str, int, int, int, int]
"""(kind, arena, first byte, one past the last, the earlier item)."""

_NOBODY = -1


class ArenaHistory:
    """Last accesses of one arena. Items are integers in program order."""

    __slots__ = ("_arena", "_readers", "_starts", "_writers")

    def __init__(self, nbytes: int, arena: int = 0) -> None:
        self._arena = arena
        self._starts = [0, nbytes]
        self._writers = [_NOBODY, _NOBODY]
        self._readers: list[dict[int, int] | None] = [None, None]

    def read(self, start: int, end: int, item: int, lane: int, found: list[Conflict]) -> None:
        """Note a read; append a RAW conflict for each last writer."""
        starts, writers, readers = self._starts, self._writers, self._readers
        first = bisect_left(starts, start)
        last = first + 1
        if starts[first] != start or starts[last] != end:
            last = self._cut(first, start, end)
        for k in range(first, last):
            writer = writers[k]
            if writer >= 0:
                found.append(("RAW", self._arena, starts[k], starts[k + 1], writer))
            seen = readers[k]
            if seen is None:
                readers[k] = {lane: item}
            else:
                seen[lane] = item

    def write(self, start: int, end: int, item: int, lane: int, found: list[Conflict]) -> None:
        """Note a write; append WAR conflicts for readers and WAW for writers without readers."""
        starts, writers, readers = self._starts, self._writers, self._readers
        first = bisect_left(starts, start)
        last = first + 1
        if starts[first] != start or starts[last] != end:
            last = self._cut(first, start, end)
        for k in range(first, last):
            arena, low, high = self._arena, starts[k], starts[k + 1]
            seen = readers[k]
            if seen is not None:
                for reader in seen.values():
                    if reader != item:
                        found.append(("WAR", arena, low, high, reader))  # noqa: PERF401  # mostly one
            writer = writers[k]
            if writer >= 0:
                found.append(("WAW", arena, low, high, writer))
        writers[first], readers[first] = item, None
        if last > first + 1:
            del starts[first + 1 : last], writers[first + 1 : last], readers[first + 1 : last]

    def is_all_since(self, item: int) -> bool:
        """Whether every access that is remembered is that of an item or of a later one."""
        return all(w == _NOBODY or w >= item for w in self._writers) and all(
            r >= item for seen in self._readers if seen for r in seen.values()
        )

    def _cut(self, first: int, start: int, end: int) -> int:
        """Make segments begin at ``start``, which is ``first``, and at ``end``; return that one."""
        starts = self._starts
        if starts[first] != start:
            self._insert(first, start)
        last = bisect_left(starts, end, first)
        if starts[last] != end:
            self._insert(last, end)
        return last

    def _insert(self, k: int, start: int) -> None:
        self._starts.insert(k, start)
        self._writers.insert(k, self._writers[k - 1])
        seen = self._readers[k - 1]
        self._readers.insert(k, None if seen is None else dict(seen))
