"""Ops that take or set elements by index. Negative indices count from the end."""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np

from ggsched.ops.nd.declare import Array, axis_of, nd_op, numpy_type
from ggsched.ops.record import Operand, Param, Shape, gathered, nothing, sorted_rows


def _index(x: Operand) -> None:
    if x.dtype.name not in ("i32", "i64"):
        raise ValueError("indices must be i32 or i64")


def _gathered(x: Sequence[Operand], axis: int) -> tuple[str, Shape]:
    _index(x[1])
    axis = axis_of(axis, len(x[0].shape))
    return x[0].dtype.name, (*x[0].shape[:axis], *x[1].shape, *x[0].shape[axis + 1 :])


_gather = partial(nd_op, family="gather", flops=nothing, nbytes=gathered)


@_gather("gather", "x", "indices", rule=_gathered, axis=0)
def gather(x: Array, indices: Array, axis: int) -> Array:
    """Take whole slices along an axis."""
    return np.take(x, indices, axis)


def _gathered_elements(x: Sequence[Operand], axis: int) -> tuple[str, Shape]:
    _index(x[1])
    axis_of(axis, len(x[0].shape))
    if len(x[1].shape) != len(x[0].shape):
        raise ValueError("indices need as many axes as x")
    return x[0].dtype.name, x[1].shape


@_gather("gather_elements", "x", "indices", rule=_gathered_elements, axis=0)
def gather_elements(x: Array, indices: Array, axis: int) -> Array:
    """Take one element for each index, at its own place in all other axes."""
    return np.asarray(x[_places(indices, axis)])


def _places(indices: Array, axis: int) -> tuple[Array, ...]:
    places: list[Array] = list(np.indices(indices.shape, sparse=True))
    places[axis] = indices
    return tuple(places)


def _gathered_nd(x: Sequence[Operand], batch_dims: int) -> tuple[str, Shape]:
    _index(x[1])
    data, indices = x[0].shape, x[1].shape
    if not indices or data[:batch_dims] != indices[:batch_dims]:
        raise ValueError("batch axes differ")
    taken = batch_dims + indices[-1]
    if taken > len(data) or not 0 <= batch_dims < len(indices):
        raise ValueError("an index has more elements than x has axes")
    return x[0].dtype.name, (*indices[:-1], *data[taken:])


@_gather("gather_nd", "x", "indices", rule=_gathered_nd, batch_dims=0)
def gather_nd(x: Array, indices: Array, batch_dims: int) -> Array:
    """Take slices whose places the last axis of the indices holds."""
    batch: Sequence[Array] = np.indices(indices.shape[:batch_dims], sparse=True)
    extra = (1,) * (indices.ndim - 1 - batch_dims)
    lead = tuple(b.reshape(b.shape + extra) for b in batch)
    return np.asarray(x[(*lead, *np.moveaxis(indices, -1, 0))])


_REDUCTIONS: Final[dict[str, Callable[[Array, Any, Array], None]]] = {
    "none": lambda target, place, value: target.__setitem__(place, value),
    "add": np.add.at,
    "mul": np.multiply.at,
    "max": np.maximum.at,
    "min": np.minimum.at,
}


def _scattered(x: Sequence[Operand], reduction: str, **_: Param) -> tuple[str, Shape]:
    _index(x[1])
    if x[2].dtype is not x[0].dtype or reduction not in _REDUCTIONS:
        raise ValueError("needs updates of the type of x and a known reduction")
    return x[0].dtype.name, x[0].shape


def _scatter_work(_x: Shape, _indices: Shape, updates: Shape, **__: Param) -> float:
    return 2.0 * prod(updates)


_scatter = partial(nd_op, family="scatter", flops=_scatter_work)


def _scattered_elements(x: Sequence[Operand], axis: int, reduction: str) -> tuple[str, Shape]:
    axis_of(axis, len(x[0].shape))
    if x[1].shape != x[2].shape or len(x[1].shape) != len(x[0].shape):
        raise ValueError("indices and updates must have one shape, with as many axes as x")
    return _scattered(x, reduction)


@_scatter(
    "scatter_elements",
    "x",
    "indices",
    "updates",
    rule=_scattered_elements,
    axis=0,
    reduction="none",
)
def scatter_elements(x: Array, indices: Array, updates: Array, axis: int, reduction: str) -> Array:
    """Return x with elements set, or combined with updates."""
    out = x.copy()
    wrapped = np.where(indices < 0, indices + x.shape[axis], indices)
    _REDUCTIONS[reduction](out, _places(wrapped, axis), updates)
    return out


def _scattered_nd(x: Sequence[Operand], reduction: str) -> tuple[str, Shape]:
    data, indices = x[0].shape, x[1].shape
    if not indices or indices[-1] > len(data):
        raise ValueError("an index has more elements than x has axes")
    if x[2].shape != (*indices[:-1], *data[indices[-1] :]):
        raise ValueError("updates do not have the shape of what they replace")
    return _scattered(x, reduction)


@_scatter("scatter_nd", "x", "indices", "updates", rule=_scattered_nd, reduction="none")
def scatter_nd(x: Array, indices: Array, updates: Array, reduction: str) -> Array:
    """Return x with slices set, or combined with updates."""
    out = x.copy()
    _REDUCTIONS[reduction](out, tuple(np.moveaxis(indices, -1, 0)), updates)
    return out


def _one_hot(x: Sequence[Operand], depth: int, axis: int) -> tuple[str, Shape]:
    n = len(x[0].shape) + 1
    axis = axis_of(axis, n)
    if x[1].size != 2 or depth < 0:
        raise ValueError("needs two values and a depth")
    return x[1].dtype.name, (*x[0].shape[:axis], depth, *x[0].shape[axis:])


@nd_op("one_hot", "indices", "values", rule=_one_hot, flops=nothing, depth=0, axis=-1)
def one_hot(indices: Array, values: Array, depth: int, axis: int) -> Array:
    """Spread indices over a new axis: ``values[1]`` at the index, ``values[0]`` elsewhere."""
    off, on = values.reshape(2)
    axis = axis % (indices.ndim + 1)
    steps = np.arange(depth).reshape((-1,) + (1,) * (indices.ndim - axis))
    whole = indices.astype(np.int64)
    wrapped = np.expand_dims(np.where(whole < 0, whole + depth, whole), axis)
    return np.asarray(np.where(wrapped == steps, on, off))


def _top_k(x: Sequence[Operand], k: int, axis: int, largest: bool) -> tuple[str, Shape]:
    axis = axis_of(axis, len(x[0].shape))
    if not 0 <= k <= x[0].shape[axis]:
        raise ValueError(f"k={k} of {x[0].shape[axis]}")
    return "i64", (*x[0].shape[:axis], k, *x[0].shape[axis + 1 :])


def _top_k_family(x: Shape, k: int, axis: int, **_: Param) -> str:
    return sorted_rows(x[axis], k)


@nd_op("top_k", "x", rule=_top_k, family=_top_k_family, k=1, axis=-1, largest=True)
def top_k(x: Array, k: int, axis: int, largest: bool) -> Array:
    """Return indices of the k largest (smallest) along an axis, best first, ties by index."""
    keys = np.flip(x, axis) if largest else x
    order = np.argsort(keys, axis=axis, kind="stable")
    if largest:
        order = x.shape[axis] - 1 - np.flip(order, axis)
    return np.take(order, np.arange(k), axis).astype(numpy_type("i64"))


def _arg(x: Sequence[Operand], axis: int, keepdims: bool, **_: Param) -> tuple[str, Shape]:
    axis = axis_of(axis, len(x[0].shape))
    kept = (1,) if keepdims else ()
    if not x[0].shape[axis]:
        raise ValueError("an axis without elements")
    return "i64", (*x[0].shape[:axis], *kept, *x[0].shape[axis + 1 :])


def _arg_family(x: Shape, axis: int, **_: Param) -> str:
    return "reduce:places" if axis in (-1, len(x) - 1) else "reduce:planes"


@nd_op("arg_max", "x", rule=_arg, family=_arg_family, axis=0, keepdims=True, last=False)
def arg_max(x: Array, axis: int, keepdims: bool, last: bool) -> Array:
    """Return the index of the largest, the first or the last of several."""
    return _arg_of(np.argmax, x, axis, keepdims, last)


@nd_op("arg_min", "x", rule=_arg, family=_arg_family, axis=0, keepdims=True, last=False)
def arg_min(x: Array, axis: int, keepdims: bool, last: bool) -> Array:
    """Return the index of the smallest, the first or the last of several."""
    return _arg_of(np.argmin, x, axis, keepdims, last)


def _arg_of(f: Callable[..., Any], x: Array, axis: int, keepdims: bool, last: bool) -> Array:
    if not last:
        return np.asarray(f(x, axis=axis, keepdims=keepdims))
    return np.asarray(x.shape[axis] - 1 - f(np.flip(x, axis), axis=axis, keepdims=keepdims))
