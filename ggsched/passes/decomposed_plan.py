"""Decides whether nodes are decomposed, by the predictions of the plans with and without.

A node is decomposed on a device that has no kernel for its op if no other plan is possible (it is
pinned there, or no device has the op), or if that is predicted to take less time than to compute it
where there is one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from msgspec import structs

from ggsched.errors import GraphError, PlanError
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role
from ggsched.passes.cost.predict import predict_step
from ggsched.passes.decompose import Decomposed, decomposable, decompose_nodes
from ggsched.passes.options import PlanOptions
from ggsched.passes.pipeline import make_plan, place_graph
from ggsched.passes.place import Constraints, PlacementPolicy
from ggsched.plan.placement import Placement, PlacementCandidate, PlacementChoice
from ggsched.topology.caps import offers
from ggsched.topology.model import Topology


@dataclass(frozen=True, slots=True)
class DecomposedGraph:
    """The graph that is planned in place of the original one.

    Attributes:
        graph: The graph with nodes decomposed; tensors keep their ids.
        constraints: The caller's constraints for its nodes, with the placement.
        origin: By node, the node of the original graph that it is, or is a part of.
    """

    graph: Graph
    constraints: Constraints
    origin: tuple[int, ...]


def decomposed_plan(
    graph: Graph,
    topology: Topology,
    constraints: Constraints,
    options: PlanOptions,
    policy: PlacementPolicy,
) -> DecomposedGraph | None:
    """Return the graph with nodes decomposed, or None where it is to be planned as it is.

    Args:
        constraints: What the caller decided.
        policy: Places the nodes, as if devices had the ops that they can decompose.

    Raises:
        PlanError: the rates are not those of the machine.
    """
    wider = decomposable(graph, topology)
    if wider is topology:
        return None
    try:
        placed = place_graph(graph, wider, constraints, options, placement=policy)
        where = _where(graph, topology, placed)
        if not where:
            return None
        found = decompose_nodes(graph, topology, where)
        made = _moved(graph, topology, constraints, placed, where, found)
        decomposed_s = _seconds(found.graph, topology, made.constraints, options, policy)
    except (GraphError, PlanError):
        return None  # planning the graph as it is says what is wrong with it
    try:
        plan = make_plan(graph, topology, constraints, options, placement=policy)
        as_it_is = predict_step(graph, plan, constraints.rates_on(topology)).seconds
        others, reason = plan.placement.candidates, ""
    except PlanError as error:
        as_it_is, others, reason = inf, (), error.one_line()
    if as_it_is <= decomposed_s:
        return None
    if not others:
        seconds = as_it_is if as_it_is < inf else None
        others = (PlacementCandidate("nothing decomposed", seconds, 0, False, reason),)
    compared = tuple(structs.replace(c, is_taken=False) for c in others)
    ops = ", ".join(sorted({graph.nodes[n].op for n in where}))
    names = ", ".join(topology.devices[d].name for d in sorted(set(where.values())))
    taken = PlacementCandidate(f"{ops} decomposed on {names}", decomposed_s, 0, True)
    assert made.constraints.placed is not None
    placement = structs.replace(made.constraints.placed, candidates=(*compared, taken))
    return replace(made, constraints=replace(made.constraints, placed=placement))


def _where(graph: Graph, topology: Topology, placed: Placement) -> dict[int, int]:
    """Return the device of each node that lies where there is no kernel for it."""
    found = {}
    for n, choice in zip(graph.nodes, placed.choices, strict=True):
        facts = topology.devices[choice.device]
        if not offers(facts.ops, n.op, graph.tensors[n.inputs[0]].dtype.name):
            found[n.id] = choice.device
    return found


def _moved(
    graph: Graph,
    topology: Topology,
    constraints: Constraints,
    placed: Placement,
    where: Mapping[int, int],
    found: Decomposed,
) -> DecomposedGraph:
    """Return constraints and placement for the nodes of the new graph."""
    made, choices = found.graph, []
    homes = dict(placed.homes)
    for n, old in zip(made.nodes, found.origin, strict=True):
        choice = placed.choices[old]
        if old in where:
            name = topology.devices[choice.device].name
            why = f"{choice.cause} {choice.detail}".strip()
            detail = f"{graph.nodes[old].op}, which {name} has not ({why})"
            choice = PlacementChoice(choice.device, "decomposed", detail)
        choices.append(choice)
        for tid in n.tensors:
            homes.setdefault(made.tensors[tid].storage, choice.device)
    homes = {
        tid: device
        for tid, device in homes.items()
        if tid in placed.homes or made.tensors[tid].role is not Role.INPUT
    }
    pins = {
        i: constraints.pins[old] for i, old in enumerate(found.origin) if old in constraints.pins
    }
    decided = Placement(tuple(choices), homes)
    return DecomposedGraph(made, replace(constraints, pins=pins, placed=decided), found.origin)


def _seconds(
    graph: Graph,
    topology: Topology,
    constraints: Constraints,
    options: PlanOptions,
    policy: PlacementPolicy,
) -> float:
    plan = make_plan(graph, topology, constraints, options, placement=policy)
    return predict_step(graph, plan, constraints.rates_on(topology)).seconds
