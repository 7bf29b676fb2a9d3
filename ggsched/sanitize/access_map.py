"""The last accesses to each byte: enough to detect a race on every byte that has one.

Lanes are in order by themselves, and whoever is ordered after the last write is ordered after
everything that this write was ordered after. So the last write to a byte and, since then, the
last read of each lane are all that has to be kept.
"""

from ggsched.ir.intervals import IntervalMap
from ggsched.sanitize.order import MASK, SHIFT, Clock, Mark

Clashes = list[tuple[bool, Mark, int, int]]
"""(whether the earlier access reads, the earlier access, first byte, one past the last)."""


class _Last:
    """The last write, and the last read of each lane since then."""

    __slots__ = ("readers", "writer")

    def __init__(self, writer: Mark | None, readers: dict[int, int] | None = None) -> None:
        self.writer = writer
        self.readers = readers

    def copy(self) -> "_Last":
        return _Last(self.writer, None if self.readers is None else dict(self.readers))


class AccessMap:
    """Last accesses to the bytes of one address space."""

    __slots__ = ("_map",)

    def __init__(self) -> None:
        self._map = IntervalMap(_Last(None), _Last.copy)

    def read(self, start: int, end: int, mark: Mark, clock: Clock, found: Clashes) -> None:
        """Note a read; add the write before it if that is not known to be done."""
        first, last = self._map.cut(start, end)
        lane, number = mark
        values = self._map.values
        for k in range(first, last):
            here = values[k]
            writer = here.writer
            if writer is not None and writer[1] > clock[writer[0] >> SHIFT][writer[0] & MASK]:
                found.append((False, writer, *self._range(k, end)))
            if here.readers is None:
                here.readers = {lane: number}
            else:
                here.readers[lane] = number

    def write(self, start: int, end: int, mark: Mark, clock: Clock, found: Clashes) -> None:
        """Note a write; add the write and the reads before it that are not known to be done."""
        first, last = self._map.cut(start, end)
        values = self._map.values
        for k in range(first, last):
            here = values[k]
            writer = here.writer
            if writer is not None and writer[1] > clock[writer[0] >> SHIFT][writer[0] & MASK]:
                found.append((False, writer, *self._range(k, end)))
            if here.readers is not None:
                for lane, number in here.readers.items():
                    if number > clock[lane >> SHIFT][lane & MASK]:
                        found.append((True, (lane, number), *self._range(k, end)))
        if last - first == 1:
            values[first].writer = mark
            values[first].readers = None
        else:
            self._map.put(start, end, _Last(mark))

    def _range(self, k: int, end: int) -> tuple[int, int]:
        starts = self._map.starts
        following = starts[k + 1] if k + 1 < len(starts) else end
        return starts[k], min(end, following)
