"""Lowering of attention: blocks of queries, and shares of the rows where queries are few."""

from math import prod
from typing import Final

from ggsched.backend.program import BoundNode
from ggsched.errors import UsageError
from ggsched_kernels.calls import SCRATCH, Arg, Launch, Window, f32, i32, window, window_of
from ggsched_kernels.lower_warps import PIECE, WARP, has_pieces, next_power
from ggsched_kernels.lowering_context import LoweringContext, weight_define

LOCAL_NBYTES: Final = 32 << 10
"""Local memory that every device has."""

CACHED_NBYTES: Final = 96 << 10
"""Local memory of devices whose groups are single work-items: half of a L2 cache."""

GROUPS: Final = 64
"""Groups that keep a device busy; where there are fewer, they share the rows of keys."""

SPLIT_ROWS: Final = 256
"""Rows of keys that a share has at least."""

CPU_BLOCKS: Final = ((32, 48), (16, 48), (8, 48), (8, 24), (4, 24))
GPU_BLOCKS: Final = ((32, 32), (16, 32), (16, 16), (8, 16), (8, 8), (4, 8), (4, 4))
"""Rows of queries and of keys in a block; the first that fits is taken."""

FEW_ROWS: Final = 4
"""Rows of queries for which a block is smaller; blocks of one are for single work-items only."""

TURNED_ROWS: Final = 8
"""Rows of queries for which it pays to turn keys."""

WIDTHS: Final = 64
"""Widths of heads are rounded up to multiples of it, unless two vectors are enough."""

VECTORS: Final = 2
"""Vectors of a row of values that a lane has under way."""

HALVES_LANES: Final = 128
HALVES_ROWS: Final = 64
"""Rows of queries of a group of ``attention_halves``, 16 for each warp; fewer go elsewhere."""

HALVES_KEYS: Final = 32
HALVES_UNIT: Final = 16
"""Widths of heads are multiples of it."""

MAX_HALVES_WIDTH: Final = 128

ROW_QUERIES: Final = 8
"""Heads of queries for a head of keys of which a lane of ``attention_row`` has sums."""

KEY_LANES: Final = 4
"""Lanes that share a key there."""

ROW_KEYS: Final = 256
"""Keys of which there are logits at a time there."""


def lower_attention(ctx: LoweringContext, before: tuple[Arg, ...] = ()) -> None:
    """Attention by blocks; where the rows are cut into shares, a second call joins these.

    Args:
        before: Arguments of what a group does before; see ``rope_attention``.
    """
    node = ctx.node
    k, v, q = node.inputs[:3]
    tensors, has, share = attention_operands(node)
    y = window(node.output)
    rows, across = q.shape[0] * share, v.shape[2]
    cut = block_of(rows, max(q.shape[2], across), ctx)
    is_row = _fits_row(ctx, share)
    blocks = 1 if is_row else -(-rows // cut["BR"])
    splits = splits_of(blocks * k.shape[1], k.shape[0])
    parts: Arg = y.buffer
    if _fits_halves(ctx, rows):
        parts = _lower_halves(ctx, rows)
        cut["REDO"], splits = HALVES_ROWS, 1
    elif splits > 1:
        nbytes = 4 * splits * prod(q.shape[:2]) * (across + 2)
        assert ctx.scratch(nbytes) == 0  # it is all the scratch memory of the node
        parts = SCRATCH
    args = (*(arg for w in (*tensors, y) for arg in w.args), parts)
    numbers = (i32(has), f32(ctx.number("scale")), f32(ctx.number("soft_cap")))
    kernel = "attention_blocks"
    if is_row:
        cut = {"SHARE": next_power(share), "WIDTH": q.shape[2], "ACROSS": across}
        kernel = "attention_row"
    if before:
        cut["ROPE"] = 1
    ctx.call(
        "rope_attention" if before and not is_row else kernel,
        kernel,
        (*args, *numbers, i32(share), i32(splits), *before),
        (blocks, k.shape[1], splits),
        **cut,
        **weight_define(k.dtype),
    )
    ctx.launched(Launch.IN_TURN)
    if splits > 1:
        join_shares(ctx, splits)


def _fits_row(ctx: LoweringContext, share: int) -> bool:
    """Whether there is one token, and lanes can have pieces of keys and of values."""
    k, v, q = ctx.node.inputs[:3]
    p = ctx.profile
    if not (p.joins and p.num_sms and p.lanes >= WARP) or q.shape[0] > 1 or share > ROW_QUERIES:
        return False
    if k.dtype.is_quantized or 0 in k.shape or not (has_pieces(k) and has_pieces(v)):
        return False
    each = PIECE // k.dtype.block_nbytes
    pieces = v.shape[2] // each
    fit = q.shape[2] % (KEY_LANES * each) == 0 and v.shape[2] % each == 0
    sums = p.lanes // WARP * v.shape[2]
    floats = next_power(share) * (q.shape[2] + ROW_KEYS + 3 + sums) + p.lanes
    fit = fit and 4 * floats <= (p.staged_nbytes if p.matrix_units else LOCAL_NBYTES)
    return fit and pieces <= WARP and pieces == next_power(pieces)


def _fits_halves(ctx: LoweringContext, rows: int) -> bool:
    k, v, q = ctx.node.inputs[:3]
    if not ctx.profile.matrix_units or rows < HALVES_ROWS or k.dtype.is_quantized:
        return False
    widths = q.shape[2], v.shape[2]
    fit = all(n % HALVES_UNIT == 0 and n <= MAX_HALVES_WIDTH for n in widths)
    return fit and 0 not in k.shape and has_pieces(k) and has_pieces(v)


def _lower_halves(ctx: LoweringContext, rows: int) -> Arg:
    """Add the call of ``attention_halves``; return where it says what has to be done again."""
    k, v, q = ctx.node.inputs[:3]
    tensors, has, share = attention_operands(ctx.node)
    blocks = -(-rows // HALVES_ROWS)
    assert ctx.scratch(4 * blocks * k.shape[1]) == 0  # it is all the scratch memory of the node
    args = (*(arg for w in (*tensors, window(ctx.node.output)) for arg in w.args), SCRATCH)
    numbers = (i32(has), f32(ctx.number("scale")), f32(ctx.number("soft_cap")), i32(share))
    define = {
        "lanes": HALVES_LANES, "BC": HALVES_KEYS, "WIDTH": q.shape[2], "ACROSS": v.shape[2],
        "BF16_PAIRS": 1, **weight_define(k.dtype),
    }  # fmt: skip
    grid = (blocks, k.shape[1], 1)
    ctx.call("attention_halves", "attention_halves", (*args, *numbers), grid, **define)
    return SCRATCH


def attention_operands(node: BoundNode) -> tuple[tuple[Window, ...], int, int]:
    """Return k, v, q, mask, sinks, bounds, which of the last there are, and query heads of a key.

    The queries take the place of what is not there.
    """
    k, v, q, *rest = node.inputs
    mask = sinks = bounds = window(q)
    has = 0
    if node.params["mask"]:
        mask = window(rest.pop(0), (q.shape[1], q.shape[0], k.shape[0]))
        has |= 1
    if node.params["sinks"]:
        sinks = window(rest.pop(0))
        has |= 2
    if node.params["bounds"]:
        bounds = _pairs(node)
        has |= 4
    return (window(k), window(v), window(q), mask, sinks, bounds), has, q.shape[1] // k.shape[1]


def join_shares(ctx: LoweringContext, splits: int) -> None:
    """Add the call that joins what shares of the rows have."""
    node = ctx.node
    k, v, q = node.inputs[:3]
    (*_, sinks, _), has, share = attention_operands(node)
    args = (SCRATCH, *sinks.args, *window(node.output).args, i32(has), i32(splits))
    cut = block_of(q.shape[0] * share, max(q.shape[2], v.shape[2]), ctx)
    grid = (q.shape[0] * q.shape[1], 1, 1)
    ctx.call("attention_blocks", "attention_join", args, grid, **cut, **weight_define(k.dtype))
    ctx.launched(Launch.IN_TURN)


def _pairs(node: BoundNode) -> Window:
    """Return the bounds as they lie; the second of a pair has a place even where T is 1."""
    bounds = node.inputs[-1]
    (tokens, two), (step, between) = bounds.shape, bounds.strides
    return window_of(bounds, (1, 1, tokens, two), (0, 0, step, between))


def splits_of(groups: int, rows: int) -> int:
    """Return into how many shares the rows of keys are cut."""
    return max(1, min(GROUPS // max(1, groups), rows // SPLIT_ROWS))


def block_of(rows: int, width: int, ctx: LoweringContext) -> dict[str, int]:
    """Return the definitions that cut the kernel: few kinds, for each of them is a program.

    Args:
        rows: Rows of queries for a head of keys.
        width: The longer of two widths of heads.
        ctx: The node.

    Raises:
        UsageError: heads so wide that not even a small block fits local memory.
    """
    p = ctx.profile
    is_single = p.lanes == 1
    unit = VECTORS * p.vector
    padded = -(-width // WIDTHS) * WIDTHS if width > unit else unit
    pitch = padded + p.vector
    limit = CACHED_NBYTES if is_single else LOCAL_NBYTES
    for most, bc in CPU_BLOCKS if is_single else GPU_BLOCKS:
        few = 1 if rows == 1 and is_single else FEW_ROWS
        br = few if rows <= few else most
        if 4 * (pitch * (2 * br + bc) + br * (bc + p.vector + 5)) <= limit:
            own = {"MR": min(4, br), "NR": 3 if is_single else 2, "VE": VECTORS}
            own["TURNED"] = int(is_single and br >= TURNED_ROWS)
            return {"BR": br, "BC": bc, "PITCH": pitch, **own}
    raise UsageError(
        f"heads of {width} elements",
        where=ctx.node.label,
        why=f"a block of them does not fit {limit} bytes of local memory",
        hint="run the node on another device",
    )
