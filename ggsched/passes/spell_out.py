"""Spell out: nodes become others where their device has kernels for those and none for their op.

    graph, topology --spellable--> what each device could compute that way
    graph, {node: device} --spell_out--> graph with these nodes spelled out

The policy places the graph as if devices had the ops that they can spell out. What then lies where
there is no kernel for it is spelled out, and the plan of that is compared with the plan of the
graph as it is, by prediction (``ggsched.passes.spelled_plan``). A spelling may use ops that are
spelled out in turn.

Tensors keep their ids, so outputs and homes do. New ones are behind them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from ggsched.errors import GraphError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.graph import Graph, Node, verify_graph
from ggsched.ir.ops import op_by_name, written_operand
from ggsched.ir.spelled import spell, spelling_of
from ggsched.ir.tensor import Role
from ggsched.topology.caps import DeviceFacts, offers, op_key
from ggsched.topology.model import Topology


@dataclass(frozen=True, slots=True)
class SpelledOut:
    """A graph in which nodes are spelled out.

    Attributes:
        graph: It.
        origin: By node, the node of the old graph that it is, or is a part of.
    """

    graph: Graph
    origin: tuple[int, ...]


def spellable(graph: Graph, topology: Topology) -> Topology:
    """Return the topology in which devices also declare what they can spell out of a graph.

    It is the same topology if there is nothing. A device gets an op on a type only if it could
    spell out every node of that.
    """
    tensors = graph.tensors
    keys = {(n.op, tensors[n.inputs[0]].dtype.name) for n in graph.nodes}
    keys = {key for key in keys if spelling_of(op_by_name(key[0])) is not None}
    devices = []
    for facts in topology.devices:
        missing = {key for key in keys if not offers(facts.ops, *key)}
        if missing:
            work = _Speller(graph)
            for n in graph.nodes:
                key = n.op, tensors[n.inputs[0]].dtype.name
                if key in missing and not work.can(n, facts):
                    missing.remove(key)
            facts = replace(facts, ops=facts.ops | {op_key(*key) for key in missing})
        devices.append(facts)
    if all(a.ops == b.ops for a, b in zip(devices, topology.devices, strict=True)):
        return topology
    return replace(topology, devices=tuple(devices))


def spell_out(graph: Graph, topology: Topology, where: Mapping[int, int]) -> SpelledOut:
    """Return the graph with some nodes spelled out.

    Args:
        graph: The graph.
        topology: The machine.
        where: Device by node, of those nodes.

    Raises:
        GraphError: a spelling that fails, or uses what its device does not have.
    """
    work = _Speller(graph)
    nodes: list[Node] = []
    origin: list[int] = []
    for n in graph.nodes:
        device = where.get(n.id)
        made = [n] if device is None else list(work.expanded(n, topology.devices[device]))
        nodes.extend(made)
        origin.extend([n.id] * len(made))
    kept = _without_repeats(work, nodes, [where.get(i, -1) for i in origin], len(graph.tensors))
    packed = _packed(graph, work, [nodes[i] for i in kept])
    return SpelledOut(packed, tuple(origin[i] for i in kept))


def spelled_once(graph: Graph, node: int) -> Graph:
    """Return the graph with one node as the nodes that its op's spelling gives.

    Raises:
        GraphError: its op has no spelling, or one that fails.
    """
    work = _Speller(graph)
    nodes = [part for n in graph.nodes for part in (work.spelled(n) if n.id == node else [n])]
    return _packed(graph, work, nodes)


class _Speller:
    """A builder that has the tensors of a graph, and what its results stand for."""

    def __init__(self, graph: Graph) -> None:
        self.g = GraphBuilder.after(graph)
        self.stands_for: dict[int, int] = {}
        """By result of a spelling, the root tensor in whose place it is."""

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
            raise GraphError(f"{node.op} is spelled out by itself", where=node.op)
        for part in self.spelled(node):
            yield from self.expanded(part, facts, (*within, node.op))

    def spelled(self, node: Node) -> Sequence[Node]:
        """Return the nodes that a node is spelled out by, the last of which gives its result."""
        op = op_by_name(node.op)
        if spelling_of(op) is None:
            raise GraphError("nothing spells it out", where=node.op)
        g, first = self.g, len(self.g.nodes)
        operands = [g.tensors[t] for t in node.inputs]
        through = written_operand(op, node.params)
        params = {name: value for name, value in op.full(node.params).items() if name != "inplace"}
        with g.scope(node.name) if node.name else nullcontext():
            found = spell(g, op, operands, params)
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
    work: _Speller, nodes: Sequence[Node], devices: Sequence[int], old: int
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


def _packed(graph: Graph, work: _Speller, nodes: Sequence[Node]) -> Graph:
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
