"""What stands between the products of a layer, all of it, as one kernel for few tokens.

In decoding, ``heads`` and ``attention`` take as long as their starts, their ends and the way to
memory. Together they go that way once: rows of the caches are under way while queries are rotated.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Final, NamedTuple

from ggsched.backend.program import BoundNode, Operand
from ggsched_cuda_kernels.calls import CudaLoweringContext
from ggsched_cuda_kernels.decode.attention import cut_of, fits_attention, operands_of
from ggsched_cuda_kernels.decode.fused import (
    fits_rope,
)
from ggsched_kernels import TuningProfile
from ggsched_kernels.calls import Arg, CodeOf, Launch, i32, window, window_of
from ggsched_kernels.rope_kv_write import fits_rope_rows, heads_arguments, kind_of_rows

OPS: Final = ("rope", "rope+set_rows", "set_rows", "attention")
MAX_TOKENS: Final = 4
"""Every group rotates the keys of all tokens."""


class Layer(NamedTuple):
    """The nodes, in order; ``keys`` and ``values`` write the caches."""

    turn_q: BoundNode
    turn_k: BoundNode
    keys: BoundNode
    values: BoundNode
    last: BoundNode


def join_attention(
    groups: Sequence[Sequence[BoundNode]], at: int, profile: TuningProfile
) -> tuple[int, CudaLoweringContext] | None:
    """Return how many groups from ``at`` on the kernel does, and its context, or None."""
    some = groups[at : at + len(OPS)]
    if tuple("+".join(node.op for node in group) for group in some) != OPS:
        return None
    layer = Layer(*(node for group in some for node in group))
    if any(0 in node.output.shape for node in layer):
        return None
    first = _fits(layer, profile)
    if first is None or not _are_apart(layer):
        return None
    ctx = CudaLoweringContext(layer.last, profile)
    _lower(layer, first, ctx)
    return len(OPS), ctx


def _fits(layer: Layer, profile: TuningProfile) -> int | None:
    """Return the first row of the caches that attention looks at; None if it is other attention."""
    turn_q, turn_k, keys, values = layer[:4]
    contexts = [CudaLoweringContext(node, profile) for node in layer]
    if not (
        fits_rope(contexts[0])
        and fits_rope_rows(*(ctx.node for ctx in contexts[1:3]))
        and fits_attention(contexts[4])
    ):
        return None
    k, v, q = layer.last.inputs[:3]
    (tokens, heads, width), count = q.shape, k.shape[1]
    made = turn_q.output
    has_shapes = (
        tokens <= MAX_TOKENS
        and made.shape == (tokens, heads, width)
        and turn_k.output.shape == (tokens, count, width)
        and values.inputs[1].shape == (tokens, count * width)
        and values.inputs[0].shape == keys.inputs[0].shape
    )
    if not (has_shapes and q.is_same_window(made)):
        return None
    if not (_turn_alike(turn_q, turn_k) and keys.inputs[2].is_same_window(values.inputs[2])):
        return None
    first = _first_row(keys.inputs[0], k)
    return first if first == _first_row(values.inputs[0], v) else None


def _turn_alike(a: BoundNode, b: BoundNode) -> bool:
    """Whether two rotations have the same angles."""
    return (
        a.params == b.params
        and len(a.inputs) == len(b.inputs)
        and all(map(Operand.is_same_window, a.inputs[1:], b.inputs[1:]))
    )


def _first_row(cache: Operand, seen: Operand) -> int | None:
    """Return where in a cache the positions begin, if they are rows of it and hold all heads."""
    (n, heads, width), (rows, across) = seen.shape, cache.shape
    size, step = cache.dtype.block_nbytes, cache.strides[0]
    if seen.buffer is not cache.buffer or seen.dtype is not cache.dtype or step <= 0:
        return None
    wanted = (step, width * size, size)
    steps = zip(seen.strides, wanted, seen.shape, strict=True)
    fits = all(a == b or e == 1 for a, b, e in steps)
    first, between = divmod(seen.offset - cache.offset, step)
    inside = not between and 0 <= first <= rows - n
    has_rows = across == heads * width and cache.strides[1] == size
    return first if fits and inside and has_rows else None


def _are_apart(layer: Layer) -> bool:
    """Whether nothing that is written is read as it was before, but queries turned in place."""
    turn_q, turn_k, keys, values, last = layer
    x, q = turn_q.inputs[0], turn_q.output
    others = (*turn_q.inputs[1:], turn_k.inputs[0], *keys.inputs[2:], *values.inputs[1:2])
    others += last.inputs[3:]
    writes = (q, keys.output, values.output, last.output)
    if any(a.meets(b) for a, b in combinations(writes, 2)):
        return False
    if any(w.meets(o) for w in writes for o in others):
        return False
    return not any(w.meets(x) for w in writes[1:]) and (not q.meets(x) or q.is_same_window(x))


def _lower(layer: Layer, first: int, ctx: CudaLoweringContext) -> None:
    """One kernel instead of the last product."""
    turn_q, turn_k, keys, values = layer[:4]
    grid, flags, cut = cut_of(ctx)
    dst, src, ids = values.inputs
    tokens, count, width = turn_k.output.shape
    step, each = src.strides
    new_v = window_of(src, (1, tokens, count, width), (0, step, width * each, each))
    turn = heads_arguments(
        turn_q, window(turn_q.output), window(ids), kind_of_rows(dst), CodeOf(keys.label)
    )
    places = (window(turn_k.inputs[0]), new_v, window(keys.inputs[0]), window(dst))
    args: tuple[Arg, ...] = (
        *turn, *(arg for place in places for arg in place.args), i32(first), CodeOf(values.label),
        *operands_of(layer.last), *flags,
    )  # fmt: skip
    own = 4 * int(cut["ROWS"]) * width + 2 * tokens * width * dst.dtype.block_nbytes
    more = {"TOKENS": tokens, "LOCAL_NBYTES": int(cut["LOCAL_NBYTES"]) + own}
    ctx.call("heads_attention", "heads_attention", args, grid, **{**cut, **more})
    caches = layer.last.inputs[:2]
    reads = (*turn_q.inputs[1:], ids, *layer.last.inputs[3:], *caches)
    ctx.launched(Launch.BY_ITSELF, reads)
