"""Converters of reductions, softmax and norms."""

import math
from collections.abc import Sequence
from math import prod
from typing import Any, Final

import numpy as np

from ggsched_import.common.emit import Value
from ggsched_import.torch.call import CONVERTERS, Call, converts, is_float

REDUCTIONS: Final = {
    "sum": "sum", "prod": "prod", "amax": "max", "amin": "min", "mean": "mean",
    "logsumexp": "log_sum_exp", "nansum": "sum",
}  # fmt: skip

MANY_ROWS: Final = 25
"""Rows beyond which PyTorch computes distances by a product of matrices."""


def _reduce(
    c: Call, self: Value, dim: Any = None, keepdim: bool = False, dtype: str | None = None
) -> Value:
    name = REDUCTIONS[c.name]
    x = self if dtype is None else c.cast(self, dtype)
    if name in ("sum", "prod") and not is_float(x):
        x = c.cast(x, "i64")
    if name in ("mean", "log_sum_exp"):
        x = c.floating(x)
    if c.name == "nansum":
        x = c.nd("where", c.nd("is_nan", x), c.const(0, x.dtype.name), x)
    return reduced(c, name, x, dim, keepdim)


CONVERTERS.update(dict.fromkeys(REDUCTIONS, _reduce))


def reduced(c: Call, name: str, x: Value, dim: Any, keepdim: bool) -> Value:
    """Reduce over axes; a tensor without axes is one element."""
    if not x.shape:
        return c.reshape(reduced(c, name, c.reshape(x, (1,)), [0], False), ())
    return c.nd(f"reduce_{name}", x, axes=c.axes(dim, len(x.shape)), keepdims=bool(keepdim))


@converts("any", "all")
def _any(c: Call, self: Value, dim: Any = None, keepdim: bool = False) -> Value:
    name = "max" if c.name == "any" else "min"
    return reduced(c, name, c.cast(self, "bool"), dim, keepdim)


@converts("argmax", "argmin")
def _arg(c: Call, self: Value, dim: Any = None, keepdim: bool = False) -> Value:
    name = "arg_max" if c.name == "argmax" else "arg_min"
    if dim is None:
        flat = c.nd(name, c.reshape(self, (-1,)), axis=0, keepdims=False)
        return c.reshape(flat, (1,) * len(self.shape) if keepdim else ())
    if not self.shape:
        return c.const(0, "i64")
    return c.nd(name, self, axis=c.axis(dim, len(self.shape)), keepdims=bool(keepdim))


@converts("max", "min")
def _max(c: Call, self: Value, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None:
        return reduced(c, c.name, self, None, False)
    if not self.shape:
        return [self, c.const(0, "i64")]
    axis = c.axis(dim, len(self.shape))
    values = reduced(c, c.name, self, [axis], keepdim) if c.wants(0) else None
    if not c.wants(1):
        return [values, None]
    return [values, c.nd(f"arg_{c.name}", self, axis=axis, keepdims=bool(keepdim))]


@converts("cdist", "_cdist_forward")
def _cdist(c: Call, x1: Value, x2: Value, p: float = 2.0, compute_mode: int | None = None) -> Value:
    rows, columns = x1.shape[-2], x2.shape[-2]
    kind = x1.dtype.name
    many = compute_mode == 1 or (compute_mode in (None, 0) and max(rows, columns) > MANY_ROWS)
    if p == 2 and many:  # as PyTorch: by a product
        squares = [
            c.nd("reduce_sum", c.nd("mul", x, x), axes=(-1,), keepdims=True) for x in (x1, x2)
        ]
        both = c.nd("add", squares[0], c.swap(squares[1]))
        product = c.nd("mul", c.nd("matmul", x1, c.swap(x2)), c.const(2, kind))
        return c.nd("sqrt", c.nd("max", c.nd("sub", both, product), c.const(0, kind)))
    a = c.reshape(x1, (*x1.shape[:-1], 1, x1.shape[-1]))
    b = c.reshape(x2, (*x2.shape[:-2], 1, *x2.shape[-2:]))
    away = c.nd("sub", a, b)
    if p == 0:
        other = c.cast(c.nd("not", c.nd("equal", a, b)), kind)
        return c.nd("reduce_sum", other, axes=(-1,), keepdims=False)
    return _norm(c, away, p, [-1])


@converts("var", "std", "var_mean")
def _var(
    c: Call,
    self: Value,
    dim: Any = None,
    unbiased: Any = None,
    keepdim: bool = False,
    correction: Any = None,
) -> Any:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    axes = c.axes(dim, len(self.shape))
    count = prod(self.shape[a] for a in axes)
    off = (1 if unbiased in (None, True) else 0) if correction is None else correction
    mean = c.nd("reduce_mean", self, axes=axes, keepdims=True)
    centred = c.nd("sub", self, mean)
    total = c.nd("reduce_sum", c.nd("mul", centred, centred), axes=axes, keepdims=bool(keepdim))
    left = count - off
    made = c.nd("mul", total, c.const(1 / left if left > 0 else math.inf, self.dtype.name))
    if c.name == "var_mean":
        return [made, c.reshape(mean, made.shape)]
    return c.nd("sqrt", made) if c.name == "std" else made


@converts("linalg_vector_norm", "norm.ScalarOpt_dim")
def _norm(
    c: Call, self: Value, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Value:
    x = self if dtype is None else c.cast(self, dtype)
    if ord in (1, 2, None):
        return reduced(c, "l1" if ord == 1 else "l2", x, dim, keepdim)
    if math.isinf(ord):
        return reduced(c, "max" if ord > 0 else "min", c.nd("abs", x), dim, keepdim)
    kind = x.dtype.name
    power = c.nd("pow", c.nd("abs", x), c.const(ord, kind))
    return c.nd("pow", reduced(c, "sum", power, dim, keepdim), c.const(1 / ord, kind))


@converts("_softmax", "_log_softmax", "softmax.int", "log_softmax.int", "_safe_softmax")
def _softmax(c: Call, self: Value, dim: int, dtype: Any = None) -> Value:
    x = c.cast(self, dtype) if isinstance(dtype, str) else self
    if not x.shape:
        return c.const(0.0 if "log" in c.name else 1.0, x.dtype.name)
    axis = c.axis(dim, len(x.shape))
    made = c.nd("log_softmax" if "log" in c.name else "softmax", x, axis=axis)
    if c.name != "_safe_softmax":
        return made
    top = c.nd("reduce_max", x, axes=(axis,), keepdims=True)
    none = c.nd("equal", top, c.const(-math.inf, x.dtype.name))
    return c.nd("where", none, c.const(0, x.dtype.name), made)


# --- norms ----------------------------------------------------------------------------------------


def affine(c: Call, x: Value, weight: Value | None, bias: Value | None) -> Value:
    """Multiply with a weight and add a bias, where there are any."""
    kind = x.dtype.name
    x = x if weight is None else c.nd("mul", x, c.cast(weight, kind))
    return x if bias is None else c.nd("add", x, c.cast(bias, kind))


@converts("layer_norm")
def _layer_norm(
    c: Call,
    input: Value,
    normalized_shape: Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Value:
    n = len(input.shape)
    axes = tuple(range(n - len(normalized_shape), n))
    return affine(c, c.nd("normalize", input, axes=axes, eps=float(eps)), weight, bias)


def _statistics(c: Call, x: Value, axes: tuple[int, ...], eps: float) -> tuple[Value, Value]:
    """Return the mean over axes and the reciprocal of the deviation."""
    mean = c.nd("reduce_mean", x, axes=axes, keepdims=True)
    centred = c.nd("sub", x, mean)
    variance = c.nd("reduce_mean", c.nd("mul", centred, centred), axes=axes, keepdims=True)
    return mean, c.nd("rsqrt", c.nd("add", variance, c.const(eps, x.dtype.name)))


@converts("native_layer_norm")
def _native_layer_norm(
    c: Call, input: Value, shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> list[Any]:
    made = _layer_norm(c, input, shape, weight, bias, eps) if c.wants(0) else None
    if not (c.wants(1) or c.wants(2)):
        return [made, None, None]
    n = len(input.shape)
    return [made, *_statistics(c, input, tuple(range(n - len(shape), n)), eps)]


@converts("native_group_norm")
def _group_norm(
    c: Call, input: Value, weight: Any, bias: Any, n: int, channels: int, size: int,
    group: int, eps: float,
) -> list[Any]:  # fmt: skip
    grouped = c.reshape(input, (n, group, channels // group * size))
    made = c.reshape(c.nd("normalize", grouped, axes=(2,), eps=float(eps)), input.shape)
    made = affine(c, made, *_per_channel(c, input, weight, bias))
    if not (c.wants(1) or c.wants(2)):
        return [made, None, None]
    found = _statistics(c, grouped, (2,), eps)
    return [made, *(c.reshape(v, (n, group)) for v in found)]


@converts("group_norm")
def _plain_group_norm(
    c: Call, input: Value, num_groups: int, weight: Any = None, bias: Any = None,
    eps: float = 1e-5, *_: Any,
) -> Value:  # fmt: skip
    n, channels = input.shape[:2]
    size = prod(input.shape[2:])
    one = Call(c.op, c.where, c.emit, frozenset({0}))
    made: Value = _group_norm(one, input, weight, bias, n, channels, size, num_groups, eps)[0]
    return made


def _per_channel(c: Call, x: Value, *values: Value | None) -> list[Value | None]:
    """Return values of channels in the shape in which they meet x (N, C, ...)."""
    shape = (-1, *(1,) * (len(x.shape) - 2))
    return [None if v is None else c.reshape(v, shape) for v in values]


@converts("_native_batch_norm_legit_no_training", "_batch_norm_no_update")
def _batch_norm(
    c: Call, input: Value, weight: Any, bias: Any, mean: Value, var: Value,
    momentum: float, eps: float,
) -> list[Any]:  # fmt: skip
    kind = var.dtype.name
    factor = c.nd("rsqrt", c.nd("add", var, c.const(eps, kind)))
    factor = factor if weight is None else c.nd("mul", factor, c.cast(weight, kind))
    offset = c.nd("neg", c.nd("mul", mean, factor))
    offset = offset if bias is None else c.nd("add", offset, c.cast(bias, kind))
    made = affine(c, input, *_per_channel(c, input, factor, offset))
    empty = c.const(np.zeros(0), kind)  # type: ignore[arg-type]
    return [made, empty, empty]


@converts("_native_batch_norm_legit.no_stats")
def _batch_stats(
    c: Call, input: Value, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> list[Any]:
    axes = (0, *range(2, len(input.shape)))
    made = c.nd("normalize", input, axes=axes, eps=float(eps))
    made = affine(c, made, *_per_channel(c, input, weight, bias))
    if not (c.wants(1) or c.wants(2)):
        return [made, None, None]
    return [made, *(c.reshape(v, (-1,)) for v in _statistics(c, input, axes, eps))]


@converts("batch_norm")
def _plain_batch_norm(
    c: Call, input: Value, weight: Any, bias: Any, mean: Any, var: Any,
    training: bool, momentum: float, eps: float, *_: Any,
) -> Value:  # fmt: skip
    if training or mean is None:
        raise c.bad("batch norm in training is not supported", hint="call model.eval()")
    found: Value = _batch_norm(c, input, weight, bias, mean, var, momentum, eps)[0]
    return found
