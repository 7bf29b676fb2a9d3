"""Ops of ``com.microsoft`` against references written from their specifications."""

import math

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ggsched import Scheduler, from_onnx
from ggsched.errors import ModelError

DOMAIN = "com.microsoft"
RNG = np.random.default_rng(0)


def f(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def model_of(op, inputs, outputs, constants=(), domain=DOMAIN, **attrs):
    """Return a model of one node; None stands for an input or output that is left out."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    made = ["" if o is None else f"y{i}" for i, o in enumerate(outputs)]
    given = [(n, x) for n, x in zip(names, inputs, strict=True) if n]
    kinds = {n: helper.np_dtype_to_tensor_dtype(x.dtype) for n, x in given}
    ports = [
        helper.make_tensor_value_info(n, kinds[n], x.shape)
        for n, x in given
        if int(n[1:]) not in constants
    ]
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in made if n]
    weights = [numpy_helper.from_array(x, n) for n, x in given if int(n[1:]) in constants]
    graph = helper.make_graph(
        [helper.make_node(op, names, made, domain=domain, **attrs)], "one", ports, results, weights
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def erf(x):
    return np.vectorize(math.erf)(x)


def gelu(x):
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def normal(x, eps):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)


def rms(x, eps):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)


def heads_of(x, heads):
    return x if x.ndim == 4 else x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def joined(x):
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def attention(q, k, v, scale, bias=0.0, softcap=0.0):
    k, v = (np.repeat(t, q.shape[1] // k.shape[1], 1) for t in (k, v))
    logits = q @ k.swapaxes(-1, -2) * scale
    logits = softcap * np.tanh(logits / softcap) if softcap else logits
    e = np.exp(logits + bias - (logits + bias).max(-1, keepdims=True))
    return joined(e / e.sum(-1, keepdims=True) @ v)


def rotated(x, positions, cos, sin, interleaved):
    """Rotate (batch, heads, tokens, size) pair by pair."""
    out, half = x.copy(), cos.shape[-1]
    for i in range(half):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        c, s = (t[positions, i][:, None, :] for t in (cos, sin))
        out[..., a] = x[..., a] * c - x[..., b] * s
        out[..., b] = x[..., a] * s + x[..., b] * c
    return out


def below(queries, keys, window=-1):
    at, key = np.arange(queries)[:, None] + keys - queries, np.arange(keys)
    hidden = (key > at) | ((key <= at - window) if window >= 0 else False)
    return np.where(hidden, -np.inf, 0)


def test_fused_products_and_activations():
    a, b, bias = f(2, 4, 3), f(2, 4, 5), f(3)
    wanted = 0.5 * a.swapaxes(-1, -2) @ b
    compare("FusedMatMul", [a, b], [wanted], transA=1, alpha=0.5)
    compare("FusedMatMul", [a[0], b[0].T.copy()], [(b[0].T @ a[0]).T], transA=1, transB=1)
    tanh = 0.5 * (x := a + bias) * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    compare("Gelu", [a], [gelu(a)])
    compare("BiasGelu", [a, bias], [gelu(x)])
    compare("FastGelu", [a, bias], [tanh])
    compare("QuickGelu", [a], [a * sigmoid(1.702 * a)])
    compare("QuickGelu", [a], [a * sigmoid(a)], alpha=1.0)


def test_norms_of_sums():
    x, skip, gamma, beta, bias = f(2, 3, 8), f(2, 3, 8), f(8), f(8), f(8)
    total = x + skip
    compare("SkipLayerNormalization", [x, skip, gamma], [normal(total, 1e-12) * gamma])
    wanted = normal(total + bias, 1e-5) * gamma + beta
    given = [x, skip, gamma, beta, bias]
    compare("SkipLayerNormalization", given, [wanted, None, None, total + bias], epsilon=1e-5)
    wanted = [rms(total + bias, 1e-6) * gamma, None, None, total + bias]
    given = [x, skip, gamma, bias]
    compare("SkipSimplifiedLayerNormalization", given, wanted, epsilon=1e-6)
    wanted = rms(x, 1e-5) * gamma
    compare("SimplifiedLayerNormalization", [x, gamma], [wanted], domain="")


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(interleaved):
    x, cos, sin = f(2, 3, 4, 8), f(20, 4), f(20, 4)
    positions = RNG.integers(0, 20, (2, 4))
    wanted = rotated(x, positions, cos, sin, interleaved)
    compare("RotaryEmbedding", [x, positions, cos, sin], [wanted], interleaved=interleaved)
    compare("RotaryEmbedding", [joined(x), positions, cos, sin], [joined(wanted)],
            interleaved=interleaved)  # fmt: skip
    wanted = rotated(x, np.arange(7, 11)[None], cos, sin, interleaved)
    given = [x, np.array([7]), cos, sin]
    compare("RotaryEmbedding", given, [wanted], interleaved=interleaved)
    few = [t[:, :2].copy() for t in (cos, sin)]
    wanted = rotated(x, positions, *few, interleaved)
    compare("RotaryEmbedding", [joined(x), positions, *few], [joined(wanted)],
            interleaved=interleaved, num_heads=3, rotary_embedding_dim=4)  # fmt: skip


def test_attention_of_several_heads():
    q, k, v, bias = f(2, 3, 8), f(2, 5, 8), f(2, 5, 8), f(24)
    parts = [x + bias[8 * i : 8 * i + 8] for i, x in enumerate((q, k, v))]
    qh, kh, vh = (heads_of(x, 2) for x in parts)
    compare("MultiHeadAttention", [q, k, v, bias], [attention(qh, kh, vh, 0.5)], num_heads=2)
    mask, more = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32), f(2, 2, 3, 5)
    added = np.where(mask, 0, -10000.0)[:, None, None] + more
    wanted = attention(qh, kh, vh, 0.3, added)
    given = [q, k, v, bias, mask, more]
    compare("MultiHeadAttention", given, [wanted], num_heads=2, scale=0.3)
    qh, kh, vh = (heads_of(x, 2) for x in (q, k[:, :3], v[:, :3]))
    past = f(2, 2, 4, 4), f(2, 2, 4, 4)
    keys, values = np.concatenate([past[0], kh], 2), np.concatenate([past[1], vh], 2)
    wanted = [attention(qh, keys, values, 0.5), keys, values]
    given = [q, k[:, :3].copy(), v[:, :3].copy(), None, None, None, *past]
    compare("MultiHeadAttention", given, wanted, num_heads=2)
    wanted = [attention(qh, kh, vh, 0.5, below(3, 3))]
    compare("MultiHeadAttention", given[:3], wanted, num_heads=2, unidirectional=1)


@pytest.mark.parametrize("past", [0, 4])
def test_attention_of_groups(past):
    batch = 1 if past else 2
    q, k, v, cos, sin = f(batch, 3, 64), f(batch, 3, 32), f(batch, 3, 32), f(20, 8), f(20, 8)
    cache = f(batch, 2, past, 16), f(batch, 2, past, 16)
    lengths, total = np.full(batch, past + 2, np.int32), np.array(past + 3, np.int32)
    places = np.broadcast_to(np.arange(past, past + 3), (batch, 3))
    qh, kh, vh = heads_of(q, 4), heads_of(k, 2), heads_of(v, 2)
    qh, kh = (rotated(x, places, cos, sin, False) for x in (qh, kh))
    keys, values = np.concatenate([cache[0], kh], 2), np.concatenate([cache[1], vh], 2)
    given = [q, k, v, *cache, lengths, total, cos, sin]
    attrs = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    wanted = attention(qh, keys, values, 0.25, below(3, past + 3))
    compare("GroupQueryAttention", given, [wanted, keys, values], **attrs)
    packed = [np.concatenate([q, k, v], -1), None, None, *given[3:]]
    compare("GroupQueryAttention", packed, [wanted, keys, values], **attrs)
    wanted = attention(qh, keys, values, 0.2, below(3, past + 3, 2), 5.0)
    more = {"local_window_size": 2, "softcap": 5.0, "scale": 0.2}
    compare("GroupQueryAttention", given, [wanted, keys, values], **attrs, **more)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("has_zeros", [False, True])
def test_products_with_packed_weights(bits, has_zeros):
    k, n, block = 40, 3, 16
    blocks = -(-k // block)
    values = RNG.integers(0, 1 << bits, (n, blocks, block)).astype(np.uint8)
    zeros = RNG.integers(0, 1 << bits, (n, blocks + blocks % 2)).astype(np.uint8)
    scales, x = f(n * blocks), f(2, 5, k)

    def packed(v):
        return v if bits == 8 else (v[..., ::2] | v[..., 1::2] << 4).astype(np.uint8)

    zero = zeros[:, :blocks, None].astype(np.float32) if has_zeros else float(1 << (bits - 1))
    wide = (values - zero) * scales.reshape(n, blocks, 1)
    given = [x, packed(values), scales]
    if has_zeros:
        given.append(packed(zeros if bits == 4 else zeros[:, :blocks].copy()).reshape(-1))
    compare("MatMulNBits", given, [x @ wide.reshape(n, -1)[:, :k].T], constants=(1, 2, 3),
            K=k, N=n, bits=bits, block_size=block)  # fmt: skip


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_products_of_bytes(dtype):
    x, bias, scale = f(2, 4, 8), f(5), np.array([0.02], np.float32)
    info = np.iinfo(dtype)
    w = RNG.integers(info.min, info.max + 1, (8, 5)).astype(dtype)
    zero = np.array([3], dtype)
    low, high = min(x.min(), 0), max(x.max(), 0)
    own = np.float32((high - low) / 255)
    point = np.rint(np.clip(-low / own, 0, 255))
    quantized = np.clip(np.rint(x / own) + point, 0, 255)
    wanted = (quantized - point) @ (w.astype(np.float32) - 3) * own * scale + bias
    given = [x, w, scale, zero, bias]
    compare("DynamicQuantizeMatMul", given, [wanted], constants=(1, 2, 3), atol=1e-4)
    given = [quantized.astype(np.uint8), w, np.array([own]), scale,
             np.array([point], np.uint8).reshape(1), zero, bias]  # fmt: skip
    compare("MatMulIntegerToFloat", given, [wanted], constants=(1, 3, 5), atol=1e-4)


def compare(op, inputs, wanted, *, constants=(), atol=2e-5, domain=DOMAIN, **attrs):
    model = from_onnx(model_of(op, inputs, wanted, constants, domain, **attrs))
    given = {n: x for n, x in ((f"x{i}", x) for i, x in enumerate(inputs)) if n in model.inputs}
    with Scheduler(["cpu:0"], weights=model.weight) as scheduler:
        found = model.run(scheduler, given)
    for name, value in zip(found, [w for w in wanted if w is not None], strict=True):
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=atol, err_msg=op)


@pytest.mark.parametrize(
    ("activation", "params", "made"),
    [
        (None, None, lambda y: y),
        ("Relu", None, lambda y: np.maximum(y, 0)),
        ("LeakyRelu", [0.2], lambda y: np.where(y < 0, 0.2 * y, y)),
        ("Clip", [-0.5, 1.0], lambda y: np.clip(y, -0.5, 1)),
        ("HardSigmoid", [0.3, 0.4], lambda y: np.clip(0.3 * y + 0.4, 0, 1)),
        ("Tanh", None, np.tanh),
    ],
)
def test_convolutions_with_activations(activation, params, made):
    x, w, bias, more = f(2, 3, 5, 4), f(4, 3, 1, 1), f(4), f(2, 4, 5, 4)
    attrs = {"activation": activation, "activation_params": params}
    wanted = np.einsum("bchw,oc->bohw", x, w[..., 0, 0]) + bias[:, None, None]
    attrs = {n: v for n, v in attrs.items() if v is not None}
    compare("FusedConv", [x, w, bias], [made(wanted)], constants=(1, 2), **attrs)
    compare("FusedConv", [x, w, None, more], [made(wanted - bias[:, None, None] + more)], **attrs)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize("mask", ["none", "lengths", "keys", "pairs"])
def test_attention_with_packed_projections(causal, past, mask):
    batch, tokens, heads, size = 2, 4, 2, 3
    x, w, b = f(batch, tokens, 5), f(5, 3 * heads * size), f(3 * heads * size)
    before = f(2, batch, heads, past, size)
    keys = past + tokens
    masks = {
        "lengths": np.array([keys - 2, keys], np.int32),
        "keys": (RNG.random((batch, keys)) > 0.3).astype(np.int32),
        "pairs": (RNG.random((batch, tokens, keys)) > 0.3).astype(np.int32),
    }
    given = masks.get(mask)
    q, k, v = (heads_of(t, heads) for t in np.split(x @ w + b, 3, -1))
    k, v = (np.concatenate([p, t], 2) for p, t in zip(before, (k, v), strict=True))
    bias = np.zeros((batch, 1, tokens, keys))
    if mask == "lengths":
        bias = np.where(np.arange(keys) < given[:, None, None, None], bias, -1e4)
    elif given is not None:
        bias = np.where(given.reshape(batch, 1, -1, keys) > 0, bias, -1e4)
    if causal:
        hidden = np.arange(keys) > np.arange(tokens)[:, None] + past
        bias = np.where(hidden, -1e30, bias)
    wanted = [attention(q, k, v, 1 / math.sqrt(size), bias), np.stack([k, v])]
    inputs = [x, w, b, given, before if past else None]
    compare("Attention", inputs, wanted, constants=(1, 2), num_heads=heads, unidirectional=causal)


def test_what_is_not_supported_is_named():
    x = f(2, 3, 8)
    model = from_onnx(model_of("MultiHeadAttention", [x], [x], num_heads=2))
    with pytest.raises(ModelError, match="MultiHeadAttention 'y0': packed queries"):
        model.bind()


@pytest.mark.parametrize("shape", [["rows", 2], None])
def test_all_missing_ops_are_named_before_shapes_are_asked_for(shape):
    kind = TensorProto.FLOAT
    x, y = (helper.make_tensor_value_info(n, kind, shape) for n in "xy")
    nodes = [
        helper.make_node("Fft", ["x"], ["a"], domain=DOMAIN),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Nowhere", ["b"], ["c"]),
        helper.make_node("Fft", ["c"], ["y"], domain=DOMAIN),
    ]
    graph = helper.make_graph(nodes, "odd", [x], [y])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    words = r"odd: the ops Nowhere \(1\), com.microsoft.Fft \(2\) are not supported"
    with pytest.raises(ModelError, match=words):
        from_onnx(helper.make_model(graph, opset_imports=opsets))
