"""Matrix-vector products on devices with warps: which kernel, and how it is cut.

``WAYS`` is the table: the first way that fits a node is taken, and where none does the kernels
that every device has. How a kernel is cut follows measurements on an H200
(``docs/measurements``); the reasons stand beside the numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ggsched.backend.program import BoundNode, Operand
from ggsched.ir.dtype import Q4_0, Q8_0, DType
from ggsched_kernels.block_bytes import BYTE_BLOCKS, alignment_of, sums_of_piece
from ggsched_kernels.calls import (
    CODE,
    FAULT,
    MAX_PARTS,
    SCRATCH,
    Arg,
    Launch,
    Window,
    f32,
    i32,
    i64,
    window,
    window_of,
)
from ggsched_kernels.lowering_context import LoweringContext, experts_of, weight_define

WARP: Final = 32
PIECE: Final = 16  # bytes of a vector load
MAX_COLUMNS: Final = 8  # rows of x that a kernel multiplies with what it has read once
TILE: Final = 16  # rows of w that a group of matvec_blocks takes at once
DIGIT_NBYTES: Final = 100  # of a piece of x as digits, with its unit
BLOCK: Final = 32  # elements of a piece
CHUNK: Final = 8  # elements of a piece that a lane of matvec_rows takes
LOCAL_UNIT: Final = 8 << 10  # sizes of local memory are programs of their own, so there are few
DECLARED_NBYTES: Final = 3 << 10  # that kernels declare or the driver keeps for each group
FREE_NBYTES: Final = 48 << 10  # local memory that a group has without a request
PLAIN: Final = frozenset({"f32", "f16", "bf16"})
WARP_BLOCKS: Final = tuple(dtype.name for dtype in BYTE_BLOCKS)
BLOCKS: Final = frozenset(WARP_BLOCKS)
ALL_OPS: Final = frozenset({"mul_mat", "mul_mat_id"})


@dataclass(frozen=True, slots=True)
class Way:
    """A kernel for matrix-vector products.

    Attributes:
        kernel: Its name, without the ending for chosen experts.
        ops: Ops that it serves.
        dtypes: Types of the weight.
        fits: Whether shapes, strides and local memory allow it.
        lower: Adds the calls.
    """

    kernel: str
    ops: frozenset[str]
    dtypes: frozenset[str]
    fits: Callable[[LoweringContext], bool]
    lower: Callable[[LoweringContext], None]


def lower_by_warps(ctx: LoweringContext) -> bool:
    """Lower a matrix product by the first way of the table that fits; False if none does."""
    w, x = ctx.node.inputs[:2]
    if not ctx.profile.num_sms or 0 in (*w.shape, *x.shape):
        return False
    for way in WAYS:
        if ctx.node.op in way.ops and w.dtype.name in way.dtypes and way.fits(ctx):
            way.lower(ctx)
            return True
    return False


def ids_window(node: BoundNode) -> Window:
    """Return the ids of a product with experts; the first two extents are ``experts_of``."""
    first, of, _ = experts_of(node)
    ids = node.inputs[2]
    (t, u), (st, su) = ids.shape, ids.strides
    return window_of(ids, (first, of, t, u), (0, 0, st, su))


# --- what fits --------------------------------------------------------------------------------


def _is_few(ctx: LoweringContext) -> bool:
    """Whether there are few enough rows of x for each weight."""
    p, node = ctx.profile, ctx.node
    y = window(node.output)
    if node.op == "mul_mat_id":
        experts, pairs = node.inputs[0].shape[0], y.shape[1] * y.shape[2]
        return pairs <= max(2 * p.few_rows, experts // 2)
    return y.shape[2] <= p.few_rows and y.shape[0] * y.shape[1] <= MAX_PARTS


def has_pieces(operand: Operand) -> bool:
    """Whether rows lie along the last axis without gaps and begin at multiples of 16 bytes."""
    if operand.shape[-1] > 1 and operand.strides[-1] != operand.dtype.block_nbytes:
        return False
    outer = zip(operand.shape[:-1], operand.strides[:-1], strict=True)
    steps = [step for n, step in outer if n > 1]
    return all(place % PIECE == 0 for place in (operand.offset, *steps))


def _fits_rows(ctx: LoweringContext) -> bool:
    return _is_few(ctx) and fits_in_place(*ctx.node.inputs[:2])


def _fits_sums(ctx: LoweringContext) -> bool:
    w = ctx.node.inputs[0]
    size = w.dtype.block_nbytes
    if not _is_few(ctx) or w.strides[-2] != size or w.shape[-2] * size % PIECE:
        return False
    steps = [s for n, s in zip(w.shape, w.strides, strict=True) if n > 1 and s != size]
    return w.shape[-1] > 1 and all(place % PIECE == 0 for place in (w.offset, *steps))


def _fits_blocks(ctx: LoweringContext) -> bool:
    return _is_few(ctx) and columns_at_once(ctx) > 0


def columns_at_once(ctx: LoweringContext) -> int:
    """Return how many rows of x ``matvec_blocks`` multiplies with what it has read; 0: none."""
    w, x = ctx.node.inputs[:2]
    if w.dtype.name not in BLOCKS:
        return 0
    side_by_side = w.shape[-1] == w.dtype.block or w.strides[-1] == w.dtype.block_nbytes
    apart = w.shape[-2] == 1 or w.strides[-2] >= w.dtype.row_nbytes(w.shape[-1])
    steps = [s for n, s in zip(w.shape[:-1], w.strides[:-1], strict=True) if n > 1]
    in_place = all(place % alignment_of(w.dtype) == 0 for place in (w.offset, *steps))
    if not (side_by_side and apart and in_place and has_pieces(x)):
        return 0
    cut = _cut_blocks(ctx)
    return 0 if cut is None else cut.defines["COLS"]


# --- weights that are read in place ---------------------------------------------------------------


def fits_in_place(w: Operand, x: Operand) -> bool:
    """Whether ``matvec_rows`` can read a weight and rows of x as they lie."""
    if not w.dtype.is_quantized:
        whole = w.shape[-1] * w.dtype.block_nbytes % PIECE == 0
        return w.dtype.name in PLAIN and whole and has_pieces(w) and has_pieces(x)
    return has_pieces(x) and is_in_place(w)


def is_in_place(w: Operand) -> bool:
    """Whether blocks of a weight are bytes that can be read as they lie."""
    if w.dtype.name not in BLOCKS:
        return False
    if w.shape[-1] > w.dtype.block and w.strides[-1] != w.dtype.block_nbytes:
        return False
    unit = max(alignment_of(w.dtype), 2 - w.dtype.block_nbytes % 2)  # scales are f16 or bytes
    steps = [s for n, s in zip(w.shape[:-1], w.strides[:-1], strict=True) if n > 1]
    return all(place % unit == 0 for place in (w.offset, *steps))


def _lower_rows(ctx: LoweringContext) -> None:
    w, x, *_ = ctx.node.inputs
    chosen = ctx.node if ctx.node.op == "mul_mat_id" else None
    lower_rows(ctx, [(w, ctx.node.output)], x, chosen)


def lower_rows(
    ctx: LoweringContext,
    parts: Sequence[tuple[Operand, Operand]],
    x: Operand,
    chosen: BoundNode | None = None,
    *,
    added: Sequence[Operand] = (),
    is_gated: bool = False,
    normed: tuple[Operand, Operand, float] | None = None,
) -> None:
    """Add the call of ``matvec_rows``.

    Args:
        ctx: Where to.
        parts: Weights, and what their products with ``x`` become; at most three.
        x: Rows.
        chosen: A product whose ids choose experts, if there are any.
        added: What is added to each product, if anything; all with the same strides.
        is_gated: Whether two weights of one shape make one result, that of ``swiglu``.
        normed: What the norms of the rows are multiplied with, where that goes, and epsilon, if
            products are to be those of norms.
    """
    w, y = parts[0][0], window(parts[0][1])
    products = y.shape[0] * y.shape[1] * y.shape[2]
    is_single = chosen is None and len(parts) == 1 and not added and normed is None
    joined = _joined(w, x) if is_single else 1
    vectors = 1 if chosen is not None else (joined if joined > 1 else y.shape[2])
    rows = [v.shape[-2] for v, _ in parts]
    cut = _cut_rows(ctx, w, sum(rows), vectors)
    if is_gated:
        rows, cut["ROWS"] = rows[:1], max(1, cut["ROWS"] // 2)
    if vectors == 1 and joined == 1:
        cut = _cut_staged(ctx, w, rows, products, is_gated) or cut
        cut = _cut_streamed(ctx, w, is_gated) or cut
    slots = cut["lanes"] // cut["SPAN"] // cut["SPLIT"]
    across = sum(-(-n // (slots * cut["ROWS"])) for n in rows)
    if "STREAMED" in cut:
        across = min(-(-sum(rows) // slots), max(1, ctx.profile.num_sms // products))
    defines = {**cut, **weight_define(w.dtype)}
    if len(parts) > 1:
        defines |= {"WEIGHTS": len(parts), "GATED": int(is_gated)}
    more = [window(place) for part in parts[1:] for place in part]
    if added:
        defines["ADDED"] = 1
        more += [window(z, y.shape) for z, (_, y) in zip(added, parts, strict=True)]
    if normed is not None:
        defines["NORMED"] = 1
        more += [window(normed[0]), window(normed[1])]
    tail = tuple(arg for place in more for arg in place.args)
    tail += (f32(normed[2]),) if normed is not None else ()
    if chosen is not None:
        groups = (across, y.shape[1] * y.shape[2], 1)
        tensors = (*window(w).args, *window(x).args, *ids_window(chosen).args, *y.args)
        ctx.call("matvec_rows", "matvec_rows_id", (*tensors, FAULT, CODE, *tail), groups, **defines)
        return
    groups = (across, -(-vectors // cut["COLS"]), y.shape[0] * y.shape[1] // joined)
    args = (*window(w).args, *window(x).args, *y.args, i32(joined), *tail)
    ctx.call("matvec_rows", "matvec_rows", args, groups, **defines)


def _joined(w: Operand, x: Operand) -> int:
    """Return how many batches of x with one row each share a weight: query heads and their keys."""
    a, b = window(w), window(x)
    return b.shape[1] // a.shape[1] if b.shape[2] == 1 and b.shape[0] == a.shape[0] else 1


def _cut_rows(ctx: LoweringContext, w: Operand, n: int, vectors: int) -> dict[str, int]:
    """Cut ``matvec_rows`` for ``n`` rows of weights like ``w``.

    A lane has 8 loads under way if it can; fewer rows than would fill the device are shared by more
    warps. With more rows of x, more rows of w at once let each element of x serve them.
    """
    each = CHUNK if w.dtype.is_quantized else PIECE // w.dtype.block_nbytes
    chunks = w.shape[-1] // each
    span = min(WARP, next_power(chunks))
    columns = min(MAX_COLUMNS, next_power(vectors))
    warps = n * span / WARP / ctx.profile.num_sms  # for each multiprocessor, with a row for each
    split = 1 if warps >= 64 else 2 if warps >= 24 else 4
    split = max(1, min(split, chunks // span))
    rows, deep = (4, 2) if split == 1 else (2, 2)
    if columns in (2, 4):
        rows = 8 if split == 1 else 4
    elif columns > 4:
        rows, deep = 4, 1
    if w.dtype.name == "f32" and columns == 1:
        rows, deep = 2, 4
    deep = max(1, min(deep, -(-chunks // (span * split))))
    return {
        "lanes": ctx.profile.lanes, "SPAN": span, "SPLIT": split, "ROWS": rows, "VECTORS": deep,
        "COLS": columns,
    }  # fmt: skip


AT_ONCE: Final = 2  # rows of a step
XS_UNIT: Final = 2048
"""Rows of x have room for a multiple of so many floats, so that there are few programs."""

STAGES: Final = (4, 3, 2)
"""Steps of a row for which there is room, as many as fit."""

LONG_STEP: Final = 1 << 10
"""Bytes of a step of a row of which a stage less is enough."""

MAX_STAGED_ROWS: Final = 128
"""Rows of a warp, at most; those of both weights of a gated product."""

STREAMED_LOADS: Final = 8
"""Pieces of 16 bytes that a lane loads before it uses those loaded before."""

_DIGITS_NBYTES: Final = 112  # of a piece of x


def _cut_streamed(ctx: LoweringContext, w: Operand, is_gated: bool) -> dict[str, int] | None:
    """Cut ``matvec_rows`` for one row of x and a weight of a plain type.

    None if x is too long, and where values of other lanes come by barriers: each row takes several.
    """
    p = ctx.profile
    floats = -(-w.shape[-1] // XS_UNIT) * XS_UNIT
    if not (p.joins and p.matrix_units) or w.dtype.is_quantized or 4 * floats > p.staged_nbytes:
        return None
    deep = STREAMED_LOADS // 2 if is_gated else STREAMED_LOADS
    return {
        "lanes": max(p.lanes, p.merged_lanes), "SPAN": WARP, "SPLIT": 1, "ROWS": 1, "COLS": 1,
        "VECTORS": deep, "STREAMED": 1, "XS": floats,
    }  # fmt: skip


def _cut_staged(
    ctx: LoweringContext, w: Operand, counts: Sequence[int], products: int, is_gated: bool
) -> dict[str, int] | None:
    """Cut ``matvec_rows`` for results of so many rows that are copied to local memory first.

    Each multiprocessor has one group, whose warps have as many rows as need be. Warps share rows
    where that leaves fewer steps to each. None where x may not be rounded at all, or is too long.
    """
    p = ctx.profile
    if not (p.matrix_units and p.activations == "auto" and w.dtype.is_quantized):
        return None
    step, warps = w.dtype.row_nbytes(WARP * BLOCK) + 2 * PIECE, max(p.lanes, p.merged_lanes) // WARP
    pieces = -(-w.shape[-1] // (64 * BLOCK)) * 64
    room = (p.staged_nbytes - _DIGITS_NBYTES * pieces) // (warps * AT_ONCE * step)
    stages = next((n for n in STAGES[step > LONG_STEP :] if n <= room), 0)
    if not stages:
        return None
    in_row = -(-w.shape[-1] // (WARP * BLOCK))
    groups = max(1, p.num_sms // products)

    def rows_of(split: int) -> int:
        slots, weights = warps // split, 2 if is_gated else 1
        rows = -(-sum(counts) * weights // (groups * slots * AT_ONCE)) * AT_ONCE
        while sum(-(-n * weights // (slots * rows)) for n in counts) > max(groups, len(counts)):
            rows += AT_ONCE
        return rows

    splits = [s for s in (1, 2, 4, 8, 16) if s <= min(warps, next_power(in_row))]
    splits = [s for s in splits if rows_of(s) <= MAX_STAGED_ROWS] or [1]
    split = min(splits, key=lambda s: rows_of(s) * -(-in_row // s))
    return {
        "lanes": max(p.lanes, p.merged_lanes), "SPAN": WARP, "SPLIT": split, "COLS": 1,
        "VECTORS": 1,
        "ROWS": min(MAX_STAGED_ROWS, rows_of(split)) // (2 if is_gated else 1),
        "STAGED": 1, "STAGES": stages, "AT_ONCE": AT_ONCE, "PIECES": pieces,
    }  # fmt: skip


# --- weights whose rows lie side by side ----------------------------------------------------------


def _lower_sums(ctx: LoweringContext) -> None:
    """Weighted sums, in parts if a single sum for each batch would leave multiprocessors idle."""
    w, x = ctx.node.inputs
    a = ctx.contiguous(x)
    b, y = window(w), window(ctx.node.output)
    joined = _joined(w, x)
    vectors = joined if joined > 1 else y.shape[2]
    columns = min(4, next_power(vectors))  # sums of a piece for each are kept in registers
    items = PIECE // w.dtype.block_nbytes
    n, nk = w.shape[-2:]
    lanes, span = 128, min(WARP, next_power(-(-n // items)))
    across, tiles = -(-n // (span * items)), -(-vectors // columns)
    batches = y.shape[0] * y.shape[1] // joined
    idle = 4 * ctx.profile.num_sms // max(1, across * tiles * batches)
    parts = max(1, min(idle, nk // (4 * lanes // span)))
    area = i64(ctx.scratch(4 * parts * tiles * batches * columns * n) if parts > 1 else 0)
    memory = SCRATCH if parts > 1 else y.buffer
    counts = (i32(joined), i32(tiles), i32(parts), i32(batches))
    args = (*b.args, *a.args, *y.args, *counts, memory, area)
    defines = {"lanes": lanes, "SPAN": span, "DEPTH": 4, "COLS": columns, **weight_define(w.dtype)}
    ctx.call("matvec_sums", "matvec_sums", args, (across, parts, tiles * batches), **defines)
    if parts > 1:
        groups = (-(-n // lanes), 1, tiles * batches)
        ctx.call("matvec_sums", "matvec_parts", args, groups, **defines)


# --- weights in blocks --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Cut:
    """How ``matvec_blocks`` is cut: its definitions, and groups along the rows of w."""

    defines: dict[str, int]
    groups: int


def lower_blocks(ctx: LoweringContext, *others: LoweringContext) -> None:
    """Add the call of ``matvec_blocks``; it passes over the weight as often as rows of x need.

    Args:
        ctx: The product.
        others: Products of the same rows, which the call computes besides; their weights are of the
            same type and as well aligned. Only where a warp copies.
    """
    w, x = ctx.node.inputs[:2]
    cut = _cut_blocks(ctx, *others)
    assert cut is not None  # it fits
    y = window(ctx.node.output)
    defines = {**cut.defines, **weight_define(w.dtype)}
    groups = i32(cut.groups)
    if ctx.node.op == "mul_mat_id":
        args = (*_chosen_args(ctx)[:-2], groups, FAULT, CODE)
        grid = (cut.groups, y.shape[1] * y.shape[2], 1)
        ctx.call("matvec_blocks", "matvec_blocks_id", args, grid, **defines)
        ctx.launched(Launch.IN_TURN)
        return
    args = (*window(w).args, *window(x).args, *y.args, groups)
    if others:
        places = [p for o in others for p in (o.node.inputs[0], o.node.output)]
        args += tuple(arg for place in places for arg in window(place).args)
        defines["WEIGHTS"] = 1 + len(others)
    grid = (cut.groups, -(-y.shape[2] // cut.defines["COLS"]), y.shape[0] * y.shape[1])
    weights = [each.node.inputs[0] for each in (ctx, *others)]
    is_constant = ctx.profile.has_tma and all(each.is_constant for each in weights)
    defines["CONSTANT_W"] = int(is_constant)
    ctx.call("matvec_blocks", "matvec_blocks", args, grid, **defines)
    if is_constant:
        ctx.launched(Launch.WAITS_FIRST)


def can_join_blocks(ctx: LoweringContext, other: LoweringContext) -> bool:
    """Whether a call of ``matvec_blocks`` can multiply its rows with another weight besides."""
    a, b = ctx.node.inputs[0], other.node.inputs[0]
    return ctx.profile.has_tma and a.dtype is b.dtype and _is_aligned(a) == _is_aligned(b)


def _cut_blocks(ctx: LoweringContext, *others: LoweringContext) -> _Cut | None:
    """Cut ``matvec_blocks``; None if the digits of x do not fit local memory.

    Two groups stay resident on each multiprocessor if they fit, one with twice the warps where
    digits take longer: for long rows, several columns, and types whose bytes leave less time.
    With fewer columns the rows of w are read again for the others, by groups that run beside the
    first ones, so that they find them in the cache.
    """
    p, chosen = ctx.profile, ctx.node.op == "mul_mat_id"
    w, y = ctx.node.inputs[0], window(ctx.node.output)
    rows, blocks = w.shape[-2], w.shape[-1] // BLOCK
    vectors, batches = (
        (1, y.shape[1] * y.shape[2]) if chosen else (y.shape[2], y.shape[0] * y.shape[1])
    )
    columns = min(MAX_COLUMNS, next_power(vectors))
    while columns:
        is_single = columns > 1 or blocks > LONG_BLOCKS or w.dtype not in QUICK
        for resident, warps, each, stages in _SHAPES[is_single]:
            if not _has_whole_steps(w.dtype, warps * each):
                continue
            local = _local_nbytes(ctx, warps, each, stages, columns, blocks)
            if (local + DECLARED_NBYTES) * resident <= p.local_nbytes:
                break
        else:
            columns //= 2
            continue
        tiles = -(-rows // TILE) + sum(-(-o.node.inputs[0].shape[-2] // TILE) for o in others)
        beside = batches * -(-vectors // columns)
        groups = min(tiles, max(1, p.num_sms * resident // max(1, beside)))
        defines = {
            "lanes": warps * WARP, "helpers": WARP * p.has_tma, "PRODUCER": int(p.has_tma),
            "BLOCKS": each, "STAGES": stages, "COLS": columns, "ALIGNED": int(_is_aligned(w)),
            "LOCAL_NBYTES": local,
        }  # fmt: skip
        return _Cut(defines, groups)
    return None


LONG_BLOCKS: Final = 256  # of a row
QUICK: Final = frozenset({Q8_0, Q4_0})  # types whose bytes take few instructions

# By whether one group is to be alone: groups on a multiprocessor, warps of each, blocks of a warp
# in a step, stages; the best first.
_SHAPES: Final = {
    False: ((2, 8, 8, 2), (1, 16, 4, 4), (1, 16, 4, 2), (1, 8, 4, 2), (1, 4, 4, 2)),
    True: ((1, 16, 4, 4), (1, 16, 4, 3), (1, 16, 4, 2), (1, 8, 4, 2), (1, 4, 4, 2)),
}


def _local_nbytes(
    ctx: LoweringContext, warps: int, each: int, stages: int, columns: int, blocks: int
) -> int:
    """Return the local memory of a group, as ``product`` of the kernel cuts it."""
    w = ctx.node.inputs[0]
    pieces = w.dtype.row_nbytes(warps * each * BLOCK) // PIECE + (not _is_aligned(w))
    stage = TILE * (pieces | 1) * PIECE
    results = 2 * warps * TILE * columns * 3 * 4
    nbytes = results + stages * stage
    nbytes += blocks * columns * (DIGIT_NBYTES + 4 * sums_of_piece(w.dtype))
    nbytes = -(-nbytes // LOCAL_UNIT) * LOCAL_UNIT
    # More than 48 KiB has to be requested; what a kernel declares counts too, if not here.
    return nbytes + LOCAL_UNIT if nbytes == FREE_NBYTES else nbytes


def _has_whole_steps(dtype: DType, blocks: int) -> bool:
    """Whether a step of all warps is whole blocks of the type, and whole pieces to copy."""
    return blocks * BLOCK % dtype.block == 0 and dtype.row_nbytes(blocks * BLOCK) % PIECE == 0


def _is_aligned(w: Operand) -> bool:
    steps = [s for n, s in zip(w.shape[:-1], w.strides[:-1], strict=True) if n > 1]
    return all(place % PIECE == 0 for place in (w.offset, *steps, w.dtype.row_nbytes(w.shape[-1])))


# --- the table ----------------------------------------------------------------------------------

_MUL_MAT: Final = frozenset({"mul_mat"})

WAYS: Final[tuple[Way, ...]] = (
    Way("matvec_rows", ALL_OPS, PLAIN, _fits_rows, _lower_rows),
    Way("matvec_sums", _MUL_MAT, PLAIN, _fits_sums, _lower_sums),
    Way("matvec_blocks", ALL_OPS, BLOCKS, _fits_blocks, lower_blocks),
    Way("matvec_rows", ALL_OPS, BLOCKS, _fits_rows, _lower_rows),
)


def _chosen_args(ctx: LoweringContext) -> tuple[Arg, ...]:
    w, x, _ = ctx.node.inputs
    tensors = (*window(w).args, *window(x).args, *ids_window(ctx.node).args)
    return (*tensors, *window(ctx.node.output).args, FAULT, CODE)


def next_power(n: int) -> int:
    """Return the smallest power of two that is not smaller."""
    return 1 << (max(1, n) - 1).bit_length()


__all__ = [
    "PIECE",
    "WARP",
    "WAYS",
    "Way",
    "can_join_blocks",
    "columns_at_once",
    "fits_in_place",
    "has_pieces",
    "ids_window",
    "is_in_place",
    "lower_blocks",
    "lower_by_warps",
    "lower_rows",
    "next_power",
]
