"""Placement of a sharded graph: each node runs where its participant is."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ggsched.passes.place import PlacementProblem
from ggsched.passes.placement.ggml import GgmlRules
from ggsched.plan.placement import Placement
from ggsched.topology.model import Topology
from ggsched_shard.names import part_of


@dataclass(frozen=True, slots=True)
class ByParticipant:
    """Nodes whose label names a participant run on its device; ggml's rules place the rest.

    Attributes:
        name: Says by which rule participants are chosen, as part of the policy's key.
        devices: Returns the device index of each participant, given the machine.
    """

    name: str
    devices: Callable[[Topology], tuple[int, ...]]

    @property
    def key(self) -> str:
        """See ``PlacementPolicy``."""
        return f"participants({self.name})"

    def place(self, problem: PlacementProblem) -> Placement:
        """See ``PlacementPolicy``.

        Raises:
            PlanError: a device that does not support a node of its participant.
        """
        given, devices = problem.constraints, self.devices(problem.topology)
        pins = {}
        for node in problem.graph.nodes:
            _, part = part_of(node.name)
            if part is not None and part < len(devices):
                pins[node.id] = devices[part]
        wanted = replace(given, pins={**pins, **given.pins})
        return GgmlRules().place(replace(problem, constraints=wanted))
