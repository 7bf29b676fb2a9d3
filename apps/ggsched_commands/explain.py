"""Explain: why a node or a tensor is where it is, and what it would cost elsewhere.

The rule that decided stands in the plan. What the alternative costs is found by planning it: the
node is pinned to another device, or the tensor gets another home, and both plans are predicted with
the same rates. The policy places the other nodes as it does with such a pin.
"""

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from ggsched.errors import PlanError, UsageError
from ggsched.ids import show
from ggsched.ir.graph import Graph, Node
from ggsched.ir.tensor import Role, Tensor
from ggsched.passes.cost.predict import predict_step
from ggsched.passes.cost.work_size import node_cost
from ggsched.passes.place import Constraints
from ggsched.plan.bundle import Plan
from ggsched.plan.placement import PlacementCandidate
from ggsched.plan.stats import plan_stats
from ggsched.topology.cost import MachineRates

Replan = Callable[[Constraints], tuple[Graph, Plan]]
"""Makes the plan of the same graph with other constraints; returns it and the graph to which it
refers, in which other nodes may be decomposed."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """What another device would mean.

    Attributes:
        device: Name of the device.
        step_s: Predicted seconds of a step more than now; None where it is not possible.
        copied: Bytes copied in a step more than now.
        arenas: Bytes of intermediate results more than now, of all devices.
        reason: Why it is not possible, or "".
    """

    device: str
    step_s: float | None
    copied: int = 0
    arenas: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeReasons:
    """Why a node runs where it does.

    Attributes:
        node: Its label.
        device: Where it runs.
        cause: The rule that decided, see ``ggsched.plan.placement.Cause``.
        detail: What the rule looked at.
        seconds: What it costs there, by the rates.
        step_s: Predicted seconds of the whole step.
        alternatives: The other devices.
        rates: Where the rates came from.
        candidates: Placements of the whole graph that the policy compared.
    """

    node: str
    device: str
    cause: str
    detail: str
    seconds: float
    step_s: float
    alternatives: tuple[Alternative, ...]
    rates: str
    candidates: tuple[PlacementCandidate, ...] = ()


def find_subject(graph: Graph, name: str) -> Node | Tensor:
    """Return the node or the tensor of a name.

    Args:
        name: ``n12`` or ``t7``, the label of a node, the name of an input, a weight or a state. A
            label that several nodes have stands for the first.

    Raises:
        UsageError: there is none; close matches are named.
    """
    ids: dict[str, Node | Tensor] = {show("node", n.id): n for n in graph.nodes}
    ids |= {show("tensor", t.id): t for t in graph.tensors}
    named: dict[str, Node | Tensor] = {}
    for t in graph.tensors:
        if t.name and not t.is_view and t.role is not Role.TEMP:
            named.setdefault(t.name, t)
    for node in graph.nodes:
        if node.name:
            named.setdefault(node.name, node)
    found = named.get(name) or ids.get(name)
    if found is None:
        near = difflib.get_close_matches(name, [*named, *ids], n=3, cutoff=0.5)
        hint = f"close: {', '.join(near)}" if near else "nodes are n0 and so on, tensors t0"
        raise UsageError(f"there is no node and no tensor {name!r}", where=graph.name, hint=hint)
    return found


def explain_node(
    graph: Graph,
    plan: Plan,
    node: Node,
    constraints: Constraints,
    rates: MachineRates,
    replan: Replan,
) -> NodeReasons:
    """Return why a node is where it is, and what each other device would mean.

    Args:
        constraints: What the plan was made with.
        replan: Makes the plans of the alternatives.
    """
    choice = plan.placement.choices[node.id]
    now = predict_step(graph, plan, rates).seconds

    def elsewhere(device: int) -> Constraints:
        return replace(constraints, pins={**constraints.pins, node.id: device})

    return NodeReasons(
        graph.label(node),
        plan.devices[choice.device].name,
        choice.cause,
        choice.detail,
        node_cost(rates.devices[choice.device], graph, node),
        now,
        tuple(_alternatives(plan, choice.device, now, rates, elsewhere, replan)),
        rates.source,
        plan.placement.candidates,
    )


def explain_home(
    graph: Graph,
    plan: Plan,
    root: Tensor,
    constraints: Constraints,
    rates: MachineRates,
    replan: Replan,
) -> tuple[float, tuple[Alternative, ...]]:
    """Return the seconds of a step, and what another home of a storage would mean.

    A storage that nodes make moves with the first of them. Inputs have no home of their own.

    Args:
        root: Root tensor of the storage.
        constraints: What the plan was made with.
        replan: Makes the plans of the alternatives.
    """
    now = predict_step(graph, plan, rates).seconds
    home = plan.placement.homes.get(root.id, -1)
    if root.role is Role.INPUT:
        return now, ()
    maker = next((n.id for n in graph.nodes if graph.tensors[n.output].storage == root.id), -1)

    def elsewhere(device: int) -> Constraints:
        if root.role is Role.TEMP:
            return replace(constraints, pins={**constraints.pins, maker: device})
        return replace(constraints, homes={**constraints.homes, root.name: device})

    return now, tuple(_alternatives(plan, home, now, rates, elsewhere, replan))


def _alternatives(
    plan: Plan,
    here: int,
    now: float,
    rates: MachineRates,
    elsewhere: Callable[[int], Constraints],
    replan: Replan,
) -> Iterator[Alternative]:
    before = plan_stats(plan)
    for device, facts in enumerate(plan.devices):
        if device == here:
            continue
        try:
            planned, other = replan(elsewhere(device))
        except PlanError as error:
            yield Alternative(facts.name, None, reason=error.one_line())
            continue
        after = plan_stats(other)
        yield Alternative(
            facts.name,
            predict_step(planned, other, rates).seconds - now,
            _total(after.copied) - _total(before.copied),
            _total(after.compute) - _total(before.compute),
        )


def _total(by_name: Mapping[str, int]) -> int:
    return sum(by_name.values())
