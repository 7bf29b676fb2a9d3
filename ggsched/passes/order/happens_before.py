"""Happens-before: what is known to be complete, while items and synchronisation are written down.

One vector per lane and one for the host; entry k is the latest item of lane k that is known to be
complete before whatever comes next on that lane. Method: vector clocks (Mattern 1989), over lanes
instead of processes. The sanitizer has clocks of its own and does not use these.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, Self

from ggsched.passes.order.access_intervals import Conflict
from ggsched.passes.order.enqueue_order import EnqueueOrder

Clock = tuple[int, ...]

SyncKind = Literal["wait", "barrier", "host_event", "host_stream"]


class Sync(NamedTuple):
    """One synchronisation that must stand before an item.

    Attributes:
        means: An event wait, a barrier on the stream, or the host waiting for the event or for
            the whole stream.
        stream: Stream that waits; for the host's waits the stream waited for.
        earlier: Item that must be complete, after which an event is recorded.
        dependency: The hazard.
        next_run: Whether the later item belongs to the next run.
        later: The later item.
    """

    means: SyncKind
    stream: int
    earlier: int
    dependency: Conflict
    later: int
    next_run: bool = False


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


class HappensBefore:
    """What the next item of each lane comes after.

    Attributes:
        clocks: Vector clocks of the lanes.
        items: The items of each lane so far.
    """

    def __init__(self, order: EnqueueOrder) -> None:
        self.order, self.lanes = order, order.lanes
        self.lane_of = order.lanes.of_item
        self.stream_of = [item.stream for item in order.items]
        self.clocks = Clocks(self.lanes.count, self.lanes.host)
        self.items: list[list[int]] = [[] for _ in range(self.lanes.count)]

    def copy(self) -> "HappensBefore":
        """Return what goes on by itself from here."""
        other = HappensBefore(self.order)
        other.clocks = self.clocks.copy()
        other.items = [list(items) for items in self.items]
        return other

    def enqueue(self, item: int, number: int) -> None:
        """Put an item on its lane under a number, which is another one in the next run."""
        lane = self.lane_of[item]
        self.clocks.enqueue(lane, number)
        self.items[lane].append(number)

    def covers(self, item: int, d: Conflict) -> bool:
        """Whether ``item``, if it is enqueued now, comes after the earlier item anyway."""
        lane_of = self.lane_of
        return self.clocks.knows(lane_of[item], lane_of[d[4]], d[4])

    def note(self, s: Sync, first: int = 0) -> None:
        """Note what a synchronisation implies in a run whose items count from ``first``."""
        clocks, of_stream = self.clocks, self.lanes.of_stream
        seen: Sequence[int]
        lanes: Sequence[int]
        match s.means:
            case "wait":
                seen, lanes = self._event_clock(s.earlier, first), of_stream[s.stream]
            case "barrier":
                seen, lanes = clocks.of_lanes(of_stream[s.stream]), of_stream[s.stream]
            case "host_stream":
                seen, lanes = clocks.of_lanes(of_stream[s.stream]), (self.lanes.host,)
            case "host_event":
                seen, lanes = self._event_clock(s.earlier, first), (self.lanes.host,)
        for lane in lanes:
            clocks.join(lane, seen)

    def _event_clock(self, earlier: int, first: int) -> Sequence[int]:
        """Return what an event right after ``earlier`` covers: all lanes of its stream (EVT-1)."""
        number = first + earlier
        joined: Sequence[int] = self.clocks.after(number)
        lanes = self.lanes.of_stream[self.stream_of[earlier]]
        for lane in lanes if len(lanes) > 1 else ():
            if lane == self.lane_of[earlier]:
                continue
            k = bisect_left(self.items[lane], number)
            if k:
                after = self.clocks.after(self.items[lane][k - 1])
                joined = list(map(max, joined, after))
        return joined
