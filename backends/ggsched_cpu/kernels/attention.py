"""Attention without a table of its shares: few rows of queries at once, the rest block by block.

A table of all logits has tokens x rows x heads numbers. Where that is little, as in decoding, it is
scratch memory of one node, and the calls are those of two products and a softmax. Elsewhere blocks
of rows meet blocks of tokens: each row of queries keeps its largest logit and its sum so far, and
what it has added up shrinks whenever a larger logit comes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from ggsched.backend.arrays import Array
from ggsched.ir.dtype import F32
from ggsched_cpu.dequant import Decoder, decoder
from ggsched_cpu.kernels.gemm import product
from ggsched_cpu.lowering_context import Call, CpuLoweringContext, Node, constant, larger

FEW_NBYTES: Final = 1 << 20
"""Logits that are computed at once."""

ROWS: Final = 512
"""Rows of keys of a block, at least."""

TOKENS: Final = 128
"""Rows of queries of a head in a block."""

LOWEST: Final = float(np.finfo(np.float32).min)
"""Where maxima begin: exp(-inf - LOWEST) is 0, where exp(-inf + inf) would be NaN."""

HIDDEN: Final = np.float32(-np.inf)
SEEN: Final = np.float32(0.0)

LEAST: Final = 1e-30
"""Where sums end that have seen nothing; others are at least 1, by their largest logit."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The operands, as each head of keys meets its heads of queries.

    Axes: G heads of keys, B of queries for each, R rows of queries, N rows of keys. One token's
    heads are rows of one matrix, so that a product is one matrix with another.

    Attributes:
        k: (G, N, D), as stored.
        v: (G, N, E), as stored.
        q: (G, B, R, D).
        out: (G, B, R, E).
        mask: (G, B, R, N) or None.
        sinks: (G, B, R) or None.
        bounds: (R, 2) or None.
        scale: Factor of the products.
        cap: Limit of the logits, 0 for none.
    """

    k: Array
    v: Array
    q: Array
    out: Array
    mask: Array | None
    sinks: Array | None
    bounds: Array | None
    scale: float
    cap: float

    @classmethod
    def of(cls, node: Node) -> "Heads":
        """Make the views."""
        k, v, q, *rest = node.inputs
        (rows, groups, _), (tokens, heads, _) = k.shape, q.shape
        share = heads // groups

        def cut(a: Array) -> Array:
            """Return (T, H, ..) as (G, B, R, ..)."""
            a = a.reshape(tokens, groups, share, *a.shape[2:])
            if tokens == 1:
                return a.transpose(1, 0, 2, *range(3, a.ndim))
            return a.transpose(1, 2, 0, *range(3, a.ndim))

        mask = sinks = bounds = None
        if node.param("mask"):
            wide = np.broadcast_to(rest.pop(0), (heads, tokens, rows))
            mask = cut(wide.transpose(1, 0, 2))
        if node.param("sinks"):
            sinks = cut(np.broadcast_to(rest.pop(0), (tokens, heads)))
        if node.param("bounds"):
            bounds = rest.pop(0)
            bounds = np.broadcast_to(bounds, (share, 2)) if tokens == 1 else bounds
        return cls(
            k.transpose(1, 0, 2), v.transpose(1, 0, 2), cut(q), cut(node.out),
            mask, sinks, bounds, node.number("scale"), node.number("soft_cap"),
        )  # fmt: skip


def _attention(node: Node, site: CpuLoweringContext) -> list[Call]:
    a = Heads.of(node)
    groups, heads, rows, _ = a.q.shape
    nbytes = F32.block_nbytes * groups * heads * rows * a.k.shape[1]
    if node.dtype(0) is F32 and nbytes <= FEW_NBYTES:
        return _at_once(a, site)
    return _in_blocks(a, decoder(node.dtype(0)) if node.dtype(0) is not F32 else None, site)


def _at_once(a: Heads, site: CpuLoweringContext) -> list[Call]:
    """Return the calls of two products and a softmax, on one piece of scratch memory."""
    logits = site.scratch((*a.q.shape[:-1], a.k.shape[1]))
    one = a.q.shape[1] == 1  # of several heads with rows of their own, each meets the same keys
    keys = a.k if one else a.k[:, None]
    turned = a.v.swapaxes(1, 2)
    values = turned if one else turned[:, None]
    q, x, out = (y[:, 0] if one else y for y in (a.q, logits, a.out))
    return [
        *product(keys, q, x),
        *_logit_calls(a, logits),
        *_soft_max_calls(a, logits, site),
        *product(values, x, out),
    ]


def _logit_calls(a: Heads, logits: Array) -> list[Call]:
    """Return what makes logits of products."""
    calls: list[Call] = []
    factor = a.scale / a.cap if a.cap else a.scale
    if factor != 1.0:
        calls.append((np.multiply, (logits, constant(factor), logits)))
    if a.cap:
        calls.append((np.tanh, (logits, logits)))
        calls.append((np.multiply, (logits, constant(a.cap), logits)))
    if a.mask is not None:
        calls.append((np.add, (logits, a.mask, logits)))
    if a.bounds is not None:
        hide = _hide_one if logits.shape[1] == 1 and a.bounds.strides[0] == 0 else _hide
        calls.append((hide, (logits, a.bounds, 0)))
    return calls


def _hide_one(logits: Array, bounds: Array, start: int) -> None:
    """Hide rows outside the bounds that all queries have."""
    first, end = bounds[0].tolist()
    logits[..., : max(0, first)] = -np.inf
    logits[..., max(0, end) :] = -np.inf


def _hide(logits: Array, bounds: Array, start: int) -> None:
    """Hide rows outside the bounds of each row of queries, of keys from ``start`` on."""
    row = np.arange(start, start + logits.shape[-1], dtype=np.int32)
    hidden = (row < bounds[:, :1]) | (row >= bounds[:, 1:])
    np.add(logits, np.where(hidden, HIDDEN, SEEN), logits)  # faster than a copy where it is true


def _soft_max_calls(a: Heads, logits: Array, site: CpuLoweringContext) -> list[Call]:
    top = site.scratch((*logits.shape[:-1], 1))
    total = site.scratch(top.shape)
    reduce = (-1, None)
    calls: list[Call] = [
        (np.maximum.reduce, (logits, *reduce, top, True)),
        (larger, (top, constant(LOWEST), top)),
    ]
    if a.sinks is not None:
        calls.append((larger, (top, a.sinks[..., None], top)))
    calls += [
        (np.subtract, (logits, top, logits)),
        (np.exp, (logits, logits)),
        (np.add.reduce, (logits, *reduce, total, True)),
    ]
    if a.sinks is not None:
        calls += [
            (np.subtract, (a.sinks[..., None], top, top)),
            (np.exp, (top, top)),
            (np.add, (total, top, total)),
        ]
    calls.append((larger, (total, constant(LEAST), total)))
    return [*calls, (np.divide, (logits, total, logits))]


def _in_blocks(a: Heads, decode: Decoder | None, site: CpuLoweringContext) -> list[Call]:
    """Return one call that goes from block to block."""
    _, heads, rows, width = a.q.shape
    tokens = min(rows, TOKENS)
    each = F32.block_nbytes * heads * tokens
    count = min(a.k.shape[1], max(ROWS, FEW_NBYTES // each))
    logits = site.scratch((heads, tokens, count))
    room = None
    if decode is not None:
        room = site.scratch((count, width)), site.scratch((count, a.out.shape[-1]))
    state = tuple(site.scratch((heads, rows)) for _ in range(2))
    part = site.scratch((heads, tokens, a.out.shape[-1]))
    small = tuple(site.scratch((heads, tokens)) for _ in range(2))
    return [(_attend, (a, decode, room, logits, part, state, small))]


def _attend(
    a: Heads,
    decode: Decoder | None,
    room: tuple[Array, Array] | None,
    logits: Array,
    part: Array,
    state: tuple[Array, Array],
    small: tuple[Array, Array],
) -> None:
    """Attend block by block; the largest logits and the sums so far are in ``state``."""
    a.out.fill(0.0)
    _, tokens, count = logits.shape
    n = a.k.shape[1]
    for group in range(a.k.shape[0]):
        top, total = state
        if a.sinks is None:
            top.fill(LOWEST)
            total.fill(0.0)
        else:
            larger(a.sinks[group], constant(LOWEST), top)
            np.exp(np.subtract(a.sinks[group], top, total), total)
        for start in range(0, n, count):
            end = min(start + count, n)
            blocks = None
            for at in range(0, a.q.shape[2], tokens):
                some = slice(at, at + tokens)
                cut = None if a.bounds is None else a.bounds[some]
                if cut is not None and not _meets(cut, start, end):
                    continue
                if blocks is None:
                    blocks = _decoded(a, group, start, end, decode, room)
                x = logits[:, : a.q[group, 0, some].shape[0], : end - start]
                np.matmul(a.q[group, :, some], blocks[0].T, x)
                _finish(a, x, group, some, start, cut)
                _add(x, blocks[1], a.out[group, :, some], part, top[:, some], total[:, some], small)
        np.maximum(total, LEAST, out=total)
        np.divide(a.out[group], total[..., None], a.out[group])


def _meets(bounds: Array, start: int, end: int) -> bool:
    return bool(((bounds[:, 0] < end) & (bounds[:, 1] > start)).any())


def _decoded(
    a: Heads,
    group: int,
    start: int,
    end: int,
    decode: Decoder | None,
    room: tuple[Array, Array] | None,
) -> tuple[Array, Array]:
    """Return rows of keys and values of a head as f32."""
    k, v = a.k[group, start:end], a.v[group, start:end]
    if decode is None or room is None:
        return k, v
    keys, values = room[0][: end - start], room[1][: end - start]
    decode(k, keys)
    decode(v, values)
    return keys, values


def _finish(a: Heads, x: Array, group: int, some: slice, start: int, bounds: Array | None) -> None:
    """Make logits of the products of a block."""
    factor = a.scale / a.cap if a.cap else a.scale
    np.multiply(x, np.float32(factor), x)
    if a.cap:
        np.tanh(x, x)
        np.multiply(x, np.float32(a.cap), x)
    end = start + x.shape[-1]
    if a.mask is not None:
        np.add(x, a.mask[group, :, some, start:end], x)
    if bounds is not None and (bounds[:, 0].max() > start or bounds[:, 1].min() < end):
        _hide(x, bounds, start)


def _add(
    x: Array,
    values: Array,
    out: Array,
    part: Array,
    top: Array,
    total: Array,
    small: tuple[Array, Array],
) -> None:
    """Add the values of a block by their logits."""
    highest, shrink = (s[:, : x.shape[1]] for s in small)
    np.maximum.reduce(x, axis=-1, out=highest)
    np.maximum(highest, top, out=highest)
    np.subtract(x, highest[..., None], x)
    np.exp(x, x)
    np.exp(np.subtract(top, highest, shrink), shrink)
    top[...] = highest
    np.multiply(total, shrink, total)
    np.add.reduce(x, axis=-1, out=highest)
    np.add(total, highest, total)
    np.multiply(out, shrink[..., None], out)
    more = part[:, : x.shape[1]]
    np.matmul(x, values, more)
    np.add(out, more, out)


EMITTERS: Final[Mapping[str, Callable[[Node, CpuLoweringContext], list[Call]]]] = {
    "attention": _attention
}
