"""The shape rule of every op: checks operands and parameters, gives type and shape of the result.

Each rule is called with the operands in order and all parameters, defaults included, after their
number and types were checked.

Raises (every rule):
    GraphError: the operands or the parameters do not fit the op.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ggsched.errors import GraphError
from ggsched.ir.dtype import BF16, F16, F32, FLOAT_DTYPES, I32, Q8_0, DType, dtype_by_name
from ggsched.ir.tensor import Tensor

Param = int | float | str | bool | tuple[int, ...]
Params = Mapping[str, Param]
KV_DTYPES: Final = (F32, F16, BF16, Q8_0)
"""Types of keys and values that attention reads, and of rows that ``set_rows`` writes."""

ShapeRule = Callable[[Sequence[Tensor], Params], tuple[DType, tuple[int, ...]]]


def fail(op: str, what: str, operands: Sequence[Tensor], hint: str = "") -> GraphError:
    """Return the error of an op whose operands do not fit; it names type and shape of each."""
    given = ", ".join(f"{t.name}:{t.dtype}{list(t.shape)}" for t in operands)
    return GraphError(f"{what}, given {given}", where=op, hint=hint)


def _need_f32(op: str, operands: Sequence[Tensor], *which: int) -> None:
    for i in which:
        if operands[i].dtype is not F32:
            raise fail(op, f"operand {i} must be f32", operands, "cast it with cont(dtype='f32')")


def _need_i32(op: str, operands: Sequence[Tensor], which: int) -> None:
    if operands[which].dtype is not I32:
        raise fail(op, f"operand {which} must be i32", operands)


def broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether numpy would broadcast ``shape`` to exactly ``target``."""
    if len(shape) > len(target):
        return False
    tail = target[len(target) - len(shape) :]
    return all(a in (1, b) for a, b in zip(shape, tail, strict=True))


def _need_last_axis(op: str, operands: Sequence[Tensor]) -> None:
    if not operands[0].shape:
        raise fail(op, "needs at least one axis", operands)


def _same(op: str, *, along_rows: bool = False) -> ShapeRule:
    def rule(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
        _need_f32(op, x, 0)
        if along_rows:
            _need_last_axis(op, x)
        return F32, x[0].shape

    return rule


def _binary(op: str) -> ShapeRule:
    def rule(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
        _need_f32(op, x, 0, 1)
        if not broadcasts_to(x[1].shape, x[0].shape):
            raise fail(op, "operand 1 does not broadcast to operand 0", x)
        return F32, x[0].shape

    return rule


def _gated(op: str) -> ShapeRule:
    def rule(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
        _need_f32(op, x, 0, 1)
        if x[0].shape != x[1].shape:
            raise fail(op, "gate and up must have one shape", x)
        return F32, x[0].shape

    return rule


def _get_rows(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    table, ids = x
    _need_i32("get_rows", x, 1)
    if len(table.shape) < 2:
        raise fail("get_rows", "the table needs rows", x)
    dtype = I32 if table.dtype is I32 else F32
    if len(table.shape) == 2:
        return dtype, (*ids.shape, table.shape[-1])
    batch = table.shape[:-2]
    if ids.shape[:-1] != batch:
        raise fail("get_rows", "the ids need the table's batch axes and one more", x)
    return dtype, (*ids.shape, table.shape[-1])


def _set_rows(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    dst, src, ids = x
    _need_f32("set_rows", x, 1)
    _need_i32("set_rows", x, 2)
    if dst.dtype not in KV_DTYPES:
        raise fail("set_rows", "rows can be set in f32, f16, bf16 and q8_0 only", x)
    if len(dst.shape) != 2 or len(src.shape) != 2 or len(ids.shape) != 1:
        raise fail("set_rows", "needs dst (R, n), src (T, n), ids (T,)", x)
    if src.shape != (ids.shape[0], dst.shape[1]) or src.shape[0] > dst.shape[0]:
        raise fail("set_rows", "needs dst (R, n), src (T, n), ids (T,) with T <= R", x)
    return dst.dtype, dst.shape


def _mul_mat(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    w, a = x
    _need_f32("mul_mat", x, 1)
    if w.dtype not in FLOAT_DTYPES:
        raise fail("mul_mat", "operand 0 must be a float type", x)
    if len(w.shape) < 2 or len(a.shape) < 2 or w.shape[-1] != a.shape[-1]:
        raise fail("mul_mat", "needs w (.., n, k) and x (.., m, k)", x)
    w_batch = (1,) * (len(a.shape) - len(w.shape)) + w.shape[:-2]
    if len(w_batch) != len(a.shape) - 2 or any(
        wb == 0 or ab % wb for wb, ab in zip(w_batch, a.shape[:-2], strict=True)
    ):
        raise fail("mul_mat", "each batch axis of x must be a multiple of w's", x)
    return F32, (*a.shape[:-1], w.shape[-2])


def _mul_mat_id(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    w, a, ids = x
    _need_f32("mul_mat_id", x, 1)
    _need_i32("mul_mat_id", x, 2)
    ok = len(w.shape) == 3 and len(a.shape) == 3 and len(ids.shape) == 2
    ok = ok and w.shape[2] == a.shape[2] and a.shape[0] == ids.shape[0]
    if not ok or a.shape[1] not in (1, ids.shape[1]) or w.dtype not in FLOAT_DTYPES:
        raise fail("mul_mat_id", "needs w (E, n, k), x (T, U or 1, k), ids (T, U)", x)
    return F32, (*ids.shape, w.shape[1])


def _add_id(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    a, bias, ids = x
    _need_f32("add_id", x, 0, 1)
    _need_i32("add_id", x, 2)
    ok = len(a.shape) == 3 and len(bias.shape) == 2 and len(ids.shape) == 2
    if not ok or a.shape[:2] != ids.shape or a.shape[2] != bias.shape[1]:
        raise fail("add_id", "needs x (T, U, n), bias (E, n), ids (T, U)", x)
    return F32, a.shape


def _real(params: Params, name: str) -> float:
    value = params[name]
    return value if isinstance(value, (int, float)) else 0.0


def _rope(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    _need_f32("rope", x, 0)
    _need_i32("rope", x, 1)
    n_dims = params["n_dims"]
    if len(x[0].shape) != 3 or x[1].shape != x[0].shape[:1]:
        raise fail("rope", "needs x (T, H, D) and positions (T,)", x)
    if not isinstance(n_dims, int) or n_dims % 2 or not 0 < n_dims <= x[0].shape[2]:
        raise fail("rope", f"n_dims={n_dims} must be even and at most D", x)
    if params["pairing"] not in ("adjacent", "halves"):
        raise fail("rope", "pairing must be 'adjacent' (2i, 2i+1) or 'halves' (i, i+n/2)", x)
    if min(_real(params, "base"), _real(params, "freq_scale")) <= 0:
        raise fail("rope", "base and freq_scale must be positive", x)
    if params["ext_factor"] and (
        min(_real(params, p) for p in ("n_ctx_orig", "beta_fast", "beta_slow")) <= 0
        or params["base"] == 1.0
    ):
        raise fail("rope", "ext_factor needs n_ctx_orig, beta_fast, beta_slow > 0, base != 1", x)
    if len(x) == 3 and (x[2].dtype is not F32 or x[2].shape != (n_dims // 2,)):
        raise fail("rope", "freq_factors must be f32 (n_dims/2,)", x)
    return F32, x[0].shape


def _soft_max(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    _need_f32("soft_max", x, *range(len(x)))
    _need_last_axis("soft_max", x)
    shape = x[0].shape
    rest = list(x[1:])
    if params["mask"] and not broadcasts_to(rest.pop(0).shape, shape):
        raise fail("soft_max", "the mask does not broadcast to x", x)
    if params["sinks"] and (len(shape) != 3 or rest.pop(0).shape != shape[:1]):
        raise fail("soft_max", "sinks need x (H, T, K) and shape (H,)", x)
    return F32, shape


def _attention(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    k, v, q, *rest = x
    _need_f32("attention", x, 2)
    if k.dtype not in KV_DTYPES or v.dtype is not k.dtype:
        raise fail("attention", "keys and values must have one type: f32, f16, bf16 or q8_0", x)
    fits = len(k.shape) == len(v.shape) == len(q.shape) == len(("row", "head", "width"))
    if not fits or k.shape[:2] != v.shape[:2] or k.shape[2] != q.shape[2]:
        raise fail("attention", "needs k (N, G, D), v (N, G, E), q (T, H, D)", x)
    (rows, groups, width), (tokens, heads, _) = k.shape, q.shape
    if not (rows and groups and width) or heads % groups:
        raise fail("attention", "needs N, G, D >= 1, and H must be a multiple of G", x)
    if _real(params, "soft_cap") < 0:
        raise fail("attention", "soft_cap must not be negative", x)
    if params["mask"]:
        mask = rest.pop(0)
        if mask.dtype is not F32 or not broadcasts_to(mask.shape, (heads, tokens, rows)):
            raise fail("attention", "the mask must be f32 and broadcast to (H, T, N)", x)
    if params["sinks"]:
        sinks = rest.pop(0)
        if sinks.dtype is not F32 or sinks.shape != (heads,):
            raise fail("attention", "the sinks must be f32 (H,)", x)
    if params["bounds"]:
        bounds = rest.pop(0)
        if bounds.dtype is not I32 or bounds.shape != (tokens, 2):
            raise fail("attention", "the bounds must be i32 (T, 2)", x)
    return F32, (tokens, heads, v.shape[2])


def _argsort(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    _need_f32("argsort", x, 0)
    _need_last_axis("argsort", x)
    return I32, x[0].shape


def _top_k(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    _need_f32("top_k", x, 0)
    k = params["k"]
    if not isinstance(k, int) or not x[0].shape or not 0 < k <= x[0].shape[-1]:
        raise fail("top_k", f"k={k} must be from 1 to the length of the last axis", x)
    return I32, (*x[0].shape[:-1], k)


def _sum_rows(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    _need_f32("sum_rows", x, 0)
    _need_last_axis("sum_rows", x)
    return F32, (*x[0].shape[:-1], 1)


def _cpy(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    src, dst = x
    if src.shape != dst.shape:
        raise fail("cpy", "source and destination must have one shape", x)
    _castable("cpy", src, dst.dtype, x)
    return dst.dtype, dst.shape


def _castable(op: str, src: Tensor, to: DType, x: Sequence[Tensor]) -> None:
    floats = src.dtype in FLOAT_DTYPES and to in (F32, F16)
    if not floats and src.dtype is not to:
        raise fail(op, f"{src.dtype} cannot be converted to {to}", x)
    if to.is_quantized or (src.dtype.is_quantized and not src.is_contiguous):
        raise fail(op, "quantised tensors can only be read, contiguously", x)


def _cont(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    named = params["dtype"]
    to = dtype_by_name(str(named)) if named else x[0].dtype
    _castable("cont", x[0], to, x)
    return to, x[0].shape


def _concat(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    a, b = x
    axis = params["axis"]
    if not isinstance(axis, int) or not 0 <= axis < len(a.shape) or len(a.shape) != len(b.shape):
        raise fail("concat", f"axis={axis} is not an axis of both", x)
    if a.dtype is not b.dtype or a.dtype not in (F32, I32):
        raise fail("concat", "both operands must be f32 or both i32", x)
    if any(i != axis and m != n for i, (m, n) in enumerate(zip(a.shape, b.shape, strict=True))):
        raise fail("concat", "the other axes must agree", x)
    return a.dtype, tuple(
        m + n if i == axis else m for i, (m, n) in enumerate(zip(a.shape, b.shape, strict=True))
    )


def _repeat(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    shape = params["shape"]
    _need_f32("repeat", x, 0)
    if not isinstance(shape, tuple) or len(shape) != len(x[0].shape):
        raise fail("repeat", "the target shape needs as many axes as the operand", x)
    if any(n == 0 or m % n for m, n in zip(shape, x[0].shape, strict=True)):
        raise fail("repeat", f"{shape} is not a whole number of copies on each axis", x)
    return F32, shape


def _tokens_of_slots(op: str, x: Sequence[Tensor], tokens: int, ids: Sequence[Tensor]) -> None:
    """Refuse slots and positions that are not one i32 for each token."""
    for t in ids:
        if t.dtype is not I32 or t.shape != (tokens,):
            raise fail(op, "slots and positions must be i32 (T,)", x)


def _short_conv(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    state, rows, w, *ids = x
    _need_f32("short_conv", x, 0, 1, 2)
    fits = len(state.shape) == len(("slot", "tap", "channel")) and len(rows.shape) == 2
    if not fits or not state.shape[1] or rows.shape[1] != state.shape[2]:
        raise fail("short_conv", "needs state (S, K - 1, C) with K >= 2, x (T, C)", x)
    slots, kept, channels = state.shape
    if w.shape != (channels, kept + 1):
        raise fail("short_conv", "needs w (C, K)", x)
    _tokens_of_slots("short_conv", x, rows.shape[0], ids)
    return F32, (rows.shape[0] + slots * kept, channels)


def _linear_attention(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    state, q, k, v, decay, slots, positions, *beta = x
    _need_f32("linear_attention", x, 0, 1, 2, 3, 4, *range(7, len(x)))
    axes = len(state.shape), len(q.shape), len(v.shape)
    if axes != (4, 3, 3) or k.shape != q.shape:
        raise fail(
            "linear_attention", "needs state (S, H, N, P), q and k (T, G, N), v (T, H, P)", x
        )
    (count, heads, width, across), (tokens, groups, _) = state.shape, q.shape
    if q.shape[2] != width or v.shape != (tokens, heads, across) or not width:
        raise fail(
            "linear_attention", "needs state (S, H, N, P), q and k (T, G, N), v (T, H, P)", x
        )
    if not groups or heads % groups:
        raise fail("linear_attention", "H must be a multiple of G", x)
    if any(t.shape != (tokens, heads) for t in (decay, *beta)):
        raise fail("linear_attention", "decay and beta must be f32 (T, H)", x)
    _tokens_of_slots("linear_attention", x, tokens, (slots, positions))
    return F32, (heads * across * (tokens + count * width),)


UNARY: Final = ("scale", "silu", "gelu", "sigmoid", "tanh", "softplus", "clamp")
BINARY: Final = ("add", "sub", "mul", "div")
GATED: Final = ("swiglu", "swiglu_oai")
"""Ops by shape rule that compute each element of the result from one of each operand."""

SHAPE_RULES: Final[Mapping[str, ShapeRule]] = {
    "get_rows": _get_rows,
    "set_rows": _set_rows,
    "mul_mat": _mul_mat,
    "mul_mat_id": _mul_mat_id,
    "add_id": _add_id,
    **{name: _binary(name) for name in BINARY},
    **{name: _same(name) for name in UNARY},
    **{name: _same(name, along_rows=True) for name in ("rms_norm", "norm")},
    **{name: _gated(name) for name in GATED},
    "rope": _rope,
    "soft_max": _soft_max,
    "attention": _attention,
    "argsort": _argsort,
    "top_k": _top_k,
    "sum_rows": _sum_rows,
    "cpy": _cpy,
    "cont": _cont,
    "concat": _concat,
    "repeat": _repeat,
    "short_conv": _short_conv,
    "linear_attention": _linear_attention,
}
