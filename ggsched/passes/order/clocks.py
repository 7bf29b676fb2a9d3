"""Clocks: what each lane is known to have waited for, while the plan is written down.

One vector per lane and one for the host; entry k is the latest item of lane k that is known to be
complete before whatever comes next on that lane. Method: vector clocks (Mattern 1989), over lanes
instead of processes. The sanitizer has clocks of its own and does not use these.
"""

from collections.abc import Iterable, Sequence
from typing import Self

Clock = tuple[int, ...]


class Clocks:
    """Vector clocks of all lanes; items are numbered in program order, -1 is 'nothing'."""

    def __init__(self, lane_count: int, host: int) -> None:
        self._now = [[-1] * lane_count for _ in range(lane_count)]
        self._host = host
        self._host_changed = [False] * lane_count
        self._after: dict[int, Clock] = {}

    def copy(self) -> Self:
        """Return clocks that go on by themselves from here."""
        other = type(self)(len(self._now), self._host)
        other._now = [list(now) for now in self._now]
        other._host_changed = list(self._host_changed)
        other._after = dict(self._after)
        return other

    def knows(self, lane: int, other: int, item: int) -> bool:
        """Whether the next item of ``lane`` comes after ``item`` of lane ``other``."""
        return self._now[lane][other] >= item or self._now[self._host][other] >= item

    def join(self, lane: int, clock: Sequence[int]) -> None:
        """Let the next item of ``lane`` come after everything in ``clock``."""
        now = self._now[lane]
        for k, item in enumerate(clock):
            if item > now[k]:
                now[k] = item
        if lane == self._host:
            self._host_changed = [True] * len(self._now)

    def enqueue(self, lane: int, item: int) -> None:
        """Put an item on a lane; what the host knows holds for it."""
        now = self._now[lane]
        if self._host_changed[lane]:
            self._host_changed[lane] = False
            for k, known in enumerate(self._now[self._host]):
                if known > now[k]:
                    now[k] = known
        now[lane] = item
        self._after[item] = tuple(now)

    def after(self, item: int) -> Clock:
        """Everything that is complete once ``item`` is."""
        return self._after[item]

    def of_lanes(self, lanes: Iterable[int]) -> list[int]:
        """Everything that is complete once all of these lanes are."""
        joined = [-1] * len(self._now)
        for lane in lanes:
            for k, item in enumerate(self._now[lane]):
                if item > joined[k]:
                    joined[k] = item
        return joined
