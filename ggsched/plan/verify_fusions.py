"""Checks of the groups that run as one: pattern, place, and that nobody misses anything.

This checks the graph, in program order; whether the bytes are right is checked on
the commands, by the sanitizer.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from ggsched.errors import PlanError
from ggsched.ids import show
from ggsched.ir.fusion import PATTERNS, Pattern
from ggsched.ir.graph import Graph, Node
from ggsched.ir.intervals import overlap
from ggsched.ir.tensor import Tensor
from ggsched.plan.fusions import Fusion
from ggsched.plan.splits import Splits
from ggsched.plan.streams import Streams
from ggsched.topology.model import Topology


def verify_fusions(
    graph: Graph,
    topology: Topology,
    splits: Splits,
    streams: Streams,
    fusions: Sequence[Fusion],
) -> None:
    """Check the groups of a plan.

    Raises:
        PlanError: an unknown pattern, or one that the device does not declare; nodes that do not
            exist, belong to two groups, to two splits or to two streams, or are not what the
            pattern says; a result that somebody outside the group reads; a node that cannot move
            to where the group runs.
    """
    if not fusions:
        return
    accesses = _Accesses(graph)
    seen: set[int] = set()
    last = -1
    split_of = [s.id for s in splits.splits for _ in range(s.first, s.end)]
    for f in fusions:
        where = f"{f.pattern} at {', '.join(map(str, f.nodes))}"
        pattern = PATTERNS.get(f.pattern)
        if pattern is None or len(f.nodes) != len(pattern.ops):
            raise PlanError("no such pattern, or another number of nodes", where=where)
        if any(not 0 <= n < len(graph.nodes) for n in f.nodes) or seen & set(f.nodes):
            raise PlanError("nodes that do not exist or belong to two groups", where=where)
        if len(set(f.nodes)) != len(f.nodes) or max(f.nodes) != f.nodes[-1] or f.nodes[-1] < last:
            raise PlanError("its last node comes last, and groups are ordered by it", where=where)
        seen |= set(f.nodes)
        last = f.nodes[-1]
        if len({(split_of[n], streams.of_node[n]) for n in f.nodes}) > 1:
            raise PlanError("is in several splits or on several streams", where=where)
        facts = topology.devices[splits.splits[split_of[last]].device]
        if f.pattern not in facts.fusions:
            raise PlanError(f"{facts.name} does not declare the pattern", where=where)
        for problem in _problems(graph, accesses, pattern, [graph.nodes[n] for n in f.nodes]):
            raise PlanError(problem, where=where)


class _Accesses:
    """Who touches each storage: (node, whether it writes), in program order."""

    def __init__(self, graph: Graph) -> None:
        self.of: dict[int, list[tuple[int, bool]]] = {}
        for node in graph.nodes:
            for tid in node.inputs:
                self.of.setdefault(graph.tensors[tid].storage, []).append((node.id, False))
            written = graph.tensors[node.output].storage
            self.of.setdefault(written, []).append((node.id, True))
        self.read_back = {graph.tensors[tid].storage for tid in graph.outputs}
        self._writers = {s: [n for n, writes in who if writes] for s, who in self.of.items()}

    def writer_between(self, storage: int, first: int, last: int) -> int | None:
        """Return a node with ``first < node < last`` that writes a storage."""
        writers = self._writers.get(storage, [])
        at = bisect_right(writers, first)
        return writers[at] if at < len(writers) and writers[at] < last else None


def _problems(
    graph: Graph, accesses: _Accesses, pattern: Pattern, group: Sequence[Node]
) -> Iterator[str]:
    tensors, root = graph.tensors, group[-1]
    if tuple(n.op for n in group) != pattern.ops:
        yield f"its ops are {', '.join(n.op for n in group)}"
        return
    for link in pattern.links:
        maker, user = group[link.maker], group[link.user]
        made = tensors[maker.output]
        used = [tensors[user.inputs[k]] for k in link.operands]
        if not any(t.storage == made.id and _is_all_of(t, made) for t in used):
            yield f"node {user.id} does not read what node {maker.id} computes"
        if accesses.of[made.storage] != [(maker.id, True), (user.id, False)]:
            yield f"{show('tensor', made.storage)} is used by others than the group"
        if made.storage in accesses.read_back:
            yield f"{show('tensor', made.storage)} is an output of the graph"
    for (a, i), (b, k) in pattern.same:
        one, other = tensors[group[a].inputs[i]], tensors[group[b].inputs[k]]
        if _window(one) != _window(other):
            yield f"nodes {group[a].id} and {group[b].id} do not read the same"
    inside = {tensors[n.output].storage for n in group[:-1]}
    result = tensors[root.output]
    for node in group[:-1]:
        for t in (tensors[tid] for tid in node.inputs):
            between = accesses.writer_between(t.storage, node.id, root.id)
            if t.storage not in inside and between is not None:
                yield f"node {node.id} cannot move behind node {between}, which writes its operand"
            if t.storage == result.storage and overlap(t, result):
                yield f"node {root.id} writes what node {node.id} reads"


def _is_all_of(t: Tensor, made: Tensor) -> bool:
    return (t.offset, t.nbytes) == (made.offset, made.nbytes) and t.is_contiguous


def _window(t: Tensor) -> tuple[object, ...]:
    return t.storage, t.offset, t.dtype, t.shape, t.strides
