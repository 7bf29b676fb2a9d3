"""The default of a scheduler: ggml's rules where the caller gave homes or pins, else cost."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ggsched.ir.graph import Graph
from ggsched.passes.place import Constraints, PlacementPolicy, PlacementProblem
from ggsched.passes.placement.cost import CostBased
from ggsched.passes.placement.ggml import GgmlRules
from ggsched.plan.placement import Placement
from ggsched.topology.model import Topology


@dataclass(frozen=True, slots=True)
class Automatic:
    """``CostBased`` where the caller left everything open, ``GgmlRules`` elsewhere.

    Everything is open if there are several devices, no pins, no slots, and no home for a tensor of
    the graph. A scheduler keeps homes that earlier graphs were given, so graphs that share weights
    or states agree on where these are.

    Attributes:
        by_cost: What places graphs of which everything is open.
        max_nodes: Of larger graphs too little could be tried for the time that it takes.
        is_measured: Whether the first run of a graph decides between the placement that is
            predicted to be the fastest and each device alone, by measurement.
    """

    by_cost: PlacementPolicy = field(default_factory=CostBased)
    max_nodes: int = 10_000
    is_measured: bool = False

    @property
    def key(self) -> str:
        """See ``PlacementPolicy``."""
        name = "autotune" if self.is_measured else "auto"
        return f"{name}({self.by_cost.key}, {self.max_nodes})"

    def place(self, problem: PlacementProblem) -> Placement:
        """See ``PlacementPolicy``."""
        policy = self.for_graph(problem.graph, problem.topology, problem.constraints)
        return policy.place(problem)

    def for_graph(
        self, graph: Graph, topology: Topology, constraints: Constraints
    ) -> PlacementPolicy:
        """Return the policy that decides for a graph."""
        is_open = (
            len(topology.devices) > 1
            and len(graph.nodes) <= self.max_nodes
            and not constraints.pins
            and constraints.slots is None
            and not any(name in graph for name in constraints.homes)
        )
        return self.by_cost if is_open else GgmlRules()

    def resolve(
        self,
        graph: Graph,
        topology: Topology,
        constraints: Constraints,
        known: Mapping[str, int],
    ) -> tuple[PlacementPolicy, Constraints]:
        """Return the policy for a graph, and the constraints with homes that are known.

        Args:
            graph: What to place.
            constraints: What the caller decided.
            known: Homes by name that plans of other graphs have given to weights and states.
        """
        policy = self.for_graph(graph, topology, constraints)
        if policy is not self.by_cost:
            return policy, constraints
        homes = {name: device for name, device in known.items() if name in graph}
        return policy, replace(constraints, homes=homes)
