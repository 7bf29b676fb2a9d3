"""Converters of ops that take or set elements by index."""

import math
from collections.abc import Sequence
from math import prod
from typing import Any, Final

import numpy as np

from ggsched.ops.nd.declare import broadcast
from ggsched_import.common.emit import Array, Const, Value
from ggsched_import.torch.call import Call, Layout, Operand, converts, is_float
from ggsched_import.torch.ops_elements import floor_divide
from ggsched_import.torch.ops_layout import MAX_CONSTANT, filled
from ggsched_import.torch.ops_order import searchsorted

Indices = Sequence[Value | None]

_REDUCTIONS: Final = {
    "sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min",
}  # fmt: skip


@converts("_local_scalar_dense", "item", "nonzero", "masked_select", "unique_dim", "_unique2",
          "unique_consecutive", "bincount", "torchvision.nms")  # fmt: skip
def _depends_on_data(c: Call, self: Value, *args: Any, **given: Any) -> Value:
    if c.name in ("_local_scalar_dense", "item") and isinstance(self, Const):
        found: Any = self.array.reshape(-1)[0].item()
        return found  # type: ignore[no-any-return]
    if c.name == "nonzero" and isinstance(self, Const):
        return Const(np.argwhere(self.array))
    raise c.bad(
        "its result is a number or a shape that depends on data, which a plan cannot know",
        hint="use torch.where for masks, torch.nonzero_static for places, and index_select for an"
        " index in a tensor",
    )


@converts("nonzero_static")
def _first_places(c: Call, self: Value, *, size: int, fill_value: int = -1) -> Value:
    """Return the first places, in order, of elements that are not 0, and behind them a number."""
    n, rank = prod(self.shape), len(self.shape)
    kept = min(size, n)
    if not kept or not rank:
        return filled(c, (size, rank), fill_value, "i64")
    is_set = c.reshape(c.cast(self, "bool"), (n,))
    keys = c.nd("where", is_set, Const(np.arange(n, 0, -1)), c.const(0, "i64"))
    order = c.nd("top_k", keys, k=kept, axis=0)
    columns = []
    for axis, extent in enumerate(self.shape):
        stride = c.const(prod(self.shape[axis + 1 :]), "i64")
        at = c.nd("mod", c.nd("div", order, stride), c.const(extent, "i64"))
        columns.append(c.reshape(at, (kept, 1)))
    found = c.nd("gather", is_set, order, axis=0)
    fill = c.const(fill_value, "i64")
    made = c.nd("where", c.reshape(found, (kept, 1)), c.concat(columns, 1), fill)
    return c.nd("pad", made, fill, pads=(0, 0, size - kept, 0), value=True)


@converts("embedding")
def _embedding(c: Call, weight: Value, indices: Value, *_: Any) -> Value:
    return c.nd("gather", weight, indices, axis=0)


@converts("index_select")
def _index_select(c: Call, self: Value, dim: int, index: Value) -> Value:
    axis = c.axis(dim, len(self.shape))
    return c.nd("gather", self, c.reshape(index, (-1,)), axis=axis)


@converts("gather")
def _gather(c: Call, self: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    if not self.shape:
        return c.expand(self, index.shape)
    axis = c.axis(dim, len(self.shape))
    # Other axes of the index may be shorter.
    return c.nd("gather_elements", self, index, axis=axis)


@converts("index", "_unsafe_index")
def _index(c: Call, self: Value, indices: Indices) -> Value:
    given = _without_masks(c, indices)
    axes = [i for i, v in enumerate(given) if v is not None]
    values = [v for v in given if v is not None]
    if len(axes) == 1:
        return c.nd("gather", self, values[0], axis=axes[0])
    shape = broadcast(*(v.shape for v in values))
    rest = [i for i in range(len(self.shape)) if i not in axes]
    x = c.permute(self, [*axes, *rest])
    found = c.nd("gather_nd", x, _stacked(c, values, shape))
    if axes != list(range(axes[0], axes[-1] + 1)) or axes[0] == 0:
        return found
    n, before = len(shape), axes[0]
    perm = [*range(n, n + before), *range(n), *range(n + before, len(found.shape))]
    return c.permute(found, perm)


def _without_masks(c: Call, indices: Indices) -> list[Value | None]:
    found: list[Value | None] = []
    for v in indices:
        if v is None or v.dtype.name in ("i64", "i32"):
            found.append(v)
        elif v.dtype.name not in ("bool", "u8"):
            found.append(c.cast(v, "i64"))
        elif isinstance(v, Const):
            found.extend(Const(np.ascontiguousarray(a)) for a in np.nonzero(v.array))
        else:
            raise c.bad(
                "a mask that is computed selects a number of elements that a plan cannot know",
                hint="use torch.where(mask, ...)",
            )
    return found


def _stacked(c: Call, values: Sequence[Value], shape: tuple[int, ...]) -> Value:
    parts = [c.expand(c.cast(v, "i64"), shape) for v in values]
    return c.concat([c.reshape(p, (*shape, 1)) for p in parts], len(shape))


@converts("index_put", "_unsafe_index_put")
def _index_put(
    c: Call, self: Value, indices: Indices, values: Value, accumulate: bool = False
) -> Value:
    mask = indices[0]
    if len(indices) == 1 and mask is not None and mask.dtype.name == "bool":
        one = values.shape in ((), (1,))
        if one and not isinstance(mask, Const) and not accumulate:
            full = c.reshape(mask, (*mask.shape, *(1,) * (len(self.shape) - len(mask.shape))))
            value = c.reshape(c.cast(values, self.dtype.name), ())
            return c.nd("where", full, value, self)
    given = _without_masks(c, indices)
    axes = [i for i, v in enumerate(given) if v is not None]
    index = [v for v in given if v is not None]
    rest = [i for i in range(len(self.shape)) if i not in axes]
    shape = broadcast(*(v.shape for v in index))
    # As x[indices] would have it: places of several neighbouring axes stay where the first was.
    is_together = axes == list(range(axes[0], axes[-1] + 1))
    before = axes[0] if is_together else 0
    others = tuple(self.shape[i] for i in rest)
    updates = c.expand(
        c.cast(values, self.dtype.name), (*others[:before], *shape, *others[before:])
    )
    n = len(shape)
    perm = [*range(before, before + n), *range(before), *range(before + n, n + len(others))]
    updates = c.permute(updates, perm)
    x = c.permute(self, [*axes, *rest])
    how = "add" if accumulate else "none"
    made = c.nd("scatter_nd", x, _stacked(c, index, shape), updates, reduction=how)
    back = [[*axes, *rest].index(i) for i in range(len(self.shape))]
    return c.permute(made, back)


@converts("scatter", "scatter_add", "scatter_reduce.two")
def _scatter(
    c: Call,
    self: Value,
    dim: int,
    index: Value,
    src: Operand,
    reduce: str | None = None,
    include_self: bool = True,
) -> Value:
    kind = self.dtype.name
    if not isinstance(src, (bool, int, float)):
        source = c.cast(src, kind)
        for axis, n in enumerate(index.shape):
            source = c.slice(source, axis, 0, n) if source.shape[axis] != n else source
    else:
        source = filled(c, index.shape, src, kind)
    how = _REDUCTIONS.get(reduce, reduce) if reduce else "none"
    how = "add" if c.name == "scatter_add" else how
    axis = c.axis(dim, len(self.shape))

    def put(x: Value, values: Value, how: str) -> Value:
        return c.nd("scatter_elements", x, index, values, axis=axis, reduction=how)

    if how != "mean" and include_self:
        return put(self, source, how)
    ones, op = filled(c, index.shape, 1, kind), "add" if how == "mean" else how
    count = put(filled(c, self.shape, int(include_self), kind), ones, "add")
    x = self
    if not include_self:
        is_hit = c.nd("greater", count, c.const(0, kind))
        x = c.nd("where", is_hit, c.const(_nothing(op, self), kind), self)
    made = put(x, source, op)
    if how != "mean":
        return made
    count = c.nd("max", count, c.const(1, kind))
    return c.nd("div", made, count) if is_float(self) else floor_divide(c, made, count)


def _nothing(op: str, like: Value) -> float:
    """Return the number that a reduction of nothing gives."""
    if op in ("add", "mul"):
        return int(op == "mul")
    if is_float(like):
        return -math.inf if op == "max" else math.inf
    info = np.iinfo(like.dtype.host)
    return int(info.min if op == "max" else info.max)


@converts("put")
def _put(c: Call, self: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    flat, places = c.reshape(self, (-1,)), c.reshape(index, (-1,))
    values = c.reshape(c.cast(source, self.dtype.name), (-1,))
    how = "add" if accumulate else "none"
    made = c.nd("scatter_elements", flat, places, values, axis=0, reduction=how)
    return c.reshape(made, self.shape)


@converts("masked_scatter")
def _masked_scatter(c: Call, self: Value, mask: Value, source: Value) -> Value:
    """Take for each place of the mask the element whose number says how many were before."""
    seen = c.reshape(c.expand(mask, self.shape), (-1,))
    number = c.nd("sub", c.nd("cum_sum", c.cast(seen, "i64"), axis=0), c.const(1, "i64"))
    number = c.nd("where", seen, number, c.const(0, "i64"))
    flat = c.reshape(c.cast(source, self.dtype.name), (-1,))
    found = c.nd("gather", flat, number, axis=0)
    return c.reshape(c.nd("where", seen, found, c.reshape(self, (-1,))), self.shape)


@converts("repeat_interleave.Tensor")
def _repeated(c: Call, repeats: Value, *, output_size: int | None = None) -> Value:
    if output_size is None:
        return _depends_on_data(c, repeats)
    ends = c.nd("cum_sum", c.cast(repeats, "i64"), axis=0)
    return searchsorted(c, ends, Const(np.arange(output_size)), right=True)


@converts("_embedding_bag_forward_only", "_embedding_bag", "embedding_bag")
def _embedding_bag(
    c: Call, weight: Value, indices: Value, offsets: Value, scale_grad_by_freq: bool = False,
    mode: int = 0, sparse: bool = False, per_sample_weights: Value | None = None,
    include_last_offset: bool = False, padding_idx: int = -1,
) -> list[Any]:  # fmt: skip
    if mode > 1 or padding_idx >= 0 or c.used not in (None, frozenset({0})):
        raise c.bad("maxima, paddings and indices of bags are not supported")
    kind, count = weight.dtype.name, offsets.shape[0] - bool(include_last_offset)
    rows = c.nd("gather", weight, indices, axis=0)
    if per_sample_weights is not None:
        rows = c.nd("mul", rows, c.reshape(per_sample_weights, (-1, 1)))
    starts = c.cast(c.slice(offsets, 0, 0, count), "i64")
    before = searchsorted(c, starts, Const(np.arange(indices.shape[0])), right=True)
    bag = c.reshape(c.nd("sub", before, c.const(1, "i64")), (-1, 1))
    empty = filled(c, (count, weight.shape[1]), 0, kind)
    total = c.nd("scatter_nd", empty, bag, rows, reduction="add")
    if mode == 1:
        ones = filled(c, (indices.shape[0], 1), 1, kind)
        sizes = c.nd("scatter_nd", filled(c, (count, 1), 0, kind), bag, ones, reduction="add")
        total = c.nd("div", total, c.nd("max", sizes, c.const(1, kind)))
    return [total, None, None, None]


@converts("diagonal_scatter")
def _diagonal_scatter(
    c: Call, self: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    order, x, places = _by_diagonal(c, self, offset, dim1, dim2)
    n = len(order)
    values = c.permute(c.cast(src, self.dtype.name), [n - 2, *range(n - 2)])
    made = c.nd("scatter_nd", x, places, values)
    return c.permute(made, [order.index(i) for i in range(n)])


@converts("slice_scatter")
def _slice_scatter(
    c: Call, self: Value, src: Value, dim: int = 0, start: Any = None, end: Any = None,
    step: int = 1,
) -> Value:  # fmt: skip
    axis = c.axis(dim, len(self.shape))
    n = self.shape[axis]
    first, stop, by = slice(start, end, step).indices(n)
    source = c.cast(src, self.dtype.name)
    if by == 1:
        parts = [c.slice(self, axis, 0, first), source, c.slice(self, axis, max(stop, first), n)]
        return c.concat([p for p in parts if p.shape[axis]], axis)
    places = np.arange(first, stop, by).reshape((-1,) + (1,) * (len(self.shape) - axis - 1))
    index = Const(np.ascontiguousarray(np.broadcast_to(places, source.shape)).astype(np.int64))
    return c.nd("scatter_elements", self, index, source, axis=axis)


@converts("select_scatter")
def _select_scatter(c: Call, self: Value, src: Value, dim: int, index: int) -> Value:
    axis = c.axis(dim, len(self.shape))
    at = c.axis(index, self.shape[axis])
    wide = c.reshape(src, (*self.shape[:axis], 1, *self.shape[axis + 1 :]))
    return _slice_scatter(c, self, wide, axis, at, at + 1)


@converts("unfold", "unfold_copy")
def _unfold(c: Call, self: Value, dimension: int, size: int, step: int) -> Value:
    axis = c.axis(dimension, len(self.shape))
    count = (self.shape[axis] - size) // step + 1
    places = np.arange(count)[:, None] * step + np.arange(size)
    found = c.nd("gather", self, Const(np.ascontiguousarray(places)), axis=axis)
    rest = [i for i in range(len(found.shape)) if i != axis + 1]
    return c.permute(found, [*rest, axis + 1])


@converts("diagonal", "diagonal_copy")
def _diagonal(c: Call, self: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    _, x, places = _by_diagonal(c, self, offset, dim1, dim2)
    found = c.nd("gather_nd", x, places)
    return c.permute(found, [*range(1, len(found.shape)), 0])


def _by_diagonal(
    c: Call, x: Value, offset: int, dim1: int, dim2: int
) -> tuple[list[int], Value, Const]:
    """Return axes with two in front, x with these, and the rows and columns of its diagonal."""
    n = len(x.shape)
    a, b = c.axis(dim1, n), c.axis(dim2, n)
    order = [a, b, *(i for i in range(n) if i not in (a, b))]
    rows, columns = max(0, -offset), max(0, offset)
    steps = np.arange(max(0, min(x.shape[a] - rows, x.shape[b] - columns)))
    places = np.ascontiguousarray(np.stack([steps + rows, steps + columns], -1))
    return order, c.permute(x, order), Const(places)


# --- elements by their place in memory ------------------------------------------------------------


@converts("as_strided", "as_strided_copy")
def _as_strided(
    c: Call, self: Value, size: Sequence[int], stride: Sequence[int], storage_offset: Any = None
) -> Value:
    if 0 in size:
        return filled(c, size, 0, self.dtype.name)
    flat, first = _memory(c, self, storage_offset)
    # Axes of stride 0 repeat elements; the others are taken from memory, outermost first.
    taken = [a for a, n in enumerate(size) if n > 1 and stride[a]]
    taken.sort(key=lambda a: -stride[a])
    extents = [size[a] for a in taken]
    count = prod(extents)
    if isinstance(first, int) and [stride[a] for a in taken] == _plain_strides(extents):
        if not 0 <= first <= flat.shape[0] - count:
            raise _outside(c)
        found = c.reshape(c.slice(flat, 0, first, first + count), extents)
    else:
        places = _places(c, extents, [stride[a] for a in taken], first, flat.shape[0])
        found = c.nd("gather", flat, Const(places), axis=0)
    found = c.permute(found, [taken.index(a) for a in sorted(taken)])
    return c.expand(c.reshape(found, [n if a in taken else 1 for a, n in enumerate(size)]), size)


@converts("as_strided_scatter")
def _as_strided_scatter(
    c: Call, self: Value, src: Value, size: Sequence[int], stride: Sequence[int],
    storage_offset: Any = None,
) -> Value:  # fmt: skip
    if 0 in size:
        return self
    flat, first = _memory(c, self, storage_offset)
    if not isinstance(first, int):
        raise c.bad("it writes a tensor that has gaps in memory", hint="call contiguous() before")
    places = _places(c, size, stride, first, flat.shape[0]).reshape(-1)
    source = c.reshape(c.cast(src, self.dtype.name), (-1,))
    made = c.nd("scatter_elements", flat, Const(places), source, axis=0)
    order = _order(c.layout or _contiguous(self.shape))
    wide = c.reshape(made, [self.shape[a] for a in order])
    return c.permute(wide, [order.index(a) for a in range(len(order))])


def _memory(c: Call, x: Value, storage_offset: int | None) -> tuple[Value, int | Array]:
    """Return the elements of x in the order of memory, and where the first that is read lies.

    Where x has gaps in memory, the second is the address of each element instead, from the
    first that is read.

    Raises:
        ModelError: x has gaps, and extents that change.
    """
    layout = c.layout or _contiguous(x.shape)
    offset = layout.offset if storage_offset is None else storage_offset
    order = _order(layout)
    plain = _plain_strides([layout.extents[a] for a in order])
    flat = c.reshape(c.permute(x, order), (-1,))
    if all(
        layout.strides[a] == s or layout.extents[a] == 1 for a, s in zip(order, plain, strict=True)
    ):
        return flat, offset - layout.offset
    if layout.extents != x.shape:
        raise c.bad(
            "it reads the memory of a tensor that has gaps there, and extents that change",
            hint="call contiguous() before, or export the model with fixed shapes",
        )
    extents, strides = ([v[a] for a in order] for v in (layout.extents, layout.strides))
    return flat, _addresses(extents, strides, layout.offset - offset).reshape(-1)


def _order(layout: Layout) -> list[int]:
    """Return the axes in the order of memory, outermost first."""
    return sorted(range(len(layout.strides)), key=lambda a: (-layout.strides[a], a))


def _contiguous(shape: tuple[int, ...]) -> Layout:
    return Layout(shape, tuple(_plain_strides(shape)), 0)


def _plain_strides(extents: Sequence[int]) -> list[int]:
    return [prod(extents[a + 1 :]) for a in range(len(extents))]


def _addresses(extents: Sequence[int], strides: Sequence[int], first: int) -> Array:
    steps = np.indices(tuple(extents), sparse=True)
    found = np.full(tuple(extents), first, np.int64)
    for step, stride in zip(steps, strides, strict=True):
        found += step * stride
    return found


def _places(
    c: Call, size: Sequence[int], strides: Sequence[int], first: int | Array, count: int
) -> Array:
    """Return which of the elements in the order of memory each element of a view is."""
    if prod(size) > MAX_CONSTANT:
        raise c.bad(f"a view of shape {list(size)} needs a table of indices that is too large")
    if isinstance(first, int):
        found = _addresses(size, strides, first)
        is_inside = bool(found.min() >= 0 and found.max() < count)
    else:
        wanted = _addresses(size, strides, 0)
        order = np.argsort(first, kind="stable")
        at = np.minimum(np.searchsorted(first[order], wanted), count - 1)
        found = order[at]
        is_inside = bool((first[found] == wanted).all())
    if not is_inside:
        raise _outside(c)
    return np.ascontiguousarray(found)


def _outside(c: Call) -> Exception:
    return c.bad(
        "it reads memory beside the elements of its operand", hint="call contiguous() before"
    )
