"""Recurrences over the tokens of sequences: short convolutions and linear attention.

Which tokens belong to which slot is known at run time only. Linear attention takes the tokens of a
sequence in chunks: within one, what each token adds to the matrix is the solution of a small
triangular system (Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule"), so
that a prompt is products of matrices and not a loop over tokens.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np

from ggsched.backend.arrays import Array
from ggsched_cpu.kernels.rows import checked_ids, unsigned
from ggsched_cpu.lowering_context import Call, CpuLoweringContext, Node

CHUNK: Final = 32
"""Tokens of a chunk: products within it grow with its square."""


def _runs(slots: Array, positions: Array, count: int) -> Iterator[tuple[int, bool, Array]]:
    """Yield (slot, whether it begins a sequence, its tokens) of each part of a sequence.

    Raises:
        UsageError: a slot is outside ``[0, count)``.
    """
    checked = checked_ids(slots, count)
    for slot in np.unique(checked):
        (tokens,) = np.nonzero(checked == slot)
        starts = positions[tokens] == 0
        cuts = np.flatnonzero(starts)
        for run in np.split(tokens, cuts[cuts > 0]):
            yield int(slot), bool(positions[run[0]] == 0), run


def _convolve(
    state: Array, x: Array, w: Array, slots: Array, positions: Array, y: Array, after: Array
) -> None:
    kept, taps = state.shape[1], w.shape[1]
    after[...] = state
    for slot, is_first, run in _runs(slots, positions, state.shape[0]):
        before = np.zeros_like(after[slot]) if is_first else after[slot]
        rows = np.concatenate([before, x[run]])
        total = rows[:-kept] * w[:, 0]
        for tap in range(1, taps):
            total += rows[tap : tap + len(run)] * w[:, tap]
        y[run] = total
        after[slot] = rows[-kept:]


def _short_conv(node: Node, site: CpuLoweringContext) -> list[Call]:
    state, x, w, slots, positions = node.inputs
    y, after = np.split(node.out, [x.shape[0]])
    operands = (state, x, w, unsigned(slots), positions, y, after.reshape(state.shape))
    return [(_convolve, operands)]


def _attend(
    state: Array,
    q: Array,
    k: Array,
    v: Array,
    decay: Array,
    slots: Array,
    positions: Array,
    beta: Array | None,
    heads: Array,
    scale: float,
    y: Array,
    after: Array,
) -> None:
    after[...] = state
    for slot, is_first, run in _runs(slots, positions, state.shape[0]):
        matrix = after[slot]
        if is_first:
            matrix[...] = 0.0
        for start in range(0, len(run), CHUNK):
            part = run[start : start + CHUNK]
            strength = None if beta is None else beta[part].T
            # Head first: (H, C, N), (H, C, P), (H, C)
            queries, keys = (np.moveaxis(a[part], 0, 1)[heads] for a in (q, k))
            values, logs = np.moveaxis(v[part], 0, 1), decay[part].T
            found = _chunk(matrix, queries, keys, values, logs, strength)
            y[part] = np.moveaxis(found, 1, 0) * np.float32(scale)


def _chunk(
    matrix: Array, q: Array, k: Array, v: Array, logs: Array, strength: Array | None
) -> Array:
    """Return ``q @ matrix`` for each token of a chunk, and leave the matrix as after the last."""
    total = np.cumsum(logs, axis=1)
    since_start = np.exp(total)[..., None]
    tokens = v.shape[1]
    if tokens == 1:
        matrix *= since_start
        update = v if strength is None else strength[..., None] * (v - k @ matrix)
        matrix += np.swapaxes(k, 1, 2) * update
        return np.asarray(q @ matrix)
    with np.errstate(over="ignore"):  # above the diagonal, where it is not used
        fade = np.exp(total[:, :, None] - total[:, None, :])
    earlier = np.tril(np.ones((tokens, tokens), bool))
    within = np.where(earlier, fade, np.float32(0.0))
    update = v
    if strength is not None:
        meets = (k @ np.swapaxes(k, 1, 2)) * within
        system = np.tril(meets, -1) * strength[..., None] + np.eye(tokens, dtype=np.float32)
        right = strength[..., None] * (v - since_start * (k @ matrix))
        update = np.linalg.solve(system, right)
    shares = (q @ np.swapaxes(k, 1, 2)) * within
    found: Array = since_start * (q @ matrix) + shares @ update
    matrix *= since_start[:, -1:]
    matrix += np.swapaxes(k * within[:, -1, :, None], 1, 2) @ update
    return found


def _linear_attention(node: Node, site: CpuLoweringContext) -> list[Call]:
    state, q, k, v, decay, slots, positions, *beta = node.inputs
    head, groups = np.arange(v.shape[1]), q.shape[1]
    heads = head % groups if node.param("tiled") else head // (v.shape[1] // groups)
    y, after = np.split(node.out, [v.size])
    operands = (state, q, k, v, decay, unsigned(slots), positions, beta[0] if beta else None)
    places = (y.reshape(v.shape), after.reshape(state.shape))
    return [(_attend, (*operands, heads, node.number("scale"), *places))]


EMITTERS: Final[Mapping[str, Callable[[Node, CpuLoweringContext], list[Call]]]] = {
    "short_conv": _short_conv,
    "linear_attention": _linear_attention,
}
