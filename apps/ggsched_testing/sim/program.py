"""Programs: nodes bound to buffers, run node by node."""

from collections.abc import Callable, Sequence

from ggsched.backend.program import BoundNode, groups_of
from ggsched.backend.protocols import Stream
from ggsched.errors import GgschedError
from ggsched_testing.sim.engine import Step
from ggsched_testing.sim.groups import GroupWork
from ggsched_testing.sim.kernels import Ahead, NodeWork
from ggsched_testing.sim.state import SimOwner


class SimProgram:
    """Nodes compiled for one stream (LCH-1..7).

    Attributes:
        label: For people.
        buffers: All memory that it uses.
        seconds: How long it takes in simulated time.
        parts: Label and simulated seconds of each node.
        early: Operands that are read ahead of a launch: the constants (LCH-7).
        is_closed: Whether it has been released.
    """

    def __init__(
        self, device: SimOwner, stream: Stream, nodes: Sequence[BoundNode], number: int
    ) -> None:
        self._world = device.world
        self.stream = stream
        self.number = number
        self.label = f"launch {_names(nodes)}"
        costs = device.costs
        self.seconds = costs.computing(nodes)
        self.parts = [(node.label, costs.of_node(node)) for node in nodes]
        self.is_closed = False
        exact = device.facts.is_deterministic
        self._work: list[NodeWork | GroupWork] = [
            GroupWork(some, is_deterministic=exact)
            if len(some) > 1
            else NodeWork(some[0], is_deterministic=exact)
            for some in groups_of(nodes)
        ]
        read = [o for work in self._work for o in work.read if o.is_constant]
        self.early = [o for o in read if o.buffer.device is device]  # not a peer's (COL-2)
        self.buffers = list(dict.fromkeys(b for work in self._work for b in work.buffers))

    def steps(self, ahead: Ahead) -> list[Step]:
        """Return two steps for each node or group; one that does nothing if there are none."""
        return [
            _named(step, work.node.label) for work in self._work for step in work.steps(ahead)
        ] or [lambda: None]

    def close(self) -> None:
        """Release it; legal twice."""
        if not self.is_closed:
            self.is_closed = True
            self._world.forget("programs", self.number)


def _names(nodes: Sequence[BoundNode]) -> str:
    if len(nodes) <= 2:
        return ", ".join(node.label for node in nodes) or "nothing"
    return f"{nodes[0].label} to {nodes[-1].label}"


def _named(step: Callable[[], None], label: str) -> Step:
    """Return the step; what it raises names the node."""

    def run() -> None:
        try:
            step()
        except GgschedError as error:
            error.add_note(f"in {label}")
            raise

    return run
