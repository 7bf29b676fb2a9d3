"""Element by element, or along the last axis.

``out`` may be the very bytes of an operand: each kernel reads all before it writes, or leaves it
to an op of PyTorch that is elementwise.
"""

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from ggsched.ir.rope import rope_table
from ggsched_torch.operands import Node

Kernel = Callable[[Node], object]


def _binary(op: Callable[..., Tensor]) -> Kernel:
    return lambda node: op(*node.inputs, out=node.out)


def _unary(op: Callable[[Tensor], Tensor]) -> Kernel:
    return lambda node: node.out.copy_(op(node.inputs[0]))


def _scale(node: Node) -> None:
    torch.mul(node.inputs[0], node.number("scale"), out=node.out)
    node.out.add_(node.number("bias"))


def _clamp(node: Node) -> None:
    torch.clamp(node.inputs[0], node.number("min"), node.number("max"), out=node.out)


def _rms_norm(node: Node) -> None:
    x = node.inputs[0]
    square = x.square().mean(-1, keepdim=True)
    torch.div(x, (square + node.number("eps")).sqrt(), out=node.out)


def _norm(node: Node) -> None:
    x = node.inputs[0]
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    torch.div(centred, (variance + node.number("eps")).sqrt(), out=node.out)


def _swiglu(node: Node) -> None:
    gate, up = node.inputs
    torch.mul(functional.silu(gate), up, out=node.out)


def _swiglu_oai(node: Node) -> None:
    alpha, limit = node.number("alpha"), node.number("limit")
    gate, up = node.inputs[0].clamp(max=limit), node.inputs[1].clamp(-limit, limit)
    torch.mul(gate * torch.sigmoid(alpha * gate), up + 1.0, out=node.out)


def _soft_max(node: Node) -> None:
    x, *rest = node.inputs
    logits = x * node.number("scale")
    if node.param("mask"):
        logits += rest.pop(0)
    if node.param("sinks"):
        # A sink is one more logit of each row, whose share goes to nobody.
        sinks = rest.pop(0)[:, None, None].expand(*logits.shape[:-1], 1)
        node.out.copy_(torch.softmax(torch.cat([logits, sinks], -1), -1)[..., :-1])
    else:
        node.out.copy_(torch.softmax(logits, -1))


def _rope(node: Node) -> None:
    """Rotate pairs; the angles in f64, since far positions need it."""
    x, positions = node.inputs[:2]
    frequencies, magnitude = rope_table(node.bound.params)
    inverse = torch.tensor(frequencies, dtype=torch.float64)
    if node.param("freq_factors"):
        inverse = inverse / node.inputs[2]
    angle = positions[:, None, None] * inverse
    cos, sin = (magnitude * angle.cos()).float(), (magnitude * angle.sin()).float()
    pairs = len(frequencies)
    n = 2 * pairs
    if node.param("pairing") == "halves":
        first, second = slice(0, pairs), slice(pairs, n)
    else:
        first, second = slice(0, n, 2), slice(1, n, 2)
    a, b = x[..., first], x[..., second]
    turned = x.clone()
    turned[..., first] = a * cos - b * sin
    turned[..., second] = a * sin + b * cos
    node.out.copy_(turned)


KERNELS: Final[Mapping[str, Kernel]] = {
    "add": _binary(torch.add),
    "sub": _binary(torch.sub),
    "mul": _binary(torch.mul),
    "div": _binary(torch.div),
    "silu": _unary(functional.silu),
    "gelu": _unary(lambda x: functional.gelu(x, approximate="tanh")),
    "sigmoid": _unary(torch.sigmoid),
    "tanh": _unary(torch.tanh),
    "sum_rows": _unary(lambda x: x.sum(-1, keepdim=True)),
    "scale": _scale,
    "clamp": _clamp,
    "rms_norm": _rms_norm,
    "norm": _norm,
    "swiglu": _swiglu,
    "swiglu_oai": _swiglu_oai,
    "soft_max": _soft_max,
    "rope": _rope,
}
