"""One step of drawing for each op: choose operands that fit, state how wild the result is.

A step may decline (add no node); most make the leaves that they need. ``mag`` bounds follow from
the op; ``err`` grows with the slope of the op and by what its own f32 arithmetic rounds.
"""

from collections.abc import Callable, Mapping
from math import exp, prod, sqrt
from typing import Any, Final

from ggsched.ir.dtype import F16, F32, FLOAT_DTYPES, KV_DTYPES, DType
from ggsched.ir.ops import OpDef, broadcasts_to
from ggsched.ir.tensor import Tensor
from ggsched.ops.elementwise import BINARY, ELEMENTWISE, GATED
from ggsched_testing.generators.graph_gen import GraphGenerator, Ids

Step = Callable[[GraphGenerator], object]


def _inplace(d: GraphGenerator, x: Tensor) -> dict[str, bool]:
    return {"inplace": True} if d.writable(x) and d.flip() else {}


# --- row by row and element by element -----------------------------------------------------


def _elementwise(op: OpDef) -> Step:
    def step(d: GraphGenerator) -> None:
        operands = [d.f32()]
        shape = operands[0].shape
        if op.name == "div":
            operands.append(d.special_leaf("positive", d.pick((shape[-1:], shape))))
        elif op.name in BINARY:
            operands.append(
                d.f32(lambda t: broadcasts_to(t.shape, shape), lambda: d.pick((shape, shape[-1:])))
            )
        elif op.name in GATED:
            operands.append(d.f32(lambda t: t.shape == shape, lambda: shape))
        params = {name: d.pick(values) for name, values in op.draws.items()}
        inplace = _inplace(d, operands[0])
        assert op.bound is not None
        mag, err = op.bound(*map(d.mag, operands), *map(d.err, operands), **op.full(params))
        d.emit(op.name, *operands, mag=mag, err=err, **params, **inplace)

    return step


def _normed(op: str) -> Step:
    def step(d: GraphGenerator) -> None:
        x, eps = d.f32(), d.pick((1.0, 0.25))
        inplace = _inplace(d, x)
        mag = min(sqrt(x.shape[-1]), d.mag(x) / sqrt(eps) * 2)
        err = 2 * d.err(x) / sqrt(eps) + 4 * d.mag(x) + 4 * mag
        d.emit(op, x, mag=mag, err=err, eps=eps, **inplace)

    return step


def _soft_max(d: GraphGenerator) -> None:
    x, scale = d.f32(), d.pick((1.0, 0.5))
    operands, flags = [x], {}
    if d.flip():
        shapes = [x.shape[n:] for n in range(len(x.shape))] + [(*x.shape[:-2], 1, x.shape[-1])]
        operands.append(
            d.special_leaf("mask", d.pick([s for s in shapes if len(s) <= len(x.shape)]))
        )
        flags["mask"] = True
    if len(x.shape) == 3 and d.flip():
        sinks = d.f32(lambda t: t.shape == x.shape[:1], lambda: x.shape[:1])
        operands.append(sinks)
        flags["sinks"] = True
    err = sum(d.err(t) for t in operands) + 4 * d.mag(x) + 8
    inplace = _inplace(d, x)
    if d.mag(x) <= 64:
        params = {"scale": scale, **flags, **inplace}
        d.emit("soft_max", *operands, mag=1.0, err=err, **params)


def _attention(d: GraphGenerator) -> None:
    """Query heads that share heads of keys and values, mostly the leading rows of caches."""
    tokens, groups, share = d.pick((1, 2, 5, 1)), d.number(1, 2), d.pick((1, 2, 4, 3))
    dtype = d.pick([t for t in d.weight_dtypes if t in KV_DTYPES] or [F32])
    unit = max(4, dtype.block)
    rows, width = d.pick((4, 1, 7, 33)), unit * d.pick((2, 4, 1))
    heads, across = groups * share, d.pick((width, width, unit))
    q = d.f32(lambda t: t.shape == (tokens, heads, width), lambda: (tokens, heads, width))
    k, v = _kept(d, dtype, rows, groups, width), _kept(d, dtype, rows, groups, across)
    operands, flags = [k, v, q], {}
    if d.flip():
        shapes = ((tokens, rows), (rows,), (1, tokens, rows), (heads, 1, rows))
        operands.append(d.special_leaf("mask", d.pick(shapes)))
        flags["mask"] = True
    if d.flip():
        operands.append(d.f32(lambda t: t.shape == (heads,), lambda: (heads,)))
        flags["sinks"] = True
    if d.flip():
        operands.append(d.bounds_for(tokens, rows))
        flags["bounds"] = True
    scale, cap = d.pick((0.125, 0.5, 0.25)), d.pick((0.0, 0.0, 4.0))
    product = scale * width * d.mag(q) * d.mag(k)
    slope = scale * width * (d.err(q) * d.mag(k) + d.err(k) * d.mag(q))
    err = slope + 8 * product + sum(d.err(t) + 4 * d.mag(t) for t in operands[3:]) + 8
    # Shares add up to one at most, so the errors of a sum do not grow with the number of rows.
    mag = d.mag(v)
    params: dict[str, Any] = {"scale": scale, "soft_cap": cap, **flags}
    if product <= 64:
        d.emit("attention", *operands, mag=mag, err=d.err(v) + mag * (err + 8), **params)


def _kept(d: GraphGenerator, dtype: DType, rows: int, groups: int, width: int) -> Tensor:
    """Return keys or values (N, G, D), mostly rows of a cache."""
    if d.flip():
        return d.leaf((rows, groups, width), dtype)
    first = d.number(0, 1)
    cache = d.leaf((first + rows + d.number(0, 2), groups * width), dtype)
    return d.g.reshape(d.g.rows(cache, first, first + rows), rows, groups, width)


def _rope(d: GraphGenerator) -> None:
    x = d.f32(
        lambda t: len(t.shape) == 3 and t.shape[2] % 2 == 0,
        lambda: (d.number(1, 4), d.number(1, 3), d.pick((4, 8))),
    )
    tokens, _, width = x.shape
    n_dims = 2 * d.number(1, width // 2)
    operands = [x, d.ids_for((tokens,), 32)]
    params: dict[str, float | str | bool] = {"pairing": d.pick(("adjacent", "halves"))}
    if d.flip():
        operands.append(d.special_leaf("positive", (n_dims // 2,)))
        params["freq_factors"] = True
    if d.flip():
        params |= {"ext_factor": 1.0, "freq_scale": 0.5, "n_ctx_orig": 64, "attn_factor": 0.75}
    inplace = _inplace(d, x)
    mag, err = 1.5 * d.mag(x), 1.5 * d.err(x) + 160 * d.mag(x)  # angles up to 128 are rounded
    d.emit(
        "rope",
        *operands,
        mag=mag,
        err=err,
        n_dims=n_dims,
        **params,
        **inplace,
    )


# --- matrices ------------------------------------------------------------------------------


def _mul_mat(d: GraphGenerator) -> None:
    x = d.f32(lambda t: len(t.shape) >= 2, lambda: d.shape(2))

    def fits(w: Tensor) -> bool:
        batch = (1,) * (len(x.shape) - len(w.shape)) + w.shape[:-2]
        return (
            2 <= len(w.shape) <= len(x.shape)
            and w.shape[-1] == x.shape[-1]
            and all(xb % wb == 0 for xb, wb in zip(x.shape[:-2], batch, strict=True))
        )

    w = _weight(d, fits, lambda: (d.pick((4, 8, 32, 1, 3)), x.shape[-1]))
    _emit_product(d, "mul_mat", w, x)


def _weight(
    d: GraphGenerator, fits: Callable[[Tensor], bool], make: Callable[[], tuple[int, ...]]
) -> Tensor:
    allowed = (F32, *d.weight_dtypes)
    fresh, there = d.flip(), [t for t in d.floats if t.dtype in allowed and fits(t)]
    return d.pick(there) if there and not fresh else d.matrix(make())


def part_of_rows(d: GraphGenerator, rows: int) -> dict[str, int]:
    """Return that a table has all rows, or which, of how many that ids can name."""
    first, behind = (d.number(0, 2), d.number(0, 2)) if d.flip() else (0, 0)
    return {"first": first, "of": first + rows + behind} if first or behind else {}


def _emit_product(
    d: GraphGenerator, op: str, w: Tensor, x: Tensor, *ids: Tensor, **params: int
) -> None:
    k = x.shape[-1]
    mag = k * d.mag(w) * d.mag(x)
    slope = d.err(w) * d.mag(x) + d.err(x) * d.mag(w) + d.mag(w) * d.mag(x)
    d.emit(op, w, x, *ids, mag=mag, err=sqrt(k) * slope + mag, **params)


def _mul_mat_id(d: GraphGenerator) -> None:
    x = d.f32(
        lambda t: len(t.shape) == 3, lambda: (d.number(1, 4), d.number(1, 2), d.pick((4, 32)))
    )
    tokens, used, k = x.shape
    w = _weight(
        d,
        lambda t: len(t.shape) == 3 and t.shape[2] == k,
        lambda: (d.number(1, 4), d.number(1, 4), k),
    )
    count = d.number(1, 3) if used == 1 else used
    part = part_of_rows(d, w.shape[0])
    ids = d.ids_for((tokens, count), part.get("of", w.shape[0]))
    _emit_product(d, "mul_mat_id", w, x, ids, **part)


def _add_id(d: GraphGenerator) -> None:
    x = d.f32(lambda t: len(t.shape) == 3, lambda: (d.number(1, 4), d.number(1, 2), 4))
    n = x.shape[-1]
    bias = d.f32(lambda t: len(t.shape) == 2 and t.shape[1] == n, lambda: (d.number(1, 4), n))
    part = part_of_rows(d, bias.shape[0])
    ids = d.ids_for(x.shape[:2], part.get("of", bias.shape[0]))
    mag, inplace = d.mag(x) + d.mag(bias), _inplace(d, x)
    err = d.err(x) + d.err(bias) + mag
    d.emit("add_id", x, bias, ids, mag=mag, err=err, **inplace, **part)


# --- rows and copies: nothing is rounded ---------------------------------------------------


def _get_rows(d: GraphGenerator) -> None:
    table = _weight(d, lambda t: len(t.shape) >= 2, lambda: d.shape(2))
    *batch, rows, _ = table.shape
    count = (d.number(1, 4),)
    shape = (*batch, *count) if batch or d.flip() else d.pick((count, (2, *count)))
    d.emit("get_rows", table, d.ids_for(tuple(shape), rows), mag=d.mag(table), err=d.err(table))


def _get_ids(d: GraphGenerator) -> None:
    """Rows of an i32 table are ids again."""
    rows, n = d.number(1, 4), d.number(1, 3)
    table = d.ids_for((rows, n), d.pick((1, 2, 4)))
    bound = next(i.bound for i in d.ids if i.tensor is table)
    result = d.node("get_rows", table, d.ids_for((d.number(1, 4),), rows))
    if result is not None:
        d.ids.append(Ids(result, bound))


def _set_rows(d: GraphGenerator) -> None:
    fresh, there = d.flip(), [t for t in d.floats if len(t.shape) == 2 and d.writable(t)]
    if there and not fresh:
        dst = d.pick(there)
    else:
        dst = d.leaf((d.number(1, 6), d.pick((4, 8))), d.pick((F32, F16)))
    rows, n = dst.shape
    src = d.f32(
        lambda t: len(t.shape) == 2 and t.shape[1] == n and t.shape[0] <= rows and _apart(t, dst),
        lambda: (d.number(1, min(rows, 4)), n),
    )
    ids = d.ids_for(src.shape[:1], rows, distinct=True)
    d.emit("set_rows", dst, src, ids, mag=d.mag(src), err=d.err(src))


def _apart(a: Tensor, b: Tensor) -> bool:
    return a.storage != b.storage or a.end <= b.offset or b.end <= a.offset


def _cpy(d: GraphGenerator) -> None:
    fresh, there = d.flip(), [t for t in d.floats if d.writable(t)]
    dst = d.pick(there) if there and not fresh else d.leaf(d.shape(2), d.pick((F32, F16)))

    def fits(t: Tensor) -> bool:
        readable = t.dtype in FLOAT_DTYPES and (t.is_contiguous or not t.dtype.is_quantized)
        return t.shape == dst.shape and readable and _apart(t, dst)

    src = _weight(d, fits, lambda: dst.shape)
    d.emit("cpy", src, dst, mag=d.mag(src), err=d.err(src))


def _cont(d: GraphGenerator) -> None:
    if d.ids and d.flip():
        ids = d.pick(d.ids)
        copied = d.node("cont", ids.tensor)
        if copied is not None:
            d.ids.append(Ids(copied, ids.bound, ids.distinct))
        return
    x = _weight(d, lambda t: t.is_contiguous or not t.dtype.is_quantized, d.shape)
    to = d.pick((F32, F16))
    if to is F32 or d.err(x) == 0:
        d.emit("cont", x, mag=d.mag(x), err=d.err(x), dtype=to.name)


def _cpy_ids(d: GraphGenerator) -> None:
    """Overwrite a copy of ids: the copy must be a temporary, its bound is the larger one."""
    src = d.ids_for((d.number(1, 4),), d.pick((1, 2, 4)))
    bound = next(i.bound for i in d.ids if i.tensor is src)
    dst = d.node("cont", src)
    other = d.ids_for(src.shape, bound)
    if dst is not None:
        result = d.node("cpy", other, dst)
        d.ids.append(Ids(result if result is not None else dst, bound))


def _concat(d: GraphGenerator) -> None:
    a = d.f32()
    axis = d.number(0, len(a.shape) - 1)

    def fits(t: Tensor) -> bool:
        rest = [n for i, n in enumerate(t.shape) if i != axis]
        same = rest == [n for i, n in enumerate(a.shape) if i != axis]
        return len(t.shape) == len(a.shape) and same and prod(t.shape) <= 512

    b = d.f32(fits, lambda: a.shape)
    if a.size <= 512:
        mag, err = max(d.mag(a), d.mag(b)), max(d.err(a), d.err(b))
        d.emit("concat", a, b, mag=mag, err=err, axis=axis)


def _repeat(d: GraphGenerator) -> None:
    x = d.f32(lambda t: t.size <= 256, lambda: d.shape(2))
    shape = tuple(n * d.number(1, 2) for n in x.shape)
    if x.size <= 256:
        d.emit("repeat", x, mag=d.mag(x), err=d.err(x), shape=shape)


def _sum_rows(d: GraphGenerator) -> None:
    x = d.f32()
    n, mag = x.shape[-1], x.shape[-1] * d.mag(x)
    d.emit("sum_rows", x, mag=mag, err=sqrt(n) * d.err(x) + mag)


# --- sequences in slots ---------------------------------------------------------------------


def _slots(d: GraphGenerator, tokens: int, count: int) -> tuple[Tensor, Tensor]:
    """Return slots and positions of tokens; about every third one begins a sequence."""
    return d.ids_for((tokens,), count), d.ids_for((tokens,), 3)


def _short_conv(d: GraphGenerator) -> None:
    tokens, count, taps = d.pick((3, 1, 5)), d.number(1, 2), d.pick((4, 2))
    x = d.f32(lambda t: len(t.shape) == 2 and t.shape[0] <= 8, lambda: (tokens, d.pick((4, 8, 3))))
    channels = x.shape[1]
    state, w = d.leaf((count, taps - 1, channels)), d.leaf((channels, taps))
    row = max(d.mag(x), d.mag(state))
    mag = max(row, taps * d.mag(w) * row)
    err = taps * (d.mag(w) * max(d.err(x), d.err(state)) + d.err(w) * row + mag)
    d.emit("short_conv", state, x, w, *_slots(d, x.shape[0], count), mag=mag, err=err)


def _linear_attention(d: GraphGenerator) -> None:
    tokens, count = d.pick((2, 1, 3)), d.number(1, 2)
    groups, share = d.number(1, 2), d.number(1, 2)
    width, across, heads = d.pick((4, 2)), d.pick((4, 8)), groups * share
    state = d.leaf((count, heads, width, across))
    q, k = (
        d.f32(lambda t: t.shape == (tokens, groups, width), lambda: (tokens, groups, width))
        for _ in range(2)
    )
    v = d.f32(lambda t: t.shape == (tokens, heads, across), lambda: (tokens, heads, across))
    decay = d.leaf((tokens, heads))
    operands, has_beta = [state, q, k, v, decay, *_slots(d, tokens, count)], d.flip()
    strength, off = 1.0, 0.0
    if has_beta:
        operands.append(d.f32(lambda t: t.shape == (tokens, heads), lambda: (tokens, heads)))
        strength, off = d.mag(operands[-1]), d.err(operands[-1])
    mag, err = d.mag(state), d.err(state)
    if d.mag(decay) > 2 or d.err(decay) > 64:
        return
    for _ in range(tokens):
        grown = exp(d.mag(decay))
        mag, err = mag * grown, (err + mag * (d.err(decay) + 4)) * grown
        update, wrong = d.mag(v), d.err(v)
        if has_beta:
            read = width * mag * d.mag(k)
            wrong += width * (err * d.mag(k) + mag * d.err(k)) + read + update
            update += read
            update, wrong = strength * update, strength * wrong + off * update
        mag, err = mag + d.mag(k) * update, err + d.mag(k) * wrong + d.err(k) * update + 2 * mag
    scale, tiled = d.pick((1.0, 0.5)), d.flip()
    out, wrong = (scale * width * n for n in (mag * d.mag(q), mag * d.err(q) + err * d.mag(q)))
    mag, err = max(mag, out), max(err, wrong + out)
    params: dict[str, Any] = {"scale": scale, "tiled": tiled, "beta": has_beta}
    d.emit("linear_attention", *operands, mag=mag, err=err, **params)


# --- order: ranked leaves only, as rounding must not exchange neighbours --------------------


def _argsort(d: GraphGenerator) -> None:
    x = d.special_leaf("ranked", d.pick(((4,), (2, 4), (3, 2), (8,))))
    result = d.node("argsort", x, descending=d.flip())
    if result is not None:
        d.ids.append(Ids(result, x.shape[-1], distinct=len(x.shape) == 1))


def _top_k(d: GraphGenerator) -> None:
    x = d.special_leaf("ranked", d.pick(((2, 4), (4,), (3, 2), (1, 8))))
    result = d.node("top_k", x, k=d.number(1, min(3, x.shape[-1])))
    if result is not None:
        d.ids.append(Ids(result, x.shape[-1], distinct=len(x.shape) == 1))


_OWN: Final[Mapping[str, tuple[Step, ...]]] = {
    "mul_mat": (_mul_mat,),
    "cpy": (_cpy, _cpy_ids),
    "set_rows": (_set_rows,),
    "rms_norm": (_normed("rms_norm"),),
    "get_rows": (_get_rows, _get_ids),
    "cont": (_cont,),
    "soft_max": (_soft_max,),
    "attention": (_attention,),
    "norm": (_normed("norm"),),
    "rope": (_rope,),
    "mul_mat_id": (_mul_mat_id,),
    "add_id": (_add_id,),
    "concat": (_concat,),
    "repeat": (_repeat,),
    "sum_rows": (_sum_rows,),
    "argsort": (_argsort,),
    "top_k": (_top_k,),
    "short_conv": (_short_conv,),
    "linear_attention": (_linear_attention,),
}

STEPS: Final[Mapping[str, tuple[Step, ...]]] = {
    **{op.name: (_elementwise(op),) for op in ELEMENTWISE},
    **_OWN,
}
"""By op; the first ones are the simplest."""
