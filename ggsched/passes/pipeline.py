"""The passes in order, each artifact computed once.

    Graph --place, offload--> Placement --split--> Splits --fuse--> groups --assign--> Streams
          --enqueue order, liveness, data flow, sync, visibility, retention, rings--> Schedule
    Schedule --allocate--> Memory
    Schedule, Memory --work, hazards, sync, emit--> Commands  =  Plan

Each pass is a pure function of earlier artifacts and of the topology. Artifacts are frozen. No pass
checks another one: the checker (``ggsched.sanitize``) compares the plan with graph and machine.
"""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Final

import msgspec

from ggsched.collector import collector_paused
from ggsched.errors import PlanError
from ggsched.ir.graph import Graph
from ggsched.ir.ops import op_by_name
from ggsched.passes.budget.memory_budget import (
    Slack,
    find_slack,
    find_step_times,
    over_budget,
    require_budget,
    with_trades,
)
from ggsched.passes.cost.predict import predict_step
from ggsched.passes.memory.allocate import ReusePolicy, allocate
from ggsched.passes.memory.fusion_retention import Retention, find_retention
from ggsched.passes.memory.reuse import Concurrent, Relaxed, Sequential
from ggsched.passes.memory.rings import Slot, find_rings
from ggsched.passes.options import PlanOptions
from ggsched.passes.order.dataflow import find_dependencies
from ggsched.passes.order.emit import emit
from ggsched.passes.order.enqueue_order import EnqueueOrder, find_order
from ggsched.passes.order.hazards import find_hazards
from ggsched.passes.order.liveness import Liveness, liveness
from ggsched.passes.order.sync import SyncPlan, plan_sync, sync_across_runs
from ggsched.passes.order.visibility import Visibility, find_visibility
from ggsched.passes.order.work import list_work
from ggsched.passes.place import (
    Constraints,
    PlacementOutcome,
    PlacementPolicy,
    PlacementProblem,
    verify_placement,
)
from ggsched.passes.placement.named import placement_policy
from ggsched.passes.split import input_slots, output_slots, split
from ggsched.passes.streams.assign import assign
from ggsched.passes.streams.fuse import fuse
from ggsched.plan.bundle import FORMAT, NodeInfo, Plan
from ggsched.plan.fusions import Fusion
from ggsched.plan.memory import Memory
from ggsched.plan.placement import Placement
from ggsched.plan.splits import Splits
from ggsched.plan.streams import Streams
from ggsched.topology.cost import MachineRates
from ggsched.topology.model import Topology

_DEFAULTS: Final = PlanOptions()


@dataclass(frozen=True, slots=True)
class Schedule:
    """What is decided before memory: where everything runs, in which order, and what that implies.

    Attributes:
        graph: What is planned.
        rates: What things cost on it.
        placement: Devices.
        splits: Splits, values, transfers.
        fusions: Groups of nodes that run as one.
        order: What is enqueued, in order.
        live: Steps in program order, and the lives of values in them.
        data_sync: The synchronisation that the data flow needs; None where all work is on one lane.
        visibility: What is known to be complete when each value is first written, likewise.
        retention: Bytes that should be left alone longer than values live.
        rings: The slot of each value that is handed over in turns.
    """

    graph: Graph
    topology: Topology
    rates: MachineRates
    placement: Placement
    splits: Splits
    fusions: tuple[Fusion, ...]
    streams: Streams
    order: EnqueueOrder
    live: Liveness
    data_sync: SyncPlan | None
    visibility: Visibility | None
    retention: Retention
    rings: Mapping[int, Slot]

    def reuse_policy(self, effort: int = 0) -> ReusePolicy:
        """Return when values may share bytes without a wait that exists for that alone."""
        visibility, live = self.visibility, self.live
        reuse = Concurrent(visibility, live) if visibility else Sequential(live.lives)
        return ReusePolicy(reuse, self.rings, effort, self.retention)


@collector_paused()
def make_plan(
    graph: Graph,
    topology: Topology,
    constraints: Constraints | None = None,
    options: PlanOptions = _DEFAULTS,
    *,
    placement: PlacementPolicy | str = "ggml",
) -> Plan:
    """Return the plan of a graph on a machine.

    The plan is a function of the arguments alone, ``planning_s`` apart.

    Args:
        graph: What to compute.
        topology: Facts about the machine.
        constraints: Homes of weights and states, pins of nodes, rates of the machine.
        options: Streams, and what memory may cost.
        placement: Decides where nodes run: ``"ggml"``, ``"cost"``, ``"auto"`` (cost where nothing
            is given, see ``ggsched.passes.placement.automatic``) or a policy.

    Raises:
        PlanError: the graph cannot be placed, or a memory budget cannot be kept.
        UsageError: ``placement`` is not a policy.

    Examples:
        >>> from ggsched import GraphBuilder, open_devices, probe
        >>> from ggsched.passes import make_plan
        >>> g = GraphBuilder()
        >>> graph = g.build(y=g.silu(g.input("x", (4, 64))))
        >>> devices = open_devices(["cpu:0", "cpu:1"])
        >>> plan = make_plan(graph, probe(devices))
        >>> plan.placement.choices[0].device
        0
        >>> for device in devices:
        ...     device.close()
    """
    began = time.perf_counter()
    schedule = make_schedule(graph, topology, constraints, options, placement=placement)
    plan = _plan_within_budget(schedule, options)
    return msgspec.structs.replace(plan, planning_s=time.perf_counter() - began)


def make_schedule(
    graph: Graph,
    topology: Topology,
    constraints: Constraints | None = None,
    options: PlanOptions = _DEFAULTS,
    *,
    placement: PlacementPolicy | str = "ggml",
) -> Schedule:
    """Return what is decided before memory; see ``make_plan``."""
    problem = _problem(graph, topology, constraints or Constraints(), options)
    return _schedule(problem, _placed(problem, placement), options)


def place_graph(
    graph: Graph,
    topology: Topology,
    constraints: Constraints,
    options: PlanOptions = _DEFAULTS,
    *,
    placement: PlacementPolicy | str = "ggml",
) -> Placement:
    """Return where a policy puts a graph, checked; see ``make_plan``."""
    return _placed(_problem(graph, topology, constraints, options), placement)


def _problem(
    graph: Graph, topology: Topology, constraints: Constraints, options: PlanOptions
) -> PlacementProblem:
    problem = PlacementProblem(
        graph=graph,
        topology=topology,
        constraints=constraints,
        rates=constraints.rates_on(topology),
        try_out=lambda placed: _outcome(problem, placed, options),
    )
    return problem


def _placed(problem: PlacementProblem, placement: PlacementPolicy | str) -> Placement:
    """Return the placement that was decided before, or that of the policy."""
    wanted = problem.constraints
    placed = wanted.placed or placement_policy(placement).place(problem)
    verify_placement(problem.graph, problem.topology, wanted, placed)
    return placed


def _outcome(
    problem: PlacementProblem, placement: Placement, options: PlanOptions
) -> PlacementOutcome:
    """Return what the plan with a placement is predicted to take."""
    topology, rates = problem.topology, problem.rates
    try:
        plan = _plan_within_budget(_schedule(problem, placement, options), options)
    except PlanError as error:
        return PlacementOutcome(inf, reason=error.one_line())
    used = Counter[int]()
    for arena in plan.memory.arenas:
        used[arena.device] += arena.nbytes
    over = {d: used[d] - facts.memory_nbytes for d, facts in enumerate(topology.devices)}
    shortage = {device: nbytes for device, nbytes in over.items() if nbytes > 0}
    return PlacementOutcome(predict_step(problem.graph, plan, rates).seconds, shortage)


def _schedule(problem: PlacementProblem, placement: Placement, options: PlanOptions) -> Schedule:
    """Return what is decided before memory, with a placement."""
    graph, topology, rates = problem.graph, problem.topology, problem.rates
    wanted = problem.constraints

    operands = None
    if wanted.offload is not None:
        placement = wanted.offload.place(graph, topology, placement, rates)
        operands = wanted.offload.transfers(graph, topology, placement)
    splits = split(
        graph, topology, placement, wanted.clears, peers=wanted.reads_peers, policy=operands
    )
    fusions = fuse(graph, topology, splits) if options.fuse else ()
    policy = options.streams
    if wanted.slots is not None and not policy.is_forced:
        # One micro-batch after another in each stage: with several streams, the results of one
        # would have to outlive the next.
        policy = replace(policy, limit=1)
    lanes_of = wanted.slots.lanes_of(graph) if wanted.slots and wanted.slots.lanes > 1 else ()
    streams = assign(graph, topology, splits, policy, rates, fusions, lanes_of, wanted.lanes)
    order = find_order(topology, splits, streams, fusions)
    live = liveness(graph, splits, fusions)
    data_sync = visibility = None
    if not order.is_sequential:
        dependencies = find_dependencies(graph, splits, order)
        data_sync = plan_sync(order, streams, topology, dependencies)
        visibility = find_visibility(splits, live, order, data_sync)
    retention = find_retention(graph, topology, splits, streams, fusions, live)
    rings = find_rings(splits, streams, wanted.slots) if wanted.slots is not None else {}

    return Schedule(
        graph=graph,
        topology=topology,
        rates=rates,
        placement=placement,
        splits=splits,
        fusions=fusions,
        streams=streams,
        order=order,
        live=live,
        data_sync=data_sync,
        visibility=visibility,
        retention=retention,
        rings=rings,
    )


def plan_memory(s: Schedule, policy: ReusePolicy) -> Memory:
    """Return where each value lies, with this reuse policy."""
    return allocate(s.graph, s.topology, s.splits, s.live, policy)


def plan_commands(s: Schedule, memory: Memory) -> Plan:
    """Return the plan with this memory: hazards from byte ranges, the waits, the commands."""
    graph, splits, order = s.graph, s.splits, s.order

    work = list_work(graph, splits, order.items, order.nodes, memory)
    hazards = find_hazards(work, order.lanes, memory)
    sync = plan_sync(order, s.streams, s.topology, hazards.within, s.data_sync)
    sync = sync_across_runs(sync, work, hazards, order, s.streams, s.topology)
    commands = emit(work, sync, splits, memory)
    versions = {op: op_by_name(op).version for op in {n.op for n in graph.nodes}}

    return Plan(
        format=FORMAT,
        graph=graph.digest,
        name=graph.name,
        topology=s.topology.digest,
        devices=s.topology.devices,
        nodes=tuple([NodeInfo(n.op, n.name, versions[n.op]) for n in graph.nodes]),
        placement=s.placement,
        splits=splits,
        streams=s.streams,
        memory=memory,
        inputs=input_slots(graph, splits),
        outputs=output_slots(graph, splits),
        commands=commands,
        rates=s.rates.source,
        fusions=s.fusions,
    )


def _plan_within_budget(s: Schedule, options: PlanOptions) -> Plan:
    """Return the plan of a schedule; where that is over the budget, with another reuse policy.

    What is tried, in this order: with all hints; without them; with waits that exist for memory's
    sake, as cheap as the budget allows. Only memory is planned for what is tried.
    """
    budget = dict(options.memory_budget)
    policy = s.reuse_policy(options.packing_effort)
    memory = plan_memory(s, policy)
    if not budget:
        return plan_commands(s, memory)
    if over_budget(memory, budget) and policy.retention.held:
        policy = policy.without_hints()
        memory = plan_memory(s, policy)
    if s.visibility is None:  # on one lane no wait saves anything
        require_budget(memory, budget, s.topology)
    plan = plan_commands(s, memory)
    over = over_budget(memory, budget)
    if not over or s.visibility is None:
        return plan
    ordered = Concurrent(s.visibility, s.live)
    times = find_step_times(s.live, plan, predict_step(s.graph, plan, s.rates).timeline)

    def with_slack(least: Slack) -> Memory:
        reuse = Relaxed(ordered, s.live, s.splits, times, least)
        return plan_memory(s, replace(policy, order=reuse))

    memory = find_slack(over, times, budget, s.topology, with_slack)
    plan = plan_commands(s, memory)
    return with_trades(plan, predict_step(s.graph, plan, s.rates).timeline, s.rates)
