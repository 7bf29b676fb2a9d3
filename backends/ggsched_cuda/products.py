"""Lowering of matrix products of many rows to cuBLAS.

cuBLAS wants both factors of one type and multiplies f32 by f32, bf16 by bf16. The contract wants
results that are good to 1e-4 (LCH-3), so x, which is f32, is not simply rounded to the type of w:

- f32 weights: one product in f32, without TF32;
- bf16 weights: x is written as a sum of two bf16, which keeps 16 bits of it, and each is multiplied
  on the matrix units; this is the split of Henry, Tang and Heinecke, "Leveraging the bfloat16
  artificial intelligence datatype for higher-precision computations" (2019);
- all others: w is unpacked to f32, a piece at a time.
"""

from itertools import pairwise
from typing import Final

from ggsched.backend.program import Operand
from ggsched_cuda.blas import driver as blas
from ggsched_cuda.calls import CudaLoweringContext, Place, ProductCall
from ggsched_cuda.programs import OWN
from ggsched_kernels import SCRATCH
from ggsched_kernels.calls import Window, i32, i64, window

PIECE_NBYTES: Final = 128 << 20
"""Of a weight that is unpacked at a time."""

UNPACKED_FROM_ROWS: Final = 32
"""Unpacking moves each weight five times over; with fewer rows the tiled kernel is quicker."""


def fits_plain(site: CudaLoweringContext) -> bool:
    """Whether a product is one of f32, batched in any way."""
    return _has_rows(site, site.profile.few_rows + 1) and site.node.inputs[0].dtype.name == "f32"


def fits_split(site: CudaLoweringContext) -> bool:
    """Whether a product has one weight of bf16."""
    w = site.node.inputs[0]
    return _has_rows(site, site.profile.few_rows + 1) and w.dtype.name == "bf16" and _is_single(w)


def fits_unpacked(site: CudaLoweringContext) -> bool:
    """Whether a product has one weight of another type, and rows enough to unpack it."""
    return _has_rows(site, UNPACKED_FROM_ROWS) and _is_single(site.node.inputs[0])


def lower_plain(site: CudaLoweringContext) -> None:
    """One product, or a few of many batches."""
    w, x = site.node.inputs
    _multiply(site, window(w), site.contiguous(x), blas.F32, 0)


def lower_split(site: CudaLoweringContext) -> None:
    """Two products of bf16, the second added to the first."""
    w, x = site.node.inputs
    a = site.contiguous(x)
    m, k = a.rows, a.shape[-1]
    high = site.scratch(4 * m * k)
    parts = max(1, min(64, k // 1024))
    # x is contiguous in its rows, and these follow each other evenly (see fits).
    args = (a.buffer, i64(a.offset), i64(_step(a, 4)), SCRATCH, i64(high), i32(k), i64(m * k))
    site.call(OWN, "split_bf16", args, (m, parts, 1), lanes=256)
    step = 2 * k
    for half in (0, 1):
        x2 = Window(SCRATCH, high + half * 2 * m * k, (1, 1, m, k), (0, 0, step, 2))
        _multiply(site, window(w), x2, blas.BF16, half)


def lower_unpacked(site: CudaLoweringContext) -> None:
    """Unpack a piece of the weight, multiply, and go on."""
    w, x = site.node.inputs
    a = site.contiguous(x)
    n, k = w.shape[-2:]
    at_once = max(1, min(n, PIECE_NBYTES // (4 * k)))
    at = site.scratch(4 * at_once * k)
    whole = window(w)
    for first in range(0, n, at_once):
        rows = min(at_once, n - first)
        shape = (1, 1, rows, k)
        piece = Window(whole.buffer, whole.offset + first * whole.strides[2], shape, whole.strides)
        plain = Window(SCRATCH, at, shape, (0, 0, 4 * k, 4))
        site.copy(piece, plain, w.dtype, "copy_f32")
        _multiply(site, plain, a, blas.F32, 0, column=first)


def _multiply(
    site: CudaLoweringContext, w: Window, x: Window, kind: int, adds: int, *, column: int = 0
) -> None:
    """Add products for all batches; ``column`` is where in a row of y the results begin."""
    y = window(site.node.output)
    size = 4 if kind == blas.F32 else 2
    n, k = w.shape[2:]
    if _is_one(w):
        m = y.rows
        places = ((w.buffer, w.offset), (x.buffer, x.offset), (y.buffer, y.offset + 4 * column))
        rows = (_row(w, k, size), max(k, _step(x, size) // size), _step(y, 4) // 4)
        _add(site, (m, n, k), places, kind, rows, (1, 0, 0, 0), bool(adds))
        return
    m = y.shape[2]
    rows = (_row(w, k, size), _row(x, k, size), _row(y, n, 4))
    r0, r1 = x.shape[0] // w.shape[0], x.shape[1] // w.shape[1]
    batches = (w.shape[1], w.strides[1] // size, r1 * x.strides[1] // size, r1 * y.strides[1] // 4)
    for outer in range(x.shape[0]):
        for inner in range(r1):
            places = (
                (w.buffer, w.offset + outer // r0 * w.strides[0]),
                (x.buffer, x.offset + outer * x.strides[0] + inner * x.strides[1]),
                (y.buffer, y.offset + outer * y.strides[0] + inner * y.strides[1]),
            )
            _add(site, (m, n, k), places, kind, rows, batches, bool(adds))


def _add(
    site: CudaLoweringContext,
    size: tuple[int, int, int],
    places: tuple[Place, Place, Place],
    kind: int,
    rows: tuple[int, int, int],
    batches: tuple[int, int, int, int],
    adds: bool,
) -> None:
    w, x, y = places
    site.product(ProductCall(size, w, x, y, kind, rows, batches, adds, site.node.label))


# --- what fits ----------------------------------------------------------------------------------


def _has_rows(site: CudaLoweringContext, least: int) -> bool:
    """Whether a product has enough rows, and strides that cuBLAS knows."""
    w, x = site.node.inputs
    y = site.node.output
    if 0 in (*w.shape, *x.shape, *y.shape):
        return False
    m = window(y).rows if _is_single(w) else window(y).shape[2]
    if m < least or max(m, *w.shape[-2:]) >= 1 << 31:
        return False
    return _has_plain_rows(w) and _has_plain_rows(y) and _has_plain_inputs(site, w, x, y)


def _has_plain_inputs(site: CudaLoweringContext, w: Operand, x: Operand, y: Operand) -> bool:
    """Whether x (as it is after it was made contiguous) and y can be walked through.

    With one weight for all of them the rows of all batches have to follow each other evenly.
    """
    is_copied = x.shape[-1] > 1 and x.strides[-1] != x.dtype.block_nbytes
    if not is_copied and not _has_plain_rows(x):
        return False
    if not _is_single(w):
        return True
    return (is_copied or _is_even(window(x))) and _is_even(window(y))


def _has_plain_rows(operand: Operand) -> bool:
    """Whether elements of rows lie side by side, and rows do not overlap."""
    dtype, shape, strides = operand.dtype, operand.shape, operand.strides
    if shape[-1] > 1 and strides[-1] != dtype.block_nbytes:
        return False
    if len(shape) < 2 or shape[-2] == 1:
        return True
    return strides[-2] >= dtype.row_nbytes(shape[-1]) and strides[-2] % dtype.block_nbytes == 0


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
    "fits_split",
    "fits_unpacked",
    "lower_plain",
    "lower_split",
    "lower_unpacked",
]
