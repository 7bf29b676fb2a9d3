"""Built-in ops on rows: lookups by ids, norms, softmax, order and sums along the last axis."""

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar, Protocol

from ggsched.errors import UsageError
from ggsched.ops.lazy import Array, np
from ggsched.ops.record import (
    Method,
    Operand,
    Param,
    Shape,
    along_rows,
    broadcasts_to,
    method,
    need,
    nothing,
    op,
    same,
    sorted_rows,
)


def check_ids(ids: Array, count: int) -> None:
    """Refuse row numbers outside ``[0, count)``.

    Raises:
        UsageError: an id is negative or too large.
    """
    wrong = ids[(ids < 0) | (ids >= count)]
    if wrong.size:
        raise UsageError(f"row {wrong.flat[0]} was requested", why=f"there are {count} rows")


def _taken(x: Sequence[Operand]) -> tuple[str, Shape]:
    table, ids = x
    need(len(table.shape) >= 2, "the table needs rows")
    batch = table.shape[:-2]
    fits = not batch or ids.shape[:-1] == batch
    need(fits, "the ids need the table's batch axes and one more")
    return "i32" if table.dtype.name == "i32" else "f32", (*ids.shape, table.shape[-1])


def _get_rows(table: Array, ids: Array) -> Array:
    check_ids(ids, table.shape[-2])
    if table.ndim == 2:
        return table[ids]
    out = np.empty((*ids.shape, table.shape[-1]), table.dtype)
    for batch in np.ndindex(*table.shape[:-2]):
        out[batch] = table[batch][ids[batch]]
    return out


def _set(x: Sequence[Operand]) -> tuple[str, Shape]:
    dst, src, ids = x
    fits = len(dst.shape) == len(src.shape) == 2 and len(ids.shape) == 1
    need(fits, "needs dst (R, n), src (T, n), ids (T,)")
    fits = src.shape == (ids.shape[0], dst.shape[1]) and src.shape[0] <= dst.shape[0]
    need(fits, "needs dst (R, n), src (T, n), ids (T,) with T <= R")
    return dst.dtype.name, dst.shape


def _set_rows(*_: Array) -> Array:
    raise NotImplementedError  # leaves bytes alone, see ``ggsched.backend.elements.set_rows``


def _added(x: Sequence[Operand], first: int, of: int) -> tuple[str, Shape]:
    a, bias, ids = x
    fits = len(a.shape) == 3 and len(bias.shape) == 2 and a.shape[:2] == ids.shape
    need(fits and a.shape[2] == bias.shape[1], "needs x (T, U, n), bias (E, n), ids (T, U)")
    need(0 <= first <= of - bias.shape[0] if of else not first, "first and of: rows are not there")
    return same(x)


def _add_id(x: Array, bias: Array, ids: Array, first: int, of: int) -> Array:
    check_ids(ids, of or bias.shape[0])
    behind = max(0, of - first - bias.shape[0])
    return np.asarray(x + np.pad(bias, ((first, behind), (0, 0)))[ids])


def _with_rows_of_ids(g: Any, x: Any, bias: Any, ids: Any, first: int, of: int) -> Any:
    if of > bias.shape[0]:
        ends = [g.constant(np.zeros((n, bias.shape[1]), "f")) for n in (first or 1, of)]
        padded, start = g.concat(g.concat(ends[0], bias, axis=0), ends[1], axis=0), int(not first)
        bias = g.rows(padded, start, start + of)
    return g.add(x, g.get_rows(bias, ids))


def _rms_norm(x: Array, eps: float) -> Array:
    return np.asarray(x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps))


def _norm(x: Array, eps: float) -> Array:
    centred = x - np.mean(x, axis=-1, keepdims=True)
    return np.asarray(centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + eps))


def _shares(x: Sequence[Operand], mask: bool, sinks: bool, **_: Param) -> tuple[str, Shape]:
    shape = along_rows(x)[1]
    rest = list(x[1:])
    need(not mask or broadcasts_to(rest.pop(0).shape, shape), "the mask does not broadcast to x")
    fits = not sinks or (len(shape) == 3 and rest.pop(0).shape == shape[:1])
    need(fits, "sinks need x (H, T, K) and shape (H,)")
    return "f32", shape


def _soft_max(x: Array, *given: Array, scale: float, mask: bool, sinks: bool) -> Array:
    rest = list(given)
    logits = x * scale
    if mask:
        logits = logits + rest.pop(0)
    if logits.shape[-1] == 0:
        return np.asarray(logits)
    top = np.max(logits, axis=-1, keepdims=True)
    if sinks:
        sink = rest.pop(0)[:, None, None]
        top = np.maximum(top, sink)
        e = np.exp(logits - top)
        return np.asarray(e / (np.sum(e, axis=-1, keepdims=True) + np.exp(sink - top)))
    e = np.exp(logits - top)
    return np.asarray(e / np.sum(e, axis=-1, keepdims=True))


def _ordered(x: Sequence[Operand], **_: Param) -> tuple[str, Shape]:
    return "i32", along_rows(x)[1]


def _argsort(x: Array, descending: bool) -> Array:
    return np.argsort(-x if descending else x, axis=-1, kind="stable")


def _first(x: Sequence[Operand], k: int) -> tuple[str, Shape]:
    shape = x[0].shape
    fits = shape and 0 < k <= shape[-1]
    need(fits, f"k={k} must be from 1 to the length of the last axis")
    return "i32", (*shape[:-1], k)


def _summed(x: Sequence[Operand]) -> tuple[str, Shape]:
    return "f32", (*along_rows(x)[1][:-1], 1)


def _comparisons(x: Shape, **_: Param) -> float:
    return 8.0 * prod(x)


_NORM: dict[str, Any] = {
    "rule": along_rows,
    "over": (0,),
    "sharding": "rows",
    "family": "rows",
    "eps": 1e-5,
}
_TAKEN = "Gather rows: ``(V, n)[ids]``; batched if the table has more axes. f32 (or i32)."


class Rows(Protocol):
    """Methods of builders for ops on rows. Examples go on from that of ``GraphBuilder``."""

    get_rows: ClassVar[Method] = method(
        op("get_rows", "table:float|i32", "ids:i32", rows=(0, 1), rule=_taken, reference=_get_rows,
           family="gather", flops=nothing, nbytes=lambda x, result, **_: 2.0 * result.nbytes,
           doc=_TAKEN),
        "g.get_rows(w, np.array([3, 1], np.int32)).shape", "(2, 64)",
    )  # fmt: skip
    set_rows: ClassVar[Method] = method(
        op("set_rows", "dst:kv", "src", "ids:i32", through=0, partial=True, rule=_set,
           reference=_set_rows, family="scatter", flops=nothing,
           nbytes=lambda x, result, **_: 2.0 * x[1].nbytes,
           doc="Write ``dst[ids[i]] = src[i]`` through ``dst``; ids must differ from each other."),
        'cache, ids = g.state("rows", (128, 64), "f16"), g.input("at", (4,), "i32")',
        "g.set_rows(cache, x, ids).shape  # the whole cache, afterwards", "(128, 64)",
    )  # fmt: skip
    add_id: ClassVar[Method] = method(
        op("add_id", "x", "bias", "ids:i32", over=(0,), rows=(1, 2), rule=_added, reference=_add_id,
           decompose=_with_rows_of_ids, first=0, of=0,
           doc="Return ``x + bias[ids]``: x (T, U, n), bias (E, n), ids (T, U). If bias has the "
               "rows from ``first`` on, of ``of``, nothing is added for others."),
        'bias, ids = g.weight("bias", (8, 64)), g.input("of", (4, 1), "i32")',
        "g.add_id(g.reshape(x, 4, 1, 64), bias, ids).shape", "(4, 1, 64)",
    )  # fmt: skip
    rms_norm: ClassVar[Method] = method(
        op("rms_norm", "x", reference=_rms_norm,
           doc="Return ``x / sqrt(mean(x**2) + eps)`` over the last axis.", **_NORM),
        "g.rms_norm(x, 1e-6).shape", "(4, 64)",
    )  # fmt: skip
    norm: ClassVar[Method] = method(
        op("norm", "x", reference=_norm,
           doc="Return ``(x - mean) / sqrt(var + eps)`` over the last axis.", **_NORM),
        "g.norm(x, 1e-6).shape", "(4, 64)",
    )  # fmt: skip
    soft_max: ClassVar[Method] = method(
        op("soft_max", "x", "mask?", "sinks?", over=(0,), rule=_shares, reference=_soft_max,
           family="rows", scale=1.0, mask=False, sinks=False,
           doc="Softmax of ``x * scale + mask`` along rows; a sink adds exp(sink) to the sum."),
        "g.soft_max(x, scale=0.125).shape", "(4, 64)",
    )  # fmt: skip
    argsort: ClassVar[Method] = method(
        op("argsort", "x", rule=_ordered, reference=_argsort, sharding="rows", flops=_comparisons,
           family=lambda x, **_: sorted_rows(x[-1], x[-1]),
           descending=False,
           doc="Return the i32 order of the last axis; equal elements keep their order."),
        "g.argsort(x).dtype.name", "'i32'",
    )  # fmt: skip
    top_k: ClassVar[Method] = method(
        op("top_k", "x", rule=_first, sharding="rows", flops=_comparisons, k=1,
           family=lambda x, k: sorted_rows(x[-1], k),
           reference=lambda x, k: _argsort(x, True)[..., :k],
           doc="Return i32 indices of the k largest of each row, largest first, ties by index."),
        "g.top_k(x, 8).shape", "(4, 8)",
    )  # fmt: skip
    sum_rows: ClassVar[Method] = method(
        op("sum_rows", "x", rule=_summed, family="reduce",
           reference=lambda x: np.sum(x, axis=-1, keepdims=True),
           doc="Return the sum over the last axis, which becomes 1."),
        "g.sum_rows(x).shape", "(4, 1)",
    )  # fmt: skip
