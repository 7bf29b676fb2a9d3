"""Converters of products: matrices, attention, convolution, recurrent networks."""

import math
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from ggsched.ir.ops import BUILT_IN_AXES
from ggsched.ir.tensor import Tensor
from ggsched_import.common.emit import Const, Value
from ggsched_import.torch.call import CONVERTERS, Call, converts
from ggsched_import.torch.ops_reductions import reduced

MATRICES: Final = {"mm": "matmul", "bmm": "matmul", "mv": "matmul", "dot": "matmul",
                   "matmul": "matmul"}  # fmt: skip


def _matmul(c: Call, self: Value, other: Value) -> Value:
    """Multiply; a matrix of bfloat16 keeps its 16 bits, as the weight of a linear layer."""
    bits = other.bits if isinstance(other, Const) else None
    if bits is not None and len(bits.shape) == 2 and isinstance(self, Tensor):
        weight = Const(None, f"{other.name} (transposed)", np.ascontiguousarray(bits.T))
        return _linear(c, self, weight)
    return c.nd("matmul", self, other)


CONVERTERS.update(dict.fromkeys(MATRICES, _matmul))


@converts("addmm", "baddbmm", "addmv", "addbmm")
def _addmm(c: Call, self: Value, a: Value, b: Value, beta: float = 1, alpha: float = 1) -> Value:
    made = _matmul(c, a, b)
    if c.name == "addbmm":
        made = c.nd("reduce_sum", made, axes=(0,), keepdims=False)
    kind = made.dtype.name
    made = made if alpha == 1 else c.nd("mul", made, c.const(alpha, kind))
    if beta == 0:
        return made
    term = self if beta == 1 else c.nd("mul", self, c.const(beta, kind))
    return c.nd("add", made, c.cast(term, kind))


@converts("linear")
def _linear(c: Call, input: Value, weight: Value, bias: Value | None = None) -> Value:
    """Multiply with a weight as it lies in memory: no copy of it is made."""
    x = input if input.shape[:-1] else c.reshape(input, (1, -1))
    shape = (*x.shape[:-1], weight.shape[0])
    if len(x.shape) > BUILT_IN_AXES:
        x = c.reshape(x, (-1, x.shape[-1]))
    kind = x.dtype.name
    is_built_in = kind in ("f32", "f16") and weight.dtype.name == kind
    is_built_in = is_built_in and 0 not in (*x.shape, *weight.shape)
    both_known = isinstance(x, Const) and isinstance(weight, Const)
    if is_built_in and len(weight.shape) == 2 and not both_known:
        rows = c.emit.tensor(c.cast(x, "f32"))
        made = c.cast(c.emit.g.mul_mat(c.emit.factor(weight), rows), kind)
    elif len(weight.shape) == 2:
        made = c.nd("along", x, c.cast(weight, x.dtype.name), axis=len(x.shape) - 1)
    else:
        return _added(c, c.nd("matmul", input, weight), bias)
    made = _added(c, made, bias)
    return c.reshape(made, shape if input.shape[:-1] else shape[1:])


def _added(c: Call, x: Value, bias: Value | None) -> Value:
    return x if bias is None else c.nd("add", x, c.cast(bias, x.dtype.name))


@converts("_linalg_det", "linalg_det", "det")
def _det(c: Call, self: Value) -> Any:
    if c.used not in (None, frozenset({0})):
        raise c.bad("the factors of a determinant are not supported")
    made = c.nd("det", self)
    return [made, None, None] if c.name == "_linalg_det" else made


# --- attention ------------------------------------------------------------------------------------


@converts("scaled_dot_product_attention")
def _attention(
    c: Call,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    if dropout_p:
        raise c.bad("dropout is not supported", hint="call model.eval() before the export")
    kind = query.dtype.name
    if enable_gqa:
        key, value = (with_heads(c, v, query.shape[-3]) for v in (key, value))
    if is_causal:
        attn_mask = Const(np.tril(np.ones((query.shape[-2], key.shape[-2]), bool)))
    if attn_mask is None:
        return attended(c, query, key, value, scale, lambda scores: scores)
    if attn_mask.dtype.name == "bool":
        mask = c.nd("where", attn_mask, c.const(0, kind), c.const(-math.inf, kind))
    else:
        mask = c.cast(attn_mask, kind)
    return attended(c, query, key, value, scale, lambda scores: c.nd("add", scores, mask), mask)


def attended(
    c: Call,
    query: Value,
    key: Value,
    value: Value,
    scale: float | None,
    change: Callable[[Value], Value],
    mask: Value | None = None,
) -> Value:
    """Attend by the scores that a function makes of the products of queries and keys.

    A row whose scores are all -infinity is 0, where softmax alone would be NaN.

    Args:
        scale: Of the products; None for what their length makes of it.
        change: Makes the scores.
        mask: What decides alone whether a row is so; None for the scores.
    """
    kind = query.dtype.name
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    raw = c.nd("matmul", c.nd("mul", query, c.const(factor, kind)), c.swap(key))
    scores = change(raw)
    made = c.nd("matmul", c.nd("softmax", scores, axis=len(scores.shape) - 1), value)
    if scores is not raw:
        top = reduced(c, "max", scores if mask is None else mask, [-1], True)
        seen = c.nd("greater", top, c.const(-math.inf, kind))
        if not (isinstance(seen, Const) and seen.array.all()):
            made = c.nd("where", seen, made, c.const(0, kind))
    return made


def with_heads(c: Call, x: Value, heads: int) -> Value:
    """Repeat each head of keys or values for the queries that share it."""
    *lead, own, rows, columns = x.shape
    if own == heads:
        return x
    wide = c.reshape(x, (*lead, own, 1, rows, columns))
    wide = c.expand(wide, (*lead, own, heads // own, rows, columns))
    return c.reshape(wide, (*lead, heads, rows, columns))


# --- windows --------------------------------------------------------------------------------------


def _each(value: Any, n: int) -> tuple[int, ...]:
    """Return a number for each dimension; one number is for all."""
    given = [value] if isinstance(value, int) else list(value)
    return tuple(given * n if len(given) == 1 else given)


@converts("convolution")
def _convolution(
    c: Call, input: Value, weight: Value, bias: Value | None, stride: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int,
) -> Value:  # fmt: skip
    n = len(weight.shape) - 2
    x = input if len(input.shape) == n + 2 else c.reshape(input, (1, *input.shape))
    pads = _each(padding, n)
    how: dict[str, Any] = {
        "strides": _each(stride, n),
        "dilations": _each(dilation, n),
        "pads": (*pads, *pads),
        "group": groups,
        "bias": bias is not None,
    }
    values = [x, weight, *([] if bias is None else [bias])]
    if transposed:
        made = c.nd("conv_transpose", *values, **how, more=_each(output_padding, n))
    else:
        made = c.nd("conv", *values, **how)
    return made if x is input else c.reshape(made, made.shape[1:])


def _pool(
    c: Call, x: Value, n: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> tuple[Value, dict[str, Any], tuple[int, ...]]:
    """Return x (N, C, ...), the window, and the pads at the end that ``ceil`` adds."""
    data = x if len(x.shape) == n + 2 else c.reshape(x, (1, *x.shape))
    size = _each(kernel, n)
    strides = _each(stride, n) if stride not in (None, [], ()) else size
    pads, dilations = _each(padding, n), _each(dilation, n)
    extra = [0] * n
    for i, m in enumerate(data.shape[2:]) if ceil else ():
        room = m + 2 * pads[i] - dilations[i] * (size[i] - 1) - 1
        out = -(-room // strides[i]) + 1
        out -= (out - 1) * strides[i] >= m + pads[i]
        extra[i] = max(0, (out - 1) * strides[i] - room)
    ends = (p + e for p, e in zip(pads, extra, strict=True))
    how = {"kernel": size, "strides": strides, "dilations": dilations, "pads": (*pads, *ends)}
    return data, how, tuple(extra)


@converts("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(
    c: Call, self: Value, kernel_size: Any, stride: Any = None, padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: Any = None,
) -> Value:  # fmt: skip
    n = int(c.name[-2])
    x, how, extra = _pool(c, self, n, kernel_size, stride, padding, 1, ceil_mode)
    if divisor_override is not None:
        raise c.bad("a divisor other than the number of elements is not supported")
    made = c.nd("average_pool", x, **how, extra=extra, counts_pads=bool(count_include_pad))
    return made if x is self else c.reshape(made, made.shape[1:])


@converts("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices",
          "max_pool1d", "max_pool2d", "max_pool3d")  # fmt: skip
def _max_pool(
    c: Call, self: Value, kernel_size: Any, stride: Any = None, padding: Any = 0,
    dilation: Any = 1, ceil_mode: bool = False,
) -> Any:  # fmt: skip
    n = int(c.name[8])
    x, how, _ = _pool(c, self, n, kernel_size, stride, padding, dilation, ceil_mode)
    made = c.nd("max_pool", x, **how)
    made = made if x is self else c.reshape(made, made.shape[1:])
    if not c.name.endswith("indices"):
        return made
    if not c.wants(1):
        return [made, None]
    places = c.nd("max_pool_indices", x, **how)
    inside = c.nd("mod", places, c.const(prod(x.shape[2:]), "i64"))
    return [made, c.reshape(inside, made.shape)]


@converts("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d",
          "adaptive_avg_pool2d", "adaptive_avg_pool3d")  # fmt: skip
def _adaptive(c: Call, self: Value, output_size: Any) -> Value:
    n = int(c.name[-2])
    x = self
    first = len(x.shape) - n
    for axis, out in enumerate(_each(output_size, n), start=first):
        size = x.shape[axis]
        if out == 1:
            x = c.nd("reduce_mean", x, axes=(axis,), keepdims=True)
        elif out != size:
            x = c.nd("along", x, c.const(_averages(size, out), x.dtype.name), axis=axis)  # type: ignore[arg-type]
    return x


def _averages(size: int, out: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the matrix (out, size) that averages over windows of nearly equal size."""
    matrix = np.zeros((out, size))
    for i in range(out):
        start, stop = i * size // out, -(-(i + 1) * size // out)
        matrix[i, start:stop] = 1 / (stop - start)
    return matrix


@converts("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def _adaptive_max(c: Call, self: Value, output_size: Any) -> list[Any]:
    n = int(c.name[-2])
    if c.used not in (None, frozenset({0})):
        raise c.bad("indices of the largest elements are not supported")
    x, first = self, len(self.shape) - n
    for axis, (out, size) in enumerate(
        zip(_each(output_size, n), x.shape[-n:], strict=True), first
    ):
        steps = np.arange(out)
        starts, ends = steps * size // out, -(-(steps + 1) * size // out)
        width = int((ends - starts).max(initial=1))
        places = np.minimum(starts[:, None] + np.arange(width), ends[:, None] - 1)
        x = c.nd("gather", x, Const(np.ascontiguousarray(places)), axis=axis)
        x = c.nd("reduce_max", x, axes=(axis + 1,), keepdims=False)
    return [x, None]


@converts("_trilinear")
def _trilinear(
    c: Call, a: Value, b: Value, d: Value, expand1: Any, expand2: Any, expand3: Any,
    sumdim: Sequence[int], unroll_dim: int = 1,
) -> Value:  # fmt: skip
    full = []
    for x, axes in ((a, expand1), (b, expand2), (d, expand3)):
        shape = list(x.shape)
        for axis in sorted(axes):
            shape.insert(axis, 1)
        full.append(c.reshape(x, shape))
    product = c.nd("mul", c.nd("mul", full[0], full[1]), full[2])
    return c.nd("reduce_sum", product, axes=tuple(sumdim), keepdims=False)


# --- resize ---------------------------------------------------------------------------------------


@converts("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def _nearest(c: Call, self: Value, output_size: Any, *scales: Any, **_: Any) -> Value:
    x = self
    for axis, (out, scale) in enumerate(_sizes(c, self, output_size, scales), start=2):
        size = x.shape[axis]
        places = np.minimum((np.arange(out) * scale).astype(np.int64), size - 1)
        if out != size:
            x = c.nd("gather", x, Const(places), axis=axis)
    return x


@converts("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
def _linear_resize(
    c: Call, self: Value, output_size: Any, align_corners: bool, *scales: Any, **_: Any
) -> Value:
    x = self
    for axis, (out, scale) in enumerate(_sizes(c, self, output_size, scales), start=2):
        size = x.shape[axis]
        if out == size and scale == 1:
            continue
        steps = np.arange(out)
        at = (
            steps * ((size - 1) / max(out - 1, 1))
            if align_corners
            else np.maximum((steps + 0.5) * scale - 0.5, 0)
        )
        low = np.minimum(at.astype(np.int64), size - 1)
        high, part = np.minimum(low + 1, size - 1), at - low
        matrix = np.zeros((out, size))
        np.add.at(matrix, (steps, low), 1 - part)
        np.add.at(matrix, (steps, high), part)
        x = c.nd("along", x, c.const(matrix, x.dtype.name), axis=axis)  # type: ignore[arg-type]
    return x


def _sizes(c: Call, x: Value, sizes: Any, scales: Sequence[Any]) -> list[tuple[int, float]]:
    """Return the extent of each dimension, and how far its elements are apart in x."""
    spatial = x.shape[2:]
    factors = list(scales[0]) if scales and isinstance(scales[0], (list, tuple)) else list(scales)
    factors = [f for f in factors if f is not None]
    if sizes is None:
        sizes = [int(n * f) for n, f in zip(spatial, factors, strict=True)]
    if len(factors) == len(spatial):
        return [(int(out), 1 / f) for out, f in zip(sizes, factors, strict=True)]
    return [(int(out), n / out) for n, out in zip(spatial, sizes, strict=True)]


@converts("grid_sampler_2d", "grid_sampler_3d", "grid_sampler")
def _grid(c: Call, input: Value, grid: Value, mode: int, padding: int, corners: bool) -> Value:
    names = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")
    how = {"mode": names[0][mode], "padding": names[1][padding], "corners": bool(corners)}
    return c.nd("grid_sample", input, grid, **how)


# --- recurrent ------------------------------------------------------------------------------------

_ORDER: Final = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}
"""Gates in the order of the library's ops: PyTorch's are (i, f, g, o) and (r, z, n)."""


@converts("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input")
def _recurrent(
    c: Call, input: Value, hx: Any, params: Sequence[Value], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> list[Value]:  # fmt: skip
    if dropout and train:
        raise c.bad("dropout is not supported", hint="call model.eval() before the export")
    kind = c.name.partition("_")[0]
    states = list(hx) if kind == "lstm" else [hx]
    x = c.swap(input, 0, 1) if batch_first else input
    count = 2 if bidirectional else 1
    per = 4 if has_biases else 2
    if len(params) != per * count * num_layers:
        raise c.bad("projections are not supported")
    last: list[list[Value]] = [[] for _ in states]
    for layer in range(num_layers):
        own = params[layer * per * count : (layer + 1) * per * count]
        parts = [own[d * per : (d + 1) * per] for d in range(count)]
        w, r, *bias = (c.concat([_gates(c, p[i], kind) for p in parts], 0) for i in range(per))
        values = [x, w, r]
        if bias:
            flat = [c.reshape(b, (count, -1)) for b in bias]
            values.append(c.concat(flat, 1))
        values += [c.slice(s, 0, layer * count, (layer + 1) * count) for s in states]
        how: dict[str, Any] = {"bias": bool(bias), "h0": True}
        how["directions"] = "bidirectional" if bidirectional else "forward"
        if kind == "lstm":
            how["c0"] = True
        elif kind == "gru":
            how["reset_after"] = True
        else:
            how["activations"] = ",".join([c.name[4:].partition(".")[0]] * count)
        made = c.nd(kind, *values, **how)
        steps, batch = x.shape[:2]
        for i, found in enumerate(last):
            found.append(c.reshape(_rows(c, made, steps + i, steps + i + 1), made.shape[1:]))
        x = c.reshape(c.permute(_rows(c, made, 0, steps), (0, 2, 1, 3)), (steps, batch, -1))
    ends = [c.concat(found, 0) for found in last]
    return [c.swap(x, 0, 1) if batch_first else x, *ends]


def _gates(c: Call, x: Value, kind: str) -> Value:
    """Return weights (1, G, ...) with their gates in the library's order."""
    order = _ORDER[kind]
    n = x.shape[0] // len(order)
    rows = c.concat([c.slice(x, 0, g * n, (g + 1) * n) for g in order], 0)
    return c.reshape(rows, (1, *rows.shape))


def _rows(c: Call, x: Value, start: int, stop: int) -> Value:
    """Return some of the first axis: a view, for it lies together."""
    if isinstance(x, Tensor):
        return c.emit.g.rows(x, start, stop)
    return c.slice(x, 0, start, stop)
