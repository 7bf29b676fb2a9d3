"""Recognise: decomposed attention becomes the op, whose inner results need no memory.

Two products and a softmax are attention if the shares of the first are the weights of the second
and nothing else reads them. The op gives tokens first, then heads, so what comes behind has to
merge heads by a copy, which is dropped, or the two orders have to be one: of one token, or of one
head. The op runs where its last node was, so nothing that it reads may be written in between.

The op gives zeros to a token that sees nothing, and a softmax of -inf alone is NaN. Where a mask
may hide everything, the result is multiplied by the sum of a softmax of the mask: 1 or NaN.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from ggsched.ir.dtype import F32, KV_DTYPES
from ggsched.ir.graph import Graph, Node, verify_graph
from ggsched.ir.ops import access_modes, op_by_name
from ggsched.ir.params import canonical_params
from ggsched.ir.tensor import Role, Tensor, contiguous_strides
from ggsched.ops.record import Params
from ggsched.passes.streams.fuse import Uses
from ggsched.topology.caps import op_key
from ggsched.topology.model import Topology

_ONCE: Final = 2
"""Accesses of a result that is read once: one writes it."""

_AXES: Final = 3

_HIDDEN: Final = struct.pack("<f", -math.inf)


@dataclass(frozen=True, slots=True)
class Recognised:
    """A graph with attention as an op.

    Attributes:
        tensor_of: The new id of each output of the old graph.
    """

    graph: Graph
    tensor_of: dict[int, int]


class _Attention(NamedTuple):
    """The nodes; ``merge`` copies heads together, if that is needed."""

    product: Node
    soft_max: Node
    last: Node
    merge: Node | None

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(n for n in self if n is not None)


def recognise_attention(graph: Graph, topology: Topology) -> Recognised | None:
    """Return the graph with the op, or None where it has none, or the devices do not declare it."""
    if not any(n.op == "soft_max" for n in graph.nodes):
        return None
    uses = Uses.of(graph)
    found = [s for n in graph.nodes if n.op == "soft_max" and (s := _match(graph, uses, n))]
    found = [s for s in found if _is_declared(graph, topology, s)]
    return _rewritten(graph, found) if found else None


def _is_declared(graph: Graph, topology: Topology, s: _Attention) -> bool:
    """Whether every device that could run the nodes could run the op."""
    keys = {op_key("attention", graph.tensors[s.product.inputs[0]].dtype.name)}
    if _may_see_nothing(graph, s.soft_max):
        if len(graph.tensors[s.soft_max.inputs[1]].shape) != _AXES - 1:
            return False
        keys |= {op_key(op, "f32") for op in ("sum_rows", "clamp", "mul")}
    able = [f for f in topology.devices if op_key("soft_max", "f32") in f.ops]
    return bool(able) and all(keys <= facts.ops for facts in able)


def _may_see_nothing(graph: Graph, soft_max: Node) -> bool:
    """Whether a mask may be -inf throughout a row, and no sink is in the sum."""
    if not soft_max.params.get("mask") or soft_max.params.get("sinks"):
        return False
    mask = graph.tensors[soft_max.inputs[1]]
    content = graph.constants.get(graph.tensors[mask.storage].name)
    if content is None or mask.is_view:
        return True
    hidden = _HIDDEN * mask.shape[-1]
    return any(content[i : i + len(hidden)] == hidden for i in range(0, len(content), len(hidden)))


def _match(graph: Graph, uses: Uses, soft_max: Node) -> _Attention | None:
    """Return attention around a softmax, if it is one."""
    product = _maker(graph, uses, soft_max.inputs[0])
    last = _reader(graph, uses, soft_max.output, 1)
    if product is None or last is None or product.op != "mul_mat" or last.op != "mul_mat":
        return None
    tensors = graph.tensors
    k, q = (tensors[t] for t in product.inputs)
    v, result = tensors[last.inputs[0]], tensors[last.output]
    if any(len(t.shape) != _AXES or 0 in t.shape for t in (k, q, v, result)):
        return None
    (heads, tokens, _), (groups, rows, _) = q.shape, k.shape
    if k.dtype not in KV_DTYPES or k.dtype.is_quantized:
        return None  # transposed values have no blocks
    if v.dtype is not k.dtype or v.shape[::2] != (groups, rows):
        return None
    merge = None
    if tokens > 1 and heads > 1:
        merge = _reader(graph, uses, last.output, 0, turned=True)
        if merge is None or merge.op != "cont" or merge.params:
            return None
    match = _Attention(product, soft_max, last, merge)
    end = match.nodes[-1].id
    inner = {tensors[n.output].storage for n in match.nodes[:-1]}
    for node in match.nodes:
        for tid in node.inputs:
            storage = tensors[tid].storage
            if storage not in inner and uses.is_written_between(storage, node.id, end):
                return None
    return match


def _maker(graph: Graph, uses: Uses, tid: int) -> Node | None:
    """Return the node that makes a tensor which nothing but one node reads, as it is."""
    t = graph.tensors[tid]
    root = graph.tensors[t.storage]
    if root.role is not Role.TEMP or uses.accesses[root.id] != _ONCE or not _is_whole(t, root):
        return None
    maker = graph.nodes[uses.writers[root.id][0]]
    return maker if graph.tensors[maker.output].shape == t.shape else None


def _reader(
    graph: Graph, uses: Uses, tid: int, operand: int, *, turned: bool = False
) -> Node | None:
    """Return the one node that reads a result as a certain operand, as it is or with heads last."""
    made = graph.tensors[tid]
    if made.is_view or made.role is not Role.TEMP or uses.accesses[made.id] != _ONCE:
        return None
    if tid in graph.outputs:
        return None
    users = [n for n in graph.nodes if any(graph.tensors[t].storage == tid for t in n.inputs)]
    if len(users) != 1 or len(users[0].inputs) <= operand:
        return None
    seen = graph.tensors[users[0].inputs[operand]]
    wanted = _swapped(made) if turned else (made.shape, made.strides)
    is_it = seen.storage == tid and seen.offset == 0 and (seen.shape, seen.strides) == wanted
    return users[0] if is_it else None


def _is_whole(t: Tensor, root: Tensor) -> bool:
    return t.nbytes == root.nbytes and t.is_contiguous


def _swapped(t: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return shape and strides with the first two axes exchanged."""
    (a, b, c), (x, y, z) = t.shape, t.strides
    return (b, a, c), (y, x, z)


def _node(
    number: int, name: str, operands: Sequence[Tensor], out: Tensor, params: Params, label: str = ""
) -> Node:
    """Return a node of an op."""
    op = op_by_name(name)
    full = canonical_params(op, params)
    modes = access_modes(op, operands, out, full)
    return Node(number, name, tuple(t.id for t in operands), out.id, full, label, modes)


def _rewritten(graph: Graph, found: Sequence[_Attention]) -> Recognised:
    """Return the graph with each of these as one node."""
    at = {s.nodes[-1].id: s for s in found}
    dropped = {n.id for s in found for n in s.nodes[:-1]}
    gone = {graph.tensors[graph.nodes[n].output].storage for n in dropped}
    kept = [t for t in graph.tensors if t.storage not in gone]
    number = {t.id: i for i, t in enumerate(kept)}
    tensors = [replace(t, id=number[t.id], storage=number[t.storage]) for t in kept]

    def view(of: Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
        """Add a window on the bytes of a tensor of the old graph."""
        made = replace(
            of, id=len(tensors), storage=number[of.storage], shape=shape, strides=strides
        )
        tensors.append(made)
        return made

    def temp(shape: tuple[int, ...]) -> Tensor:
        """Add a result that another node of the same attention reads."""
        at, strides = len(tensors), contiguous_strides(F32, shape)
        made = Tensor(at, "", F32, shape, strides, at, 0, 4 * math.prod(shape), Role.TEMP)
        tensors.append(made)
        return made

    for s in found:
        root = graph.tensors[s.last.output]
        if s.merge is None:  # the result has the same bytes in the order of the op
            shape = _swapped(root)[0]
            place, old = number[root.id], tensors[number[root.id]]
            tensors[place] = replace(old, shape=shape, strides=contiguous_strides(old.dtype, shape))
            number[root.id] = view(root, root.shape, root.strides).id
    nodes: list[Node] = []
    for n in graph.nodes:
        if n.id in dropped:
            continue
        match = at.get(n.id)
        if match is None:
            inputs = tuple(number[t] for t in n.inputs)
            nodes.append(replace(n, id=len(nodes), inputs=inputs, output=number[n.output]))
            continue
        k, q = (graph.tensors[t] for t in match.product.inputs)
        v = graph.tensors[match.last.inputs[0]]
        (groups, across, rows), (head, each, row) = v.shape, v.strides
        operands = [
            view(k, *_swapped(k)),
            view(v, (rows, groups, across), (row, head, each)),
            view(q, *_swapped(q)),
            *(tensors[number[t]] for t in match.soft_max.inputs[1:]),
        ]
        root = graph.tensors[n.output]
        output = tensors[[t.id for t in kept].index(root.id)]
        params = match.soft_max.params
        if _may_see_nothing(graph, match.soft_max):
            mask, (tokens, _) = operands[3], operands[3].shape
            seen, share, ones = temp(mask.shape), temp((tokens, 1)), temp((tokens, 1))
            nodes.append(_node(len(nodes), "soft_max", [mask], seen, {}))
            nodes.append(_node(len(nodes), "sum_rows", [seen], share, {}))
            nodes.append(_node(len(nodes), "clamp", [share], ones, {"min": 1.0, "max": 1.0}))
            factor = replace(ones, id=len(tensors), shape=(tokens, 1, 1), strides=(4, 4, 4))
            tensors.append(factor)
            attended = temp(output.shape)
            behind = _node(len(nodes) + 1, "mul", [attended, factor], output, {}, n.name)
            nodes.append(_node(len(nodes), "attention", operands, attended, params))
            nodes.append(behind)
        else:
            nodes.append(_node(len(nodes), "attention", operands, output, params, n.name))
    outputs = tuple(number[t] for t in graph.outputs)
    made = Graph(graph.name, tuple(tensors), tuple(nodes), outputs, graph.constants)
    verify_graph(made)
    return Recognised(made, {t: number[t] for t in graph.outputs})
