"""Sync: turn hazards into records, waits, barriers and host syncs, leaving out what is implied.

Items are taken in program order. For each hazard whose earlier item is not yet known to be
complete, the cheapest means that the topology offers is planned: a wait for an event recorded
right after the earlier item; a barrier, where one stream does not keep copies and launches in
order; a wait of the host where devices cannot wait for each other. Hazards are taken latest first,
so a wait that covers an earlier one makes that one vanish. Hazards that reach into the next run
are discharged at the end of this one, because events do not outlive a run, and only where nothing
that the next run waits for anyway implies them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ggsched.passes.order.clocks import Clock
from ggsched.passes.order.enqueue_order import NO_STREAM
from ggsched.passes.order.happens_before import Enqueued, HappensBefore, Sync, SyncKind
from ggsched.passes.order.hazards import Dependency, Hazards, Lanes, next_run_hazards
from ggsched.passes.order.work import Work
from ggsched.plan.streams import Streams
from ggsched.topology.model import Topology


@dataclass(slots=True)
class SyncPlan:
    """All synchronisation: what stands before each item, and at the end of the run."""

    before: dict[int, list[Sync]] = field(default_factory=dict)
    at_end: list[Sync] = field(default_factory=list)


def plan_sync(
    work: Sequence[Work], lanes: Lanes, hazards: Hazards, streams: Streams, topology: Topology
) -> SyncPlan:
    """Return the synchronisation that makes every hazard ordered."""
    synchroniser = _Synchroniser(work, lanes, streams, topology)
    synchroniser.discharge(hazards.within)
    synchroniser.sync_across_runs(lambda: next_run_hazards(work, lanes, hazards))
    return synchroniser.result


def known_clocks(
    outline: Sequence[Enqueued],
    lanes: Lanes,
    within: Sequence[Sequence[Dependency]],
    streams: Streams,
    topology: Topology,
) -> list[Clock]:
    """Return for each item what is complete once it is, with the synchronisation of one run."""
    synchroniser = _Synchroniser(outline, lanes, streams, topology)
    synchroniser.discharge(within)
    return [synchroniser.known.clocks.after(item) for item in range(len(outline))]


class _Synchroniser:
    def __init__(
        self, outline: Sequence[Enqueued], lanes: Lanes, streams: Streams, topology: Topology
    ) -> None:
        self.stream_of = [item.stream for item in outline]
        self.lanes = lanes
        self.device_of = [s.device for s in streams.streams]
        self.topology = topology
        self.chosen: dict[tuple[int, int], tuple[SyncKind, int]] = {}
        self.known = HappensBefore(outline, lanes)
        self.result = SyncPlan()

    def discharge(self, within: Sequence[Sequence[Dependency]]) -> None:
        """Plan the synchronisation inside one run."""
        known, before = self.known, self.result.before
        covers = known.covers
        for item, dependencies in enumerate(within):
            if dependencies:
                if len(dependencies) > 1:
                    dependencies = sorted(dependencies, key=_latest_first)
                for d in dependencies:
                    if not covers(item, d):
                        before.setdefault(item, []).append(self._discharge(item, d))
            known.enqueue(item, item)

    def sync_across_runs(
        self, find_crossing: Callable[[], Sequence[tuple[int, Dependency]]]
    ) -> None:
        """Discharge the hazards between this run and the next at the end of this one."""
        knows, host = self.known.clocks.knows, self.lanes.host
        if all(not on or knows(host, k, on[-1]) for k, on in enumerate(self.known.items)):
            return  # the host has seen everything end; what it enqueues later comes after
        at_end = self.known.copy()
        crossing = find_crossing()
        for item, d in sorted(crossing, key=lambda pair: _latest_first(pair[1])):
            if not self.known.covers(item, d):
                self.result.at_end.append(self._discharge(item, d, next_run=True))
        self._leave_out_at_end(at_end, crossing)

    def _leave_out_at_end(
        self, known: HappensBefore, crossing: Sequence[tuple[int, Dependency]]
    ) -> None:
        """Leave out, dearest first, what the next run's own synchronisation implies."""
        by_item: dict[int, list[Dependency]] = {}
        for item, d in crossing:
            if not known.covers(item, d):  # what is known now stays known
                by_item.setdefault(item, []).append(d)
        for s in sorted(self.result.at_end, key=lambda s: not s.means.startswith("host")):
            fewer = [other for other in self.result.at_end if other is not s]
            if self._is_enough(fewer, known.copy(), by_item):
                self.result.at_end = fewer

    def _is_enough(
        self,
        at_end: Sequence[Sync],
        known: HappensBefore,
        crossing: Mapping[int, Sequence[Dependency]],
    ) -> bool:
        """Follow the next run as far as needed: whether these leave no hazard between the runs."""
        for s in at_end:
            known.note(s)
        first, before = len(self.stream_of), self.result.before
        for item in range(max(crossing, default=-1) + 1):
            for s in before.get(item, ()):
                known.note(s, first)
            if item in crossing and not all(known.covers(item, d) for d in crossing[item]):
                return False
            known.enqueue(item, first + item)
        return True

    def _discharge(self, item: int, d: Dependency, next_run: bool = False) -> Sync:
        """Choose the means for one hazard and note what it implies."""
        earlier = d[4]
        src, dst = self.stream_of[earlier], self.stream_of[item]
        chosen = self.chosen.get((src, dst))
        if chosen is None:
            means = self._means(src, dst)
            chosen = (means, src if means.startswith("host") else dst)
            self.chosen[src, dst] = chosen
        means, stream = chosen
        sync = Sync(means, stream, earlier, d, item, next_run)
        self.known.note(sync)
        return sync

    def _means(self, src: int, dst: int) -> SyncKind:
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
