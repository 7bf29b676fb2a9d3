"""Converters of what sorts, counts, and runs along an axis."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ggsched_import.common.emit import Const, Value
from ggsched_import.torch.call import Call, Operand, converts, is_float
from ggsched_import.torch.ops_layout import filled, select
from ggsched_import.torch.ops_reductions import reduced

Pair = tuple[Value, Value]


@converts("topk")
def _topk(
    c: Call, self: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> list[Value]:
    axis = c.axis(dim, len(self.shape))
    indices = c.nd("top_k", self, k=k, axis=axis, largest=bool(largest))
    return [c.nd("gather_elements", self, indices, axis=axis), indices]


@converts("sort")
def _sort(
    c: Call, self: Value, *args: Any, dim: int = -1, descending: bool = False, stable: Any = None
) -> list[Value]:
    if args and c.op != "sort.stable":
        dim, descending = (*args, descending)[:2]
    if not self.shape:
        return [self, c.const(0, "i64")]
    return _topk(c, self, self.shape[c.axis(dim, len(self.shape))], dim, descending)


@converts("argsort")
def _argsort(c: Call, self: Value, *args: Any, **given: Any) -> Value:
    return _sort(c, self, *args, **given)[1]


@converts("cumsum", "cumprod")
def _running(c: Call, self: Value, dim: int, dtype: str | None = None) -> Value:
    x = self if dtype is None else c.cast(self, dtype)
    x = x if is_float(x) else c.cast(x, "i64")
    if not x.shape:
        return x
    return c.nd("cum_sum" if c.name == "cumsum" else "cum_prod", x, axis=c.axis(dim, len(x.shape)))


def _scanned(c: Call, x: Pair, axis: int, join: Callable[[Pair, Pair], Pair]) -> Pair:
    """Combine each place of an axis with all before it, by doubling how many it has."""
    n, step = x[0].shape[axis], 1
    while step < n:
        before = tuple(c.slice(v, axis, 0, n - step) for v in x)
        rest = tuple(c.slice(v, axis, step, n) for v in x)
        both = join((before[0], before[1]), (rest[0], rest[1]))
        heads = (c.slice(v, axis, 0, step) for v in x)
        x = tuple(c.concat([h, v], axis) for h, v in zip(heads, both, strict=True))  # type: ignore[assignment]
        step *= 2
    return x


@converts("cummax", "cummin")
def _running_extreme(c: Call, self: Value, dim: int) -> list[Value]:
    if not self.shape:
        return [self, c.const(0, "i64")]
    axis = c.axis(dim, len(self.shape))
    steps = np.arange(self.shape[axis]).reshape(-1, *(1,) * (len(self.shape) - axis - 1))
    places = c.expand(c.const(steps, "i64"), self.shape)  # type: ignore[arg-type]
    op = "less_equal" if c.name == "cummax" else "greater_equal"

    def join(a: Pair, b: Pair) -> Pair:
        is_later = c.nd(op, a[0], b[0])
        if is_float(self):  # NaN stays, and of several the last
            is_later = c.nd("or", is_later, c.nd("is_nan", b[0]))
        return c.nd("where", is_later, b[0], a[0]), c.nd("where", is_later, b[1], a[1])

    return list(_scanned(c, (self, places), axis, join))


@converts("logcumsumexp")
def _running_log_sum(c: Call, self: Value, dim: int) -> Value:
    if not self.shape:
        return self
    kind, axis = self.dtype.name, c.axis(dim, len(self.shape))

    def join(a: Pair, b: Pair) -> Pair:
        """Of a largest element and the sum of exponentials without it."""
        high = c.nd("max", a[0], b[0])
        away = c.nd("where", c.nd("is_inf", high), c.const(0, kind), high)
        parts = (c.nd("mul", v[1], c.nd("exp", c.nd("sub", v[0], away))) for v in (a, b))
        return high, c.nd("add", *parts)

    top, total = _scanned(c, (self, filled(c, self.shape, 1, kind)), axis, join)
    return c.nd("add", c.nd("log", total), top)


@converts("kthvalue")
def _kth(c: Call, self: Value, k: int, dim: int = -1, keepdim: bool = False) -> list[Value]:
    if not self.shape:
        return [self, c.const(0, "i64")]
    axis = c.axis(dim, len(self.shape))
    found = _topk(c, self, k, axis, largest=False)
    if keepdim:
        return [c.slice(v, axis, k - 1, k) for v in found]
    return [select(c, v, axis, k - 1) for v in found]


@converts("median.dim")
def _median_along(c: Call, self: Value, dim: int, keepdim: bool = False) -> list[Value]:
    size = self.shape[c.axis(dim, len(self.shape))]
    return _kth(c, self, (size + 1) // 2, dim, keepdim)


@converts("median.default", "nanmedian.default")
def _median(c: Call, self: Value) -> Value:
    """Return the lower of two in the middle: of all that are not NaN, or NaN where one is."""
    flat = c.reshape(self, (-1,))
    middle: Value = c.const((flat.shape[0] - 1) // 2, "i64")
    ordered = _sort(c, flat, dim=0)[0]
    if not is_float(self):
        return c.nd("gather", ordered, middle, axis=0)
    nan = c.nd("is_nan", flat)
    if c.name == "nanmedian":
        left = reduced(c, "sum", c.cast(c.nd("not", nan), "i64"), None, False)
        middle = c.nd("sub", left, c.const(1, "i64"))
        middle = c.nd("div", c.nd("max", middle, c.const(0, "i64")), c.const(2, "i64"))
        return c.nd("gather", ordered, middle, axis=0)
    found = c.nd("gather", ordered, middle, axis=0)
    any_nan = reduced(c, "max", nan, None, False)
    return c.nd("where", any_nan, c.const(math.nan, self.dtype.name), found)


@converts("mode")
def _mode(c: Call, self: Value, dim: int = -1, keepdim: bool = False) -> list[Any]:
    """Count for each element how many are equal, and take the least of those with most."""
    if c.used not in (None, frozenset({0})):
        raise c.bad("indices of the most frequent elements are not supported")
    n = len(self.shape)
    axis = c.axis(dim, n)
    x = _sort(c, self, dim=axis)[0]
    a = c.reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
    b = c.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))
    count = reduced(c, "sum", c.cast(c.nd("equal", a, b), "i64"), [axis + 1], False)
    first = c.nd("arg_max", count, axis=axis, keepdims=True)
    made = c.nd("gather_elements", x, first, axis=axis)
    kept = made if keepdim else select(c, made, axis, 0)
    return [kept, None]


@converts("searchsorted", "bucketize")
def searchsorted(
    c: Call, sorted_sequence: Value, self: Operand, *, out_int32: bool = False,
    right: bool = False, side: str | None = None, sorter: Value | None = None,
) -> Value:  # fmt: skip
    """Return for each value how many elements of a sorted row are before it."""
    edges, values = c.joined(sorted_sequence, self)
    if c.name == "bucketize":
        edges, values = values, edges
    if sorter is not None:
        edges = c.nd("gather_elements", edges, sorter, axis=-1)
    if len(edges.shape) > 1:
        edges = c.reshape(edges, (*edges.shape[:-1], 1, edges.shape[-1]))
    op = "less_equal" if right or side == "right" else "less"
    before = c.nd(op, edges, c.reshape(values, (*values.shape, 1)))
    if is_float(values):  # NaN is behind all
        nan = c.reshape(c.nd("is_nan", values), (*values.shape, 1))
        before = c.nd("or", before, nan)
    kind = "i32" if out_int32 else "i64"
    return c.nd("reduce_sum", c.cast(before, kind), axes=(-1,), keepdims=False)


@converts("histc")
def _histc(c: Call, self: Value, bins: int = 100, min: float = 0, max: float = 0) -> Value:
    x, kind = c.reshape(c.floating(self), (-1,)), self.dtype.name
    if not x.shape[0]:
        return filled(c, (bins,), 0, kind)
    edges: list[Value] = [c.const(v, x.dtype.name) for v in (min, max)]
    low, high = edges
    if min == max:  # the range of the elements, widened where it is empty
        low, high = (c.nd(f"reduce_{n}", x, axes=(0,), keepdims=False) for n in ("min", "max"))
        is_empty, one = c.nd("equal", low, high), c.const(1, x.dtype.name)
        low = c.nd("where", is_empty, c.nd("sub", low, one), low)
        high = c.nd("where", is_empty, c.nd("add", high, one), high)
    scaled = c.nd("mul", c.nd("sub", x, low), c.const(bins, x.dtype.name))
    place = c.nd("floor", c.nd("div", scaled, c.nd("sub", high, low)))
    place = c.nd("min", place, c.const(bins - 1, x.dtype.name))  # the last bin has its upper edge
    inside = c.nd("and", c.nd("greater_equal", x, low), c.nd("less_equal", x, high))
    steps = c.const(np.arange(bins), x.dtype.name)  # type: ignore[arg-type]
    is_there = c.nd("equal", c.reshape(place, (-1, 1)), steps)
    found = c.nd("and", is_there, c.reshape(inside, (-1, 1)))
    return c.cast(c.nd("reduce_sum", c.cast(found, "f32"), axes=(0,), keepdims=False), kind)


@converts("histogram.bin_ct")
def _histogram(
    c: Call, self: Value, bins: int = 100, *, range: Any = None, weight: Any = None,
    density: bool = False,
) -> list[Any]:  # fmt: skip
    if range is None or weight is not None or density:
        raise c.bad("histograms without a range, with weights and of densities are not supported")
    low, high = range
    edges = np.linspace(low, high, bins + 1, dtype=self.dtype.host)
    return [_histc(c, self, bins, low, high), Const(edges)]
