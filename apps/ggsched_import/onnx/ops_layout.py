"""Converters of ops that move elements, and of those that make constants."""

from math import prod

import numpy as np

from ggsched.ir.dtype import dtype_by_name
from ggsched_import.common.emit import Const, Value
from ggsched_import.onnx.call import Call, converts
from ggsched_import.onnx.ops_elements import cast_to
from ggsched_import.onnx.types import name_of

MAX_CONSTANT: int = 1 << 28
"""Elements of a constant that a file can request by its shape."""


def bounded(c: Call, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a constant that may be made.

    Raises:
        ModelError: it is too large.
    """
    if any(n < 0 for n in shape) or prod(shape) > MAX_CONSTANT:
        raise c.bad(f"a constant of shape {list(shape)} is too large")
    return shape


@converts("Constant")
def _constant(c: Call) -> Value:
    for name, kind in (
        ("value", None),
        ("value_float", np.float32),
        ("value_floats", np.float32),
        ("value_int", np.int64),
        ("value_ints", np.int64),
    ):
        value = c.attrs.get(name)
        if value is not None:
            if name == "value" and not isinstance(value, np.ndarray):
                break
            return Const(np.ascontiguousarray(np.asarray(value, kind)).reshape(np.shape(value)))
    raise c.bad("it has no value of a supported type")


@converts("ConstantOfShape")
def _constant_of_shape(c: Call) -> Value:
    value = c.attrs.get("value")
    fill = np.zeros(1, np.float32) if value is None else np.asarray(value).reshape(-1)
    if fill.size != 1:
        raise c.bad("the value must be one element")
    return Const(np.full(bounded(c, c.ints_at(0)), fill[0], fill.dtype))


@converts("Shape")
def _shape(c: Call) -> Value:
    shape = c.x().shape
    start, end = c.attr("start", 0), c.attr("end", len(shape))
    return Const(np.array(shape[slice(start, end)], np.int64))


@converts("Size")
def _size(c: Call) -> Value:
    return Const(np.array(prod(c.x().shape), np.int64))


@converts("Reshape")
def _reshape(c: Call) -> Value:
    x = c.x()
    given = c.ints_at(1) if c.has(1) else tuple(c.attr("shape", ()))
    shape = list(given)
    if not c.attr("allowzero", False):
        if any(n == 0 and i >= len(x.shape) for i, n in enumerate(shape)):
            raise c.bad(f"shape {shape} copies an axis that is not there")
        shape = [x.shape[i] if n == 0 else n for i, n in enumerate(shape)]
    if shape.count(-1) == 1:
        known = -prod(shape)
        if known <= 0 or prod(x.shape) % known:
            raise c.bad(f"{list(x.shape)} cannot have the shape {list(given)}")
        shape[shape.index(-1)] = prod(x.shape) // known
    return c.emit.reshape(x, shape)


@converts("Flatten")
def _flatten(c: Call) -> Value:
    shape = c.x().shape
    axis = c.attr("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise c.bad(f"axis {axis} of {len(shape)}")
    axis = axis + len(shape) if axis < 0 else axis
    return c.emit.reshape(c.x(), (prod(shape[:axis]), prod(shape[axis:])))


def axes_of(c: Call, i: int, rank: int) -> tuple[int, ...] | None:
    """Return axes from an input or, in older files, from an attribute; None if none are given."""
    if c.has(i):
        axes = c.ints_at(i)
    elif "axes" in c.attrs:
        axes = c.attr("axes", ())
    else:
        return None
    return tuple(c.normal_axis(int(a), rank) for a in axes)


@converts("Squeeze")
def _squeeze(c: Call) -> Value:
    shape = c.x().shape
    axes = axes_of(c, 1, len(shape))
    gone = {i for i, n in enumerate(shape) if n == 1} if axes is None else set(axes)
    return c.emit.reshape(c.x(), [n for i, n in enumerate(shape) if i not in gone])


@converts("Unsqueeze")
def _unsqueeze(c: Call) -> Value:
    given = c.ints_at(1) if c.has(1) else c.attr("axes", ())
    rank = len(c.x().shape) + len(given)
    axes = {c.normal_axis(int(a), rank) for a in given}
    rest = iter(c.x().shape)
    return c.emit.reshape(c.x(), [1 if i in axes else next(rest) for i in range(rank)])


@converts("Transpose")
def _transpose(c: Call) -> Value:
    n = len(c.x().shape)
    return transposed(c, c.x(), tuple(c.attr("perm", tuple(reversed(range(n))))))


def transposed(c: Call, x: Value, perm: tuple[int, ...]) -> Value:
    """Reorder axes; without a node where the elements keep their order."""
    if sorted(perm) == list(range(len(x.shape))):
        moved = [a for a in perm if x.shape[a] != 1]
        if moved == sorted(moved):
            return c.emit.reshape(x, [x.shape[a] for a in perm])
    return c.nd("transpose", x, perm=perm)


@converts("Concat")
def _concat(c: Call) -> Value:
    values = [c.x(i) for i in range(len(c.inputs))]
    axis = c.normal_axis(c.need("axis", int), len(c.x().shape))
    return values[0] if len(values) == 1 else c.nd("concat", *values, axis=axis)


@converts("Split")
def _split(c: Call) -> tuple[Value, ...]:
    x = c.x()
    axis = c.axis(0, len(x.shape))
    if c.has(1):
        parts = c.ints_at(1)
    elif "split" in c.attrs:
        parts = tuple(c.attr("split", ()))
    else:
        count = c.attr("num_outputs", c.outputs)
        each = -(-x.shape[axis] // max(count, 1))
        parts = tuple(
            max(0, min(each, x.shape[axis] - i * each)) for i in range(max(count, c.outputs))
        )
    if sum(parts) != x.shape[axis] or min(parts, default=0) < 0:
        raise c.bad(f"parts {list(parts)} are not {x.shape[axis]}")
    found, at = [], 0
    for n in parts:
        found.append(sliced(c, x, {axis: (at, at + n, 1)}))
        at += n
    return tuple(found)


def swapped(c: Call, x: Value) -> Value:
    """Exchange the last two axes, if there are two."""
    n = len(x.shape)
    return transposed(c, x, (*range(n - 2), n - 1, n - 2)) if n > 1 else x


def sliced(c: Call, x: Value, ranges: dict[int, tuple[int, int, int]]) -> Value:
    """Take ranges (start, stop, step) of some axes, already within bounds."""
    full = [ranges.get(i, (0, n, 1)) for i, n in enumerate(x.shape)]
    if all(r == (0, n, 1) for r, n in zip(full, x.shape, strict=True)):
        return x
    starts, stops, steps = zip(*full, strict=True)
    return c.nd("slice", x, starts=starts, stops=stops, steps=steps)


@converts("Slice")
def _slice(c: Call) -> Value:
    x = c.x()
    if c.has(1):
        starts, ends = c.ints_at(1), c.ints_at(2)
        axes = c.ints_at(3) if c.has(3) else tuple(range(len(starts)))
        steps = c.ints_at(4) if c.has(4) else (1,) * len(starts)
    else:
        starts, ends = tuple(c.attr("starts", ())), tuple(c.attr("ends", ()))
        axes, steps = tuple(c.attr("axes", tuple(range(len(starts))))), (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise c.bad("starts, ends, axes and steps do not fit each other")
    ranges = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        a = c.normal_axis(axis, len(x.shape))
        ranges[a] = slice(start, end, step).indices(x.shape[a])
    return sliced(c, x, ranges)


@converts("Expand")
def _expand(c: Call) -> Value:
    shape = c.ints_at(1)
    return c.nd("expand", c.x(), shape=shape) if shape else c.x()


@converts("Tile")
def _tile(c: Call) -> Value:
    return c.nd("tile", c.x(), repeats=c.ints_at(1))


@converts("Pad")
def _pad(c: Call) -> Value:
    x = c.x()
    n = len(x.shape)
    given = c.ints_at(1) if c.has(1) else tuple(c.attr("pads", ()))
    axes = tuple(c.normal_axis(a, n) for a in c.ints_at(3)) if c.has(3) else tuple(range(n))
    if len(given) != 2 * len(axes):
        raise c.bad(f"{len(given)} pads for {len(axes)} axes")
    pads = [0] * (2 * n)
    for i, a in enumerate(axes):
        pads[a], pads[n + a] = given[i], given[len(axes) + i]
    value = c.maybe(2)
    if value is None and c.attr("value", 0.0):
        value = c.like(c.attr("value", 0.0), x)
    values = [x] if value is None else [x, value]
    mode = c.attr("mode", "constant")
    return c.nd("pad", *values, pads=tuple(pads), mode=mode, value=value is not None)


@converts("Gather")
def _gather(c: Call) -> Value:
    x, indices = c.x(), c.x(1)
    return c.nd("gather", x, indices, axis=c.axis(0, len(x.shape)))


@converts("GatherElements")
def _gather_elements(c: Call) -> Value:
    return c.nd("gather_elements", c.x(), c.x(1), axis=c.axis(0, len(c.x().shape)))


@converts("GatherND")
def _gather_nd(c: Call) -> Value:
    return c.nd("gather_nd", c.x(), c.x(1), batch_dims=c.attr("batch_dims", 0))


@converts("ScatterElements", "Scatter")
def _scatter_elements(c: Call) -> Value:
    axis, reduction = c.axis(0, len(c.x().shape)), c.attr("reduction", "none")
    return c.nd("scatter_elements", c.x(), c.x(1), c.x(2), axis=axis, reduction=reduction)


@converts("ScatterND")
def _scatter_nd(c: Call) -> Value:
    return c.nd("scatter_nd", c.x(), c.x(1), c.x(2), reduction=c.attr("reduction", "none"))


@converts("Trilu")
def _trilu(c: Call) -> Value:
    k = int(c.const(1).reshape(-1)[0]) if c.has(1) else 0
    return c.nd("trilu", c.x(), k=k, upper=c.attr("upper", True))


@converts("ReverseSequence")
def _reverse_sequence(c: Call) -> Value:
    batch, time = c.attr("batch_axis", 1), c.attr("time_axis", 0)
    return c.nd("reverse_sequence", c.x(), c.x(1), batch=batch, time=time)


@converts("DepthToSpace")
def _depth_to_space(c: Call) -> Value:
    n, ch, h, w, b = _blocks(c)
    x = c.x()
    if ch % (b * b):
        raise c.bad(f"{ch} channels do not make blocks of {b}")
    if c.attr("mode", "DCR") == "DCR":
        x = c.emit.reshape(x, (n, b, b, ch // (b * b), h, w))
        x = transposed(c, x, (0, 3, 4, 1, 5, 2))
    else:
        x = c.emit.reshape(x, (n, ch // (b * b), b, b, h, w))
        x = transposed(c, x, (0, 1, 4, 2, 5, 3))
    return c.emit.reshape(x, (n, ch // (b * b), h * b, w * b))


@converts("SpaceToDepth")
def _space_to_depth(c: Call) -> Value:
    n, ch, h, w, b = _blocks(c)
    x = c.emit.reshape(c.x(), (n, ch, h // b, b, w // b, b))
    order = (0, 3, 5, 1, 2, 4) if c.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return c.emit.reshape(transposed(c, x, order), (n, ch * b * b, h // b, w // b))


def _blocks(c: Call) -> tuple[int, int, int, int, int]:
    shape, block = c.x().shape, c.need("blocksize", int)
    if len(shape) != 4 or block < 1:
        raise c.bad("needs four axes and a positive blocksize")
    return (*shape, block)


@converts("OneHot")
def _one_hot(c: Call) -> Value:
    depth = int(c.const(1).reshape(-1)[0])
    indices = cast_to(c, c.x(), "i64")
    return c.nd("one_hot", indices, c.x(2), depth=depth, axis=c.attr("axis", -1))


@converts("Range")
def _range(c: Call) -> Value:
    start, limit, delta = (c.const(i).reshape(-1)[0] for i in range(3))
    if not delta:
        raise c.bad("a step of 0")
    count = max(0, int(np.ceil((float(limit) - float(start)) / float(delta))))
    bounded(c, (count,))
    return Const((start + np.arange(count) * delta).astype(c.const(0).dtype))


@converts("EyeLike")
def _eye_like(c: Call) -> Value:
    x = c.x()
    if len(x.shape) != 2:
        raise c.bad("needs two axes")
    to = name_of(c.attr("dtype", 0), c.where) if "dtype" in c.attrs else x.dtype.name
    rows, columns = bounded(c, x.shape)
    return Const(np.eye(rows, columns, c.attr("k", 0), dtype_by_name(to).host))


@converts("NonZero")
def _non_zero(c: Call) -> Value:
    return Const(np.array(np.nonzero(np.atleast_1d(c.const(0))), np.int64))


@converts("Compress")
def _compress(c: Call) -> Value:
    kept = np.flatnonzero(c.const(1)).astype(np.int64)
    x = c.x()
    axis = c.attrs.get("axis")
    if axis is None:
        x, axis = c.emit.reshape(x, (prod(x.shape),)), 0
    return c.nd("gather", x, Const(kept), axis=c.normal_axis(axis, len(x.shape)))


@converts("Unique")
def _unique(c: Call) -> tuple[Value, ...]:
    x = c.const(0)
    axis = c.attrs.get("axis")
    found, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not c.attr("sorted", True):
        order = np.argsort(first)
        found = np.take(found, order, axis or 0)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        first, inverse, counts = first[order], rank[inverse], counts[order]
    return (
        Const(np.ascontiguousarray(found)),
        *(Const(a.astype(np.int64)) for a in (first, inverse, counts)),
    )
