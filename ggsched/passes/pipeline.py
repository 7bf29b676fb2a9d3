"""The passes in order, verified between where asked."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ggsched.ir.graph import Graph
from ggsched.passes.allocate import allocate
from ggsched.passes.assign import StreamPolicy, assign
from ggsched.passes.emit import emit
from ggsched.passes.hazards import find_hazards, find_lanes
from ggsched.passes.liveness import liveness
from ggsched.passes.outline import list_outline
from ggsched.passes.place import Constraints, place
from ggsched.passes.reuse import find_order
from ggsched.passes.split import split
from ggsched.passes.sync import plan_sync
from ggsched.passes.work import list_work
from ggsched.plan.bundle import FORMAT, HostSlot, NodeInfo, Plan
from ggsched.plan.splits import Splits
from ggsched.plan.verify import (
    verify_commands,
    verify_memory,
    verify_placement,
    verify_splits,
    verify_streams,
)
from ggsched.topology.model import Topology

_ONE_STREAM: Final = StreamPolicy()


def make_plan(
    graph: Graph,
    topology: Topology,
    constraints: Constraints | None = None,
    *,
    streams: StreamPolicy = _ONE_STREAM,
    verify: bool = False,
) -> Plan:
    """Return the plan of a graph on a machine.

    The plan is a function of the arguments alone, ``planning_s`` apart.

    Args:
        graph: What to compute.
        topology: Facts about the machine.
        constraints: Homes of weights and states, pins of nodes.
        streams: How many streams a device may use.
        verify: Check each artifact against graph and topology before the next pass uses it.

    Raises:
        PlanError: the graph cannot be placed, or (with ``verify``) an artifact is not sound.
    """
    with _collector_paused():
        return _make_plan(graph, topology, constraints or Constraints(), streams, verify)


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
    policy: StreamPolicy,
    verify: bool,
) -> Plan:
    began = time.perf_counter()
    placement = place(graph, topology, constraints)
    if verify:
        verify_placement(graph, topology, placement)
    splits = split(graph, topology, placement)
    if verify:
        verify_splits(graph, topology, placement, splits)
    stream_map = assign(graph, topology, splits, policy)
    if verify:
        verify_streams(topology, splits, stream_map)
    timeline = liveness(graph, splits)
    outline = list_outline(topology, splits, stream_map)
    lanes = find_lanes(outline, stream_map, topology)
    order = find_order(graph, topology, splits, stream_map, outline, lanes, timeline)
    memory = allocate(graph, topology, splits, timeline, order)
    if verify:
        verify_memory(graph, topology, splits, memory, timeline.lives)
    work = list_work(graph, splits, outline, memory)
    hazards = find_hazards(work, lanes, memory)
    sync = plan_sync(work, lanes, hazards, stream_map, topology)
    commands = emit(work, sync, splits, memory)
    plan = Plan(
        format=FORMAT,
        graph=graph.digest,
        name=graph.name,
        topology=topology.digest,
        devices=topology.devices,
        nodes=tuple(NodeInfo(n.op, n.name) for n in graph.nodes),
        placement=placement,
        splits=splits,
        streams=stream_map,
        memory=memory,
        inputs=_inputs(graph, splits),
        outputs=_outputs(graph, splits),
        commands=commands,
        planning_s=time.perf_counter() - began,
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
