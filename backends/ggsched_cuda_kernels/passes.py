"""Products of a few more rows than decoding has, by passes of ``matvec_blocks`` over the weight.

A weight that is unpacked for cuBLAS costs the same time for 9 rows as for 64: it is written and
read as numbers of 16 bits, once or three times. Passes read it packed, and their number grows with
the rows. Both are bound by the elements of the weight, so what is compared is time for an element.

Rates are those of an H100, over the products of a layer of 8B (``python -m benchmarks.gpu rows``,
2026-11-23): 109, 138 and 197 us for 218 million elements of q8_0 with 2, 4 and 8 rows, those of
``down`` in two passes of 4; 100 million elements that were unpacked at 16 rows took 480 us with two
planes and 290 us with one. With 8 rows q4_k, q5_k and q6_k took 250, 282 and 304 us, and unpacked
1,162, 1,218 and 1,103 us.
"""

from math import prod
from typing import Final

from ggsched_cuda_kernels.calls import CudaLoweringContext
from ggsched_cuda_kernels.products import PLANES
from ggsched_cuda_kernels.tiles import BY_BYTES
from ggsched_kernels.block_bytes import OWN_CODE
from ggsched_kernels.lower_warps import columns_at_once, lower_blocks

PASS_PS: Final = 0.38
"""Picoseconds of a pass for an element of a weight, whatever the rows of x."""
COLUMN_PS: Final = 0.05
"""The same for each row of x."""
BY_FIELDS: Final = 1.4
"""How much longer types take whose bytes are put together from fields."""
UNPACKED_PS: Final = {1: 2.4, 2: 4.8}
"""Picoseconds for an element of a weight that is unpacked, up to 64 rows, by the numbers of 16 bits
that it becomes."""
UNPACKED_BY_PARTS_PS: Final = {1: 3.6, 2: 5.3}
"""The same for types of several scales, whose elements ``to_f16`` looks at twice; for one number of
16 bits half as much again, which is predicted."""


def fits_passes(ctx: CudaLoweringContext) -> bool:
    """Whether passes over a packed weight are predicted to be quicker than to unpack it."""
    w, x = ctx.node.inputs
    y, rows = ctx.node.output, x.shape[-2]
    if not ctx.profile.num_sms or 0 in (*w.shape, *y.shape) or prod(w.shape[:-2]) != 1:
        return False
    if prod(x.shape[:-1]) != rows or not ctx.profile.few_rows < rows:
        return False
    columns = columns_at_once(ctx)
    return columns > 0 and passes_ps(ctx, columns) < unpacked_ps(ctx)


def passes_ps(ctx: CudaLoweringContext, columns: int) -> float:
    """Return the predicted picoseconds of all passes for an element of the weight."""
    w, x = ctx.node.inputs
    each = (PASS_PS + COLUMN_PS * columns) * (1.0 if w.dtype in OWN_CODE else BY_FIELDS)
    return -(-x.shape[-2] // columns) * each


def unpacked_ps(ctx: CudaLoweringContext) -> float:
    """Return the predicted picoseconds for an element of a weight that is unpacked."""
    name = ctx.node.inputs[0].dtype.name
    known = UNPACKED_BY_PARTS_PS if name in BY_BYTES else UNPACKED_PS
    return known[1 if ctx.profile.activations == "auto" else PLANES[name]]


def lower_passes(ctx: CudaLoweringContext) -> None:
    """Add the call."""
    lower_blocks(ctx)


__all__ = ["fits_passes", "lower_passes", "passes_ps", "unpacked_ps"]
