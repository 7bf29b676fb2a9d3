"""Lowering of matrix products of many rows to ``tile_product``: weights stay packed.

Rows of x are converted once for all products of a program that follow with the same x. Rows of
experts are listed on the device (``prepare_route``), and one launch computes those of all experts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final, TypeVar

from ggsched.backend.program import Operand
from ggsched.ir.dtype import DType
from ggsched_cuda_kernels.calls import GROUP_ALIGNMENT, CudaLoweringContext
from ggsched_cuda_kernels.decode.fused import MAX_UNITS, lanes_of
from ggsched_kernels import FACTOR, ROUTE, KernelCall
from ggsched_kernels.block_bytes import BYTE_BLOCKS, OWN_CODE, alignment_of
from ggsched_kernels.calls import Arg, Launch, Window, i32, i64, window
from ggsched_kernels.lower_matrix import prepare_route
from ggsched_kernels.lowering_context import weight_define

BLOCK: Final = 32
_BYTE_DTYPES: Final = tuple(dtype for dtype in BYTE_BLOCKS if dtype not in OWN_CODE)

BY_BYTES: Final = frozenset(dtype.name for dtype in _BYTE_DTYPES)
"""Types whose numbers become signed bytes first, see ``blocks.h``."""

DTYPES: Final = BY_BYTES | {"f16", "bf16", "q8_0", "q4_0", "mxfp4"}


@dataclass(frozen=True, slots=True)
class Cut:
    """How ``tile_product`` is cut.

    Attributes:
        blocks: Pieces of 32 elements that a stage holds of each row (KB); even, and of types with
            larger blocks a part of one.
        stages: Stages in shared memory, one of which is computed with.
        warps: Warps of a thread block.
        tiles: Tiles of 16 rows of the weight for each warp (WT).
        resident: Thread blocks of a multiprocessor that registers are left for.
        turns: Blocks of 32 elements whose products are under way together.
        rows: Rows of x that a thread block computes with (BM): 16, 32 or 64; by groups 64 or 128.
        splits: Thread blocks of a cluster, which share the sum.
        by_groups: Whether groups of four warps multiply (``group_mma.h``).
    """

    blocks: int
    stages: int
    warps: int = 4
    tiles: int = 2
    resident: int = 3
    turns: int = 1
    rows: int = 64
    splits: int = 1
    by_groups: bool = False

    @property
    def columns(self) -> int:
        """Rows of the weight that a thread block computes with."""
        return 16 * self.tiles * self.warps


C = TypeVar("C")


def _by_bytes(cut: C, long: C) -> dict[str, C]:
    """Return how types are cut that become bytes, of blocks of 32 elements and longer ones."""
    return {d.name: long if d.block > BLOCK else cut for d in _BYTE_DTYPES}


CUTS: Final = {
    "f16": Cut(2, 2),
    "bf16": Cut(2, 2),
    "q8_0": Cut(2, 2),
    "q4_0": Cut(4, 2),
    "mxfp4": Cut(4, 2),
    **_by_bytes(Cut(4, 2), long=Cut(2, 2)),
}
"""By type of the weight. More of a row at once reads fewer sectors twice."""


FEW: Final[Mapping[int, Mapping[str, tuple[Cut, Cut]]]] = {
    16: {
        "q8_0": (Cut(6, 2, 8, 1, 2), Cut(4, 2, 4, 1, 4)),
        "q4_0": (Cut(8, 3, 4, 2, 2), Cut(4, 3, 4, 1, 4)),
        "mxfp4": (Cut(8, 3, 4, 2, 2), Cut(4, 3, 4, 1, 4)),
        "bf16": (Cut(4, 3, 4, 1, 2), Cut(4, 3, 4, 1, 2)),
        **_by_bytes((Cut(8, 3, 4, 2, 2),) * 2, long=(Cut(4, 2, 8, 1, 2),) * 2),
        "q6_k": (Cut(4, 2, 4, 1, 4), Cut(4, 2, 4, 1, 4)),
    },
    32: {
        "q8_0": (Cut(6, 2, 8, 1, 2), Cut(4, 2, 4, 2, 2)),
        "q4_0": (Cut(4, 3, 8, 1, 2), Cut(4, 2, 4, 2, 2)),
        "mxfp4": (Cut(4, 3, 8, 1, 2), Cut(4, 2, 4, 2, 2)),
        "bf16": (Cut(4, 3, 4, 1, 2), Cut(4, 3, 4, 1, 2)),
        **_by_bytes((Cut(4, 3, 4, 1, 4),) * 2, long=(Cut(4, 2, 4, 1, 4),) * 2),
    },
    64: {
        "q8_0": (Cut(4, 2, 4, 2, 2), Cut(4, 2, 8, 1, 2)),
        "q4_0": (Cut(4, 2, 8, 1, 2), Cut(4, 2, 8, 1, 2)),
        "mxfp4": (Cut(4, 2, 8, 1, 2), Cut(4, 2, 8, 1, 2)),
        **_by_bytes((Cut(4, 2, 4, 1, 4),) * 2, long=(Cut(4, 2, 8, 1, 2),) * 2),
    },
}
"""For one weight and x in one plane, where there are clusters: by most rows and type of the weight,
for weights of many rows and of few.

Time is that of reading the weight, so stretches are long. Cuts are the best of 18 on an H200 for
the weights of an 8B (gate and up 28,672 rows, queries, keys and values 6,144; the two others 4,096,
which clusters share most): with 32 rows of x in q8_0 77, 23, 16 and 50 us, before 122, 32, 18, 57.
Those of types that become bytes are the best of two to eight (``benchmarks.gpu row_cuts`` of commit
f65e45f0).
"""

GROUP_DTYPES: Final = frozenset({"q8_0", "q4_0", "mxfp4"}) | {
    dtype.name for dtype in _BYTE_DTYPES if dtype.block > BLOCK
}
"""Types whose products of more rows are made by groups of four warps, on capability 9.0."""

GROUP_CUTS: Final = {
    64: Cut(2, 4, 8, 1, 2, rows=64, by_groups=True),
    128: Cut(4, 4, 8, 1, 1, rows=128, by_groups=True),
}
"""By the rows of x that a thread block computes with at most."""

GROUP_ROWS: Final = 33, 256
"""Rows of x from which on and up to which groups are quicker."""

MANY_ROWS: Final = 5120
"""Rows of a weight that are many."""

MAX_SPLITS: Final = 8
"""Thread blocks of a cluster; more are not portable."""

MIN_STEPS: Final = 2
"""Stretches that a thread block of a cluster has, at least."""

MAX_ROWS: Final[Mapping[int, Mapping[str, int]]] = {
    1: {**dict.fromkeys(BY_BYTES | {"q8_0", "q4_0", "mxfp4"}, 64), "q2_k": 32},
    2: {"f16": 128, "q8_0": 128, "q4_0": 128, "mxfp4": 128},
}
"""Rows of x up to which products with one weight are quicker this way, by planes and its type.

From curves of an H100 for 14336 x 4096, in microseconds at 16, 64, 128 and 256 rows: q8_0 with two
planes 99, 199, 232, 456, and unpacked 270, 273, 299 from 64 on; mxfp4 with one 51, 86, 110, 212.
f16 and q4_0 are set like these. Weights of 16 bits as they lie are as quick by cuBLAS. Types that
become bytes, products of a layer of 8B with 16, 32 and 64 rows, one plane, on an H200: q4_k 319,
363, 502 and before (passes, or unpacked) 374, 510, 515; q6_k 271, 287, 371 and 421, 470, 483; q5_1
171, 234, 365 and 316, 389, 393 (``benchmarks.gpu row_cuts`` of commit f65e45f0).
"""

TOGETHER_ROWS: Final[Mapping[str, int]] = {"bf16": 32}
"""Rows up to which weights of several shapes (queries, keys, values) are quicker by one call than
by one of cuBLAS for each. A step of the 8B with 16 and 32 sequences took 6.51 and 6.65 ms so, and
takes 6.11 and 6.45 (H200); of six cuts that of ``FEW`` was the quickest.
"""

MIN_SHARE: Final = 2 / 3
"""Thread blocks for each multiprocessor below which unpacking is quicker.

A thread block goes along the whole sum, so a weight of few rows takes as long as one of many. Half
of it for clusters.
"""

LANES: Final = 256
PIECE: Final = 16  # bytes of an asynchronous copy


def fits_experts(ctx: CudaLoweringContext) -> bool:
    """Whether a product with the weights of experts has rows enough, and strides that fit."""
    w, _, ids = ctx.node.inputs
    pairs = prod(ids.shape)
    if pairs <= max(2 * ctx.profile.few_rows, w.shape[0] // 2):
        return False
    return _fits(ctx, _routed_cut(ctx))


def fits_rows(ctx: CudaLoweringContext) -> bool:
    """Whether a product has one weight, and a number of rows for which it need not be unpacked."""
    w, x = ctx.node.inputs
    rows = prod(x.shape[:-1])
    most = MAX_ROWS[planes_of(ctx)].get(w.dtype.name, 0)
    if by_groups(ctx):
        return prod(w.shape[:-2]) == 1 and _fits(ctx, cut_of(ctx))
    if not ctx.profile.few_rows < rows <= most:
        return False
    cut = cut_of(ctx)
    share = MIN_SHARE if cut.splits == 1 else MIN_SHARE / 2
    if _blocks(ctx, cut) * cut.splits < share * ctx.profile.num_sms:
        return False
    return prod(w.shape[:-2]) == 1 and _fits(ctx, cut)


def by_groups(ctx: CudaLoweringContext) -> bool:
    """Whether groups of four warps multiply the rows of a product with one weight."""
    w, x = ctx.node.inputs
    least, most = GROUP_ROWS
    if not ctx.profile.group_mma or planes_of(ctx) > 1 or w.dtype.name not in GROUP_DTYPES:
        return False
    is_whole = not x.shape[-1] % (BLOCK * GROUP_CUTS[128].blocks)
    return is_whole and least <= prod(x.shape[:-1]) <= most


def fits_together(contexts: Sequence[CudaLoweringContext]) -> bool:
    """Whether products of the same rows with weights of several shapes are quicker by one call.

    By cuBLAS each shape is a call of its own.
    """
    ctx = contexts[0]
    if not _has_clusters(ctx) or len({each.node.inputs[0].shape for each in contexts}) == 1:
        return False
    rows = prod(ctx.node.inputs[1].shape[:-1])
    if not ctx.profile.few_rows < rows <= TOGETHER_ROWS.get(ctx.node.inputs[0].dtype.name, 0):
        return False
    cut = cut_of(*contexts)
    return all(_fits(each, cut) for each in contexts)


def cut_of(ctx: CudaLoweringContext, *others: CudaLoweringContext) -> Cut:
    """Return how a product with one weight is cut, or several of the same rows."""
    w, x = ctx.node.inputs
    rows = prod(x.shape[:-1])
    cut = replace(CUTS[w.dtype.name], rows=ctx.profile.tile_rows)
    if by_groups(ctx):
        return _split(GROUP_CUTS[64 if rows <= 64 else 128], ctx, *others)
    if not _has_clusters(ctx) or rows > max(FEW):
        return cut
    wide, narrow = next(cuts[w.dtype.name] for most, cuts in FEW.items() if rows <= most)
    columns = sum(each.node.inputs[0].shape[-2] for each in (ctx, *others))
    cut = wide if columns >= MANY_ROWS else narrow
    return _split(replace(cut, rows=next(n for n in (16, 32, 64) if rows <= n)), ctx, *others)


def _split(cut: Cut, ctx: CudaLoweringContext, *others: CudaLoweringContext) -> Cut:
    """Return a cut with as many thread blocks for each sum as the GPU has room for."""
    (w, x), profile = ctx.node.inputs, ctx.profile
    needed = shared_nbytes(w.dtype, cut, 1) + DECLARED_NBYTES
    resident = min(cut.resident, profile.local_nbytes // needed)
    blocks = sum(_blocks(each, cut) for each in (ctx, *others))
    room = resident * profile.num_sms // max(1, blocks)
    steps = -(-x.shape[-1] // max(BLOCK * cut.blocks * MIN_STEPS, w.dtype.block))
    most = min(MAX_SPLITS, room, steps)
    return replace(cut, splits=1 << max(1, most).bit_length() - 1)


def _has_clusters(ctx: CudaLoweringContext) -> bool:
    """Whether groups can share the sum of a product with one weight."""
    return ctx.profile.has_tma and planes_of(ctx) == 1


def _blocks(ctx: CudaLoweringContext, cut: Cut) -> int:
    """Return the thread blocks of a product, or its clusters."""
    w, x = ctx.node.inputs[:2]
    return -(-w.shape[-2] // cut.columns) * -(-prod(x.shape[:-1]) // cut.rows)


def planes_of(ctx: CudaLoweringContext) -> int:
    """Return how many numbers of 16 bits make up an element of x."""
    return 1 if ctx.profile.activations == "auto" else 2


def lower_rows(ctx: CudaLoweringContext) -> None:
    """Convert the rows of x, and multiply."""
    lower_rows_together([ctx])


def lower_rows_together(contexts: Sequence[CudaLoweringContext]) -> None:
    """Convert the rows of x, and multiply them with weights of one type by one call.

    Alone each product fills the GPU anew, and those of few columns hardly do.
    """
    cut = cut_of(*contexts)
    first, *more = [ctx.node for ctx in contexts]
    tiles = -(-prod(first.output.shape[:-1]) // cut.rows)
    others = [(window(node.inputs[0]), window(node.output)) for node in more]
    multiply(contexts[0], cut, tiles, is_routed=False, others=others)
    _launched(contexts)


def _launched(contexts: Sequence[CudaLoweringContext]) -> None:
    """Let the call begin while its predecessor runs, and request weights that nobody writes."""
    ctx = contexts[0]
    call = ctx.calls[-1]
    assert isinstance(call, KernelCall)
    if all(each.node.inputs[0].is_constant for each in contexts):
        defines = tuple(sorted((*call.defines, ("CONSTANT_W", "1"))))
        ctx.calls[-1] = replace(call, defines=defines)
    ctx.launched(Launch.WAITS_FIRST)


def lower_experts(ctx: CudaLoweringContext) -> None:
    """List the rows of each expert, convert those of x, and multiply."""
    multiply(ctx, _routed_cut(ctx), prepare_route(ctx), is_routed=True)


def _routed_cut(ctx: CudaLoweringContext) -> Cut:
    return replace(CUTS[ctx.node.inputs[0].dtype.name], rows=ctx.profile.tile_rows)


def shared_nbytes(dtype: DType, cut: Cut, planes: int) -> int:
    """Return the shared memory of a thread block, as ``tile_product.cu`` lays it out."""
    has_halves = dtype.name in ("q4_0", "mxfp4") or dtype.name in BY_BYTES
    x_pitch = 64 * cut.blocks + (0 if cut.by_groups else 32 if has_halves else 64)
    is_long = dtype.block > BLOCK
    if is_long:
        span = PIECE - alignment_of(dtype) + dtype.block_nbytes
        w_pitch = PIECE * (-(-span // PIECE) | 1)
    elif dtype.is_quantized:
        span = PIECE - 1 + cut.blocks * dtype.block_nbytes
        w_pitch = PIECE * (-(-span // PIECE) | 1)
    else:
        w_pitch = x_pitch
    of_x, of_w = planes * cut.rows * x_pitch, cut.columns * w_pitch
    stages = cut.stages * of_x + (2 if is_long else cut.stages) * of_w
    sums = cut.tiles * cut.rows // 8 * 32 * cut.warps * PIECE
    begins = GROUP_ALIGNMENT if cut.by_groups else PIECE
    return max(stages, sums if cut.splits > 1 else 0) + begins


def _fits(ctx: CudaLoweringContext, cut: Cut) -> bool:
    """Whether there are multiprocessors with tensor cores, and copies of 16 bytes can be made."""
    (w, x), y = ctx.node.inputs[:2], ctx.node.output
    if not ctx.profile.num_sms or 0 in (*w.shape, *x.shape, *y.shape):
        return False
    rows = prod(x.shape[:-1])
    if max(*w.shape, rows, prod(y.shape[:-1]), 2 * x.shape[-1]) >= 1 << 31:
        return False
    if w.strides[-1] != w.dtype.block_nbytes or (y.shape[-1] > 1 and y.strides[-1] != 4):
        return False
    steps = [s for n, s in zip(w.shape[:-1], w.strides[:-1], strict=True) if n > 1]
    if not w.dtype.is_quantized:
        if any(place % PIECE for place in (w.offset, *steps, 2 * w.shape[-1])):
            return False
    elif any(place % alignment_of(w.dtype) for place in (w.offset, *steps)):
        return False
    needed = shared_nbytes(w.dtype, cut, planes_of(ctx))
    return needed + DECLARED_NBYTES <= ctx.profile.local_nbytes


DECLARED_NBYTES: Final = 4 << 10  # shared memory that the kernel declares or the driver keeps


def multiply(
    ctx: CudaLoweringContext,
    cut: Cut,
    tiles: int,
    *,
    is_routed: bool,
    others: Sequence[tuple[Window, Window]] = (),
) -> None:
    """Add the call of ``tile_product`` for a number of tiles of rows and a weight.

    Args:
        ctx: The product.
        cut: How the kernel is cut.
        tiles: Of rows.
        is_routed: Whether there are weights of experts.
        others: Weights that the same rows are multiplied with besides, and the results.
    """
    (w, x), rows = ctx.node.inputs[:2], convert_rows(ctx)
    own = x.shape[1] if is_routed else 1
    halves = (FACTOR, i64(0), i64(rows.scales), i64(rows.plane), i32(rows.pitch), i32(own))
    y = window(ctx.node.output)
    route = ROUTE if is_routed else FACTOR
    weight = window(w)
    args: tuple[Arg, ...] = (*weight.args, *halves, *y.args, route)
    args += tuple(arg for other in others for place in other for arg in place.args)
    weights = (weight, *(other for other, _ in others))
    columns = sum(-(-weight.shape[-2] // cut.columns) for weight in weights)
    groups = (columns, tiles, 1) if cut.splits == 1 else (cut.splits, columns, tiles)
    defines = {
        "lanes": 32 * cut.warps,
        "cluster": cut.splits,
        "BM": cut.rows,
        "SPLITS": cut.splits,
        "TURNS": cut.turns,
        "KB": cut.blocks,
        "STAGES": cut.stages,
        "WT": cut.tiles,
        "GROUP_MMA": int(cut.by_groups),
        "RESIDENT": cut.resident,
        "PLANES": rows.planes,
        "ROUTED": int(is_routed),
        "LOCAL_NBYTES": shared_nbytes(w.dtype, cut, rows.planes),
    }
    if others:
        defines["WEIGHTS"] = 1 + len(others)
    ctx.call("tile_product", "tile_product", args, groups, **defines, **weight_define(w.dtype))
    ctx.launched(Launch.IN_TURN)


@dataclass(frozen=True, slots=True)
class RowsLayout:
    """How rows of x lie in FACTOR as numbers of 16 bits.

    Attributes:
        planes: Numbers for each element.
        pitch: Bytes from row to row.
        plane: Bytes from plane to plane.
        scales: Offset of the f32 of each row that undoes its scale.
    """

    planes: int
    pitch: int
    plane: int
    scales: int
    nbytes: int

    def how(self, *, is_bf16: bool) -> tuple[str, bool, int]:
        """Return what decides the content, for ``Retained``."""
        return "halves", is_bf16, self.planes


def rows_layout(x: Operand, planes: int) -> RowsLayout:
    """Return how the rows of an operand lie, in numbers of 16 bits for each element."""
    rows = prod(x.shape[:-1])
    pitch = -(-x.shape[-1] // BLOCK) * BLOCK * 2
    scales = planes * rows * pitch
    return RowsLayout(planes, pitch, rows * pitch, scales, scales + 4 * rows)


def convert_rows(ctx: CudaLoweringContext) -> RowsLayout:
    """Let FACTOR hold the rows of x; return how they lie."""
    w, x = ctx.node.inputs[:2]
    is_bf16, layout = w.dtype.name == "bf16", rows_layout(x, planes_of(ctx))
    if ctx.retained.prepare(FACTOR, x, layout.how(is_bf16=is_bf16), layout.nbytes):
        a = ctx.contiguous(x)
        args = (*a.args, FACTOR, i64(layout.scales), i64(layout.plane), i32(layout.pitch))
        rows = prod(x.shape[:-1])
        lanes, units = lanes_of(x.shape[-1], rows)
        if layout.planes > 1 or x.shape[-1] % BLOCK or units > MAX_UNITS or not _has_vectors(a):
            lanes, units = LANES, 0
        defines = {"PLANES": layout.planes, "HALF_BF16": int(is_bf16), "UNITS": units}
        ctx.call("to_halves", "to_halves", args, (rows, 1, 1), lanes=lanes, **defines)
    return layout


def _has_vectors(a: Window) -> bool:
    """Whether rows of floats begin at multiples of 16 bytes, and elements lie side by side."""
    steps = [s for n, s in zip(a.shape[:-1], a.strides[:-1], strict=True) if n > 1]
    return a.strides[-1] == 4 and all(place % PIECE == 0 for place in (a.offset, *steps))


__all__ = [
    "BY_BYTES",
    "CUTS",
    "DECLARED_NBYTES",
    "DTYPES",
    "FEW",
    "Cut",
    "RowsLayout",
    "convert_rows",
    "cut_of",
    "fits_experts",
    "fits_rows",
    "fits_together",
    "lower_experts",
    "lower_rows",
    "lower_rows_together",
    "multiply",
    "planes_of",
    "rows_layout",
    "shared_nbytes",
]
