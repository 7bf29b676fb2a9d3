"""Reductions over axes, running sums, and what normalises."""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ggsched.ops.nd.declare import FLOATS, NUMBERS, Array, axis_of, nd_op, whole, wide
from ggsched.ops.record import Operand, Param, Shape, same


def _reduced(x: Sequence[Operand], axes: Shape, keepdims: bool) -> tuple[str, Sequence[int]]:
    shape = x[0].shape
    gone = {axis_of(a, len(shape)) for a in axes}
    if len(gone) != len(axes):
        raise ValueError(f"axes {axes} repeat")
    kept = [1 if i in gone else n for i, n in enumerate(shape)]
    return x[0].dtype.name, [n for i, n in enumerate(kept) if keepdims or i not in gone]


def _work(x: Shape, **_: Param) -> float:
    return 2.0 * prod(x)


def _reduction(name: str, f: Callable[..., Any], types: Sequence[str] = NUMBERS) -> None:
    def reference(x: Array, axes: Shape, keepdims: bool) -> Array:
        found = np.asarray(f(wide(x), axis=axes, keepdims=keepdims))
        return whole(found, x.dtype) if found.dtype.kind == "f" and x.dtype.kind in "iu" else found

    made = partial(nd_op, rule=_reduced, family="reduce", flops=_work, axes=(), keepdims=True)
    made("reduce_" + name, "x", types=types)(reference)


def _sum(x: Array, **how: Any) -> Array:
    return np.asarray(np.sum(x, dtype=x.dtype, **how))


def _mean(x: Array, axis: Shape, keepdims: bool) -> Array:
    """Return the mean; that of nothing is NaN, without the warning of numpy's."""
    total = np.sum(x, axis=axis, keepdims=keepdims, dtype=None if x.dtype.kind == "f" else float)
    return np.asarray(total / x.dtype.type(prod(x.shape[a] for a in axis)))


def _largest(x: Array, **how: Any) -> Array:
    low = -np.inf if x.dtype.kind == "f" else False if x.dtype.kind == "b" else None
    initial = np.iinfo(x.dtype).min if low is None else low
    return np.asarray(np.max(x, initial=initial, **how))


def _smallest(x: Array, **how: Any) -> Array:
    high = np.inf if x.dtype.kind == "f" else True if x.dtype.kind == "b" else None
    initial = np.iinfo(x.dtype).max if high is None else high
    return np.asarray(np.min(x, initial=initial, **how))


def _log_sum_exp(x: Array, axis: Shape, keepdims: bool) -> Array:
    top = _largest(x, axis=axis, keepdims=True) if x.dtype.kind == "f" else x.dtype.type(0)
    top = np.where(np.isfinite(top), top, 0)
    total = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    return np.asarray(total if keepdims else np.squeeze(total, axis))


_reduction("sum", _sum)
_reduction("mean", _mean)
_reduction("max", _largest, (*NUMBERS, "bool"))
_reduction("min", _smallest, (*NUMBERS, "bool"))
_reduction("prod", lambda x, **how: np.prod(x, dtype=x.dtype, **how))
_reduction("l1", lambda x, **how: _sum(abs(x), **how))
_reduction("l2", lambda x, **how: np.sqrt(np.sum(np.square(x.astype(np.float64)), **how)))
_reduction("sum_square", lambda x, **how: _sum(x * x, **how))
_reduction("log_sum", lambda x, **how: np.log(np.sum(x, **how)))
_reduction("log_sum_exp", _log_sum_exp)


def _along(x: Sequence[Operand], axis: int, **_: Param) -> tuple[str, Shape]:
    axis_of(axis, len(x[0].shape))
    return same(x)


def _softmax_parts(x: Array, axis: int) -> tuple[Array, Array, Array]:
    shifted = wide(x)
    if x.shape[axis]:
        shifted = shifted - np.max(shifted, axis, keepdims=True)
    e = np.exp(shifted)
    return shifted, e, np.sum(e, axis, keepdims=True)


def _steps(x: Shape, **_: Param) -> float:
    return 8.0 * prod(x)


@nd_op("softmax", "x", rule=_along, types=FLOATS, over=(), family="rows", flops=_steps, axis=-1)
def softmax(x: Array, axis: int) -> Array:
    """Return exp(x) divided by its sum along an axis."""
    _, e, total = _softmax_parts(x, axis)
    return np.asarray(e / total)


@nd_op("log_softmax", "x", rule=_along, types=FLOATS, family="rows", flops=_steps, axis=-1)
def log_softmax(x: Array, axis: int) -> Array:
    """Return the logarithm of softmax."""
    shifted, _, total = _softmax_parts(x, axis)
    return np.asarray(shifted - np.log(total))


@nd_op("hardmax", "x", rule=_along, types=FLOATS, family="rows", axis=-1)
def hardmax(x: Array, axis: int) -> Array:
    """Return 1 at the first largest element along an axis, 0 elsewhere."""
    out = np.zeros_like(x)
    np.put_along_axis(out, np.expand_dims(np.argmax(x, axis), axis), 1, axis)
    return out


def _running(f: Callable[..., Any], start: int) -> Callable[..., Array]:
    def reference(x: Array, axis: int, exclusive: bool, reverse: bool) -> Array:
        work = np.flip(x, axis) if reverse else x
        total = np.asarray(f(work, axis=axis, dtype=work.dtype))
        if exclusive and x.shape[axis]:
            first = np.full_like(np.take(total, [0], axis), start)
            rest = np.take(total, np.arange(x.shape[axis] - 1), axis)
            total = np.concatenate([first, rest], axis)
        return np.flip(total, axis) if reverse else total

    return reference


_scan = partial(nd_op, rule=_along, types=NUMBERS, family="scan")
for _name, _f, _start in (("cum_sum", np.cumsum, 0), ("cum_prod", np.cumprod, 1)):
    _scan(_name, "x", axis=0, exclusive=False, reverse=False)(_running(_f, _start))


def _normalized(x: Sequence[Operand], axes: Shape, eps: float) -> tuple[str, Shape]:
    for a in axes:
        axis_of(a, len(x[0].shape))
    return same(x)


@nd_op(
    "normalize", "x", rule=_normalized, types=FLOATS, family="rows", flops=_steps, axes=(), eps=1e-5
)
def normalize(x: Array, axes: Shape, eps: float) -> Array:
    """Subtract the mean over axes, divide by the standard deviation (of the variance plus eps)."""
    centred = wide(x) - np.mean(wide(x), axes, keepdims=True)
    variance = np.mean(centred * centred, axes, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + np.asarray(eps, centred.dtype)))


def _lrn(x: Sequence[Operand], size: int, **_: Param) -> tuple[str, Shape]:
    if len(x[0].shape) < 2 or size < 1:
        raise ValueError("needs channels in axis 1 and a size of at least 1")
    return same(x)


@nd_op("lrn", "x", rule=_lrn, types=FLOATS, family="rows", size=1, alpha=1e-4, beta=0.75, bias=1.0)
def lrn(x: Array, size: int, alpha: float, beta: float, bias: float) -> Array:
    """Divide by a power of the squares' sum over neighbouring channels."""
    square, channels = np.square(wide(x)), x.shape[1]
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    total = np.zeros_like(square)
    for c in range(channels):
        total[:, c] = square[:, max(0, c - before) : c + after + 1].sum(1)
    return np.asarray(x / (bias + alpha / size * total) ** beta)
