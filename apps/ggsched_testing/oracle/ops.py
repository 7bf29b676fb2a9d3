"""The arithmetic of every op in float64, as plainly as ``docs/reference/ops.md`` says it.

Each function takes the operands as numpy arrays (float64 or int64, shapes as in the graph) and
all parameters with their defaults, and returns the whole result. ``set_rows`` is not here: it
leaves bytes alone, so the oracle does it on the storage itself.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ggsched.errors import UsageError
from ggsched.ir.ops import OpDef, Params, UserOp

Array = npt.NDArray[Any]
OracleOp = Callable[[Sequence[Array], Params], Array]


def check_ids(ids: Array, count: int) -> None:
    """Refuse row numbers outside ``[0, count)``.

    Raises:
        UsageError: an id is negative or too large.
    """
    wrong = ids[(ids < 0) | (ids >= count)]
    if wrong.size:
        raise UsageError(f"row {wrong.flat[0]} was requested", why=f"there are {count} rows")


def _get_rows(x: Sequence[Array], params: Params) -> Array:
    table, ids = x
    check_ids(ids, table.shape[-2])
    if table.ndim == 2:
        return table[ids]
    out = np.empty((*ids.shape, table.shape[-1]), table.dtype)
    for batch in np.ndindex(*table.shape[:-2]):
        out[batch] = table[batch][ids[batch]]
    return out


def _mul_mat(x: Sequence[Array], params: Params) -> Array:
    w, a = x
    w = w.reshape((1,) * (a.ndim - w.ndim) + w.shape)
    for axis in range(a.ndim - 2):
        # Batch i of x meets batch i // (Bx / Bw) of w: neighbours share.
        w = np.repeat(w, a.shape[axis] // w.shape[axis], axis=axis)
    return a @ np.swapaxes(w, -1, -2)


def _mul_mat_id(x: Sequence[Array], params: Params) -> Array:
    w, a, ids = x
    check_ids(ids, w.shape[0])
    out = np.empty((*ids.shape, w.shape[1]), a.dtype)
    rows = np.broadcast_to(a, (*ids.shape, a.shape[2]))
    for expert in np.unique(ids):
        out[ids == expert] = rows[ids == expert] @ w[expert].T
    return out


def _add_id(x: Sequence[Array], params: Params) -> Array:
    a, bias, ids = x
    check_ids(ids, bias.shape[0])
    return a + bias[ids]


def _scale(x: Sequence[Array], params: Params) -> Array:
    return x[0] * _f(params, "scale") + _f(params, "bias")


def _rms_norm(x: Sequence[Array], params: Params) -> Array:
    mean = np.mean(x[0] ** 2, axis=-1, keepdims=True)
    return np.asarray(x[0] / np.sqrt(mean + _f(params, "eps")))


def _norm(x: Sequence[Array], params: Params) -> Array:
    centred = x[0] - np.mean(x[0], axis=-1, keepdims=True)
    variance = np.mean(centred**2, axis=-1, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + _f(params, "eps")))


def _rope(x: Sequence[Array], params: Params) -> Array:
    data, positions = x[0], x[1]
    n = int(_f(params, "n_dims"))
    frequency, magnitude = _rope_frequencies(params, n)
    if params["freq_factors"]:
        frequency = frequency / x[2]
    frequency = frequency.astype(data.dtype)
    angle = positions[:, None, None].astype(data.dtype) * frequency  # (T, 1, n/2), for all heads
    cos, sin = np.cos(angle) * magnitude, np.sin(angle) * magnitude
    pair = np.arange(n // 2)
    adjacent = params["pairing"] == "adjacent"
    first, second = (2 * pair, 2 * pair + 1) if adjacent else (pair, pair + n // 2)
    out = data.copy()
    out[..., first] = data[..., first] * cos - data[..., second] * sin
    out[..., second] = data[..., first] * sin + data[..., second] * cos
    return out


def _rope_frequencies(params: Params, n: int) -> tuple[Array, float]:
    """Written apart from ``ggsched.ir.rope``, which the backends use."""
    pair = np.arange(n // 2)
    base, squeeze = _f(params, "base"), _f(params, "freq_scale")
    ext, magnitude = _f(params, "ext_factor"), _f(params, "attn_factor")
    extrapolated = base ** (-2.0 * pair / n)
    interpolated = extrapolated * squeeze
    if ext == 0.0:
        return interpolated, magnitude
    # A pair turns n_ctx_orig * base^(-2i/n) / 2pi times over the context; solve for i.
    turns = np.array([_f(params, "beta_fast"), _f(params, "beta_slow")])
    bound = n * np.log(_f(params, "n_ctx_orig") / (turns * 2 * np.pi)) / (2 * np.log(base))
    low, high = max(np.floor(bound[0]), 0.0), min(np.ceil(bound[1]), n - 1.0)
    ramp = np.clip((pair - low) / max(high - low, 0.001), 0.0, 1.0)
    share = (1.0 - ramp) * ext
    mixed = interpolated * (1.0 - share) + extrapolated * share
    return mixed, magnitude * (1.0 - 0.1 * float(np.log(squeeze)))


def _soft_max(x: Sequence[Array], params: Params) -> Array:
    rest = list(x[1:])
    logits = x[0] * _f(params, "scale")
    if params["mask"]:
        logits = logits + rest.pop(0)
    if logits.shape[-1] == 0:
        return logits
    top = np.max(logits, axis=-1, keepdims=True)
    if params["sinks"]:
        sink = rest.pop(0)[:, None, None]
        top = np.maximum(top, sink)
        e = np.exp(logits - top)
        return np.asarray(e / (np.sum(e, axis=-1, keepdims=True) + np.exp(sink - top)))
    e = np.exp(logits - top)
    return np.asarray(e / np.sum(e, axis=-1, keepdims=True))


def _attention(x: Sequence[Array], params: Params) -> Array:
    shares, value, _ = _attention_parts(x, params)
    return np.asarray(np.einsum("htn,hne->the", shares, value))


def attention_rounding(x: Sequence[Array], params: Params) -> Array:
    """Return by how much a result moves, per unit, if operands and shares are rounded.

    Logits are then off by a unit of ``sum |q| |k| * scale``, and products with values by a unit of
    ``sum share * |v|``, to first order.
    """
    k, v, q, *rest = x
    shares, value, _ = _attention_parts(x, params)
    size = np.abs(value)
    moved = _attention_parts([np.abs(k), v, np.abs(q), *rest], params)[2] * shares
    own = np.einsum("htn,hne->the", moved + shares, size)
    others = moved.sum(axis=-1).T[..., None] * np.einsum("htn,hne->the", shares, size)
    return np.asarray(own + others)


def _attention_parts(x: Sequence[Array], params: Params) -> tuple[Array, Array, Array]:
    """Return shares (H, T, N), the value rows of each head (H, N, E), and products times scale."""
    k, v, q, *rest = x
    share = q.shape[1] // k.shape[1]
    keys = np.repeat(k, share, axis=1)
    product = np.einsum("thd,nhd->htn", q, keys) * _f(params, "scale")
    logits, cap = product, _f(params, "soft_cap")
    if cap > 0:
        logits = cap * np.tanh(logits / cap)
    if params["mask"]:
        logits = logits + rest.pop(0)
    sinks = rest.pop(0)[:, None, None] if params["sinks"] else None
    if params["bounds"]:
        first, end = np.moveaxis(rest.pop(0), -1, 0)[..., None]
        row = np.arange(k.shape[0])
        logits = np.where((row >= first) & (row < end), logits, -np.inf)
    top = np.max(logits, axis=-1, keepdims=True)
    top = top if sinks is None else np.maximum(top, sinks)
    top = np.where(top == -np.inf, 0.0, top)  # nothing is seen: all shares are 0
    e = np.exp(logits - top)
    total = np.sum(e, axis=-1, keepdims=True)
    total = total if sinks is None else total + np.exp(sinks - top)
    shares = e / np.where(total == 0.0, 1.0, total)
    return shares, np.moveaxis(np.repeat(v, share, axis=1), 1, 0), product


def _sigmoid(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def _silu(x: Array) -> Array:
    return np.asarray(x * _sigmoid(x))


def _gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3))))


def _swiglu_oai(x: Sequence[Array], params: Params) -> Array:
    alpha, limit = _f(params, "alpha"), _f(params, "limit")
    gate, up = np.minimum(x[0], limit), np.clip(x[1], -limit, limit)
    return np.asarray(gate * _sigmoid(alpha * gate) * (up + 1.0))


def _argsort(x: Sequence[Array], params: Params) -> Array:
    keys = -x[0] if params["descending"] else x[0]
    return np.argsort(keys, axis=-1, kind="stable")


def _top_k(x: Sequence[Array], params: Params) -> Array:
    return np.argsort(-x[0], axis=-1, kind="stable")[..., : int(_f(params, "k"))]


def _clamp(x: Sequence[Array], params: Params) -> Array:
    return np.minimum(np.maximum(x[0], _f(params, "min")), _f(params, "max"))


def _concat(x: Sequence[Array], params: Params) -> Array:
    return np.concatenate([x[0], x[1]], axis=int(_f(params, "axis")))


def _repeat(x: Sequence[Array], params: Params) -> Array:
    shape = params["shape"]
    assert isinstance(shape, tuple)  # the shape rule of the op has seen to it
    return np.tile(x[0], [m // n for m, n in zip(shape, x[0].shape, strict=True)])


def _short_conv(x: Sequence[Array], params: Params) -> Array:
    state, rows, w, slots, positions = x
    check_ids(slots, state.shape[0])
    kept = list(state)
    out = np.empty_like(rows)
    for t, slot in enumerate(slots):
        before = np.zeros_like(kept[slot]) if positions[t] == 0 else kept[slot]
        last = np.concatenate([before, rows[t : t + 1]])
        out[t] = np.sum(w.T * last, axis=0)
        kept[slot] = last[1:]
    return np.concatenate([out, *kept])


def _linear_attention(x: Sequence[Array], params: Params) -> Array:
    state, q, k, v, decay, slots, positions, *rest = x
    check_ids(slots, state.shape[0])
    heads, groups = v.shape[1], q.shape[1]
    head = np.arange(heads)
    group = head % groups if params["tiled"] else head // (heads // groups)
    after, out = state.copy(), np.empty_like(v)
    for t, slot in enumerate(slots):
        before = np.zeros_like(after[slot]) if positions[t] == 0 else after[slot]
        matrix = before * np.exp(decay[t])[:, None, None]
        keys, update = k[t, group], v[t]
        if rest:
            update = rest[0][t][:, None] * (update - np.einsum("hn,hnp->hp", keys, matrix))
        after[slot] = matrix + keys[:, :, None] * update[:, None, :]
        out[t] = np.einsum("hn,hnp->hp", q[t, group], after[slot]) * _f(params, "scale")
    return np.concatenate([out.ravel(), after.ravel()])


def _f(params: Params, name: str) -> float:
    value = params[name]
    assert isinstance(value, (int, float))  # the graph was verified
    return value


ORACLE_OPS: Final[Mapping[str, OracleOp]] = {
    "get_rows": _get_rows,
    "mul_mat": _mul_mat,
    "mul_mat_id": _mul_mat_id,
    "add": lambda x, _: x[0] + x[1],
    "sub": lambda x, _: x[0] - x[1],
    "mul": lambda x, _: x[0] * x[1],
    "div": lambda x, _: x[0] / x[1],
    "add_id": _add_id,
    "scale": _scale,
    "rms_norm": _rms_norm,
    "norm": _norm,
    "rope": _rope,
    "soft_max": _soft_max,
    "attention": _attention,
    "silu": lambda x, _: _silu(x[0]),
    "gelu": lambda x, _: _gelu(x[0]),
    "sigmoid": lambda x, _: _sigmoid(x[0]),
    "tanh": lambda x, _: np.tanh(x[0]),
    "softplus": lambda x, _: np.logaddexp(0.0, x[0]),
    "swiglu": lambda x, _: _silu(x[0]) * x[1],
    "swiglu_oai": _swiglu_oai,
    "argsort": _argsort,
    "top_k": _top_k,
    "sum_rows": lambda x, _: np.sum(x[0], axis=-1, keepdims=True),
    "clamp": _clamp,
    "cpy": lambda x, _: x[0],
    "cont": lambda x, _: x[0],
    "concat": _concat,
    "repeat": _repeat,
    "short_conv": _short_conv,
    "linear_attention": _linear_attention,
}


def reference_of(op: OpDef) -> OracleOp:
    """Return the reference of an op: one of those above, or that of a user-defined op."""
    user = op.user
    if user is None:
        return ORACLE_OPS[op.name]
    return lambda x, params: _called(op.name, user, x, params)


def _called(name: str, user: UserOp, x: Sequence[Array], params: Params) -> Array:
    operands = [array.copy() for array in x]
    result = np.asarray(user.reference(*operands, **params))
    if any((a != b).any() for a, b in zip(operands, x, strict=True) if not np.isnan(a).any()):
        raise UsageError("the reference writes to its operands", where=f"op {name!r}")
    return result
