"""Attention, and how it is decomposed into products and a softmax."""

from array import array
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Protocol

from ggsched.ops.lazy import Array, np
from ggsched.ops.record import (
    PRODUCTS,
    Method,
    Operand,
    Param,
    Shape,
    broadcasts_to,
    method,
    need,
    op,
)

SCORES_NBYTES: Final = 32 << 20
"""Attention is decomposed by blocks of queries whose scores have no more bytes, if there are
several queries."""

UNSEEN: Final = -1e30
"""Added to logits of rows that a token does not see: their shares are 0, and a row of nothing else
has no NaN, as it would have with -inf."""


def _attended(x: Sequence[Operand], soft_cap: float, **flags: Param) -> tuple[str, Shape]:
    k, v, q, *rest = (t.shape for t in x)
    same = x[0].dtype is x[1].dtype
    need(same, "keys and values must have one type: f32, f16, bf16 or q8_0")
    fits = len(k) == len(v) == len(q) == len(("row", "head", "width"))
    fits = fits and k[:2] == v[:2] and k[2] == q[2]
    need(fits, "needs k (N, G, D), v (N, G, E), q (T, H, D)")
    (rows, groups, width), (tokens, heads, _) = k, q
    fits = min(rows, groups, width) > 0 and heads % groups == 0
    need(fits, "needs N, G, D >= 1, and H must be a multiple of G")
    need(soft_cap >= 0, "soft_cap must not be negative")
    if flags["mask"]:
        fits = broadcasts_to(rest.pop(0), (heads, tokens, rows))
        need(fits, "the mask must be f32 and broadcast to (H, T, N)")
    if flags["sinks"]:
        need(rest.pop(0) == (heads,), "the sinks must be f32 (H,)")
    if flags["bounds"]:
        need(rest.pop(0) == (tokens, 2), "the bounds must be i32 (T, 2)")
    return "f32", (tokens, heads, v[2])


def _work(k: Shape, v: Shape, q: Shape, *_: Shape, **__: Param) -> float:
    return 2.0 * q[0] * q[1] * (k[0] * (k[2] + v[2]))


def _attention(*x: Array, **params: Any) -> Array:
    shares, value, _ = _parts(x, params)
    return np.asarray(np.einsum("htn,hne->the", shares, value))


def attention_rounding(x: Sequence[Array], params: dict[str, Any]) -> Array:
    """Return by how much a result moves, per unit, if operands and shares are rounded.

    Logits are then off by a unit of ``sum |q| |k| * scale``, and products with values by a unit of
    ``sum share * |v|``, to first order.
    """
    k, v, q, *rest = x
    shares, value, _ = _parts(x, params)
    size = np.abs(value)
    moved = _parts([np.abs(k), v, np.abs(q), *rest], params)[2] * shares
    own = np.einsum("htn,hne->the", moved + shares, size)
    others = moved.sum(axis=-1).T[..., None] * np.einsum("htn,hne->the", shares, size)
    return np.asarray(own + others)


def _parts(x: Sequence[Array], params: dict[str, Any]) -> tuple[Array, Array, Array]:
    """Return shares (H, T, N), the value rows of each head (H, N, E), and products times scale."""
    k, v, q, *rest = x
    share = q.shape[1] // k.shape[1]
    keys = np.repeat(k, share, axis=1)
    product = np.einsum("thd,nhd->htn", q, keys) * params["scale"]
    logits, cap = product, params["soft_cap"]
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


def _decomposed(g: Any, k: Any, v: Any, q: Any, *rest: Any, **params: Any) -> Any:
    """Two products and a softmax, for a block of queries at a time."""
    operands = list(rest)
    mask, sinks, bounds = (
        operands.pop(0) if params[name] else None for name in ("mask", "sinks", "bounds")
    )
    rows, (tokens, heads, _) = k.shape[0], q.shape
    keys = g.permute(k, 1, 0, 2)
    values = g.permute(g.cont(v, "f32") if v.dtype.is_quantized else v, 1, 2, 0)
    step = max(1, SCORES_NBYTES // (heads * rows * 4))
    parts = []
    for start in range(0, tokens, step) or (0,):
        end = min(start + step, tokens)
        logits = g.mul_mat(keys, g.permute(g.rows(q, start, end), 1, 0, 2))
        scale, cap = params["scale"], params["soft_cap"]
        if cap > 0:
            logits = g.scale(g.tanh(g.scale(logits, scale / cap)), cap)
            scale = 1.0
        unseen = seen = None
        if mask is not None:
            unseen, seen = _of_mask(g, _queries(g, mask, start, end))
        if bounds is not None:
            within = _of_bounds(g, g.rows(bounds, start, end), rows)
            hidden = g.scale(within, -UNSEEN, UNSEEN)
            unseen = hidden if unseen is None else _joined(g, g.add, unseen, hidden)
            seen = within if seen is None else _joined(g, g.mul, seen, within)
        found = g.mul_mat(values, g.soft_max(logits, unseen, sinks, scale=scale))
        if seen is not None:  # what sees nothing is zero
            found = g.mul(found, g.clamp(g.sum_rows(seen), 0.0, 1.0))
        parts.append(g.cont(g.permute(found, 1, 0, 2)))
    return _end_to_end(g, parts)


def _end_to_end(g: Any, parts: list[Any]) -> Any:
    """Join parts in pairs, so that each is copied a logarithm of times."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return g.concat(_end_to_end(g, parts[:half]), _end_to_end(g, parts[half:]))


def _queries(g: Any, mask: Any, start: int, end: int) -> Any:
    """Return the rows of a mask (.., T or 1, N) for some queries."""
    if len(mask.shape) < 2 or mask.shape[-2] == 1:
        return mask
    shape = (*mask.shape[:-2], end - start, mask.shape[-1])
    return g.view(mask, shape, mask.strides, start * mask.strides[-2])


def _of_mask(g: Any, mask: Any) -> tuple[Any, Any]:
    """Return a mask without -inf, and 1 where it had something else, 0 elsewhere."""
    return g.clamp(mask, UNSEEN, -UNSEEN), g.clamp(g.scale(mask, -1 / UNSEEN, 1.0), 0.0, 1.0)


def _of_bounds(g: Any, bounds: Any, rows: int) -> Any:
    """Return f32 (T, N): 1 where a token sees a row, 0 elsewhere.

    No op converts integers, so the bounds are read from a table of the numbers up to N. Those that
    are not within [0, N] are ids out of range, which ``get_rows`` refuses.
    """
    tokens = bounds.shape[0]
    numbers = g.constant(memoryview(array("f", range(rows + 1))).cast("B").cast("f", (rows + 1, 1)))
    ends = g.get_rows(numbers, bounds)  # (T, 2, 1)
    first, end = (g.view(ends, (tokens, 1), ends.strides[:2], i * ends.strides[1]) for i in (0, 1))
    row = g.repeat(g.view(numbers, (1, rows)), (tokens, rows))
    begun = g.clamp(g.scale(g.sub(row, first), 1.0, 1.0), 0.0, 1.0)
    going = g.clamp(g.scale(g.sub(row, end), -1.0), 0.0, 1.0)
    return g.mul(begun, going)


def _joined(g: Any, op: Callable[..., Any], a: Any, b: Any) -> Any:
    """Apply an op whose second operand is broadcast to the first, in either direction."""
    shape = (1,) * (len(b.shape) - len(a.shape)) + a.shape
    wide = (*shape[:-2], max(shape[-2], b.shape[-2]), shape[-1])
    if a.shape != wide:
        a = g.repeat(g.reshape(a, *shape), wide)
    return op(a, b)


class Attention(Protocol):
    """Methods of builders for attention. Examples go on from that of ``GraphBuilder``."""

    attention: ClassVar[Method] = method(
        op("attention", "k:kv", "v:kv", "q", "mask?", "sinks?", "bounds?:i32", rule=_attended,
           reference=_attention, decompose=_decomposed, family=PRODUCTS, flops=_work,
           scale=1.0, soft_cap=0.0, mask=False, sinks=False, bounds=False,
           doc="""Attend from q (T, H, D) to k (N, G, D) and v (N, G, E), returning (T, H, E).

Head h of q reads head ``h // (H / G)`` of k and v. Token t sees rows n with
``bounds[t, 0] <= n < bounds[t, 1]`` only, which states causal and windowed attention in a few
bytes. A mask, broadcast to (H, T, N), is added to the logits. Sinks (H,) are each one more logit of
their head, without a value. If ``soft_cap`` is positive, logits are
``soft_cap * tanh(logits / soft_cap)``."""),
        "q = g.reshape(x, 4, 2, 32)",
        'k, v = g.state("k", (16, 1, 32), "f16"), g.state("v", (16, 1, 32), "f16")',
        "g.attention(q, k, v, scale=32**-0.5).shape", "(4, 2, 32)", first=("q",),
    )  # fmt: skip
