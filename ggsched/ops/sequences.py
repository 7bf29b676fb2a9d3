"""Built-in ops that carry a state along the tokens of sequences in slots."""

from collections.abc import Sequence
from math import prod
from typing import ClassVar, Protocol

from ggsched.ops.lazy import Array, np
from ggsched.ops.record import Operand, Pair, Param, Shape, method, need, op
from ggsched.ops.rows import check_ids


def _numbered(tokens: int, *ids: Shape) -> None:
    fits = all(shape == (tokens,) for shape in ids)
    need(fits, "slots and positions must be i32 (T,)")


def _convolved(x: Sequence[Operand]) -> tuple[str, Shape]:
    state, rows, w, *ids = (t.shape for t in x)
    fits = len(state) == len(("slot", "tap", "channel")) and len(rows) == 2
    fits = fits and state[1] > 0 and rows[1] == state[2]
    need(fits, "needs state (S, K - 1, C) with K >= 2, x (T, C)")
    slots, kept, channels = state
    need(w == (channels, kept + 1), "needs w (C, K)")
    _numbered(rows[0], *ids)
    return "f32", (rows[0] + slots * kept, channels)


def _short_conv(state: Array, x: Array, w: Array, slots: Array, positions: Array) -> Array:
    check_ids(slots, state.shape[0])
    kept = list(state)
    out = np.empty_like(x)
    for t, slot in enumerate(slots):
        before = np.zeros_like(kept[slot]) if positions[t] == 0 else kept[slot]
        last = np.concatenate([before, x[t : t + 1]])
        out[t] = np.sum(w.T * last, axis=0)
        kept[slot] = last[1:]
    return np.concatenate([out, *kept])


def _attended(x: Sequence[Operand], **_: Param) -> tuple[str, Shape]:
    state, q, k, v, decay, slots, positions, *beta = (t.shape for t in x)
    shapes = "needs state (S, H, N, P), q and k (T, G, N), v (T, H, P)"
    need((len(state), len(q), len(v)) == (4, 3, 3) and k == q, shapes)
    (count, heads, width, across), (tokens, groups) = state, q[:2]
    need(q[2] == width and v == (tokens, heads, across) and width, shapes)
    need(groups and heads % groups == 0, "H must be a multiple of G")
    fits = all(shape == (tokens, heads) for shape in (decay, *beta))
    need(fits, "decay and beta must be f32 (T, H)")
    _numbered(tokens, slots, positions)
    return "f32", (heads * across * (tokens + count * width),)


def _linear_attention(
    state: Array, q: Array, k: Array, v: Array, decay: Array, slots: Array, positions: Array,
    *rest: Array, scale: float, tiled: bool, beta: bool,
) -> Array:  # fmt: skip
    check_ids(slots, state.shape[0])
    heads, groups = v.shape[1], q.shape[1]
    head = np.arange(heads)
    group = head % groups if tiled else head // (heads // groups)
    after, out = state.copy(), np.empty_like(v)
    for t, slot in enumerate(slots):
        before = np.zeros_like(after[slot]) if positions[t] == 0 else after[slot]
        matrix = before * np.exp(decay[t])[:, None, None]
        keys, update = k[t, group], v[t]
        if beta:
            update = rest[0][t][:, None] * (update - np.einsum("hn,hnp->hp", keys, matrix))
        after[slot] = matrix + keys[:, :, None] * update[:, None, :]
        out[t] = np.einsum("hn,hnp->hp", q[t, group], after[slot]) * scale
    return np.concatenate([out.ravel(), after.ravel()])


def _work(state: Shape, q: Shape, k: Shape, v: Shape, *_: Shape, **__: Param) -> float:
    return 6.0 * prod(v) * state[2]


_EXAMPLE = 'slots, at = g.input("slots", (4,), "i32"), g.input("numbers", (4,), "i32")'
_SLOTS = """
Slots (T,) say which sequence each token belongs to, in the order of its tokens; positions (T,) are
the numbers of tokens in their sequences. Returns the result and the state afterwards, both views of
what the node computes. The state stays as it is until the second is copied to it."""


class States(Protocol):
    """Methods of builders for states of sequences. Examples go on from that of ``GraphBuilder``."""

    short_conv: ClassVar[Pair] = method(
        op("short_conv", "state", "x", "w", "slots:i32", "positions:i32", rule=_convolved,
           reference=_short_conv,
           doc="""Convolve each channel of x (T, C) with its taps w (C, K), along the tokens.

Token t of slot s gets ``sum_j w[c, j] * h[j, c]``, where h are the last K rows of the slot up to t:
those of x, before them those in ``state[s]``, of (S, K - 1, C). A token at position 0 begins a
sequence: zeros are before it.
""" + _SLOTS),
        'state, taps = g.state("last", (1, 3, 64)), g.weight("taps", (64, 4))', _EXAMPLE,
        "y, after = g.short_conv(state, x, taps, slots, at)", "y.shape, after.shape",
        "((4, 64), (1, 3, 64))",
        parts=lambda g, both, state, x, *_: (
            g.rows(both, 0, x.shape[0]),
            g.reshape(g.rows(both, x.shape[0], both.shape[0]), *state.shape),
        ),
    )  # fmt: skip
    linear_attention: ClassVar[Pair] = method(
        op("linear_attention", "state", "q", "k", "v", "decay", "slots:i32", "positions:i32",
           "beta?", rule=_attended, reference=_linear_attention, flops=_work,
           scale=1.0, tiled=False, beta=False,
           doc="""Update a matrix for each head token by token, and read it: gated linear attention.

For each token t of slot s, in order, with the matrix M (N, P) of its head h in ``state[s]``:
``M = exp(decay) * M``, then ``M += outer(k, u)``, and the result (T, H, P) is ``scale * q @ M``.
Without beta (T, H) u is v (T, H, P) (Mamba-2); with it ``u = beta * (v - k @ M)``, the gated delta
rule (Yang et al. 2024). At position 0 M begins with zeros, whatever the slot holds. Head h reads
head ``h // (H / G)`` of q and k (T, G, N), or if tiled ``h % G``. Decay (T, H) is a logarithm.
""" + _SLOTS),
        'state, heads = g.state("matrices", (1, 2, 32, 32)), g.reshape(x, 4, 2, 32)', _EXAMPLE,
        'decay = g.input("decay", (4, 2))',
        "y, after = g.linear_attention(state, heads, heads, heads, decay, slots, at)",
        "y.shape, after.shape", "((4, 2, 32), (1, 2, 32, 32))",
        parts=lambda g, both, state, q, k, v, *_: (
            g.view(both, v.shape),
            g.view(both, state.shape, offset=v.size * 4),  # f32
        ),
    )  # fmt: skip
