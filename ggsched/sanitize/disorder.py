"""Program order: are the events listed in an order that means the same as the graph?

The nodes mean what they do when they run one after another, with the transfers before the split
that needs them. Commands may be listed in another order only where they touch no common bytes.
"""

from itertools import islice
from operator import le
from typing import Final

from ggsched.ir.intervals import IntervalMap
from ggsched.sanitize.events import Access, Event, EventStream, Place
from ggsched.sanitize.report import Finding

_START: Final[Place] = (-1, 0, 0)

_Last = tuple[Place, int]
"""A place in the program, and the index of the event."""


def find_disorder(stream: EventStream) -> list[Finding]:
    """Return events that are listed before what they must follow."""
    places = [place for e in stream.events for s in e.steps if (place := s.place) is not None]
    if all(map(le, places, islice(places, 1, None))):
        return []
    steps = [(i, event, step) for i, event in enumerate(stream.events) for step in event.steps]
    found: dict[tuple[int, int], Finding] = {}
    maps = {i: _Latest() for i in stream.memories}
    for i, event, step in steps:
        for access in step.accesses():
            if access.mode == "x" or step.place is None:
                continue
            place, other = maps[access.memory].touch(access, (step.place, i))
            first = stream.events[max(other, 0)]
            if place > step.place and (first.source, event.source) not in found:
                finding = _finding(stream, event, first, access)
                found[first.source, event.source] = finding
    return list(found.values())


def _finding(stream: EventStream, event: Event, other: Event, access: Access) -> Finding:
    late, early = stream.names.ref(event), stream.names.ref(other)
    memory, start, end = access[:3]
    where = stream.names.bytes_of(memory, start, end)
    what = f"{late} comes after {early}, but before it in the program; both touch {where}"
    return Finding(
        "disorder", what, event.source, f"list {late} before {early}", memory, start, end
    )


class _Latest:
    """For the bytes of one memory the writer and the reader that come last in the program."""

    __slots__ = ("_map",)

    def __init__(self) -> None:
        self._map: IntervalMap[tuple[_Last, _Last]] = IntervalMap(((_START, -1), (_START, -1)))

    def touch(self, access: Access, me: _Last) -> _Last:
        """Note an access; return the last in the program of those that it must follow."""
        first, last = self._map.cut(access.start, access.end)
        values = self._map.values
        latest = (_START, -1)
        for k in range(first, last):
            writer, reader = values[k]
            latest = max(latest, writer)
            if access.mode == "r":
                values[k] = writer, max(me, reader)
            else:
                latest = max(latest, reader)
                values[k] = max(me, writer), (_START, -1)
        return latest
