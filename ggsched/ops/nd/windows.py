"""Convolution and pooling in any number of dimensions: windows that slide over (N, C, ...)."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ggsched.ops.nd.declare import FLOATS, NUMBERS, Array, nd_op, wide
from ggsched.ops.record import Operand, Param, Shape

MAX_DIMENSIONS: Final = 3
MIN_CHANNELS: Final = 16
"""From here on a product for each place of a kernel is faster than one of unrolled windows."""

BLOCK_NBYTES: Final = 1 << 17


def extents(spatial: Shape, kernel: Shape, strides: Shape, dilations: Shape, pads: Shape) -> Shape:
    """Return how many windows there are in each dimension.

    Raises:
        ValueError: tuples of other lengths, or values that make no windows.
    """
    n = len(spatial)
    if not n or not len(kernel) == len(strides) == len(dilations) == n or len(pads) != 2 * n:
        raise ValueError(f"needs kernel, strides and dilations for {n} dimensions and {2 * n} pads")
    if n > MAX_DIMENSIONS:
        raise ValueError(f"{n} dimensions, not 1 to {MAX_DIMENSIONS}")
    if min(*strides, *dilations, *kernel, 1) < 1:
        raise ValueError("kernel, strides and dilations must be positive")
    out = []
    for i, m in enumerate(spatial):
        room = m + pads[i] + pads[n + i] - dilations[i] * (kernel[i] - 1) - 1
        out.append(max(0, room // strides[i] + 1))
    return tuple(out)


def padded(x: Array, pads: Shape, fill: float) -> Array:
    """Return x (N, C, ...) with elements added (or cut) around the spatial axes."""
    n = x.ndim - 2
    if not any(pads):
        return x
    if min(pads) < 0:
        cut = [slice(max(0, -pads[i]), x.shape[2 + i] - max(0, -pads[n + i])) for i in range(n)]
        x, pads = x[(slice(None), slice(None), *cut)], tuple(max(0, p) for p in pads)
    spatial = [m + pads[i] + pads[n + i] for i, m in enumerate(x.shape[2:])]
    out = np.full((*x.shape[:2], *spatial), fill, x.dtype)
    inside = [slice(pads[i], pads[i] + m) for i, m in enumerate(x.shape[2:])]
    out[(slice(None), slice(None), *inside)] = x
    return out


def windows(x: Array, kernel: Shape, strides: Shape, dilations: Shape, out: Shape) -> Array:
    """Return a read-only view (N, C, *out, *kernel) of padded x."""
    steps = x.strides[2:]
    return as_strided(
        x,
        (*x.shape[:2], *out, *kernel),
        (
            *x.strides[:2],
            *(s * t for s, t in zip(steps, strides, strict=True)),
            *(s * d for s, d in zip(steps, dilations, strict=True)),
        ),
        writeable=False,
    )


# --- convolution --------------------------------------------------------------------------------


def _conv(
    x: Sequence[Operand],
    strides: Shape,
    dilations: Shape,
    pads: Shape,
    group: int,
    bias: bool,
) -> tuple[str, Shape]:
    data, w = x[0].shape, x[1].shape
    if len(data) != len(w) or group < 1 or data[1] != w[1] * group or w[0] % group:
        raise ValueError("needs x (N, C, ...), w (M, C / group, ...)")
    if len({t.dtype for t in x}) > 1 or (bias and x[2].shape != w[:1]):
        raise ValueError("operands must have one type, and the bias M elements")
    return x[0].dtype.name, (
        data[0],
        w[0],
        *extents(data[2:], w[2:], strides, dilations, pads),
    )


def _conv_work(x: Shape, w: Shape, *_: Shape, **p: tuple[int, ...]) -> float:
    out = extents(x[2:], w[2:], p["strides"], p["dilations"], p["pads"])
    return 2.0 * x[0] * prod(out) * prod(w)


def _conv_family(x: Shape, w: Shape, *_: Shape, group: int, **__: Param) -> str:
    if group > 1:
        return "conv:depthwise" if w[1] == 1 else "conv:grouped"
    if max(w[2:]) == 1:
        return "conv:points"
    return f"conv:{len(w) - 2}d"


@nd_op(
    "conv",
    "x",
    "w",
    "bias?",
    rule=_conv,
    types=FLOATS,
    family=_conv_family,
    flops=_conv_work,
    writes_out=True,
    strides=(),
    dilations=(),
    pads=(),
    group=1,
    bias=False,
)
def conv(
    x: Array,
    w: Array,
    *b: Array,
    strides: Shape,
    dilations: Shape,
    pads: Shape,
    group: int,
    bias: bool,
    out: Array | None = None,
) -> Array:
    """Correlate x (N, C, ...) with w (M, C / group, ...): windows are unrolled and multiplied."""
    kernel, count = w.shape[2:], x.shape[0]
    spatial = extents(x.shape[2:], kernel, strides, dilations, pads)
    x, w = wide(x), wide(w)
    data = padded(x, pads, 0)
    made = np.empty((count, w.shape[0], *spatial), x.dtype) if out is None else out
    per, each = w.shape[1], w.shape[0] // group
    if not made.size:
        return made
    if per == 1 and each == 1:
        _depthwise(data, w, made, strides, dilations)
    else:
        shifts = prod(strides) == 1 and per >= MIN_CHANNELS
        multiply = _by_shifts if shifts else _by_columns
        for n, g in product(range(count), range(group)):
            part = data[n, g * per : (g + 1) * per]
            target = made[n, g * each : (g + 1) * each]
            multiply(part, w[g * each : (g + 1) * each], target, strides, dilations)
    if bias:
        made += wide(b[0]).reshape(-1, *(1,) * len(spatial))
    return made


def _by_columns(data: Array, w: Array, made: Array, strides: Shape, dilations: Shape) -> None:
    """Unroll all windows into a matrix, and multiply once."""
    taps, out = prod(w.shape[2:]), made.shape[1:]
    if taps == 1 and prod(strides) == 1:
        columns: Array = np.ascontiguousarray(data).reshape(len(data), prod(out))
    else:
        unrolled = np.empty((len(data), taps, *out), data.dtype)
        for i, place in enumerate(np.ndindex(*w.shape[2:])):
            unrolled[:, i] = data[(slice(None), *_spans(place, out, strides, dilations))]
        columns = unrolled.reshape(len(data) * taps, prod(out))
    np.matmul(w.reshape(len(w), -1), columns, out=made.reshape(len(w), -1))


def _by_shifts(data: Array, w: Array, made: Array, _strides: Shape, dilations: Shape) -> None:
    """Multiply once for each place of the kernel; with strides of 1 no windows are copied.

    All places of the padded operand, counted row-major, shift by one number. So what a place of the
    kernel meets is a range of them. Results that wrap around the edges are computed and dropped.
    """
    flat = np.ascontiguousarray(data).reshape(len(data), -1)
    steps = [prod(data.shape[i + 1 :]) for i in range(1, data.ndim)]
    last = sum((n - 1) * step for n, step in zip(made.shape[1:], steps, strict=True))
    total = np.zeros((len(w), last + 1), data.dtype)
    spare = np.empty_like(total)
    weights = np.ascontiguousarray(np.moveaxis(w.reshape(*w.shape[:2], -1), -1, 0))
    for i, place in enumerate(np.ndindex(*w.shape[2:])):
        at = sum(p * d * s for p, d, s in zip(place, dilations, steps, strict=True))
        np.matmul(weights[i], flat[:, at : at + last + 1], out=spare if i else total)
        if i:
            total += spare
    unit = total.itemsize
    strides = (total.strides[0], *(step * unit for step in steps))
    made[...] = as_strided(total, made.shape, strides, writeable=False)


def _spans(place: Sequence[int], out: Shape, strides: Shape, dilations: Shape) -> tuple[slice, ...]:
    """Return what a place of the kernel meets, along each dimension."""
    return tuple(
        slice(p * d, p * d + (n - 1) * s + 1, s)
        for p, d, n, s in zip(place, dilations, out, strides, strict=True)
    )


def _depthwise(data: Array, w: Array, made: Array, strides: Shape, dilations: Shape) -> None:
    """One kernel for each channel; as many channels at a time as fit a cache."""
    step = max(1, BLOCK_NBYTES * made.shape[1] // max(1, made[0].nbytes))
    for n, first in product(range(len(made)), range(0, made.shape[1], step)):
        some = slice(first, first + step)
        target = made[n, some]
        spare = np.empty_like(target)
        for i, place in enumerate(np.ndindex(*w.shape[2:])):
            factor = w[some, 0].reshape(len(target), -1)[:, i].reshape(-1, *(1,) * len(place))
            spans = _spans(place, target.shape[1:], strides, dilations)
            seen = data[n, some][(slice(None), *spans)]
            np.multiply(seen, factor, out=spare if i else target)
            if i:
                target += spare


def _conv_transpose(
    x: Sequence[Operand],
    strides: Shape,
    dilations: Shape,
    pads: Shape,
    more: Shape,
    group: int,
    bias: bool,
) -> tuple[str, Shape]:
    data, w = x[0].shape, x[1].shape
    n = len(data) - 2
    if len(data) != len(w) or group < 1 or data[1] != w[0] or w[0] % group or n < 1:
        raise ValueError("needs x (N, C, ...), w (C, M / group, ...)")
    if not len(strides) == len(dilations) == len(more) == n or len(pads) != 2 * n:
        raise ValueError(f"needs strides, dilations and more for {n} dimensions and {2 * n} pads")
    if len({t.dtype for t in x}) > 1 or (bias and x[2].shape != (w[1] * group,)):
        raise ValueError("operands must have one type, and the bias M elements")
    if min(*strides, *dilations) < 1:
        raise ValueError("strides and dilations must be positive")
    spatial = tuple(
        (m - 1) * strides[i] + dilations[i] * (w[2 + i] - 1) + 1 + more[i] - pads[i] - pads[n + i]
        for i, m in enumerate(data[2:])
    )
    return x[0].dtype.name, (data[0], w[1] * group, *spatial)


def _transpose_work(x: Shape, w: Shape, *_: Shape, **__: Param) -> float:
    return 2.0 * prod(x) * prod(w[1:])


@nd_op(
    "conv_transpose",
    "x",
    "w",
    "bias?",
    rule=_conv_transpose,
    types=FLOATS,
    family="conv_transpose",
    flops=_transpose_work,
    strides=(),
    dilations=(),
    pads=(),
    more=(),
    group=1,
    bias=False,
)
def conv_transpose(
    x: Array,
    w: Array,
    *b: Array,
    strides: Shape,
    dilations: Shape,
    pads: Shape,
    more: Shape,
    group: int,
    bias: bool,
) -> Array:
    """Spread each element of x (N, C, ...) by w (C, M / group, ...); ``more`` adds at the end."""
    n, kernel = x.ndim - 2, w.shape[2:]
    x, w = wide(x), wide(w)
    full = [
        (m - 1) * strides[i] + dilations[i] * (kernel[i] - 1) + 1 + max(more[i], 0)
        for i, m in enumerate(x.shape[2:])
    ]
    made = np.zeros((x.shape[0], w.shape[1] * group, *full), x.dtype)
    per, each = x.shape[1] // group, w.shape[1]
    for g in range(group):
        part = x[:, g * per : (g + 1) * per].reshape(len(x), per, prod(x.shape[2:]))
        matrix = w[g * per : (g + 1) * per].reshape(per, each * prod(kernel)).T
        spread = (matrix @ part).reshape(x.shape[0], each, *kernel, *x.shape[2:])
        target = made[:, g * each : (g + 1) * each]
        for place in np.ndindex(*kernel):
            spans = _spans(place, x.shape[2:], strides, dilations)
            target[(slice(None), slice(None), *spans)] += spread[(slice(None), slice(None), *place)]
    end = [m - pads[n + i] for i, m in enumerate(full)]
    cut = [slice(max(pads[i], 0), e) for i, e in enumerate(end)]
    made = made[(slice(None), slice(None), *cut)]
    grown = [max(-pads[i], 0) for i in range(n)] + [max(-pads[n + i], 0) for i in range(n)]
    made = padded(made, tuple(grown), 0)
    if bias:
        made = made + wide(b[0]).reshape(-1, *(1,) * n)
    return made


# --- pooling ------------------------------------------------------------------------------------


def _pool(
    x: Sequence[Operand],
    kernel: Shape,
    strides: Shape,
    dilations: Shape,
    pads: Shape,
    **_: Param,
) -> tuple[str, Shape]:
    data = x[0].shape
    if len(data) < 3:
        raise ValueError("needs x (N, C, ...)")
    return x[0].dtype.name, (*data[:2], *extents(data[2:], kernel, strides, dilations, pads))


def _pool_indices(x: Sequence[Operand], **p: Param) -> tuple[str, Shape]:
    return "i64", _pool(x, **p)[1]  # type: ignore[arg-type]


def _pool_work(x: Shape, **p: tuple[int, ...]) -> float:
    out = extents(x[2:], p["kernel"], p["strides"], p["dilations"], p["pads"])
    return 2.0 * prod(x[:2]) * prod(out) * prod(p["kernel"])


def _lowest(x: Array) -> float:
    return -np.inf if x.dtype.kind == "f" else int(np.iinfo(x.dtype).min)


def _each(
    f: Callable[[Array, Array], object],
    data: Array,
    made: Array,
    kernel: Shape,
    strides: Shape,
    dilations: Shape,
) -> Array:
    """Combine, place by place of the kernel, what all windows have there."""
    for place in np.ndindex(*kernel):
        spans = _spans(place, made.shape[2:], strides, dilations)
        f(made, data[(slice(None), slice(None), *spans)])
    return made


_SHAPED: Final = dict[str, Param](kernel=(), strides=(), dilations=(), pads=())
_pooling = partial(nd_op, family="pool", flops=_pool_work, shared=_SHAPED)


@_pooling("max_pool", "x", rule=_pool, types=NUMBERS)
def max_pool(x: Array, kernel: Shape, strides: Shape, dilations: Shape, pads: Shape) -> Array:
    """Return the largest element of each window."""
    out = extents(x.shape[2:], kernel, strides, dilations, pads)
    made = np.full((*x.shape[:2], *out), _lowest(x), x.dtype)
    data = padded(x, pads, _lowest(x))
    return _each(lambda a, b: np.maximum(a, b, out=a), data, made, kernel, strides, dilations)


@_pooling("max_pool_indices", "x", rule=_pool_indices, types=NUMBERS, columns_first=False)
def max_pool_indices(
    x: Array,
    kernel: Shape,
    strides: Shape,
    dilations: Shape,
    pads: Shape,
    columns_first: bool,
) -> Array:
    """Return where the largest element of each window lies in flat x."""
    out = extents(x.shape[2:], kernel, strides, dilations, pads)
    spatial = x.shape[2:]
    lead = np.arange(prod(x.shape[:2])).reshape(*x.shape[:2], *(1,) * len(spatial))
    flat = np.arange(prod(spatial))
    inside: Array = flat.reshape(spatial[::-1]).T if columns_first else flat.reshape(spatial)
    places = padded(lead * prod(spatial) + inside, pads, -1)
    data = padded(x, pads, _lowest(x))
    n = len(out)
    seen = windows(data, kernel, strides, dilations, out).reshape(*x.shape[:2], *out, prod(kernel))
    best = np.argmax(seen, -1)[..., None]
    where = windows(np.ascontiguousarray(places), kernel, strides, dilations, out)
    assert where.ndim == 2 + 2 * n
    return np.take_along_axis(where.reshape(seen.shape), best, -1)[..., 0]


@_pooling("average_pool", "x", rule=_pool, types=FLOATS, extra=(), counts_pads=False)
def average_pool(
    x: Array,
    kernel: Shape,
    strides: Shape,
    dilations: Shape,
    pads: Shape,
    extra: Shape,
    counts_pads: bool,
) -> Array:
    """Return the mean of each window; ``extra`` of the pads at the end never count."""
    out = extents(x.shape[2:], kernel, strides, dilations, pads)
    x = wide(x)
    n = len(out)
    made = np.zeros((*x.shape[:2], *out), x.dtype)
    total = _each(
        lambda a, b: np.add(a, b, out=a), padded(x, pads, 0), made, kernel, strides, dilations
    )
    own = tuple(p - (extra[i - n] if i >= n and extra else 0) for i, p in enumerate(pads))
    ones = np.ones((1, 1, *x.shape[2:]), x.dtype)
    if counts_pads:
        ones = padded(ones, own, 1)
        ones = padded(ones, (0,) * n + (extra or (0,) * n), 0)
    else:
        ones = padded(ones, pads, 0)
    count = np.zeros((1, 1, *out), x.dtype)
    _each(lambda a, b: np.add(a, b, out=a), ones, count, kernel, strides, dilations)
    return np.asarray(total / count)


@_pooling("lp_pool", "x", rule=_pool, types=FLOATS, p=2)
def lp_pool(
    x: Array, kernel: Shape, strides: Shape, dilations: Shape, pads: Shape, p: int
) -> Array:
    """Return the p-norm of each window."""
    out = extents(x.shape[2:], kernel, strides, dilations, pads)
    data = padded(abs(wide(x)) ** p, pads, 0)
    made = np.zeros((*x.shape[:2], *out), data.dtype)
    total = _each(lambda a, b: np.add(a, b, out=a), data, made, kernel, strides, dilations)
    return np.asarray(total ** (1 / p))
