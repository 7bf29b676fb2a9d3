"""Converters of ops of ``com.microsoft``, which onnxruntime's exporters and optimisers write."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import sqrt
from typing import Final

import numpy as np

from ggsched_import.common.emit import Const, Value
from ggsched_import.onnx.call import CONVERTERS, Call, Results, converts
from ggsched_import.onnx.ops_elements import cast_to, scaled
from ggsched_import.onnx.ops_layout import sliced, swapped, transposed
from ggsched_import.onnx.ops_products import conv, scaled_product
from ggsched_import.onnx.ops_quantized import dynamically_quantized, product_of_quantized

_NEVER = -1e30  # a logit that softmax makes 0


def _plus(c: Call, x: Value, i: int) -> Value:
    """Add an input, if it is there."""
    return c.nd("add", x, c.x(i)) if c.has(i) else x


@converts("com.microsoft.FusedMatMul", "com.microsoft.TransposeMatMul")
def _fused_matmul(c: Call) -> Value:
    if c.attr("transBatchA", False) or c.attr("transBatchB", False):
        raise c.bad("batch axes that are transposed are not supported")
    return scaled_product(c)


@converts("com.microsoft.Gelu", "com.microsoft.BiasGelu", "com.microsoft.FastGelu")
def _gelu(c: Call) -> Value:
    return c.nd("gelu_tanh" if "Fast" in c.op else "gelu", _plus(c, c.x(), 1))


@converts("com.microsoft.QuickGelu")
def _quick_gelu(c: Call) -> Value:
    x = c.x()
    return c.nd("mul", x, c.nd("sigmoid", scaled(c, x, c.attr("alpha", 1.702))))


@converts("com.microsoft.FusedConv")
def _fused_conv(c: Call) -> Results:
    made = _plus(c, conv(replace(c, inputs=c.inputs[:3])), 3)
    name, params = c.attr("activation", ""), c.attr("activation_params", ())
    if not name or (name == "Clip" and not params):
        return made
    names = _ACTIVATION_PARAMS.get(name)
    if names is None or len(params) not in (0, len(names)):
        raise c.bad(f"the activation {name!r} is not supported")
    given = dict(zip(names, params, strict=False))
    return CONVERTERS[name](replace(c, op=name, inputs=(made,), attrs=given))


_ACTIVATION_PARAMS: Final = {
    "Relu": (), "Sigmoid": (), "Tanh": (), "LeakyRelu": ("alpha",), "Clip": ("min", "max"),
    "HardSigmoid": ("alpha", "beta"),
}  # fmt: skip


# --- norms ------------------------------------------------------------------------------------


def _rms(c: Call, x: Value, eps: float) -> Value:
    square = c.nd("reduce_mean", c.nd("mul", x, x), axes=(-1,), keepdims=True)
    return c.nd("mul", x, c.nd("rsqrt", c.nd("add", square, c.like(eps, x))))


@converts("SimplifiedLayerNormalization")  # which onnxruntime has in the standard domain
def _simplified(c: Call) -> Value:
    x = c.x()
    if c.axis(-1, len(x.shape)) != len(x.shape) - 1:
        raise c.bad("axes other than the last are not supported")
    return c.nd("mul", _rms(c, x, c.attr("epsilon", 1e-5)), c.x(1))


@converts("com.microsoft.SkipLayerNormalization", "com.microsoft.SkipSimplifiedLayerNormalization")
def _skip_norm(c: Call) -> Sequence[Value | None]:
    is_simple, eps = "Simplified" in c.op, c.attr("epsilon", 1e-12)
    total = _plus(c, c.nd("add", c.x(), c.x(1)), 3 if is_simple else 4)
    made = _rms(c, total, eps) if is_simple else c.nd("normalize", total, axes=(-1,), eps=eps)
    made = c.nd("mul", made, c.x(2))
    return made if is_simple else _plus(c, made, 3), None, None, total


# --- attention --------------------------------------------------------------------------------


def _heads(c: Call, x: Value, heads: int) -> Value:
    """Return (batch, heads, tokens, size) of (batch, tokens, heads * size)."""
    if len(x.shape) == 4:
        return x
    batch, tokens, width = x.shape
    split = c.emit.reshape(x, (batch, tokens, heads, width // heads))
    return transposed(c, split, (0, 2, 1, 3))


def _joined(c: Call, x: Value) -> Value:
    """Return (batch, tokens, heads * size) of (batch, heads, tokens, size)."""
    batch, heads, tokens, size = x.shape
    return c.emit.reshape(transposed(c, x, (0, 2, 1, 3)), (batch, tokens, heads * size))


def _part(c: Call, x: Value, first: int, end: int) -> Value:
    """Return elements of the last axis."""
    return sliced(c, x, {len(x.shape) - 1: (first, end, 1)})


def _rotated(
    c: Call, x: Value, positions: Value, caches: tuple[Value, Value], is_interleaved: bool
) -> Value:
    """Rotate pairs of elements of (batch, heads, tokens, size) by the angles of positions."""
    size, half = x.shape[-1], caches[0].shape[-1]
    batch, tokens = positions.shape
    cos, sin = (
        c.emit.reshape(c.nd("gather", t, positions, axis=0), (batch, 1, tokens, half))
        for t in caches
    )
    turned = _part(c, x, 0, 2 * half)
    if is_interleaved:
        pairs = c.emit.reshape(turned, (*x.shape[:-1], half, 2))
        a, b = (c.emit.reshape(_part(c, pairs, i, i + 1), (*x.shape[:-1], half)) for i in (0, 1))
    else:
        a, b = _part(c, turned, 0, half), _part(c, turned, half, 2 * half)
    real = c.nd("sub", c.nd("mul", a, cos), c.nd("mul", b, sin))
    imaginary = c.nd("add", c.nd("mul", a, sin), c.nd("mul", b, cos))
    parts = [real, imaginary]
    if is_interleaved:
        wide = [c.emit.reshape(v, (*x.shape[:-1], half, 1)) for v in parts]
        parts = [c.emit.reshape(c.nd("concat", *wide, axis=-1), turned.shape)]
    if 2 * half < size:
        parts.append(_part(c, x, 2 * half, size))
    return c.nd("concat", *parts, axis=-1) if len(parts) > 1 else parts[0]


@converts("com.microsoft.RotaryEmbedding")
def _rotary(c: Call) -> Value:
    x, cos = c.x(), c.x(2)
    if c.attr("scale", 1.0) != 1.0 or c.attr("is_packed_batching", False):
        raise c.bad("scales and packed batches are not supported")
    heads = c.attr("num_heads", 0)
    if len(x.shape) == 3 and not heads:
        heads = x.shape[-1] // (2 * cos.shape[-1])
    wide = _heads(c, x, heads)
    tokens = wide.shape[2]
    positions = c.x(1)
    if positions.shape == (1,):  # of the first token
        steps = Const(np.arange(tokens, dtype=positions.dtype.host).reshape(1, tokens))
        positions = c.nd("add", c.emit.reshape(positions, (1, 1)), steps)
    made = _rotated(c, wide, positions, (cos, c.x(3)), c.attr("interleaved", False))
    return made if len(x.shape) == 4 else _joined(c, made)


def _attended(
    c: Call, q: Value, k: Value, v: Value, biases: Sequence[Value], softcap: float = 0
) -> Value:
    """Return softmax(q k' * scale + biases) v as (batch, tokens, heads * size)."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = (_repeated(c, t, groups) for t in (k, v))
    scale = c.attr("scale", 0.0) or 1 / sqrt(q.shape[-1])
    logits = scaled(c, c.nd("matmul", q, swapped(c, k)), scale)
    if softcap:
        logits = scaled(c, c.nd("tanh", scaled(c, logits, 1 / softcap)), softcap)
    for bias in biases:
        logits = c.nd("add", logits, bias)
    return _joined(c, c.nd("matmul", c.nd("softmax", logits, axis=-1), v))


def _repeated(c: Call, x: Value, times: int) -> Value:
    batch, heads, tokens, size = x.shape
    wide = c.emit.reshape(x, (batch, heads, 1, tokens, size))
    wide = c.nd("expand", wide, shape=(batch, heads, times, tokens, size))
    return c.emit.reshape(wide, (batch, heads * times, tokens, size))


def _behind(c: Call, past: Value | None, x: Value) -> Value:
    return x if past is None or not past.shape[2] else c.nd("concat", past, x, axis=2)


def _causal(queries: int, keys: int, kind: Value, window: int = -1) -> Const:
    """Return what hides keys behind each query, and those further before it than a window."""
    at = np.arange(queries)[:, None] + keys - queries
    hidden = np.arange(keys) > at
    if window >= 0:
        hidden |= np.arange(keys) <= at - window
    return Const(np.where(hidden, _NEVER, 0).astype(kind.dtype.host))


def _biases(c: Call, q: Value, k: Value, mask: Value | None, bias: Value | None) -> list[Value]:
    """Return what is added to logits: a bias, what a mask hides, and what is behind a query."""
    found = [] if bias is None else [bias]
    if mask is not None:
        batch, keys = q.shape[0], k.shape[2]
        if mask.shape == (batch,):  # numbers of keys
            places = Const(np.arange(keys).astype(mask.dtype.host))
            mask = c.nd("less", places, c.emit.reshape(mask, (batch, 1)))
        if len(mask.shape) not in (2, 3, 4) or mask.shape[0] not in (1, batch):
            raise c.bad(f"masks of shape {list(mask.shape)} are not supported")
        outer = {2: (1, 1), 3: (1,), 4: ()}[len(mask.shape)]
        seen = c.emit.reshape(cast_to(c, mask, "bool"), (mask.shape[0], *outer, *mask.shape[1:]))
        low = c.like(c.attr("mask_filter_value", -10000.0), q)
        found.append(c.nd("where", seen, c.like(0, q), low))
    if c.attr("unidirectional", False):
        found.append(_causal(q.shape[2], k.shape[2], q))
    return found


@converts("com.microsoft.Attention")
def _packed_attention(c: Call) -> Sequence[Value | None]:
    """Project one operand to queries, keys and values, and attend."""
    heads, x = c.need("num_heads", int), c.x()
    if c.attr("do_rotary", False) or c.has(6) or c.attr("past_present_share_buffer", False):
        raise c.bad("rotations and caches that are shared are not supported")
    wide = _plus(c, c.nd("matmul", x, c.x(1)), 2)
    sizes = tuple(c.attr("qkv_hidden_sizes", ())) or (wide.shape[-1] // 3,) * 3
    ends = [0, sizes[0], sizes[0] + sizes[1], sum(sizes)]
    q, k, v = (_heads(c, _part(c, wide, a, b), heads) for a, b in pairwise(ends))
    if c.has(4):
        past = c.x(4)
        k, v = (
            _behind(c, c.emit.reshape(sliced(c, past, {0: (i, i + 1, 1)}), past.shape[1:]), t)
            for i, t in enumerate((k, v))
        )
    made = _attended(c, q, k, v, _biases(c, q, k, c.maybe(3), c.maybe(5)))
    if c.outputs < 2:
        return (made,)
    present = [c.emit.reshape(t, (1, *t.shape)) for t in (k, v)]
    return made, c.nd("concat", *present, axis=0)


@converts("com.microsoft.MultiHeadAttention")
def _multi_head(c: Call) -> Sequence[Value]:
    heads = c.need("num_heads", int)
    q = c.x()
    if len(q.shape) != 3 or not (c.has(1) and c.has(2)):
        raise c.bad("packed queries, keys and values are not supported")
    if any(c.has(i) for i in (8, 9)):
        raise c.bad("a cache that is indexed is not supported")
    parts = [q, c.x(1), c.x(2)]
    if c.has(3):  # of queries, keys and values
        at = 0
        for i, x in enumerate(parts):
            if len(x.shape) == 3:
                end = at + x.shape[-1]
                parts[i] = c.nd("add", x, _part(c, c.x(3), at, end))
                at = end
    q, k, v = (_heads(c, x, heads) for x in parts)
    k, v = _behind(c, c.maybe(6), k), _behind(c, c.maybe(7), v)
    return _attended(c, q, k, v, _biases(c, q, k, c.maybe(4), c.maybe(5))), k, v


@converts("com.microsoft.GroupQueryAttention")
def _group_query(c: Call) -> Sequence[Value]:
    heads, few = c.need("num_heads", int), c.need("kv_num_heads", int)
    if any(c.has(i) for i in range(9, len(c.inputs))) or c.attr("smooth_softmax", False):
        raise c.bad("position ids, biases, sinks and smooth softmax are not supported")
    x = c.x()
    if c.has(1):
        q, k, v = (_heads(c, c.x(i), n) for i, n in enumerate((heads, few, few)))
    else:
        size = x.shape[-1] // (heads + 2 * few)
        ends = [0, heads * size, (heads + few) * size, x.shape[-1]]
        parts = [_part(c, x, a, b) for a, b in pairwise(ends)]
        q, k, v = (_heads(c, p, n) for p, n in zip(parts, (heads, few, few), strict=True))
    batch, _, tokens, _ = q.shape
    past = c.x(3).shape[2] if c.has(3) else 0
    if past and batch > 1:
        raise c.bad("a cache with several sequences is not supported")
    if c.attr("do_rotary", False):
        steps = Const(np.arange(past, past + tokens).reshape(1, tokens))
        places = c.nd("expand", steps, shape=(batch, tokens))
        is_interleaved = c.attr("rotary_interleaved", False)
        q, k = (_rotated(c, t, places, (c.x(7), c.x(8)), is_interleaved) for t in (q, k))
    k, v = _behind(c, c.maybe(3), k), _behind(c, c.maybe(4), v)
    bias = _causal(tokens, k.shape[2], q, c.attr("local_window_size", -1))
    return _attended(c, q, k, v, [bias], c.attr("softcap", 0.0)), k, v


# --- quantised products ------------------------------------------------------------------------


@converts("com.microsoft.MatMulNBits")
def _matmul_nbits(c: Call) -> Value:
    k, n, block = (c.need(name, int) for name in ("K", "N", "block_size"))
    bits = c.attr("bits", 4)
    if bits not in (4, 8) or c.has(4):
        raise c.bad("bits other than 4 and 8, and groups by index, are not supported")
    x, blocks = c.x(), -(-k // block)

    def unpacked(packed: np.ndarray, count: int) -> np.ndarray:
        rows = packed.reshape(n, -1)
        if bits == 4:
            rows = np.stack([rows & 15, rows >> 4], -1).reshape(n, -1)
        return rows[:, :count]

    scales = c.const(2).reshape(n, blocks, 1).astype(np.float32)
    zeros = np.full((n, blocks, 1), 1 << (bits - 1), np.float32)
    if c.has(3):
        given = c.const(3)
        is_packed = given.dtype == np.uint8
        zeros = (unpacked(given, blocks) if is_packed else given).reshape(n, blocks, 1)
    values = unpacked(c.const(1), blocks * block).reshape(n, blocks, block)
    wide = (values.astype(np.float32) - zeros.astype(np.float32)) * scales
    factor = np.ascontiguousarray(wide.reshape(n, -1)[:, :k].T).astype(x.dtype.host)
    return _plus(c, c.nd("matmul", x, Const(factor)), 5)


@converts("com.microsoft.MatMulIntegerToFloat")
def _matmul_integer_to_float(c: Call) -> Value:
    made = product_of_quantized(c, c.x(), c.x(1), c.maybe(4), c.maybe(5))
    made = c.nd("mul", cast_to(c, made, "f32"), c.nd("mul", c.x(2), c.x(3)))
    return _plus(c, made, 6)


@converts("com.microsoft.DynamicQuantizeMatMul")
def _dynamic_matmul(c: Call) -> Value:
    x, scale, zero = dynamically_quantized(replace(c, inputs=(c.x(),)))
    inputs = (x, c.x(1), scale, c.x(2), zero, c.maybe(3), c.maybe(4))
    return _matmul_integer_to_float(replace(c, inputs=inputs))
