"""Arithmetic of one element at a time. The result may be the very bytes of an operand."""

import math
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from ggsched.backend.arrays import Array
from ggsched_cpu.lowering_context import (
    Call,
    CpuLoweringContext,
    Node,
    constant,
    flat,
    larger,
    shares,
    smaller,
)


def _binary(ufunc: np.ufunc) -> Callable[[Node, CpuLoweringContext], list[Call]]:
    def emit(node: Node, site: CpuLoweringContext) -> list[Call]:
        return [(ufunc, flat(*node.inputs, node.out))]

    return emit


def _scale(node: Node, site: CpuLoweringContext) -> list[Call]:
    x, out = flat(node.inputs[0], node.out)
    calls: list[Call] = [(np.multiply, (x, constant(node.number("scale")), out))]
    if node.number("bias"):
        calls.append((np.add, (out, constant(node.number("bias")), out)))
    return calls


def _clamp(node: Node, site: CpuLoweringContext) -> list[Call]:
    x, out = flat(node.inputs[0], node.out)
    return [
        (larger, (x, constant(node.number("min")), out)),
        (smaller, (out, constant(node.number("max")), out)),
    ]


def _room(out: Array, site: CpuLoweringContext, *read_later: Array) -> Array:
    """Return memory for a half-made result: ``out``, unless that destroys what is still read."""
    if any(shares(out, x) for x in read_later):
        return site.scratch(out.shape)
    return out


def _one_plus_exp(x: Array, factor: float, room: Array) -> list[Call]:
    """Calls that leave ``1 + exp(factor * x)`` in ``room``."""
    first: Call = (np.multiply, (x, constant(factor), room))
    if factor == -1.0:
        first = (np.negative, (x, room))
    return [first, (np.exp, (room, room)), (np.add, (room, constant(1.0), room))]


def _silu(node: Node, site: CpuLoweringContext) -> list[Call]:
    x, out = flat(node.inputs[0], node.out)
    room = _room(out, site, x)
    return [*_one_plus_exp(x, -1.0, room), (np.divide, (x, room, out))]


def _sigmoid(node: Node, site: CpuLoweringContext) -> list[Call]:
    x, out = flat(node.inputs[0], node.out)
    return [*_one_plus_exp(x, -1.0, out), (np.reciprocal, (out, out))]


def _tanh(node: Node, site: CpuLoweringContext) -> list[Call]:
    x, out = flat(node.inputs[0], node.out)
    return [(np.tanh, (x, out))]


def _softplus(node: Node, site: CpuLoweringContext) -> list[Call]:
    x, out = flat(node.inputs[0], node.out)
    return [(np.logaddexp, (x, constant(0.0), out))]


def _swiglu(node: Node, site: CpuLoweringContext) -> list[Call]:
    gate, up, out = flat(*node.inputs, node.out)
    room = _room(out, site, gate, up)
    return [
        *_one_plus_exp(gate, -1.0, room),
        (np.divide, (gate, room, room)),
        (np.multiply, (room, up, out)),
    ]


def _swiglu_oai(node: Node, site: CpuLoweringContext) -> list[Call]:
    gate, up, out = flat(*node.inputs, node.out)
    limit, g, u = node.number("limit"), site.scratch(out.shape), site.scratch(out.shape)
    return [
        (smaller, (up, constant(limit), u)),
        (larger, (u, constant(-limit), u)),
        (np.add, (u, constant(1.0), u)),
        (smaller, (gate, constant(limit), g)),
        (np.multiply, (u, g, u)),
        *_one_plus_exp(g, -node.number("alpha"), g),
        (np.divide, (u, g, out)),
    ]


def _gelu(node: Node, site: CpuLoweringContext) -> list[Call]:
    x, out = flat(node.inputs[0], node.out)
    room = _room(out, site, x)
    return [
        (np.multiply, (x, x, room)),
        (np.multiply, (room, constant(0.044715), room)),
        (np.add, (room, constant(1.0), room)),
        (np.multiply, (room, x, room)),
        (np.multiply, (room, constant(math.sqrt(2.0 / math.pi)), room)),
        (np.tanh, (room, room)),
        (np.add, (room, constant(1.0), room)),
        (np.multiply, (room, constant(0.5), room)),
        (np.multiply, (room, x, out)),
    ]


EMITTERS: Final[Mapping[str, Callable[[Node, CpuLoweringContext], list[Call]]]] = {
    "add": _binary(np.add),
    "sub": _binary(np.subtract),
    "mul": _binary(np.multiply),
    "div": _binary(np.divide),
    "scale": _scale,
    "clamp": _clamp,
    "silu": _silu,
    "gelu": _gelu,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "softplus": _softplus,
    "swiglu": _swiglu,
    "swiglu_oai": _swiglu_oai,
}
