"""The passes in order, verified between where asked."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from ggsched.ir.graph import Graph
from ggsched.passes.budget.memory_budget import keep_budget, over_budget
from ggsched.passes.draft import Draft
from ggsched.passes.experts.offload import offload_experts
from ggsched.passes.memory.allocate import ReusePolicy, allocate
from ggsched.passes.memory.fusion_retention import Retention
from ggsched.passes.memory.reuse import ReuseOrder
from ggsched.passes.options import PlanOptions
from ggsched.passes.order.emit import emit
from ggsched.passes.order.hazards import find_hazards
from ggsched.passes.order.sync import plan_sync
from ggsched.passes.order.work import list_work
from ggsched.passes.place import Constraints, place
from ggsched.passes.split import split
from ggsched.passes.streams.assign import assign
from ggsched.passes.streams.fuse import fuse
from ggsched.plan.bundle import FORMAT, HostSlot, NodeInfo, Plan
from ggsched.plan.splits import Splits
from ggsched.plan.verify import (
    verify_commands,
    verify_fusions,
    verify_memory,
    verify_placement,
    verify_splits,
    verify_streams,
)
from ggsched.topology.model import Topology

_DEFAULTS: Final = PlanOptions()
_NOTHING: Final = Retention()


def make_plan(
    graph: Graph,
    topology: Topology,
    constraints: Constraints | None = None,
    options: PlanOptions = _DEFAULTS,
    *,
    verify: bool = False,
) -> Plan:
    """Return the plan of a graph on a machine.

    The plan is a function of the arguments alone, ``planning_s`` apart.

    Args:
        graph: What to compute.
        topology: Facts about the machine.
        constraints: Homes of weights and states, pins of nodes, rates of the machine.
        options: Streams, and what memory may cost.
        verify: Check each artifact against graph and topology before the next pass uses it.

    Raises:
        PlanError: the graph cannot be placed, a memory budget cannot be kept, or (with ``verify``)
            an artifact is not sound.
    """
    with _collector_paused():
        began = time.perf_counter()
        plan = _make_plan(graph, topology, constraints or Constraints(), options, verify)
        return msgspec.structs.replace(plan, planning_s=time.perf_counter() - began)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the cyclic garbage collector from walking a plan again and again while it grows.

    Planning makes many objects, all of which stay alive and none of which form cycles.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _make_plan(
    graph: Graph,
    topology: Topology,
    constraints: Constraints,
    options: PlanOptions,
    verify: bool,
) -> Plan:
    rates = constraints.rates_on(topology)
    placement = place(graph, topology, constraints)
    placement = offload_experts(graph, topology, placement, constraints.experts, rates)
    if verify:
        verify_placement(graph, topology, placement)
    splits = split(graph, topology, placement, constraints.clears)
    if verify:
        verify_splits(graph, topology, placement, splits)
    fusions = fuse(graph, topology, splits) if options.fuse else ()
    streams = assign(graph, topology, splits, options.streams, rates, fusions)
    if verify:
        verify_streams(topology, splits, streams)
        verify_fusions(graph, topology, splits, streams, fusions)
    draft = Draft(
        graph, topology, placement, splits, streams, rates.source, fusions, constraints.slots
    )
    plan = _finish(draft, draft.data_order(), options, verify, draft.kept)
    budget = dict(options.memory_budget)
    if over_budget(plan, budget) and draft.kept.held:
        plan = _finish(draft, draft.data_order(), options, verify)
    if over_budget(plan, budget):
        plan = keep_budget(draft, plan, budget, rates, lambda o: _finish(draft, o, options, False))
        if verify:
            verify_memory(graph, topology, splits, plan.memory, draft.timeline.lives)
            verify_commands(plan)
    return plan


def _finish(
    draft: Draft, order: ReuseOrder, options: PlanOptions, verify: bool, kept: Retention = _NOTHING
) -> Plan:
    """Plan memory in an order of the values, then synchronisation and commands."""
    graph, topology, splits = draft.graph, draft.topology, draft.splits
    sharing = ReusePolicy(order, draft.rings, options.packing_effort, kept)
    memory = allocate(graph, topology, splits, draft.timeline, sharing)
    if verify:
        verify_memory(graph, topology, splits, memory, draft.timeline.lives)
    work = list_work(graph, splits, draft.outline, draft.order, memory)
    hazards = find_hazards(work, draft.lanes, memory)
    sync = plan_sync(work, draft.lanes, hazards, draft.streams, topology)
    plan = Plan(
        format=FORMAT,
        graph=graph.digest,
        name=graph.name,
        topology=topology.digest,
        devices=topology.devices,
        nodes=tuple([NodeInfo(n.op, n.name) for n in graph.nodes]),
        placement=draft.placement,
        splits=splits,
        streams=draft.streams,
        memory=memory,
        inputs=_inputs(graph, splits),
        outputs=_outputs(graph, splits),
        commands=emit(work, sync, splits, memory),
        rates=draft.rates,
        fusions=draft.fusions,
    )
    if verify:
        verify_commands(plan)
    return plan


def _inputs(graph: Graph, splits: Splits) -> tuple[HostSlot, ...]:
    return tuple(
        HostSlot(graph.tensors[v.storage].name, v.storage, v.id)
        for v in splits.values
        if v.kind == "input"
    )


def _outputs(graph: Graph, splits: Splits) -> tuple[HostSlot, ...]:
    """Return where each output ends up: a read-back, or the slot of an input as it is."""
    read_back = iter([v for v in splits.values if v.kind == "output"])
    input_slot = {v.storage: v for v in splits.values if v.kind == "input"}
    home = {v.storage for v in splits.values if v.kind == "home"}
    slots = []
    for tid in graph.outputs:
        t = graph.tensors[tid]
        value = next(read_back) if t.storage in home else input_slot[t.storage]
        slots.append(HostSlot(graph.tensors[t.storage].name, tid, value.id))
    return tuple(slots)
