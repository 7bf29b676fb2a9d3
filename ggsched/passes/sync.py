"""Sync: turn hazards into records, waits, barriers and host syncs, leaving out what is implied.

Items are taken in program order. For each hazard whose earlier item is not yet known to be
complete, the cheapest means that the topology offers is planned: a wait for an event recorded
right after the earlier item; a barrier, where one stream does not keep copies and launches in
order; a wait of the host where devices cannot wait for each other. Hazards are taken latest first,
so a wait that covers an earlier one makes that one vanish. Hazards that reach into the next run
are discharged at the end of this one, because events do not outlive a run.
"""

from bisect import bisect_left
from collections.abc import Sequence
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
        self.clocks = Clocks(lanes.count, lanes.host)
        self.items: list[list[int]] = [[] for _ in range(lanes.count)]
        self.result = SyncPlan()

    def run(self) -> SyncPlan:
        clocks, lane_of = self.clocks, self.lanes.of_item
        for item, dependencies in enumerate(self.hazards.within):
            lane = lane_of[item]
            if dependencies:
                for d in sorted(dependencies, key=_latest_first):
                    if not clocks.knows(lane, lane_of[d[4]], d[4]):
                        sync = self._discharge(item, d)
                        self.result.before.setdefault(item, []).append(sync)
            clocks.enqueue(lane, item)
            self.items[lane].append(item)
        self._close_the_loop()
        return self.result

    def _close_the_loop(self) -> None:
        """Discharge the hazards between this run and the next at the end of this one."""
        host = self.lanes.host
        if all(not on or self.clocks.knows(host, k, on[-1]) for k, on in enumerate(self.items)):
            return  # the host has seen everything end; what it enqueues later comes after
        crossing = next_run_hazards(self.work, self.lanes, self.hazards)
        for item, d in sorted(crossing, key=lambda pair: _latest_first(pair[1])):
            lane = self.lanes.of_item[item]
            if not self.clocks.knows(lane, self.lanes.of_item[d[4]], d[4]):
                self.result.at_end.append(self._discharge(item, d, next_run=True))

    def _discharge(self, item: int, d: Dependency, next_run: bool = False) -> Sync:
        """Choose the means for one hazard and note in the clocks what it implies."""
        earlier = d[4]
        src, dst = self.work[earlier].stream, self.work[item].stream
        means = self._means(src, dst)
        clocks, of_stream = self.clocks, self.lanes.of_stream
        if means == "barrier":
            seen = clocks.of_lanes(of_stream[dst])
            for lane in of_stream[dst]:
                clocks.join(lane, seen)
            return Sync(means, dst, earlier, d, item, next_run)
        if means == "host_stream":
            clocks.join(self.lanes.host, clocks.of_lanes(of_stream[src]))
            return Sync(means, src, earlier, d, item, next_run)
        seen = self._event_clock(earlier)
        if means == "host_event":
            clocks.join(self.lanes.host, seen)
            return Sync(means, src, earlier, d, item, next_run)
        for lane in of_stream[dst]:
            clocks.join(lane, seen)
        return Sync(means, dst, earlier, d, item, next_run)

    def _event_clock(self, earlier: int) -> list[int]:
        """Return what an event right after ``earlier`` covers: all lanes of its stream (EVT-1)."""
        stream = self.work[earlier].stream
        joined = list(self.clocks.after(earlier))
        for lane in self.lanes.of_stream[stream]:
            if lane == self.lanes.of_item[earlier]:
                continue
            k = bisect_left(self.items[lane], earlier)
            if k:
                after = self.clocks.after(self.items[lane][k - 1])
                joined = [max(a, b) for a, b in zip(joined, after, strict=True)]
        return joined

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
