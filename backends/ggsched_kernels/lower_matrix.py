"""Lowering of matrix products: few rows are bound by reading the weight, many by arithmetic."""

from math import prod
from typing import Final

from ggsched.backend.program import Operand
from ggsched.ir.dtype import MXFP4, DType
from ggsched_kernels.calls import CODE, FACTOR, FAULT, ROUTE, Window, i32, i64, window
from ggsched_kernels.lower_warps import PIECE, ids_window, is_in_place, lower_by_warps
from ggsched_kernels.lowering_context import LoweringContext, experts_of, weight_define

ROWS_AT_ONCE = 4  # rows of the weight that a group of matvec.cl takes
VECTORS_AT_ONCE = 4  # vectors of a row that a lane of matvec_columns takes


def lower_mul_mat(ctx: LoweringContext) -> None:
    """``x @ w.T``, batched."""
    if lower_by_warps(ctx):
        return
    w, x = ctx.node.inputs
    p = ctx.profile
    a = ctx.contiguous(x)
    y = window(ctx.node.output)
    b = window(w)
    args = (*b.args, *a.args, *y.args)
    rows, columns = y.shape[2:]
    batches = y.shape[0] * y.shape[1]
    if rows <= p.few_rows and is_along_sum(w):
        groups = (-(-columns // ROWS_AT_ONCE), batches, 1)
        ctx.call("matvec", "matvec", args, groups, **_aligned(ctx, b, a, w.dtype))
        return
    if rows <= p.few_rows and w.strides[-2] == w.dtype.block_nbytes and not w.dtype.is_quantized:
        per_group = VECTORS_AT_ONCE * p.vector * p.lanes
        groups = (-(-columns // per_group), batches, 1)
        ctx.call("matvec", "matvec_columns", args, groups, **weight_define(w.dtype))
        return
    if _fits_halves(ctx) and prod(w.shape[:-2]) == 1:
        _lower_halves(ctx)
        return
    groups = (-(-columns // _tile_width(ctx)), -(-rows // p.tile_rows), batches)
    defines = {**_tile_defines(ctx), **_aligned(ctx, b, a, w.dtype)}
    ctx.call("matmul", "matmul", args, groups, **defines)


def lower_mul_mat_id(ctx: LoweringContext) -> None:
    """The same with a weight for each row; for many rows, those of one expert go together."""
    if lower_by_warps(ctx):
        return
    w, x, ids = ctx.node.inputs
    p = ctx.profile
    a = ctx.contiguous(x)
    y = window(ctx.node.output)
    experts, columns = w.shape[0], w.shape[1]
    pairs = ids.shape[0] * ids.shape[1]
    weight = _aligned(ctx, window(w), a, w.dtype)
    if pairs <= max(2 * p.few_rows, experts // 2) and is_along_sum(w):
        groups = (-(-columns // ROWS_AT_ONCE), pairs, 1)
        chosen = (*window(w).args, *a.args, *ids_window(ctx.node).args, *y.args, FAULT, CODE)
        ctx.call("matvec", "matvec_id", chosen, groups, **weight)
        return
    if _fits_halves(ctx):
        _lower_halves(ctx)
        return
    tiles = prepare_route(ctx)
    groups = (-(-columns // _tile_width(ctx)), tiles, 1)
    args = (*window(w).args, *a.args, *y.args, ROUTE)
    ctx.call("matmul", "matmul_id", args, groups, **_tile_defines(ctx), **weight)


def prepare_route(ctx: LoweringContext, rows: int = 0) -> int:
    """Let ROUTE hold the rows of each expert; return how many tiles.

    Args:
        rows: Of a tile; ``tile_rows`` of the profile if not given.
    """
    w, _, ids = ctx.node.inputs
    rows = rows or ctx.profile.tile_rows
    experts, pairs = w.shape[0], ids.shape[0] * ids.shape[1]
    tiles = experts + 1 + pairs // rows
    how = ("matmul", rows, experts_of(ctx.node))
    if ctx.retained.prepare(ROUTE, ids, how, 4 * (3 * tiles + pairs)):
        listing = (*ids_window(ctx.node).args, ROUTE, i32(experts), FAULT, CODE)
        defines = {**_tile_defines(ctx), **weight_define(w.dtype), "BM": rows}
        ctx.call("matmul", "list_rows", listing, (experts + 1, 1, 1), **defines)
    return tiles


# --- in 16 bits, on units that multiply matrices ------------------------------------------------

HALVES_LANES: Final = 256
STAGES: Final = 4
_TILE: Final = 32
_TILES: Final = ((4, 4), (4, 2), (2, 2))
"""Rows of x and of the weight of a group, in 32: the first that keeps ``MIN_SHARE`` busy."""

MIN_SHARE: Final = 0.75
"""Of the multiprocessors."""


def _fits_halves(ctx: LoweringContext) -> bool:
    p, (w, x) = ctx.profile, ctx.node.inputs[:2]
    if not p.matrix_units or p.activations != "auto" or w.dtype.name == "f32" or 0 in x.shape:
        return False
    return not w.dtype.is_quantized or is_in_place(w)


def _lower_halves(ctx: LoweringContext) -> None:
    """``matmul_halves``, behind rows of x in 16 bits, which later products of these use again."""
    w, x, *ids = ctx.node.inputs
    p, b, y = ctx.profile, window(w), window(ctx.node.output)
    rows, columns, is_packed = prod(x.shape[:-1]), w.shape[-2], w.dtype.is_quantized
    pieces = -(-x.shape[-1] // _TILE)
    pitch = pieces * _TILE * 2
    define = {"lanes": HALVES_LANES, "STAGES": STAGES, **weight_define(w.dtype)}
    factor = (FACTOR, i64(rows * pitch), i32(pitch))
    kind = "packed" if is_packed and w.dtype is not MXFP4 else w.dtype.name
    if ctx.retained.prepare(FACTOR, x, ("pieces", kind), rows * pieces * (_TILE * 2 + 12)):
        groups = (-(-rows * pieces * 4 // HALVES_LANES), 1, 1)
        source = (*ctx.contiguous(x).args, *factor)
        ctx.call("matmul_halves", "halve_rows", source, groups, MT=2, NT=2, **define)
    if not is_packed:
        define["W_ALIGNED"] = _aligned(ctx, b, b, w.dtype)["W_ALIGNED"]
    if ids:
        mt, nt = 2, 4
        tiles = prepare_route(ctx, _TILE * mt)
        groups = (-(-columns // (_TILE * nt)), tiles, 1)
        chosen = (*b.args, *factor, i32(x.shape[1]), *y.args, ROUTE)
        ctx.call("matmul_halves", "matmul_halves_id", chosen, groups, MT=mt, NT=nt, **define)
        return
    grids = [(-(-columns // (_TILE * n)), -(-rows // (_TILE * m))) for m, n in _TILES]
    busy = (i for i, grid in enumerate(grids) if prod(grid) >= MIN_SHARE * p.num_sms)
    at = next(busy, len(grids) - 1)
    (mt, nt), args, groups = _TILES[at], (*b.args, *factor, *y.args), (*grids[at], 1)
    ctx.call("matmul_halves", "matmul_halves", args, groups, MT=mt, NT=nt, **define)


def is_along_sum(w: Operand) -> bool:
    """Whether elements of a weight lie side by side along the axis that is summed."""
    return w.shape[-1] <= 1 or w.strides[-1] == w.dtype.block_nbytes


def _aligned(ctx: LoweringContext, w: Window, x: Window, dtype: DType) -> dict[str, str | int]:
    """Return what kernels know of a weight: its type, and on GPUs how rows are aligned.

    Rows of plain types and of x can be read 16 bytes at a time, blocks two bytes at a time.
    """
    define = weight_define(dtype)
    if ctx.profile.lanes == 1:
        return define
    size = dtype.block_nbytes
    is_even = dtype.is_quantized and all(n % 2 == 0 for n in (w.offset, size, *w.strides[:3]))
    in_rows = w.strides[3] in (0, size) and w.shape[3] * size % PIECE == 0
    is_plain = not dtype.is_quantized and in_rows and _begin_at_pieces(w)
    at_pieces = int(_begin_at_pieces(x))
    return {**define, "W_EVEN": int(is_even), "W_ALIGNED": int(is_plain), "X_ALIGNED": at_pieces}


def _begin_at_pieces(x: Window) -> bool:
    return all(place % PIECE == 0 for place in (x.offset, *x.strides[:3]))


def _tile_width(ctx: LoweringContext) -> int:
    return ctx.profile.tile_columns * ctx.profile.lane_columns


def _tile_defines(ctx: LoweringContext) -> dict[str, str | int]:
    p = ctx.profile
    return {
        "lanes": p.tile_lanes,
        "LX": p.tile_columns,
        "NR": p.lane_columns,
        "MR": p.lane_rows,
        "BM": p.tile_rows,
        "BK": p.tile_depth,
    }
