"""Happens-before: what is known to be complete, while items and synchronisation are written down.

For each lane the latest item of every other lane that is known to be complete before whatever comes
next on it. Method: vector clocks (Mattern 1989), over lanes instead of processes. What the host
knows, whatever it enqueues later knows as well, so there is one vector, the host's, and each lane
has what it knows beyond that. Over several machines the host waits wherever bytes cross, so a lane
knows more than the host of its own machine only, and an item costs the same with any number of
machines. The sanitizer has clocks of its own and does not use these.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, Self

import msgspec

from ggsched.passes.order.access_intervals import Conflict
from ggsched.passes.order.enqueue_order import EnqueueOrder

SyncKind = Literal["wait", "barrier", "host_event", "host_stream"]


class Sync(msgspec.Struct, frozen=True, gc=False):
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


Beyond = Mapping[int, int]
"""What a lane knows beyond the host: by lane the latest item. Never changed, so it is shared."""

_NOTHING: Final[Beyond] = {}


class HostClock:
    """What the host knows, and what it knew: versions count what it has learned."""

    __slots__ = ("items", "past", "version")

    def __init__(self, lane_count: int) -> None:
        self.items = [-1] * lane_count
        self.version = 0
        self.past: list[tuple[list[int], list[int]]] = [([0], [-1]) for _ in range(lane_count)]

    def copy(self) -> "HostClock":
        """Return what goes on by itself from here."""
        other = HostClock(0)
        other.items, other.version = list(self.items), self.version
        other.past = [(list(versions), list(items)) for versions, items in self.past]
        return other

    def learn(self, lane: int, item: int) -> None:
        """Note that an item is complete; what was learned before is an earlier version."""
        if item > self.items[lane]:
            self.items[lane] = item
            versions, items = self.past[lane]
            versions.append(self.version + 1)
            items.append(item)

    def at(self, version: int, lane: int) -> int:
        """Return the latest item of a lane that it knew at a version."""
        versions, items = self.past[lane]
        if versions[-1] <= version:
            return items[-1]
        return items[bisect_right(versions, version) - 1]


class AfterItem(msgspec.Struct, frozen=True, gc=False):
    """Everything that is complete once an item is.

    Attributes:
        lane: Lane of the item.
        beyond: What it knows beyond the host.
        host: What the host knows.
        version: When it knew that.
    """

    lane: int
    item: int
    beyond: Beyond
    host: HostClock
    version: int

    def __getitem__(self, lane: int) -> int:
        """Return the latest item of a lane."""
        if lane == self.lane:
            return self.item
        beyond, host = self.beyond.get(lane, -1), self.host.at(self.version, lane)
        return beyond if beyond > host else host

    def covers(self, lane: int, item: int) -> bool:
        """Whether an item of a lane is complete."""
        if lane == self.lane:
            return item <= self.item
        return self.beyond.get(lane, -1) >= item or self.host.at(self.version, lane) >= item

    def known(self) -> list[tuple[int, int]]:
        """Return (lane, item) of all that the host need not know, itself included."""
        return [*self.beyond.items(), (self.lane, self.item)]


class Clocks:
    """Vector clocks of all lanes; items are numbered in program order, -1 is 'nothing'."""

    def __init__(self, lane_count: int, host: int) -> None:
        self._host_lane = host
        self._host = HostClock(lane_count)
        self._beyond: list[Beyond] = [_NOTHING] * lane_count
        self._last = [-1] * lane_count
        self._after: dict[int, AfterItem] = {}

    def copy(self) -> Self:
        """Return clocks that go on by themselves from here."""
        other = type(self)(0, self._host_lane)
        other._host = self._host.copy()
        other._beyond, other._last = list(self._beyond), list(self._last)
        other._after = dict(self._after)
        return other

    def knows(self, lane: int, other: int, item: int) -> bool:
        """Whether the next item of ``lane`` comes after ``item`` of lane ``other``."""
        if self._host.items[other] >= item or (lane == other and self._last[lane] >= item):
            return True
        return self._beyond[lane].get(other, -1) >= item

    def join(self, lane: int, known: Iterable[tuple[int, int]]) -> None:
        """Let the next item of ``lane`` come after items, each given with its lane."""
        host = self._host
        if lane == self._host_lane:
            for other, item in known:
                host.learn(other, item)
            host.version += 1
            return
        beyond, items = self._beyond[lane], host.items
        kept: dict[int, int] | None = None
        for k, item in known:
            if item > items[k] and item > beyond.get(k, -1) and k != lane:
                if kept is None:  # what the host has learned since need not be kept
                    beyond = kept = {of: last for of, last in beyond.items() if last > items[of]}
                kept[k] = item
        if kept is not None:
            self._beyond[lane] = kept

    def enqueue(self, lane: int, item: int) -> None:
        """Put an item on a lane; what the host knows holds for it."""
        self._last[lane] = item
        if lane == self._host_lane:
            self.join(lane, ((lane, item),))
        host = self._host
        self._after[item] = AfterItem(lane, item, self._beyond[lane], host, host.version)

    def after(self, item: int) -> AfterItem:
        """Everything that is complete once ``item`` is."""
        return self._after[item]

    def of_lanes(self, lanes: Iterable[int]) -> list[tuple[int, int]]:
        """Everything that is complete once all of these lanes are, but for what the host knows."""
        known: list[tuple[int, int]] = []
        for lane in lanes:
            known += [*self._beyond[lane].items(), (lane, self._last[lane])]
        return known


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
        return self.clocks.knows(lane_of[item], lane_of[d.earlier], d.earlier)

    def note(self, s: Sync, first: int = 0) -> None:
        """Note what a synchronisation implies in a run whose items count from ``first``."""
        clocks, of_stream = self.clocks, self.lanes.of_stream
        known: Sequence[tuple[int, int]]
        lanes: Sequence[int]
        match s.means:
            case "wait":
                known, lanes = self._event_clock(s.earlier, first), of_stream[s.stream]
            case "barrier":
                known, lanes = clocks.of_lanes(of_stream[s.stream]), of_stream[s.stream]
            case "host_stream":
                known, lanes = clocks.of_lanes(of_stream[s.stream]), (self.lanes.host,)
            case "host_event":
                known, lanes = self._event_clock(s.earlier, first), (self.lanes.host,)
        for lane in lanes:
            clocks.join(lane, known)

    def _event_clock(self, earlier: int, first: int) -> list[tuple[int, int]]:
        """Return what an event right after ``earlier`` covers: all lanes of its stream (EVT-1)."""
        number = first + earlier
        known = self.clocks.after(number).known()
        lanes = self.lanes.of_stream[self.stream_of[earlier]]
        for lane in lanes if len(lanes) > 1 else ():
            if lane == self.lane_of[earlier]:
                continue
            k = bisect_left(self.items[lane], number)
            if k:
                known += self.clocks.after(self.items[lane][k - 1]).known()
        return known
