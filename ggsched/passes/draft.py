"""A draft: what is decided about a plan before memory is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ggsched.ir.graph import Graph
from ggsched.passes.memory.fusion_retention import Retention, find_kept
from ggsched.passes.memory.reuse import Concurrent, ReuseOrder, Sequential
from ggsched.passes.memory.rings import Slot, Slots, find_rings
from ggsched.passes.order.enqueue_order import Item, list_outline
from ggsched.passes.order.hazards import Lanes, find_lanes
from ggsched.passes.order.liveness import Liveness, liveness
from ggsched.passes.order.visibility import Visibility, find_visibility
from ggsched.plan.fusions import Fusion, run_order
from ggsched.plan.placement import Placement
from ggsched.plan.splits import Splits
from ggsched.plan.streams import Streams
from ggsched.topology.model import Topology


@dataclass(frozen=True)
class Draft:
    """Where everything runs, and in which order.

    Attributes:
        graph: What is planned.
        topology: For which machine.
        placement: Devices.
        splits: Splits, values, transfers.
        streams: Streams.
        rates: Where the rates of the machine came from.
        fusions: Groups of nodes that run as one.
        slots: Buffers of what is handed over between the parts of a joined graph.
    """

    graph: Graph
    topology: Topology
    placement: Placement
    splits: Splits
    streams: Streams
    rates: str
    fusions: tuple[Fusion, ...] = ()
    slots: Slots | None = None

    @cached_property
    def timeline(self) -> Liveness:
        """Steps in program order, and the lives of values in them."""
        return liveness(self.graph, self.splits, self.fusions)

    @cached_property
    def order(self) -> Sequence[int]:
        """Nodes in the order in which they run."""
        return run_order(len(self.graph.nodes), self.fusions)

    @cached_property
    def outline(self) -> list[Item]:
        """What is enqueued, in order."""
        return list_outline(self.topology, self.splits, self.streams, self.fusions)

    @cached_property
    def lanes(self) -> Lanes:
        """What keeps order by itself."""
        return find_lanes(self.outline, self.streams, self.topology)

    @cached_property
    def visibility(self) -> Visibility:
        """What is known to be complete when each value is first written."""
        return find_visibility(
            self.graph,
            self.topology,
            self.splits,
            self.streams,
            self.outline,
            self.lanes,
            self.timeline,
            self.order,
        )

    @cached_property
    def kept(self) -> Retention:
        """What neighbours wish for of which a device may make one call."""
        return find_kept(
            self.graph, self.topology, self.splits, self.streams, self.fusions, self.timeline
        )

    @cached_property
    def rings(self) -> Mapping[int, Slot]:
        """The slot of each value that is handed over in turns."""
        return find_rings(self.splits, self.slots)

    @property
    def is_sequential(self) -> bool:
        """Whether all work is on one lane, the host's own apart."""
        return self.lanes.count <= 2

    def data_order(self) -> ReuseOrder:
        """Return when values may share bytes without a wait that exists for that alone."""
        if self.is_sequential:
            return Sequential(self.timeline.lives)
        return Concurrent(self.visibility, self.timeline)
