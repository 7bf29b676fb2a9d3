"""Decompose: a node becomes other nodes where its device has kernels for these and none for its op.

    graph, topology --decomposable--> what each device could compute that way
    graph, {node: device} --decompose_nodes--> graph with these nodes decomposed

The policy places the graph as if devices had the ops that they can decompose. Nodes that it places
on a device without a kernel for them are decomposed. The predicted time of that plan is compared
with that of the original graph (``ggsched.passes.decomposed_plan``). A decomposition may use ops
that are decomposed in turn.

Tensors keep their ids, so outputs and homes do. New ones are behind them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from ggsched.errors import GraphError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.decompositions import apply_decomposition
from ggsched.ir.graph import Graph, Node, verify_graph
from ggsched.ir.ops import op_by_name, written_operand
from ggsched.ir.tensor import Role
from ggsched.topology.caps import DeviceFacts, offers, op_key
from ggsched.topology.model import Topology


@dataclass(frozen=True, slots=True)
class Decomposed:
    """A graph in which nodes are decomposed.

    Attributes:
        origin: By node, the node of the old graph that it is, or is a part of.
    """

    graph: Graph
    origin: tuple[int, ...]


def decomposable(graph: Graph, topology: Topology) -> Topology:
    """Return the topology in which devices also declare the ops of a graph that they can decompose.

    It is the same topology if there is nothing. A device gets an op on a type only if it could
    decompose every node of that.
    """
    tensors = graph.tensors
    keys = {(n.op, tensors[n.inputs[0]].dtype.name) for n in graph.nodes}
    keys = {key for key in keys if op_by_name(key[0]).decompose is not None}
    devices = []
    for facts in topology.devices:
        missing = {key for key in keys if not offers(facts.ops, *key)}
        if missing:
            work = _Decomposer(graph)
            for n in graph.nodes:
                key = n.op, tensors[n.inputs[0]].dtype.name
                if key in missing and not work.can(n, facts):
                    missing.remove(key)
            facts = replace(facts, ops=facts.ops | {op_key(*key) for key in missing})
        devices.append(facts)
    if all(a.ops == b.ops for a, b in zip(devices, topology.devices, strict=True)):
        return topology
    return replace(topology, devices=tuple(devices))


def decompose_nodes(graph: Graph, topology: Topology, where: Mapping[int, int]) -> Decomposed:
    """Return the graph with some nodes decomposed.

    Args:
        where: Device by node, of those nodes.

    Raises:
        GraphError: a decomposition that fails, or uses what its device does not have.
    """
    work = _Decomposer(graph)
    nodes: list[Node] = []
    origin: list[int] = []
    for n in graph.nodes:
        device = where.get(n.id)
        made = [n] if device is None else list(work.expanded(n, topology.devices[device]))
        nodes.extend(made)
        origin.extend([n.id] * len(made))
    kept = _without_repeats(work, nodes, [where.get(i, -1) for i in origin], len(graph.tensors))
    packed = _packed(graph, work, [nodes[i] for i in kept])
    return Decomposed(packed, tuple(origin[i] for i in kept))


def decompose_once(graph: Graph, node: int) -> Graph:
    """Return the graph with one node as the nodes that its op's decomposition gives.

    Raises:
        GraphError: its op has no decomposition, or one that fails.
    """
    work = _Decomposer(graph)
    nodes = [part for n in graph.nodes for part in (work.decomposed(n) if n.id == node else [n])]
    return _packed(graph, work, nodes)


class _Decomposer:
    """A builder that has the tensors of a graph, and what its results stand for."""

    def __init__(self, graph: Graph) -> None:
        self.g = GraphBuilder.after(graph)
        self.stands_for: dict[int, int] = {}
        """By result of a decomposition, the root tensor in whose place it is."""

    def storage(self, tid: int) -> int:
        """Return the root tensor of a tensor, or what that stands for."""
        found = self.g.tensors[tid].storage
        while found in self.stands_for:
            found = self.stands_for[found]
        return found

    def can(self, node: Node, facts: DeviceFacts) -> bool:
        """Whether a device could compute a node by other ops."""
        try:
            return bool(list(self.expanded(node, facts)))
        except GraphError:
            return False

    def expanded(
        self, node: Node, facts: DeviceFacts, within: tuple[str, ...] = ()
    ) -> Iterator[Node]:
        """Yield the nodes that compute a node on a device."""
        if offers(facts.ops, node.op, self.g.tensors[node.inputs[0]].dtype.name):
            yield node
            return
        if node.op in within:
            raise GraphError(f"{node.op} is decomposed into itself", where=node.op)
        for part in self.decomposed(node):
            yield from self.expanded(part, facts, (*within, node.op))

    def decomposed(self, node: Node) -> Sequence[Node]:
        """Return the nodes that a node is decomposed into, the last of which gives its result."""
        op = op_by_name(node.op)
        if op.decompose is None:
            raise GraphError("it has no decomposition", where=node.op)
        g, first = self.g, len(self.g.nodes)
        operands = [g.tensors[t] for t in node.inputs]
        through = written_operand(op, node.params)
        with g.scope(node.name) if node.name else nullcontext():
            found = apply_decomposition(g, op, operands, op.full(node.params))
            is_own = any(n.output == found.id and not found.is_view for n in g.nodes[first:])
            if through is not None:
                g.cpy(found, operands[through])
            elif not is_own:
                found = g.cont(found)
        made = list(g.nodes[first:])
        if through is None:
            self.stands_for[found.id] = node.output
        else:
            made[-1] = replace(made[-1], output=node.output)
        return made


def _without_repeats(
    work: _Decomposer, nodes: Sequence[Node], devices: Sequence[int], old: int
) -> list[int]:
    """Return which nodes to keep: what the same device has computed from the same is used again.

    The layers of a model have the same mask, for instance, which each would make for itself.
    """
    writes = Counter(work.storage(n.output) for n in nodes)
    made: dict[tuple[object, ...], int] = {}
    kept = []
    for i, (n, device) in enumerate(zip(nodes, devices, strict=True)):
        result = work.storage(n.output)
        windows = []
        for tid in n.inputs:
            t, storage = work.g.tensors[tid], work.storage(tid)
            is_fixed = writes[storage] == (work.g.tensors[storage].role is Role.TEMP)
            windows.append((storage, t.dtype, t.offset, t.shape, t.strides) if is_fixed else None)
        if result >= old and writes[result] == 1 and device >= 0 and None not in windows:
            call = (device, n.op, repr(sorted(n.params.items())), *windows)
            first = made.setdefault(call, result)
            if first != result:
                work.stands_for[result] = first
                continue
        kept.append(i)
    return kept


def _packed(graph: Graph, work: _Decomposer, nodes: Sequence[Node]) -> Graph:
    """Return the graph of these nodes, without tensors that they do not use."""
    tensors, old = work.g.tensors, len(graph.tensors)
    used = {work.storage(t) for n in nodes for t in n.tensors}
    used |= {t for n in nodes for t in n.tensors if t not in work.stands_for}
    number = {tid: tid for tid in range(old)}
    number |= {tid: old + i for i, tid in enumerate(sorted(t for t in used if t >= old))}
    for tid in work.stands_for:
        if (root := work.storage(tid)) in number:
            number[tid] = number[root]
    kept = [
        replace(tensors[t], id=number[t], storage=number[work.storage(t)], builder=None)
        for t in sorted({*range(old), *used})
    ]
    numbered = [
        replace(n, id=i, inputs=tuple(number[t] for t in n.inputs), output=number[n.output])
        for i, n in enumerate(nodes)
    ]
    names = {t.name for t in kept}
    constants = {name: data for name, data in work.g.constants.items() if name in names}
    made = Graph(graph.name, tuple(kept), tuple(numbered), graph.outputs, constants)
    verify_graph(made)
    return made
