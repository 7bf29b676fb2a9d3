"""Fuse: find groups of nodes that their device compiles as one, and show that this is legal.

A group runs at the position of its last node, so its other nodes move behind the nodes in between.
This is legal if no node in between writes their operands, and if only the group reads their
results. The device may read operands and write results of a group at any time while it runs, so
the last node must not write bytes that another node of the group reads.

Groups are found from their last nodes: larger patterns first, because smaller ones may begin in the
same way, and patterns of one size in program order. No node belongs to two groups.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ggsched.ir.fusion import PATTERNS, Pattern
from ggsched.ir.graph import Graph, Node
from ggsched.ir.intervals import overlap
from ggsched.ir.tensor import Role, Tensor
from ggsched.plan.fusions import Fusion
from ggsched.plan.splits import Splits
from ggsched.topology.model import Topology

_MAX_ACCESSES: Final = 2
"""What stays inside a group is written once and read once."""


def fuse(graph: Graph, topology: Topology, splits: Splits) -> tuple[Fusion, ...]:
    """Return the groups, ordered by their last nodes. Takes time in proportion to the graph."""
    by_device = [_by_size(facts.fusions) for facts in topology.devices]
    if not any(by_device[s.device] for s in splits.splits):
        return ()
    uses = Uses.of(graph)
    found: list[Fusion] = []
    for s in splits.splits:
        search = _Search(graph, uses, s.first, set())
        for by_root in by_device[s.device]:
            for root in graph.nodes[s.first : s.end]:
                for pattern in by_root.get(root.op, ()):
                    nodes = search.match(pattern, root)
                    if nodes:
                        search.taken.update(nodes)
                        found.append(Fusion(pattern.name, nodes))
                        break
    return tuple(sorted(found, key=lambda f: f.nodes[-1]))


def _by_size(names: frozenset[str]) -> list[dict[str, list[Pattern]]]:
    """Return the patterns of these names by their last op, the largest first; then as declared."""
    by_size: dict[int, dict[str, list[Pattern]]] = {}
    for pattern in (p for p in PATTERNS.values() if p.name in names):
        by_root = by_size.setdefault(len(pattern.ops), {})
        by_root.setdefault(pattern.ops[-1], []).append(pattern)
    return [by_size[size] for size in sorted(by_size, reverse=True)]


@dataclass(frozen=True, slots=True)
class Uses:
    """Who touches each storage.

    Attributes:
        accesses: Number of operands and results on each storage, graph outputs included.
        writers: Nodes that write each storage, in program order.
    """

    accesses: list[int]
    writers: dict[int, list[int]]

    @classmethod
    def of(cls, graph: Graph) -> "Uses":
        """Go through a graph once."""
        accesses = [0] * len(graph.tensors)
        writers: dict[int, list[int]] = {}
        tensors = graph.tensors
        for node in graph.nodes:
            for tid in node.inputs:
                accesses[tensors[tid].storage] += 1
            written = tensors[node.output].storage
            accesses[written] += 1
            writers.setdefault(written, []).append(node.id)
        for tid in graph.outputs:
            accesses[tensors[tid].storage] += 1
        return cls(accesses, writers)

    def is_written_between(self, storage: int, after: int, before: int) -> bool:
        """Whether a node with ``after < node < before`` writes a storage."""
        writers = self.writers.get(storage, ())
        k = bisect_right(writers, after)
        return k < len(writers) and writers[k] < before


@dataclass(frozen=True, slots=True)
class _Search:
    """Looks for groups in one split.

    Attributes:
        uses: Who touches what.
        first: First node of the split.
        taken: Nodes that belong to a group already.
    """

    graph: Graph
    uses: Uses
    first: int
    taken: set[int]

    def match(self, pattern: Pattern, root: Node) -> tuple[int, ...]:
        """Return the group of which ``root`` is the last node, or nothing."""
        nodes = self.graph.nodes
        members: list[Node | None] = [None] * len(pattern.ops)
        members[-1] = root
        for link in reversed(pattern.links):
            user = members[link.user]
            assert user is not None  # users come after makers, and the root is known
            makers = (self._maker(user, k, pattern.ops[link.maker]) for k in link.operands)
            maker = next((m for m in makers if m is not None), None)
            if maker is None:
                return ()
            members[link.maker] = maker
        group = [m for m in members if m is not None]
        for (a, i), (b, k) in pattern.same:
            if not self._is_same(group[a].inputs[i], group[b].inputs[k]):
                return ()
        if not self._is_legal(group):
            return ()
        return tuple(nodes[m.id].id for m in group)

    def _maker(self, user: Node, k: int, op: str) -> Node | None:
        """Return the node whose result is operand ``k`` of ``user`` and nothing else."""
        operand = self.graph.tensors[user.inputs[k]]
        storage = operand.storage
        root = self.graph.tensors[storage]
        if root.role is not Role.TEMP or self.uses.accesses[storage] != _MAX_ACCESSES:
            return None
        number = self.uses.writers[storage][0]
        maker = self.graph.nodes[number]
        is_dense = operand.is_contiguous or (user.op == "cont" and operand.size == root.size)
        whole = operand.nbytes == root.nbytes and is_dense and operand.size
        if maker.op != op or not whole or number < self.first or number in self.taken:
            return None
        return maker

    def _is_same(self, a: int, b: int) -> bool:
        return a == b or _window(self.graph.tensors[a]) == _window(self.graph.tensors[b])

    def _is_legal(self, group: Sequence[Node]) -> bool:
        """Whether all but the last may move to where the last is, and all may run at once."""
        tensors, root = self.graph.tensors, group[-1]
        inside = {tensors[m.output].storage for m in group[:-1]}
        result = tensors[root.output]
        if not result.size or result.storage in inside or root.id in self.taken:
            return False
        for member in group[:-1]:
            for tid in member.inputs:
                t = tensors[tid]
                if t.storage in inside:
                    continue
                if self.uses.is_written_between(t.storage, member.id, root.id):
                    return False
                if t.storage == result.storage and overlap(t, result):
                    return False
        return True


def _window(t: Tensor) -> tuple[object, ...]:
    return t.storage, t.offset, t.dtype, t.shape, t.strides
