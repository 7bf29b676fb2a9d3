"""Lanes that devices propose for the nodes of a graph (STR-7): hints for the choice of streams."""

from collections.abc import Sequence
from typing import Protocol, cast

from ggsched.backend.protocols import Device
from ggsched.ir.graph import Graph


class LaneProposer(Protocol):
    """A device that declares ``proposes_lanes``."""

    def propose_lanes(self, graph: Graph) -> Sequence[int]:
        """Return a lane, from 0 on, for each node, as if all of them ran on this device.

        Nodes of one lane run one after another. The answer depends on the graph alone, and asking
        leaves no trace.
        """


def proposed_lanes(devices: Sequence[Device], graph: Graph) -> dict[int, tuple[int, ...]]:
    """Return the proposals of devices that make one, by number of the device, unchecked.

    What stands for a device in another process has its facts and not its method.
    """
    return {
        i: tuple(cast("LaneProposer", device).propose_lanes(graph))
        for i, device in enumerate(devices)
        if device.facts.proposes_lanes and hasattr(device, "propose_lanes")
    }
