"""Which calls of the library are calls of built-in ops, which more devices have kernels for.

Built-in ops are compiled on ``cpu`` and have kernels on ``opencl`` and ``cuda``. They compute with
f32 and up to four axes; the result is the same within rounding.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F32
from ggsched.ir.ops import BUILT_IN_AXES, broadcasts_to
from ggsched.ir.tensor import Tensor
from ggsched.ops.elementwise import ELEMENTWISE

Operand = Tensor | np.ndarray[Any, np.dtype[Any]]
"""A tensor, or the elements of a constant."""

POWERS: Final = (-2.0, -1.0, -0.5, 0.5, 2.0, 3.0, 4.0)
"""Exponents of powers that become products. As in PyTorch the root of -infinity is NaN."""

ToTensor = Callable[[Operand], Tensor]

_SAME: Final = {op.array: op.name for op in ELEMENTWISE if op.array}


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of an op of the library, see ``built_in``."""

    g: GraphBuilder
    tensor: ToTensor
    name: str
    x: Sequence[Operand]
    params: dict[str, Any]


def built_in(
    g: GraphBuilder, tensor: ToTensor, name: str, x: Sequence[Operand], params: dict[str, Any]
) -> Tensor | None:
    """Return the result of a built-in op that computes the same, or None.

    Args:
        tensor: Makes a weight of a constant.
        name: Of the op of the library, without the prefix.
        params: Parameters.
    """
    rule = _RULES.get(name)
    fits = all(_is_f32(v) and len(v.shape) <= BUILT_IN_AXES and 0 not in v.shape for v in x)
    return rule(_Call(g, tensor, name, x, params)) if rule is not None and fits else None


def _is_f32(value: Operand) -> bool:
    return value.dtype is F32 if isinstance(value, Tensor) else value.dtype == np.float32


def _scalar(value: Operand) -> float | None:
    """Return a finite constant of one element that no shape depends on."""
    if isinstance(value, Tensor) or value.size != 1:
        return None
    number = float(value.reshape(-1)[0])
    return number if math.isfinite(number) else None


def _binary(c: _Call) -> Tensor | None:
    a, b = c.x
    if c.name in ("add", "mul") and not broadcasts_to(b.shape, a.shape):
        a, b = b, a
    if not broadcasts_to(b.shape, a.shape):
        return None
    number = _scalar(b)
    if number is not None and c.name != "div":
        factor = number if c.name == "mul" else 1.0
        bias = {"add": number, "sub": -number}.get(c.name, 0.0)
        return c.g.scale(c.tensor(a), factor, bias)
    return c.g.op(c.name, c.tensor(a), c.tensor(b))


def _power(c: _Call) -> Tensor | None:
    """Return products, roots and reciprocals for exponents for which they are as exact."""
    number = _scalar(c.x[1])
    if number not in POWERS or not broadcasts_to(c.x[1].shape, c.x[0].shape):
        return None
    x = c.tensor(c.x[0])
    match abs(number):
        case 0.5:
            return c.g.op("nd.sqrt" if number > 0 else "nd.rsqrt", x)
        case 2.0 | 4.0:
            made = c.g.mul(x, x)
            made = c.g.mul(made, made) if abs(number) > 2 else made
        case 3.0:
            made = c.g.mul(c.g.mul(x, x), x)
        case _:
            made = x
    return made if number > 0 else c.g.op("nd.reciprocal", made)


def _unary(c: _Call) -> Tensor:
    return c.g.op(_SAME[c.name], c.tensor(c.x[0]))


def _relu(c: _Call) -> Tensor:
    return c.g.clamp(c.tensor(c.x[0]), 0.0, math.inf)


def _clip(c: _Call) -> Tensor | None:
    low, high = _scalar(c.x[1]), _scalar(c.x[2])
    return None if low is None or high is None else c.g.clamp(c.tensor(c.x[0]), low, high)


def _softmax(c: _Call) -> Tensor | None:
    if c.params["axis"] not in (-1, len(c.x[0].shape) - 1):
        return None
    return c.g.soft_max(c.tensor(c.x[0]))


def _normalize(c: _Call) -> Tensor | None:
    if c.params["axes"] not in ((-1,), (len(c.x[0].shape) - 1,)):
        return None
    return c.g.norm(c.tensor(c.x[0]), c.params["eps"])


def _sum(c: _Call) -> Tensor | None:
    if c.params["axes"] not in ((-1,), (len(c.x[0].shape) - 1,)) or not c.params["keepdims"]:
        return None
    total = c.g.sum_rows(c.tensor(c.x[0]))
    return total if c.name == "reduce_sum" else c.g.scale(total, 1.0 / c.x[0].shape[-1])


def _matmul(c: _Call) -> Tensor | None:
    a, b = c.x
    if len(a.shape) < 2 or len(b.shape) < 2 or len(b.shape) > len(a.shape):
        return None
    batch = (1,) * (len(a.shape) - len(b.shape)) + b.shape[:-2]
    if a.shape[:-2] != batch and math.prod(batch) != 1:
        return None
    if isinstance(b, Tensor):
        return c.g.mul_mat(c.g.transpose(b), c.tensor(a))
    swapped = np.ascontiguousarray(np.swapaxes(b, -1, -2))
    return c.g.mul_mat(c.tensor(swapped), c.tensor(a))


def _transpose(c: _Call) -> Tensor:
    return c.g.permute(c.tensor(c.x[0]), *c.params["perm"])


_RULES: Final[dict[str, Callable[..., Tensor | None]]] = {
    **dict.fromkeys(("add", "sub", "mul", "div"), _binary),
    **dict.fromkeys(_SAME, _unary),
    "pow": _power,
    "relu": _relu,
    "clip": _clip,
    "softmax": _softmax,
    "normalize": _normalize,
    "reduce_sum": _sum,
    "reduce_mean": _sum,
    "matmul": _matmul,
    "transpose": _transpose,
}
