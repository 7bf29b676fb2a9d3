"""Plans and schedules of which every artifact is verified.

Artifacts of a plan are compared by the checker. Those that are not part of a plan (enqueue order,
lives, synchronisation) are verified here, between the passes that make and use them.
"""

from collections.abc import Sequence
from typing import Any

from ggsched.errors import PlanError
from ggsched.ids import show
from ggsched.ir.graph import Graph
from ggsched.passes import make_plan
from ggsched.passes.order.access_intervals import Conflict
from ggsched.passes.order.dataflow import find_dependencies
from ggsched.passes.order.enqueue_order import EnqueueOrder
from ggsched.passes.order.happens_before import HappensBefore
from ggsched.passes.order.liveness import Liveness
from ggsched.passes.order.sync import SyncPlan
from ggsched.passes.pipeline import Schedule, make_schedule
from ggsched.plan.bundle import Plan
from ggsched.plan.fusions import Fusion
from ggsched.plan.splits import Splits
from ggsched.plan.streams import Streams
from ggsched.sanitize import check_plan
from ggsched.topology.model import Topology


def verified_plan(graph: Graph, topology: Topology, *args: Any, **options: Any) -> Plan:
    """Return ``make_plan`` of the same arguments, whose artifacts agree with graph and machine."""
    plan = make_plan(graph, topology, *args, **options)
    found = check_plan(plan, graph=graph, topology=topology, without=("memory_sizes",), order=False)
    found.raise_if_findings()
    return plan


def verified_schedule(*args: Any, **options: Any) -> Schedule:
    """Return ``make_schedule`` of the same arguments, with each stage verified."""
    s = make_schedule(*args, **options)
    verify_order(s.splits, s.streams, s.fusions, s.order)
    verify_liveness(s.splits, s.order, s.live)
    if s.data_sync is not None:
        verify_sync(s.order, find_dependencies(s.graph, s.splits, s.order), s.data_sync)
    return s


def verify_order(
    splits: Splits, streams: Streams, fusions: Sequence[Fusion], order: EnqueueOrder
) -> None:
    """Check the enqueue order.

    Raises:
        PlanError: a node or a transfer that is not there exactly once, on its stream and at the
            place of its split; a fusion group that is not launched as one.
    """
    if sorted(order.nodes) != list(range(len(splits.bindings))):
        raise PlanError("its nodes are not those of the graph", where="enqueue order")
    item_of: dict[int, int] = {}
    split = transfer = at = 0
    for number, item in enumerate(order.items):
        where = f"item {number}"
        if item.kind == "launch":
            part = splits.splits[item.source]
            nodes = order.nodes[item.first : item.end]
            if (
                item.first != at
                or not part.first <= at < item.end <= part.end
                or item.source < split
            ):
                raise PlanError(f"launches places [{item.first}, {item.end})", where=where)
            if any(streams.of_node[n] != item.stream for n in nodes):
                raise PlanError(
                    f"on {show('stream', item.stream)}, not that of its nodes", where=where
                )
            item_of.update(dict.fromkeys(nodes, number))
            split, at = item.source, item.end
        elif item.kind != "host":
            t = splits.transfers[item.source]
            if item.source != transfer or item.stream != streams.of_transfer[t.id]:
                what = f"transfer {item.source} on {show('stream', item.stream)}"
                raise PlanError(what, where=where, why=f"transfer {transfer} comes next")
            if at != (
                splits.splits[t.before].first if t.before < len(splits.splits) else len(item_of)
            ):
                raise PlanError(f"transfer {t.id} in the wrong place", where=where)
            transfer += 1
    if at != len(splits.bindings) or transfer != len(splits.transfers):
        raise PlanError("ends before all work is enqueued", where="enqueue order")
    for f in fusions:
        if len({item_of[n] for n in f.nodes}) > 1:
            raise PlanError(f"nodes {f.nodes} are not launched as one", where="enqueue order")


def verify_liveness(splits: Splits, order: EnqueueOrder, live: Liveness) -> None:
    """Check the lives of values.

    Raises:
        PlanError: nodes whose steps are not in the order in which they run; an access to a value
            outside its life.
    """
    steps = [live.node_step[n] for n in order.nodes]
    if steps != sorted(steps):
        raise PlanError("steps of nodes are out of order", where="liveness")
    touched = [(live.node_step[n], bound) for n, bound in enumerate(splits.bindings)]
    for t in splits.transfers:
        ids = () if t.rows is None else (t.rows.ids,)
        touched.append((live.transfer_step[t.id], (t.src, *ids, t.dst)))
    for step, values in touched:
        for v in values:
            if not live.lives[v].birth <= step <= live.lives[v].death:
                what = f"touched at step {step}, but lives for {live.lives[v]}"
                raise PlanError(what, where=show("value", v))


def verify_sync(
    order: EnqueueOrder, dependencies: Sequence[Sequence[Conflict]], sync: SyncPlan
) -> None:
    """Check the synchronisation inside one run.

    Raises:
        PlanError: an item that is not ordered after one that it depends on.
    """
    known = HappensBefore(order)
    for item, found in enumerate(dependencies):
        for s in sync.before.get(item, ()):
            known.note(s)
        for d in found:
            if not known.covers(item, d):
                what = f"is not ordered after item {d.earlier}"
                raise PlanError(what, where=f"item {item}", why=d.kind)
        known.enqueue(item, item)
