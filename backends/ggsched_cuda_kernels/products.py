"""Lowering of matrix products of many rows to cuBLAS.

cuBLAS wants both factors of one type. Where ``TuningProfile.activations`` is ``auto``, rows of x
are rounded to that of the weight, as LCH-3 allows (``ggsched.backend.precision``), by one product:

- bf16 weights, as they lie: rows of x as bf16;
- f16 weights, as they lie, and block types, unpacked to f16: rows of x as f16. Rows of either
  factor that f16 cannot hold are multiplied by powers of two, which ``unscale`` undoes in y.

With ``f32`` results are good to 1e-4 for all types; one factor rounded to bf16 alone costs 1.7e-3
of the norm of a result. So factors are split: a number is written as a sum of two bf16, which keeps
16 bits of it (Henry, Tang and Heinecke, "Leveraging the bfloat16 artificial intelligence datatype
for higher-precision computations", 2019). The products of the parts run on the tensor cores and are
added in f32:

- f32 weights: one product in f32, whose factors are rounded if ``TuningProfile.precision`` says so;
- bf16 and mxfp4 weights, whose elements bf16 has: two products, with x split (2.5e-6 of the norm);
- f16, q8_0 and q4_0 weights: three products, with both split, without that of the two rests (4e-6).

Packed weights are unpacked a piece at a time. Rows of x are split once for all products of a
program that follow with the same x.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Final

from ggsched.backend.program import Operand
from ggsched.ir.dtype import F32, MXFP4, DType
from ggsched_cuda_kernels.blas import driver as blas
from ggsched_cuda_kernels.calls import CudaLoweringContext, Place, ProductCall
from ggsched_cuda_kernels.tiles import convert_rows
from ggsched_kernels import FACTOR, SCRATCH
from ggsched_kernels.block_bytes import alignment_of
from ggsched_kernels.block_constants import KERNEL_BLOCKS
from ggsched_kernels.calls import Arg, ArgPlaceholder, Window, i32, i64, window
from ggsched_kernels.lowering_context import weight_define

PIECE_NBYTES: Final = 128 << 20
"""Most scratch memory for a weight that is unpacked a piece at a time."""

PIECE_ROWS: Final = 128
"""Pieces are whole numbers of these, the extent of tiles of large products."""

PLANES: Final = {
    "f16": 2,
    **{dtype.name: 1 if dtype is MXFP4 else 2 for dtype in KERNEL_BLOCKS},
}
"""How many bf16 make up an element of a packed type."""

ROUNDED_ROWS: Final = {"bf16": 2, "f16": 5}
"""Rows from which on one product of 16 bits is quicker than the kernels for few rows, where that is
sooner. The products of a layer of 8B in bf16 take 157, 179 and 284 us with 2, 4 and 8 rows by
these, and 141 us by cuBLAS with 2 to 8 (H200, ``python -m benchmarks.gpu rows``), where rows in
bf16 cost nothing (``halves``)."""

SPLIT_LANES: Final = 256
ROWS_AT_ONCE: Final = SPLIT_LANES // 32
"""Rows of a weight that a group of ``to_f16`` unpacks."""
UNSCALED_ROWS: Final = 32
SPLIT_UNIT: Final = 8
"""Elements that a lane converts; rows are a multiple of these apart."""


def fits_plain(ctx: CudaLoweringContext) -> bool:
    """Whether a product is one of f32, batched in any way."""
    return _has_rows(ctx, ctx.profile.few_rows + 1) and ctx.node.inputs[0].dtype.name == "f32"


def fits_split(ctx: CudaLoweringContext) -> bool:
    """Whether a product has one weight of bf16."""
    w = ctx.node.inputs[0]
    return _has_rows(ctx, ctx.profile.few_rows + 1) and w.dtype.name == "bf16" and _is_single(w)


def fits_unpacked(ctx: CudaLoweringContext) -> bool:
    """Whether a product has one weight of another type, and more rows than decoding has.

    Without tensor cores 16 rows of a q8_0 weight took 1,289 us, unpacked 263 us at 32 (H100).
    """
    return _has_rows(ctx, ctx.profile.few_rows + 1) and _is_single(ctx.node.inputs[0])


def fits_rounded(ctx: CudaLoweringContext) -> bool:
    """Whether a product has one weight of 16 bits or packed, and x may be rounded like it."""
    w = ctx.node.inputs[0]
    least = ctx.profile.few_rows + 1
    least = min(least, ROUNDED_ROWS.get(w.dtype.name, least))
    if ctx.profile.activations != "auto" or not _is_single(w):
        return False
    if not _has_rows(ctx, least, converts=True):
        return False
    places = (w.offset, *w.strides[-2:-1])
    return all(place % alignment_of(w.dtype) == 0 for place in places)


def lower_plain(ctx: CudaLoweringContext) -> None:
    """One product, or a few of many batches."""
    w, x = ctx.node.inputs
    # Rows of batches that one weight meets are one matrix, which a copy makes of any others.
    a = ctx.contiguous(x, copies=_is_single(w) and not _is_even(window(x)))
    _multiply(ctx, window(w), a, blas.F32, 0)


def lower_rounded(ctx: CudaLoweringContext) -> None:
    """One product for each piece of a weight, with rows of x in 16 bits."""
    w, x = ctx.node.inputs
    name, m, k = w.dtype.name, prod(x.shape[:-1]), x.shape[-1]
    layout = convert_rows(ctx)
    rows, scales = Window(FACTOR, 0, (1, 1, m, k), (0, 0, layout.pitch, 2)), layout.scales
    if not w.dtype.is_quantized:
        _multiply(ctx, window(w), rows, blas.BF16 if name == "bf16" else blas.F16, 0)
        if name != "bf16":
            _unscale(ctx, scales, None)
        return
    n, whole = w.shape[-2], window(w)
    at_once = _piece_rows(n, 2 * _pitch(k))
    at, undo = ctx.scratch(2 * at_once * _pitch(k)), ctx.scratch(4 * n)
    for first in range(0, n, at_once):
        count = min(at_once, n - first)
        source = (whole.buffer, i64(whole.offset + first * whole.strides[2]), i64(whole.strides[2]))
        args = (*source, SCRATCH, i64(at), i64(undo + 4 * first), i32(k), i32(count))
        defines = weight_define(w.dtype)
        groups = (-(-count // ROWS_AT_ONCE), 1, 1)
        ctx.call("to_f16", "to_f16", args, groups, lanes=SPLIT_LANES, **defines)
        _multiply(ctx, _plane(SCRATCH, at, count, k), rows, blas.F16, 0, column=first)
    _unscale(ctx, scales, undo)


def lower_rounded_together(contexts: Sequence[CudaLoweringContext]) -> None:
    """One call for several weights of bf16 of one shape."""
    lower_rounded(contexts[0])
    product = contexts[0].calls[-1]
    assert isinstance(product, ProductCall)
    others = [(window(ctx.node.inputs[0]), window(ctx.node.output)) for ctx in contexts[1:]]
    more = tuple(((w.buffer, w.offset), (y.buffer, y.offset)) for w, y in others)
    contexts[0].calls[-1] = replace(product, more=more)


def _unscale(ctx: CudaLoweringContext, rows_at: int, columns_at: int | None) -> None:
    """Add the call that undoes the scales of rows of x and, if they have any, of w."""
    y, has_columns = window(ctx.node.output), columns_at is not None
    columns = (SCRATCH, i64(columns_at or 0)) if has_columns else (FACTOR, i64(0))
    groups = (-(-y.shape[3] // SPLIT_LANES), -(-y.rows // UNSCALED_ROWS), 1)
    defines = {"ROWS": UNSCALED_ROWS, "HAS_COLUMNS": int(has_columns)}
    args = (*y.args, FACTOR, i64(rows_at), *columns)
    ctx.call("unscale", "unscale", args, groups, lanes=SPLIT_LANES, **defines)


def lower_split(ctx: CudaLoweringContext) -> None:
    """Products of a weight of bf16 with both parts of x."""
    high, low = _split_rows(ctx)
    w = window(ctx.node.inputs[0])
    _multiply(ctx, w, high, blas.BF16, 0)
    _multiply(ctx, w, low, blas.BF16, 1)


def lower_unpacked(ctx: CudaLoweringContext) -> None:
    """Unpack a piece of the weight, multiply its parts with those of x, and go on."""
    w = ctx.node.inputs[0]
    high, low = _split_rows(ctx)
    n, k = w.shape[-2:]
    planes, pitch = PLANES[w.dtype.name], _pitch(k)
    at_once = _piece_rows(n, 2 * planes * pitch)
    plane = at_once * pitch
    at = ctx.scratch(2 * planes * plane)
    whole = window(w)
    for first in range(0, n, at_once):
        rows = min(at_once, n - first)
        source = (whole.buffer, i64(whole.offset + first * whole.strides[2]), i64(whole.strides[2]))
        _to_bf16(ctx, source, (SCRATCH, at), (rows, k, plane), w.dtype, planes)
        parts = [_plane(SCRATCH, at + 2 * i * plane, rows, k) for i in range(planes)]
        _multiply(ctx, parts[0], high, blas.BF16, 0, column=first)
        _multiply(ctx, parts[0], low, blas.BF16, 1, column=first)
        for rest in parts[1:]:
            _multiply(ctx, rest, high, blas.BF16, 1, column=first)


def _piece_rows(n: int, row_nbytes: int) -> int:
    """Return how many rows of a weight are unpacked at once, so that pieces are about equal."""
    most = max(1, PIECE_NBYTES // row_nbytes)
    each = -(-n // -(-n // most))
    even = -(-each // PIECE_ROWS) * PIECE_ROWS
    return min(n, even if even <= most else each)


def _split_rows(ctx: CudaLoweringContext) -> tuple[Window, Window]:
    """Return the rows of x as two windows of bf16 whose sum they are."""
    x = ctx.node.inputs[1]
    m, k = prod(x.shape[:-1]), x.shape[-1]
    plane = m * _pitch(k)
    if ctx.retained.prepare(FACTOR, x, "bf16", 4 * plane):
        a = ctx.contiguous(x)
        # Its rows follow each other evenly (see fits).
        source = (a.buffer, i64(a.offset), i64(_step(a, 4)))
        _to_bf16(ctx, source, (FACTOR, 0), (m, k, plane), F32, 2)
    return _plane(FACTOR, 0, m, k), _plane(FACTOR, 2 * plane, m, k)


def _to_bf16(
    ctx: CudaLoweringContext,
    source: tuple[Arg, Arg, Arg],
    to: tuple[ArgPlaceholder, int],
    size: tuple[int, int, int],
    dtype: DType,
    planes: int,
) -> None:
    """Add the call that writes rows as bf16; ``size`` is rows, columns, and length of a plane."""
    rows, k, plane = size
    args = (*source, to[0], i64(to[1]), i32(rows), i32(k), i32(_pitch(k)), i64(plane))
    groups = -(-rows * (_pitch(k) // SPLIT_UNIT) // SPLIT_LANES)
    defines = {"PLANES": planes, **weight_define(dtype)}
    ctx.call("to_bf16", "to_bf16", args, (groups, 1, 1), lanes=SPLIT_LANES, **defines)


def _pitch(k: int) -> int:
    return -(-k // SPLIT_UNIT) * SPLIT_UNIT


def _plane(memory: ArgPlaceholder, offset: int, rows: int, k: int) -> Window:
    return Window(memory, offset, (1, 1, rows, k), (0, 0, 2 * _pitch(k), 2))


def _multiply(
    ctx: CudaLoweringContext, w: Window, x: Window, kind: int, adds: int, *, column: int = 0
) -> None:
    """Add products for all batches; ``column`` is where in a row of y the results begin."""
    y = window(ctx.node.output)
    size = 4 if kind == blas.F32 else 2
    n, k = w.shape[2:]
    has_columns = w.shape[3] > 1 and w.strides[3] != size
    if has_columns:
        w = Window(w.buffer, w.offset, w.shape, (*w.strides[:2], w.strides[3], size))
    if _is_one(w):
        m = y.rows
        places = ((w.buffer, w.offset), (x.buffer, x.offset), (y.buffer, y.offset + 4 * column))
        step = w.strides[2] // size if has_columns else _row(w, k, size)
        rows = (step, max(k, _step(x, size) // size), _step(y, 4) // 4)
        _add(ctx, (m, n, k), places, kind, rows, (1, 0, 0, 0), (bool(adds), has_columns))
        return
    m = y.shape[2]
    step = w.strides[2] // size if has_columns else _row(w, k, size)
    rows = (step, _row(x, k, size), _row(y, n, 4))
    w, x, y = _one_batch_axis(w, x, y)
    r0, r1 = x.shape[0] // w.shape[0], x.shape[1] // w.shape[1]
    batches = (w.shape[1], w.strides[1] // size, r1 * x.strides[1] // size, r1 * y.strides[1] // 4)
    for outer in range(x.shape[0]):
        for inner in range(r1):
            places = (
                (w.buffer, w.offset + outer // r0 * w.strides[0]),
                (x.buffer, x.offset + outer * x.strides[0] + inner * x.strides[1]),
                (y.buffer, y.offset + outer * y.strides[0] + inner * y.strides[1]),
            )
            _add(ctx, (m, n, k), places, kind, rows, batches, (bool(adds), has_columns))


def _one_batch_axis(*operands: Window) -> list[Window]:
    """Return w, x and y with both axes of batches as one where that can be, else as they are."""
    w, x, y = operands
    evenly = all(o.strides[0] == o.shape[1] * o.strides[1] for o in operands)
    if w.shape[:2] != x.shape[:2] or not evenly:
        return [w, x, y]
    return [
        Window(o.buffer, o.offset, (1, o.shape[0] * o.shape[1], *o.shape[2:]), (0, *o.strides[1:]))
        for o in operands
    ]


def _add(
    ctx: CudaLoweringContext,
    size: tuple[int, int, int],
    places: tuple[Place, Place, Place],
    kind: int,
    rows: tuple[int, int, int],
    batches: tuple[int, int, int, int],
    how: tuple[bool, bool],
) -> None:
    w, x, y = places
    adds, has_columns = how
    call = ProductCall(size, w, x, y, kind, rows, batches, adds, ctx.node.label, has_columns)
    ctx.product(replace(call, precision=ctx.profile.precision if kind == blas.F32 else "f32"))


# --- what fits ----------------------------------------------------------------------------------


def _has_rows(ctx: CudaLoweringContext, least: int, *, converts: bool = False) -> bool:
    """Whether a product has enough rows, and strides that cuBLAS knows.

    Args:
        converts: Whether x is converted first, so that its rows lie anywhere.
    """
    w, x = ctx.node.inputs
    y = ctx.node.output
    if 0 in (*w.shape, *x.shape, *y.shape):
        return False
    m = window(y).rows if _is_single(w) else window(y).shape[2]
    if m < least or max(m, *w.shape[-2:]) >= 1 << 31:
        return False
    has_columns = w.dtype.name == "f32" and _has_plain_columns(w)
    if not (has_columns or _has_plain_rows(w)):
        return False
    if converts:
        return _has_plain_rows(y) and _is_even(window(y))
    return _has_plain_rows(y) and _has_plain_inputs(ctx, w, x, y)


def _has_plain_inputs(ctx: CudaLoweringContext, w: Operand, x: Operand, y: Operand) -> bool:
    """Whether x (as it is after it was made contiguous) and y can be walked through.

    With one weight for all of them the rows of all batches have to follow each other evenly; those
    that a weight of f32 meets are copied where they do not.
    """
    is_copied = x.shape[-1] > 1 and x.strides[-1] != x.dtype.block_nbytes
    if _is_single(w):
        is_copied = is_copied or (w.dtype.name == "f32" and not _is_even(window(x)))
        return (is_copied or (_has_plain_rows(x) and _is_even(window(x)))) and _is_even(window(y))
    return is_copied or _has_plain_rows(x)


def _has_plain_rows(operand: Operand) -> bool:
    """Whether elements of rows lie side by side, and rows do not overlap."""
    dtype, shape, strides = operand.dtype, operand.shape, operand.strides
    if shape[-1] > 1 and strides[-1] != dtype.block_nbytes:
        return False
    if len(shape) < 2 or shape[-2] == 1:
        return True
    return strides[-2] >= dtype.row_nbytes(shape[-1]) and strides[-2] % dtype.block_nbytes == 0


def _has_plain_columns(operand: Operand) -> bool:
    """Whether elements of columns lie side by side, as of cached values, and do not overlap."""
    size, (n, k), (row, step) = 4, operand.shape[-2:], operand.strides[-2:]
    return n > 1 and k > 1 and row == size and step >= n * size and step % size == 0


def _is_single(w: Operand) -> bool:
    return all(n == 1 for n in w.shape[:-2])


def _is_one(w: Window) -> bool:
    return w.shape[0] == w.shape[1] == 1


def _is_even(x: Window) -> bool:
    """Whether the rows of all batches are one walk with a constant step."""
    axes = [(n, s) for n, s in zip(x.shape[:3], x.strides[:3], strict=True) if n > 1]
    return all(outer == n * step for (_, outer), (n, step) in pairwise(axes))


def _step(x: Window, size: int) -> int:
    """Return the bytes from one row to the next over all batches."""
    axes = [s for n, s in zip(x.shape[:3], x.strides[:3], strict=True) if n > 1]
    return axes[-1] if axes else x.shape[-1] * size


def _row(x: Window, extent: int, size: int) -> int:
    """Return the elements from one row to the next within a batch."""
    return x.strides[2] // size if x.shape[2] > 1 else extent


__all__ = [
    "fits_plain",
    "fits_rounded",
    "fits_split",
    "fits_unpacked",
    "lower_plain",
    "lower_rounded",
    "lower_rounded_together",
    "lower_split",
    "lower_unpacked",
]
