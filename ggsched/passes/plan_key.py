"""The key of a plan: all that it depends on, and no more, the machine apart."""

from ggsched.ir.graph import Graph
from ggsched.passes.experts.policy import ExpertPolicy
from ggsched.passes.memory.rings import Slots
from ggsched.passes.options import PlanOptions
from ggsched.passes.place import Constraints

PlanKey = tuple[
    str,
    tuple[tuple[str, int], ...],
    tuple[tuple[int, int], ...],
    str,
    Slots | None,
    ExpertPolicy,
    PlanOptions,
]


def plan_key(graph: Graph, constraints: Constraints, options: PlanOptions) -> PlanKey:
    """Return the key of the plan of a graph.

    Constraints name every tensor of a model while a graph has some of them; the key keeps those.
    """
    homes = tuple(sorted((n, d) for n, d in constraints.homes.items() if n in graph))
    rates = constraints.rates.digest if constraints.rates else ""
    pins = tuple(sorted(constraints.pins.items()))
    return graph.digest, homes, pins, rates, constraints.slots, constraints.experts, options
