"""Ops that move elements without computing."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from ggsched.ops.nd.declare import Array, axis_of, broadcast, nd_op
from ggsched.ops.record import Operand, Param, Shape, gathered, nothing, same

_move = partial(nd_op, family="moves", flops=nothing)


@_move("copy", "x", rule=same, over=(0,))
def copy(x: Array) -> Array:
    """Return the elements unchanged."""
    return x


def _transposed(x: Sequence[Operand], perm: tuple[int, ...]) -> tuple[str, Shape]:
    if sorted(perm) != list(range(len(x[0].shape))):
        raise ValueError(f"{perm} is not a permutation of {len(x[0].shape)} axes")
    return x[0].dtype.name, tuple(x[0].shape[a] for a in perm)


@_move("transpose", "x", rule=_transposed, perm=())
def transpose(x: Array, perm: tuple[int, ...]) -> Array:
    """Reorder axes: axis i of the result is axis perm[i] of x."""
    return x.transpose(perm)


def _concat(x: Sequence[Operand], axis: int) -> tuple[str, Shape]:
    n = len(x[0].shape)
    axis = axis_of(axis, n)
    rest = {(t.dtype, t.shape[:axis], t.shape[axis + 1 :], len(t.shape)) for t in x}
    if len(rest) > 1:
        raise ValueError("operands must agree in type and in all other axes")
    extent = sum(t.shape[axis] for t in x)
    return x[0].dtype.name, (*x[0].shape[:axis], extent, *x[0].shape[axis + 1 :])


@_move("concat", "x*", rule=_concat, axis=0)
def concat(*x: Array, axis: int) -> Array:
    """Join along an axis."""
    return np.concatenate(x, axis)


def _slices(starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]) -> tuple[slice, ...]:
    found = zip(starts, stops, steps, strict=True)
    return tuple(slice(a, None if b < 0 else b, s) for a, b, s in found)


def _sliced(
    x: Sequence[Operand], starts: Shape, stops: Shape, steps: Shape
) -> tuple[str, Sequence[int]]:
    shape = x[0].shape
    if not len(starts) == len(stops) == len(steps) == len(shape):
        raise ValueError("needs start, stop and step for each axis")
    taken = _slices(starts, stops, steps)
    return x[0].dtype.name, [len(range(n)[s]) for n, s in zip(shape, taken, strict=True)]


@_move("slice", "x", rule=_sliced, nbytes=gathered, starts=(), stops=(), steps=())
def take_slice(x: Array, starts: Shape, stops: Shape, steps: Shape) -> Array:
    """Take ranges; starts and stops are not negative, but a stop of -1 is before the first."""
    return x[_slices(starts, stops, steps)]


def _expanded(x: Sequence[Operand], shape: Shape) -> tuple[str, Shape]:
    return x[0].dtype.name, broadcast(x[0].shape, shape) if shape else x[0].shape


@_move("expand", "x", rule=_expanded, shape=())
def expand(x: Array, shape: Shape) -> Array:
    """Broadcast x and the shape to each other."""
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, shape))


def _tiled(x: Sequence[Operand], repeats: Shape) -> tuple[str, Sequence[int]]:
    if len(repeats) != len(x[0].shape) or any(n < 0 for n in repeats):
        raise ValueError("needs a count for each axis")
    return x[0].dtype.name, [n * k for n, k in zip(x[0].shape, repeats, strict=True)]


@_move("tile", "x", rule=_tiled, repeats=())
def tile(x: Array, repeats: Shape) -> Array:
    """Repeat whole copies along each axis."""
    return np.tile(x, repeats) if repeats else x


_MODES = {"constant": "constant", "reflect": "reflect", "edge": "edge", "wrap": "wrap"}


def _padded(x: Sequence[Operand], pads: Shape, mode: str, value: bool) -> tuple[str, Sequence[int]]:
    n = len(x[0].shape)
    if len(pads) != 2 * n or mode not in _MODES:
        raise ValueError(f"needs a known mode and {2 * n} pads")
    if value and (x[1].dtype is not x[0].dtype or x[1].size != 1):
        raise ValueError("the value must be one element of the type of x")
    return x[0].dtype.name, [m + pads[i] + pads[n + i] for i, m in enumerate(x[0].shape)]


@_move("pad", "x", "value?", rule=_padded, pads=(), mode="constant", value=False)
def pad(x: Array, *given: Array, pads: Shape, mode: str, value: bool) -> Array:
    """Add elements before and after each axis (all befores first); negative counts crop."""
    n = x.ndim
    crop = tuple(slice(max(0, -pads[i]), x.shape[i] - max(0, -pads[n + i])) for i in range(n))
    x = x[crop] if n else x
    widths = [(max(0, pads[i]), max(0, pads[n + i])) for i in range(n)]
    if not n or not any(map(any, widths)):
        return x
    if mode == "constant":
        fill = given[0].reshape(()) if value else x.dtype.type(0)
        out = np.full([a + m + b for m, (a, b) in zip(x.shape, widths, strict=True)], fill, x.dtype)
        out[tuple(slice(a, a + m) for m, (a, _) in zip(x.shape, widths, strict=True))] = x
        return out
    return np.pad(x, widths, mode=mode)  # type: ignore[call-overload, no-any-return]


def _triangle(x: Sequence[Operand], **_: Param) -> tuple[str, Shape]:
    if len(x[0].shape) < 2:
        raise ValueError("needs two axes")
    return same(x)


@_move("trilu", "x", rule=_triangle, k=0, upper=True)
def trilu(x: Array, k: int, upper: bool) -> Array:
    """Keep the upper or lower triangle of matrices."""
    return np.triu(x, k) if upper else np.tril(x, k)


def _reversed(x: Sequence[Operand], time: int, batch: int) -> tuple[str, Shape]:
    if len(x[0].shape) < 2 or x[1].shape != (x[0].shape[batch],) or {time, batch} != {0, 1}:
        raise ValueError("needs time and batch in the first two axes and a length for each batch")
    return same(x)


@_move("reverse_sequence", "x", "lengths", rule=_reversed, time=0, batch=1)
def reverse_sequence(x: Array, lengths: Array, time: int, batch: int) -> Array:
    """Reverse the first ``lengths[b]`` elements of each batch along the axis of time."""
    out = np.moveaxis(x, batch, 0).copy()
    for row, n in zip(out, lengths.tolist(), strict=True):
        row[:n] = row[:n][::-1].copy()
    return np.moveaxis(out, 0, batch)
