"""Which nodes on a CPU another device could compute, if it were given their weights.

A *block* moves as a whole or not at all, so a device change costs one crossing each way. There are
two sorts. A block of *experts* is a run of nodes around one routing decision: from the first node
that takes rows of a weight by these ids to the last, with what only depends on them up to where
their results have been added up. A *dense* block is a run of other nodes that have weights on the
CPU. What writes a state stays where that is, and ends the run: so a block is about a layer.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ggsched.ir.graph import Graph, Node
from ggsched.ir.ops import OPS
from ggsched.ir.tensor import Role, Tensor
from ggsched.plan.placement import Placement
from ggsched.topology.caps import lacking
from ggsched.topology.model import Topology

DENSE: Final = -1
"""In the place of ids: no rows are chosen, all weights are needed."""

DENSE_NBYTES: Final = 256 << 20
"""Weights of one dense block, unless a single node needs more: two fit a staging ring."""


@dataclass(frozen=True, slots=True)
class OffloadBlock:
    """Nodes that could move together.

    Attributes:
        first: First node.
        end: One past the last.
        ids: Of experts, the tensor of the ids, i32, contiguous; ``DENSE`` of other blocks.
        here: Device of the weights and, so far, of the nodes.
        there: Device that could run them.
        weights: Tensors that have to be copied: of experts, those of which rows are taken.
    """

    first: int
    end: int
    ids: int
    here: int
    there: int
    weights: tuple[int, ...]


def chosen_rows(graph: Graph, node: Node) -> tuple[Tensor, Tensor] | None:
    """Return the weight of which a node takes rows and the ids that name them, if it does.

    The weight is one whole tensor and the ids are contiguous.
    """
    rows = OPS[node.op].rows
    if rows is None or node.op == "get_rows" or node.params.get("of"):
        # Tables are looked up, and not worth a move; experts that devices share stay there.
        return None
    table, ids = (graph.tensors[node.inputs[k]] for k in rows)
    is_weight = table.role is Role.WEIGHT and not table.is_view
    if not is_weight or not table.is_contiguous or not ids.is_contiguous or not ids.nbytes:
        return None
    return table, ids


def _looks_up(graph: Graph, node: Node) -> bool:
    """Whether a node reads some rows of a weight, which is not worth copying for that."""
    role = graph.tensors[graph.tensors[node.inputs[0]].storage].role
    return node.op == "get_rows" and role is Role.WEIGHT


def find_blocks(graph: Graph, topology: Topology, placement: Placement) -> list[OffloadBlock]:
    """Return the blocks whose weights lie on one device and that another one could run, in order.

    The other device is the one whose memory holds the ids, if it is not a CPU, else the first that
    is none.
    """
    finder = _Finder(graph, topology, placement)
    experts = [block for group in finder.groups() if (block := finder.block(*group))]
    return sorted([*experts, *finder.dense(experts)], key=lambda block: block.first)


class _Finder:
    def __init__(self, graph: Graph, topology: Topology, placement: Placement) -> None:
        self.graph, self.topology, self.placement = graph, topology, placement
        writers: dict[int, int] = {}
        for node in graph.nodes:
            storage = graph.tensors[node.output].storage
            writers[storage] = writers.get(storage, 0) + 1
        self.writers = writers

    def groups(self) -> Iterator[tuple[Tensor, list[int], list[int]]]:
        """Yield ids, the nodes that take rows by them without a pause, and the weights."""
        ids, nodes, weights = None, list[int](), list[int]()
        for node in self.graph.nodes:
            found = chosen_rows(self.graph, node)
            if found is None:
                continue
            table, named = found
            if ids is not None and named.id != ids.id:
                yield ids, nodes, weights
                nodes, weights = [], []
            ids = named
            nodes.append(node.id)
            weights.append(table.id)
        if ids is not None:
            yield ids, nodes, weights

    def block(self, ids: Tensor, nodes: list[int], weights: list[int]) -> OffloadBlock | None:
        """Return the block of a group, unless something in it cannot move."""
        homes = {self.placement.homes.get(w) for w in weights}
        here = homes.pop()
        there = self._target(ids, here) if not homes and here is not None else None
        if here is None or there is None:
            return None
        first, end = nodes[0], nodes[-1] + 1
        takers = set(nodes)
        if not all(self._can_move(i, here, there, i in takers) for i in range(first, end)):
            return None
        if not self._is_reachable(here, there):
            return None
        end = self._extended(first, end, here, there)
        return OffloadBlock(first, end, ids.id, here, there, tuple(dict.fromkeys(weights)))

    def dense(self, experts: Sequence[OffloadBlock]) -> Iterator[OffloadBlock]:
        """Yield the runs of nodes with weights on a CPU between blocks of experts."""
        there = self._accelerator()
        if there is None:
            return
        taken = {i for block in experts for i in range(block.first, block.end)}
        first, here, weights, nbytes = 0, -1, list[int](), 0
        for i in range(len(self.graph.nodes) + 1):
            found = None if i == len(self.graph.nodes) or i in taken else self._dense(i, there)
            more = 0 if found is None else self._nbytes(set(found).difference(weights))
            device = -1 if found is None else self.placement.choices[i].device
            if device != here or (weights and more and nbytes + more > DENSE_NBYTES):
                if weights:
                    yield OffloadBlock(first, i, DENSE, here, there, tuple(weights))
                first, here, weights, nbytes = i, device, [], 0
                more = 0 if found is None else self._nbytes(set(found))
            nbytes += more
            weights += [w for w in found or () if w not in weights]

    def _nbytes(self, weights: Collection[int]) -> int:
        return sum(self.graph.tensors[w].nbytes for w in weights)

    def _dense(self, i: int, there: int) -> list[int] | None:
        """Return the weights of a node that could move, or None for one that cannot."""
        graph, node = self.graph, self.graph.nodes[i]
        here = self.placement.choices[i].device
        devices = self.topology.devices
        is_far = devices[here].kind == "cpu" and (here, there) in self.topology.copy_paths
        if not is_far or _looks_up(graph, node) or chosen_rows(graph, node) is not None:
            return None
        if not self._leaves_no_trace(i, here, there):
            return None
        roots = {graph.tensors[t].storage for t in node.inputs}
        weights = sorted(r for r in roots if graph.tensors[r].role is Role.WEIGHT)
        return weights if all(self.placement.homes.get(w) == here for w in weights) else None

    def _accelerator(self) -> int | None:
        devices = self.topology.devices
        return next((i for i, d in enumerate(devices) if d.kind != "cpu"), None)

    def _target(self, ids: Tensor, here: int | None) -> int | None:
        devices = self.topology.devices
        home = self.placement.homes.get(ids.storage)
        if home is not None and home != here and devices[home].kind != "cpu":
            return home
        others = (i for i, d in enumerate(devices) if d.kind != "cpu" and i != here)
        return next(others, None)

    def _is_reachable(self, here: int, there: int) -> bool:
        return (here, there) in self.topology.copy_paths or self.topology.devices[here].is_host

    def _can_move(self, i: int, here: int, there: int, takes_rows: bool) -> bool:
        """Whether a node of a block of experts can move, and brings nothing else along."""
        graph, node = self.graph, self.graph.nodes[i]
        if not self._leaves_no_trace(i, here, there):
            return False
        roles = [graph.tensors[graph.tensors[t].storage].role for t in node.inputs]
        bound = sum(role in (Role.WEIGHT, Role.STATE) for role in roles)
        return bound <= takes_rows

    def _leaves_no_trace(self, i: int, here: int, there: int) -> bool:
        """Whether a node runs here, could run there, and leaves no trace but its result."""
        graph, node = self.graph, self.graph.nodes[i]
        choice = self.placement.choices[i]
        storage = graph.tensors[node.output].storage
        if choice.device != here or choice.cause == "pin":
            return False
        if graph.tensors[storage].role is not Role.TEMP or self.writers[storage] > 1:
            return False
        kind, facts = graph.tensors[node.inputs[0]].dtype.name, self.topology.devices[there]
        return not lacking(facts, node.op, kind, node.params.get("of"))

    def _extended(self, first: int, end: int, here: int, there: int) -> int:
        """Return the end of the block with what follows and makes its result smaller.

        Nodes behind it that the placement put beside the experts, because their results are small,
        go along.
        """
        tensors, nodes = self.graph.tensors, self.graph.nodes
        wanted = tensors[nodes[first].inputs[1]].nbytes
        at = end
        while tensors[nodes[at - 1].output].nbytes > wanted:
            if not self._goes_along(first, at, here, there):
                at = end
                break
            at += 1
        choices = self.placement.choices
        while self._goes_along(first, at, here, there) and choices[at].cause == "upgrade":
            at += 1
        return at

    def _goes_along(self, first: int, at: int, here: int, there: int) -> bool:
        """Whether the node behind a block reads a result of it and could move."""
        tensors, nodes = self.graph.tensors, self.graph.nodes
        if at == len(nodes) or not self._can_move(at, here, there, takes_rows=False):
            return False
        made = {tensors[nodes[i].output].storage for i in range(first, at)}
        return any(tensors[t].storage in made for t in nodes[at].inputs)
