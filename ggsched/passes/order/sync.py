"""Sync: turn dependencies into waits, barriers and host syncs, leaving out what is implied.

Items are taken in program order. For each dependency whose earlier item is not yet known to be
complete, the cheapest means that the topology offers is planned: a wait for an event recorded
right after the earlier item; a barrier, where one stream does not keep copies and launches in
order; a wait of the host where devices cannot wait for each other. Dependencies are taken latest
first, so a wait that covers an earlier one makes that one vanish.

What the data needs is planned before memory is (``plan_sync`` of the data flow). The hazards in
bytes, found afterwards, then name each wait. They need no other one unless values share bytes that
the data flow does not order (rings, a memory budget): from the first item that needs more, what is
left is planned by the hazards.

Hazards that reach into the next run are discharged at the end of this one, because events do not
outlive a run, and only where nothing that the next run waits for anyway implies them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from ggsched.passes.order.access_intervals import Conflict
from ggsched.passes.order.enqueue_order import NO_STREAM, EnqueueOrder
from ggsched.passes.order.happens_before import AfterItem, HappensBefore, Sync, SyncKind
from ggsched.passes.order.hazards import Hazards, next_run_hazards
from ggsched.passes.order.work import Work
from ggsched.plan.streams import Streams
from ggsched.topology.model import Topology


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """All synchronisation.

    Attributes:
        before: What stands before each item that needs any.
        at_end: What stands at the end of the run.
        known: What is known to be complete after each item and at the end.
    """

    before: Mapping[int, Sequence[Sync]] = field(default_factory=dict)
    at_end: Sequence[Sync] = ()
    known: HappensBefore | None = None

    def clocks(self) -> list[AfterItem]:
        """Return for each item what is complete once it is."""
        assert self.known is not None
        return list(map(self.known.clocks.after, range(len(self.known.stream_of))))


def plan_sync(
    order: EnqueueOrder,
    streams: Streams,
    topology: Topology,
    dependencies: Sequence[Sequence[Conflict]],
    planned: SyncPlan | None = None,
) -> SyncPlan:
    """Return the synchronisation inside one run, by which each item follows what it depends on.

    Args:
        order: The items.
        streams: Where they run.
        topology: How streams can wait.
        dependencies: For each item earlier ones that it must follow, at most one of each lane.
        planned: Synchronisation that stays as far as it is what the dependencies need.
    """
    before: dict[int, Sequence[Sync]] = {}
    first = 0
    if planned is not None:
        before, first = _keep(order, dependencies, planned)
        if first == len(dependencies):
            return SyncPlan(before, known=planned.known)
    return _Synchroniser(order, streams, topology).plan(dependencies, before, first)


def sync_across_runs(
    sync: SyncPlan,
    work: Sequence[Work],
    hazards: Hazards,
    order: EnqueueOrder,
    streams: Streams,
    topology: Topology,
) -> SyncPlan:
    """Return the synchronisation with what orders this run before the next at its end."""
    assert sync.known is not None
    knows, host = sync.known.clocks.knows, order.lanes.host
    if all(not on or knows(host, k, on[-1]) for k, on in enumerate(sync.known.items)):
        return sync  # the host has seen everything end; what it enqueues later comes after
    crossing = next_run_hazards(work, order.lanes, hazards)
    synchroniser = _Synchroniser(order, streams, topology, sync.known.copy())
    at_end = [
        synchroniser.discharge(item, d, next_run=True)
        for item, d in sorted(crossing, key=lambda pair: _latest_first(pair[1]))
        if not synchroniser.known.covers(item, d)
    ]
    by_item: dict[int, list[Conflict]] = {}
    for item, d in crossing:
        if not sync.known.covers(item, d):  # what is known now stays known
            by_item.setdefault(item, []).append(d)
    for s in sorted(at_end, key=lambda s: not s.means.startswith("host")):
        fewer = [other for other in at_end if other is not s]
        if _is_enough(fewer, sync, by_item, len(work)):
            at_end = fewer  # the dearest first: the next run's own synchronisation implies it
    return replace(sync, at_end=tuple(at_end))


def _is_enough(
    at_end: Sequence[Sync],
    sync: SyncPlan,
    crossing: Mapping[int, Sequence[Conflict]],
    count: int,
) -> bool:
    """Follow the next run as far as needed: whether these leave no hazard between the runs."""
    assert sync.known is not None
    known = sync.known.copy()
    for s in at_end:
        known.note(s)
    for item in range(max(crossing, default=-1) + 1):
        for s in sync.before.get(item, ()):
            known.note(s, count)
        if item in crossing and not all(known.covers(item, d) for d in crossing[item]):
            return False
        known.enqueue(item, count + item)
    return True


class _Synchroniser:
    def __init__(
        self,
        order: EnqueueOrder,
        streams: Streams,
        topology: Topology,
        known: HappensBefore | None = None,
    ) -> None:
        self.device_of = [s.device for s in streams.streams]
        self.topology = topology
        self.chosen: dict[tuple[int, int], tuple[SyncKind, int]] = {}
        self.known = HappensBefore(order) if known is None else known

    def plan(
        self,
        dependencies: Sequence[Sequence[Conflict]],
        before: dict[int, Sequence[Sync]],
        first: int,
    ) -> SyncPlan:
        """Plan the synchronisation inside one run, from the first item that has none yet."""
        known, knows, lane_of = self.known, self.known.clocks.knows, self.known.lane_of
        for item in range(first):
            for s in before.get(item, ()):
                known.note(s)
            known.enqueue(item, item)
        for item in range(first, len(dependencies)):
            found = dependencies[item]
            if found:
                if len(found) > 1:
                    found = sorted(found, key=_latest_first)
                needed: list[Sync] = []
                for d in found:
                    if not knows(lane_of[item], lane_of[d.earlier], d.earlier):
                        before[item] = needed
                        needed.append(self.discharge(item, d))
            known.enqueue(item, item)
        return SyncPlan(before, known=known)

    def discharge(self, item: int, d: Conflict, next_run: bool = False) -> Sync:
        """Choose the means for one dependency and note what it implies."""
        stream_of, earlier = self.known.stream_of, d.earlier
        src, dst = stream_of[earlier], stream_of[item]
        chosen = self.chosen.get((src, dst))
        if chosen is None:
            means = self._means(src, dst)
            chosen = (means, src if means.startswith("host") else dst)
            self.chosen[src, dst] = chosen
        means, stream = chosen
        sync = Sync(
            means=means,
            stream=stream,
            earlier=earlier,
            dependency=d,
            later=item,
            next_run=next_run,
        )
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


def _keep(
    order: EnqueueOrder, dependencies: Sequence[Sequence[Conflict]], planned: SyncPlan
) -> tuple[dict[int, Sequence[Sync]], int]:
    """Return what stays, its dependencies named, and the first item for which it is not right.

    What stays before an item is what its dependencies require, and all that these require.
    """
    before: dict[int, Sequence[Sync]] = {}
    assert planned.known is not None
    host, lane_of = order.lanes.host, order.lanes.of_item
    syncs_of, after = planned.before, planned.known.clocks.after
    for item, found in enumerate(dependencies):
        syncs = syncs_of.get(item, ())
        named = syncs and [
            structs.replace(s, dependency=d, later=item)
            for s in syncs
            for d in found
            if d.earlier == s.earlier
        ]
        if len(named) < len(syncs):
            return before, item
        if len(named) < len(found):
            known = after(item)
            for d in found:
                lane = lane_of[d.earlier]
                if lane != host and not known.covers(lane, d.earlier):  # all know what the host did
                    return before, item
        if named:
            before[item] = named
    return before, len(dependencies)


def _latest_first(d: Conflict) -> int:
    return -d.earlier
