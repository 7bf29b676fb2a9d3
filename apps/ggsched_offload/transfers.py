"""Transfers of the weights of ops that are computed away from them.

Such an op begins a split of its own. The rows that its ids name are copied before it, once the ids
are in host memory; whole weights as many such splits earlier as the placement says.
"""

from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role
from ggsched.passes.split import Lowering
from ggsched.plan.placement import OpOffload, Placement
from ggsched.plan.splits import Rows
from ggsched.topology.model import Topology
from ggsched_offload.find import DENSE, chosen_rows


class OffloadTransfers:
    """Brings weights to staging rings, as the offloads of a placement say (``OperandPolicy``)."""

    def __init__(self, graph: Graph, topology: Topology, placement: Placement) -> None:
        self._graph, self._topology, self._homes = graph, topology, placement.homes
        self._taken = {o.first: o for o in placement.offloads if o.is_taken}
        self._offload: OpOffload | None = None
        self._values: dict[int, int] = {}
        self._starts: dict[int, list[int]] = {}
        self._before = 0

    def begins(self, node: int) -> bool:
        """Whether a node is the first of an offload."""
        return node in self._taken

    def begin(self, node: int, split_id: int) -> None:
        """Go on to an offload, whose first node begins a split."""
        offload = self._taken[node]
        self._offload, self._values = offload, {}
        starts = self._starts.setdefault(offload.there, [])
        starts.append(split_id)
        first = len(starts) - 1 - offload.ahead
        self._before = starts[first] if first >= 0 else 0

    def bring(
        self, lowering: Lowering, node: int, tid: int, device: int, split_id: int
    ) -> int | None:
        """Return the copy of a weight in the staging ring; None if no offload brings it."""
        offload = self._offload
        if offload is None or not self._takes(offload, node, tid):
            return None
        storage = self._graph.tensors[tid].storage
        value = self._values.get(storage)
        if value is None:
            nbytes = self._graph.tensors[storage].nbytes
            ring = offload.slot
            value = lowering.value("replica", storage, device, 0, nbytes, ring=ring)
            source, here = lowering.home(storage, split_id), self._homes[storage]
            path = self._topology.copy_paths.get((here, device))
            by = device if path is None else path.by
            rows = None
            if offload.way == "rows":
                ids = self._graph.tensors[offload.ids]
                named = lowering.on_host(ids.storage, ids.offset, ids.end, split_id)
                # Only streams of the device that keeps rows copy within its memory.
                cached = offload.cached if by == device else 0
                row_nbytes = self._graph.tensors[storage].strides[0]
                rows = Rows(named, row_nbytes, path is None, cached)
            lowering.transfer(source, value, by, self._before, rows)
            self._values[storage] = value
        return value

    def _takes(self, o: OpOffload, i: int, tid: int) -> bool:
        """Whether node ``i`` belongs to the offload, which brings this weight or rows of it."""
        if not o.first <= i < o.end:
            return False
        if o.ids == DENSE:
            root = self._graph.tensors[self._graph.tensors[tid].storage]
            return root.role is Role.WEIGHT
        found = chosen_rows(self._graph, self._graph.nodes[i])
        return found is not None and found[0].id == tid and found[1].id == o.ids
