"""Experts: which nodes of a graph take the rows that a router chose, of weights that lie elsewhere.

A *block* is a run of nodes around one routing decision: from the first node that takes rows of a
weight by these ids to the last, with what only depends on them up to where their results have been
added up. It moves as a whole or not at all, so a device change costs one crossing each way.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ggsched.ir.graph import Graph, Node
from ggsched.ir.ops import OPS
from ggsched.ir.tensor import Role, Tensor
from ggsched.plan.placement import Placement
from ggsched.topology.caps import op_key
from ggsched.topology.model import Topology


@dataclass(frozen=True, slots=True)
class ExpertBlock:
    """Nodes that take rows of weights by the same ids.

    Attributes:
        first: First node.
        end: One past the last.
        ids: Tensor of the ids, i32, contiguous.
        here: Device of the weights and, so far, of the nodes.
        there: Device that could run them.
        weights: Tensors of which rows are taken.
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
    if rows is None or node.op == "get_rows":  # tables are looked up, and not worth a move
        return None
    table, ids = (graph.tensors[node.inputs[k]] for k in rows)
    is_weight = table.role is Role.WEIGHT and not table.is_view
    if not is_weight or not table.is_contiguous or not ids.is_contiguous or not ids.nbytes:
        return None
    return table, ids


def find_blocks(graph: Graph, topology: Topology, placement: Placement) -> list[ExpertBlock]:
    """Return the blocks whose weights lie on one device and that another one could run, in order.

    The other device is the one whose memory holds the ids, if it is no CPU, else the first that
    is none.
    """
    finder = _Finder(graph, topology, placement)
    return [block for group in finder.groups() if (block := finder.block(*group))]


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

    def block(self, ids: Tensor, nodes: list[int], weights: list[int]) -> ExpertBlock | None:
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
        return ExpertBlock(first, end, ids.id, here, there, tuple(dict.fromkeys(weights)))

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
        """Whether a node runs here, could run there, and leaves no trace but its result."""
        graph, node = self.graph, self.graph.nodes[i]
        choice = self.placement.choices[i]
        storage = graph.tensors[node.output].storage
        if choice.device != here or choice.cause == "pin":
            return False
        if graph.tensors[storage].role is not Role.TEMP or self.writers[storage] > 1:
            return False
        key = op_key(node.op, graph.tensors[node.inputs[0]].dtype.name)
        if key not in self.topology.devices[there].ops:
            return False
        roles = [graph.tensors[graph.tensors[t].storage].role for t in node.inputs]
        bound = sum(role in (Role.WEIGHT, Role.STATE) for role in roles)
        return bound <= takes_rows

    def _extended(self, first: int, end: int, here: int, there: int) -> int:
        """Return the end of the block with what follows and makes its result smaller."""
        tensors, nodes = self.graph.tensors, self.graph.nodes
        wanted = tensors[nodes[first].inputs[1]].nbytes
        at = end
        while tensors[nodes[at - 1].output].nbytes > wanted:
            made = {tensors[nodes[i].output].storage for i in range(first, at)}
            if at == len(nodes) or not self._can_move(at, here, there, takes_rows=False):
                return end
            if not any(tensors[t].storage in made for t in nodes[at].inputs):
                return end
            at += 1
        return at
