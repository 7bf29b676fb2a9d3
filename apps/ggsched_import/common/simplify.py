"""Merges nodes of an imported graph, and drops those whose results are not read.

Exported models scale and shift: by numbers, one after another, each channel behind a convolution,
and scores in front of a softmax. The first are one ``scale``; the second goes into the weights, the
third into the softmax. They also spell out activations that are one op here, and compute again for
each layer what only depends on a mask.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import pi, sqrt
from typing import NamedTuple

import numpy as np

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.graph import Graph, Node
from ggsched.ir.ops import Param, op_by_name
from ggsched.ir.tensor import Role, Tensor
from ggsched_import.common.emit import Array, content_name


class _Made(NamedTuple):
    """How a tensor was made, and whether one node alone reads it."""

    op: str
    operands: list[Tensor]
    params: dict[str, Param]
    is_read_once: bool


def simplified(graph: Graph, weights: Mapping[str, Array]) -> tuple[Graph, dict[str, Array]]:
    """Return a graph that computes the same, and its weights."""
    merged = _Rewrite(graph, weights)
    return _Rewrite(merged.graph, merged.weights, keep=_needed(merged.graph)).result


def _needed(graph: Graph) -> set[int]:
    """Return the numbers of nodes whose results are read."""
    wanted = {graph.tensors[tid].storage for tid in graph.outputs}
    found = set()
    for n in reversed(graph.nodes):
        if graph.tensors[n.output].storage in wanted:
            found.add(n.id)
            wanted |= {graph.tensors[tid].storage for tid in n.inputs}
    return found


class _Rewrite:
    """Builds a graph again, in order.

    Args:
        graph: What to build.
        weights: Arrays by name.
        keep: Numbers of the nodes to keep, and nothing is merged; None to merge.
    """

    def __init__(
        self, graph: Graph, weights: Mapping[str, Array], keep: set[int] | None = None
    ) -> None:
        self._old, self._merges = graph, keep is None
        self.weights = dict(weights)
        self._g = GraphBuilder(graph.name)
        self._new: dict[int, Tensor] = {}
        self._made: dict[int, _Made] = {}
        self._known: dict[str, Tensor] = {}
        self._same: dict[object, Tensor] = {}
        reads = [graph.tensors[t].storage for n in graph.nodes for t in n.inputs]
        self._reads = Counter([*reads, *(graph.tensors[t].storage for t in graph.outputs)])
        nodes = {n.output: n for n in graph.nodes if keep is None or n.id in keep}
        used = {graph.tensors[t].storage for n in nodes.values() for t in n.inputs}
        for t in graph.tensors:
            if t.id in nodes:
                self._new[t.id] = self._node(nodes[t.id], t)
            elif t.is_view:
                root = self._new.get(t.storage)
                if root is not None:
                    self._new[t.id] = self._g.view(root, t.shape, t.strides, t.offset)
            elif t.role is Role.INPUT:
                self._new[t.id] = self._g.input(t.name, t.shape, t.dtype)
            elif t.role is Role.WEIGHT and (self._merges or t.id in used):
                self._new[t.id] = self._weight(t.name, self.weights[t.name], t)
        self.graph = self._g.build(*(self._new[t] for t in graph.outputs))

    @property
    def result(self) -> tuple[Graph, dict[str, Array]]:
        """The graph and what it has of the weights."""
        names = [t.name for t in self.graph.roots(Role.WEIGHT)]
        return self.graph, {name: self.weights[name] for name in names}

    def _weight(self, name: str, array: Array, like: Tensor) -> Tensor:
        if name not in self._known:
            self._known[name] = self._g.weight(name, array.shape, like.dtype)
            self.weights[name] = array
        return self._known[name]

    def _node(self, n: Node, old: Tensor) -> Tensor:
        operands = [self._new[t] for t in n.inputs]
        params = dict(n.params)
        op = n.op
        if self._merges:
            op, operands, params = self._merged(op, operands, params)
        windows = tuple((t.storage, t.offset, t.shape, t.strides) for t in operands)
        same = op, windows, tuple(sorted(params.items()))
        if self._merges and old.id not in self._old.outputs and same in self._same:
            found = self._same[same]
            self._made[found.id] = self._made[found.id]._replace(is_read_once=False)
            return found
        made = self._g.op(op, *operands, name=n.name, **params)  # type: ignore[arg-type]
        once = self._reads[old.storage] == 1
        self._made[made.id] = _Made(op, operands, params, once)
        self._same[same] = made
        return made

    def _merged(
        self, op: str, operands: list[Tensor], params: dict[str, Param]
    ) -> tuple[str, list[Tensor], dict[str, Param]]:
        """Return the node, or one that does the work of the node before as well."""
        activation = self._activation(op, operands, params)
        if activation is not None:
            return activation
        if op == "soft_max" and not params:
            return self._soft_max(operands[0])
        before = self._made.get(operands[0].id)
        if before is None or not before.is_read_once:
            return op, operands, params
        if op == "scale" and before.op == "scale":
            (a, b), (c, d) = _numbers(before.params), _numbers(params)
            return op, before.operands, {"scale": a * c, "bias": b * c + d}
        if op in ("mul", "add", "scale") and before.op == "nd.conv":
            return self._into_conv(op, operands, params, before) or (op, operands, params)
        return op, operands, params

    def _soft_max(self, x: Tensor) -> tuple[str, list[Tensor], dict[str, Param]]:
        """Return a softmax that adds a mask and scales, where these are in front of it."""
        terms, mask, factor = self._of("add", [x]), list[Tensor](), 1.0
        if terms:
            is_first = terms[1].shape != x.shape or self._of("mul_mat", terms[:1])
            x, *mask = terms if is_first else terms[::-1]
        scaled = self._of("scale", [x], bias=0.0)
        if scaled:
            factor *= _numbers(self._made[x.id].params)[0]
            (x,) = scaled
        product = self._of("mul_mat", [x])
        scaled = self._of("scale", product[1:], bias=0.0)
        if scaled:
            factor *= _numbers(self._made[product[1].id].params)[0]
            x = self._g.mul_mat(product[0], *scaled)
        return "soft_max", [x, *mask], {"scale": factor, "mask": bool(mask)}

    def _activation(
        self, op: str, operands: list[Tensor], params: Mapping[str, Param]
    ) -> tuple[str, list[Tensor], dict[str, Param]] | None:
        """Return the activation that is spelled out, if this is the last node of one."""
        gelu = self._gelu(op, operands, params)
        if gelu is not None:
            return "gelu", [gelu], {}
        if op == "mul":
            for x, factor in (operands, operands[::-1]):
                if _ids(self._of("sigmoid", [factor])) == [x.id]:
                    return "silu", [x], {}
                slope = {"alpha": 1 / 6, "beta": 0.5}
                if _ids(self._of("nd.hard_sigmoid", [factor], **slope)) == [x.id]:
                    return "nd.hard_swish", [x], {}
        product = self._of("mul", operands) if self._is_sixth(op, operands, params) else []
        for x, factor in (product, product[::-1]) if product else ():
            limited = self._of("clamp", [factor], min=0.0, max=6.0)
            if _ids(self._of("scale", limited, scale=1.0, bias=3.0)) == [x.id]:
                return "nd.hard_swish", [x], {}
        return None

    def _gelu(self, op: str, operands: list[Tensor], params: Mapping[str, Param]) -> Tensor | None:
        """Return x if this is ``x / 2 * (1 + tanh(...))``, in any order of the products."""
        is_half = op == "scale" and _is_near(op, params, scale=0.5, bias=0.0)
        factors = self._of("mul", operands) if is_half else operands if op == "mul" else []
        for a, b in (factors, factors[::-1]) if factors else ():
            x = self._in_gelu(b)
            half = [a] if is_half else self._of("scale", [a], scale=0.5, bias=0.0)
            if x is not None and _ids(half) == [x.id]:
                return x
        return None

    def _in_gelu(self, t: Tensor) -> Tensor | None:
        """Return x if a tensor is ``1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3))``."""
        curve = self._of("tanh", self._of("scale", [t], scale=1.0, bias=1.0))
        terms = self._of("add", self._of("scale", curve, scale=sqrt(2 / pi), bias=0.0))
        for x, other in (terms, terms[::-1]) if terms else ():
            cube = self._of("mul", self._of("scale", [other], scale=0.044715, bias=0.0))
            for a, b in (cube, cube[::-1]) if cube else ():
                square = self._of("mul", [a])
                if square and {v.id for v in (b, *square)} == {x.id}:
                    return x
        return None

    def _of(self, op: str, t: Sequence[Tensor], **params: float) -> list[Tensor]:
        """Return the operands of the node that made the first of some tensors.

        Empty without tensors, and unless the node is such an op and one node reads the tensor.
        """
        made = self._made.get(t[0].id) if t else None
        if made is None or not made.is_read_once or made.op != op:
            return []
        return made.operands if _is_near(op, made.params, **params) else []

    def _is_sixth(self, op: str, operands: list[Tensor], params: Mapping[str, Param]) -> bool:
        if op == "scale":
            return _is_near(op, params, scale=1 / 6, bias=0.0)
        by = self._elements(operands[1]) if op == "div" else None
        return by is not None and by.size == 1 and by.item() == 6

    def _into_conv(
        self, op: str, operands: list[Tensor], params: dict[str, Param], conv: _Made
    ) -> tuple[str, list[Tensor], dict[str, Param]] | None:
        x, w = conv.operands[:2]
        kernel = self._elements(w)
        given = self._elements(conv.operands[2]) if len(conv.operands) > 2 else 0.0
        if kernel is None or given is None:
            return None
        channels, rank = w.shape[0], len(w.shape)
        factor: Array = np.ones(channels, np.float32)
        offset: Array = np.zeros(channels, np.float32)
        if op == "scale":
            scale, bias = _numbers(params)
            factor, offset = factor * np.float32(scale), offset + np.float32(bias)
        else:
            each = self._elements(operands[1])
            if each is None or each.size != channels:
                return None
            lined = each.reshape((1,) * (rank - each.ndim) + each.shape)
            if lined.shape[1] != channels:
                return None
            if op == "mul":
                factor = each.reshape(-1)
            else:
                offset = each.reshape(-1)
        made = kernel * factor.reshape(-1, *(1,) * (rank - 1))
        bias_array = np.asarray(given * factor + offset, np.float32)
        new = [x, *(self._constant(a.astype(np.float32), w) for a in (made, bias_array))]
        return "nd.conv", new, {**conv.params, "bias": True}

    def _elements(self, t: Tensor) -> Array | None:
        """Return the elements of a weight."""
        if t.role is not Role.WEIGHT or not t.is_contiguous or t.dtype.name != "f32":
            return None
        array = self.weights[t.name]
        return array.reshape(t.shape) if array.size == t.size else None

    def _constant(self, array: Array, like: Tensor) -> Tensor:
        return self._weight(content_name(array), array, like)


def _is_near(op: str, params: Mapping[str, Param], **wanted: float) -> bool:
    """Whether parameters of an op have some values, but for rounding to f32."""
    full = op_by_name(op).full(params)
    return all(
        isinstance(value := full[name], float) and abs(value - number) < 1e-6
        for name, number in wanted.items()
    )


def _ids(tensors: Sequence[Tensor]) -> list[int]:
    return [t.id for t in tensors]


def _numbers(params: Mapping[str, Param]) -> tuple[float, float]:
    scale, bias = params.get("scale", 1.0), params.get("bias", 0.0)
    assert isinstance(scale, float)
    assert isinstance(bias, float)
    return scale, bias
