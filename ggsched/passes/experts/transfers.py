"""Transfers of expert weights: which way, by whom, and before which split."""

from collections.abc import Sequence
from itertools import starmap

import msgspec

from ggsched.ir.graph import Graph
from ggsched.passes.experts.find import chosen_rows
from ggsched.plan.placement import OpOffload
from ggsched.plan.splits import Rows, Transfer
from ggsched.topology.model import Topology


class ExpertTransfers:
    """What is known of the offload that is being lowered.

    Attributes:
        before: Split before which its weights are copied.
    """

    def __init__(self, graph: Graph, topology: Topology) -> None:
        self._graph, self._topology = graph, topology
        self._offload: OpOffload | None = None
        self._values: dict[int, int] = {}
        self._starts: dict[int, list[int]] = {}
        self.before = 0

    def begin(self, offload: OpOffload, split_id: int) -> None:
        """Go on to an offload, whose first node begins a split."""
        self._offload, self._values = offload, {}
        starts = self._starts.setdefault(offload.there, [])
        starts.append(split_id)
        first = len(starts) - 1 - offload.ahead
        self.before = starts[first] if first >= 0 else 0

    @property
    def slot(self) -> int:
        """Slot of the ring that the weights go to."""
        return self._current.slot

    @property
    def ids(self) -> int:
        """Tensor of the ids."""
        return self._current.ids

    @property
    def by_rows(self) -> bool:
        """Whether the rows are copied that the ids name."""
        return self._current.way == "rows"

    def takes(self, i: int, tid: int) -> bool:
        """Whether node ``i`` belongs to the offload and takes rows of this weight by its ids."""
        o = self._offload
        if o is None or not o.first <= i < o.end:
            return False
        found = chosen_rows(self._graph, self._graph.nodes[i])
        return found is not None and found[0].id == tid and found[1].id == o.ids

    def known(self, storage: int) -> int | None:
        """Return the value that holds a weight for this offload, if there is one already."""
        return self._values.get(storage)

    def note(self, storage: int, value: int) -> None:
        """Note the value that holds a weight for this offload."""
        self._values[storage] = value

    def executor(self, src: int, dst: int) -> int:
        """Return the device on whose stream the weights are copied."""
        path = self._topology.copy_paths.get((src, dst))
        return dst if path is None else path.by

    def rows(self, storage: int, ids: int, src: int, dst: int) -> Rows:
        """Return which rows of a weight are copied."""
        t = self._graph.tensors[storage]
        through_host_view = (src, dst) not in self._topology.copy_paths
        # Only streams of the device that keeps rows copy within its memory.
        cached = self._current.cached if self.executor(src, dst) == dst else 0
        return Rows(ids, t.strides[0], through_host_view, cached)

    @property
    def _current(self) -> OpOffload:
        assert self._offload is not None
        return self._offload


def in_program_order(transfers: Sequence[Transfer]) -> tuple[Transfer, ...]:
    """Return the transfers by the split that they stand before, numbered anew."""
    ordered = sorted(transfers, key=lambda t: t.before)
    return tuple(starmap(_numbered, enumerate(ordered)))


def _numbered(number: int, transfer: Transfer) -> Transfer:
    return transfer if transfer.id == number else msgspec.structs.replace(transfer, id=number)
