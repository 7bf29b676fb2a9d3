"""Sync: turn hazards into records, waits, barriers and host syncs, leaving out what is implied.

Items are taken in program order. For each hazard whose earlier item is not yet known to be
complete, the cheapest means that the topology offers is planned: a wait for an event recorded
right after the earlier item; a barrier, where one stream does not keep copies and launches in
order; a wait of the host where devices cannot wait for each other. Hazards are taken latest first,
so a wait that covers an earlier one makes that one vanish. Hazards that reach into the next run
are discharged at the end of this one, because events do not outlive a run, and only where nothing
that the next run waits for anyway implies them.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ggsched.passes.clocks import Clocks
from ggsched.passes.hazards import Dependency, Hazards, Lanes, next_run_hazards
from ggsched.passes.work import NO_STREAM, Work
from ggsched.plan.streams import Streams
from ggsched.topology.model import Topology

Means = Literal["wait", "barrier", "host_event", "host_stream"]


@dataclass(frozen=True, slots=True)
class Sync:
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

    means: Means
    stream: int
    earlier: int
    dependency: Dependency
    later: int
    next_run: bool = False


@dataclass(slots=True)
class SyncPlan:
    """All synchronisation: what stands before each item, and at the end of the run."""

    before: dict[int, list[Sync]] = field(default_factory=dict)
    at_end: list[Sync] = field(default_factory=list)


def plan_sync(
    work: Sequence[Work], lanes: Lanes, hazards: Hazards, streams: Streams, topology: Topology
) -> SyncPlan:
    """Return the synchronisation that makes every hazard ordered."""
    return _Synchroniser(work, lanes, hazards, streams, topology).run()


class _Known:
    """What is known to be complete, while items and synchronisation are written down."""

    def __init__(self, work: Sequence[Work], lanes: Lanes) -> None:
        self.work = work
        self.lanes = lanes
        self.clocks = Clocks(lanes.count, lanes.host)
        self.items: list[list[int]] = [[] for _ in range(lanes.count)]

    def copy(self) -> "_Known":
        other = _Known(self.work, self.lanes)
        other.clocks = self.clocks.copy()
        other.items = [list(items) for items in self.items]
        return other

    def enqueue(self, item: int, number: int) -> None:
        """Put an item on its lane under a number, which is another one in the next run."""
        lane = self.lanes.of_item[item]
        self.clocks.enqueue(lane, number)
        self.items[lane].append(number)

    def covers(self, item: int, d: Dependency) -> bool:
        """Whether ``item``, if it is enqueued now, comes after the earlier item anyway."""
        of_item = self.lanes.of_item
        return self.clocks.knows(of_item[item], of_item[d[4]], d[4])

    def note(self, s: Sync, first: int = 0) -> None:
        """Note what a synchronisation implies in a run whose items count from ``first``."""
        clocks, of_stream = self.clocks, self.lanes.of_stream
        match s.means:
            case "barrier":
                seen, lanes = clocks.of_lanes(of_stream[s.stream]), of_stream[s.stream]
            case "host_stream":
                seen, lanes = clocks.of_lanes(of_stream[s.stream]), (self.lanes.host,)
            case "host_event":
                seen, lanes = self._event_clock(s.earlier, first), (self.lanes.host,)
            case "wait":
                seen, lanes = self._event_clock(s.earlier, first), of_stream[s.stream]
        for lane in lanes:
            clocks.join(lane, seen)

    def _event_clock(self, earlier: int, first: int) -> list[int]:
        """Return what an event right after ``earlier`` covers: all lanes of its stream (EVT-1)."""
        number = first + earlier
        joined = list(self.clocks.after(number))
        for lane in self.lanes.of_stream[self.work[earlier].stream]:
            if lane == self.lanes.of_item[earlier]:
                continue
            k = bisect_left(self.items[lane], number)
            if k:
                after = self.clocks.after(self.items[lane][k - 1])
                joined = [max(a, b) for a, b in zip(joined, after, strict=True)]
        return joined


class _Synchroniser:
    def __init__(
        self,
        work: Sequence[Work],
        lanes: Lanes,
        hazards: Hazards,
        streams: Streams,
        topology: Topology,
    ) -> None:
        self.work = work
        self.lanes = lanes
        self.hazards = hazards
        self.device_of = [s.device for s in streams.streams]
        self.topology = topology
        self.known = _Known(work, lanes)
        self.result = SyncPlan()

    def run(self) -> SyncPlan:
        known = self.known
        for item, dependencies in enumerate(self.hazards.within):
            if dependencies:
                for d in sorted(dependencies, key=_latest_first):
                    if not known.covers(item, d):
                        sync = self._discharge(item, d)
                        self.result.before.setdefault(item, []).append(sync)
            known.enqueue(item, item)
        self._close_the_loop()
        return self.result

    def _close_the_loop(self) -> None:
        """Discharge the hazards between this run and the next at the end of this one."""
        knows, host = self.known.clocks.knows, self.lanes.host
        if all(not on or knows(host, k, on[-1]) for k, on in enumerate(self.known.items)):
            return  # the host has seen everything end; what it enqueues later comes after
        at_end = self.known.copy()
        crossing = next_run_hazards(self.work, self.lanes, self.hazards)
        for item, d in sorted(crossing, key=lambda pair: _latest_first(pair[1])):
            if not self.known.covers(item, d):
                self.result.at_end.append(self._discharge(item, d, next_run=True))
        self._leave_out_at_end(at_end, crossing)

    def _leave_out_at_end(self, known: _Known, crossing: Sequence[tuple[int, Dependency]]) -> None:
        """Leave out, dearest first, what the next run's own synchronisation implies."""
        by_item: dict[int, list[Dependency]] = {}
        for item, d in crossing:
            by_item.setdefault(item, []).append(d)
        for s in sorted(self.result.at_end, key=lambda s: not s.means.startswith("host")):
            fewer = [other for other in self.result.at_end if other is not s]
            if self._is_enough(fewer, known.copy(), by_item):
                self.result.at_end = fewer

    def _is_enough(
        self, at_end: Sequence[Sync], known: _Known, crossing: Mapping[int, Sequence[Dependency]]
    ) -> bool:
        """Follow the next run: whether these leave no hazard between the two runs."""
        for s in at_end:
            known.note(s)
        first = len(self.work)
        for item in range(first):
            for s in self.result.before.get(item, ()):
                known.note(s, first)
            if not all(known.covers(item, d) for d in crossing.get(item, ())):
                return False
            known.enqueue(item, first + item)
        return True

    def _discharge(self, item: int, d: Dependency, next_run: bool = False) -> Sync:
        """Choose the means for one hazard and note what it implies."""
        earlier = d[4]
        src, dst = self.work[earlier].stream, self.work[item].stream
        means = self._means(src, dst)
        stream = src if means.startswith("host") else dst
        sync = Sync(means, stream, earlier, d, item, next_run)
        self.known.note(sync)
        return sync

    def _means(self, src: int, dst: int) -> Means:
        """Return how stream ``dst`` (or the host) can wait for an item of stream ``src``."""
        devices = self.topology.devices
        if src == dst:
            order = devices[self.device_of[src]].copy_order
            if order == "barrier":
                return "barrier"
        recorder = self.device_of[src]
        if not devices[recorder].has_events:
            return "host_stream"
        if dst == NO_STREAM or src == dst:
            return "host_event" if dst == NO_STREAM else "host_stream"
        waiter = self.device_of[dst]
        if waiter == recorder:
            return "wait"
        if not devices[waiter].has_events or self.topology.wait_path(waiter, recorder) == "host":
            return "host_event"
        return "wait"


def _latest_first(d: Dependency) -> int:
    return -d[4]
