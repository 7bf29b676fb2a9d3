"""Gated products of some rows: each element is loaded and stored once, by fours."""

from dataclasses import replace
from math import prod
from typing import Final

from ggsched_cuda_kernels.calls import CudaLoweringContext, ProductCall
from ggsched_cuda_kernels.decode.fused import MAX_UNITS, lanes_of
from ggsched_cuda_kernels.halves import MIN_ROWS
from ggsched_cuda_kernels.operands import has_rows
from ggsched_cuda_kernels.products import fits_rounded, lower_rounded_together
from ggsched_kernels import KernelCall
from ggsched_kernels.calls import MAX_PARTS, window

LANES: Final = 256
UNITS: Final = 2
"""Vectors of four that a lane has under way of each operand."""


def fits_gated(ctx: CudaLoweringContext) -> bool:
    """Whether there are some rows of vectors of four, and none is broadcast."""
    (gate, up), y = ctx.node.inputs, ctx.node.output
    if gate.shape != up.shape or any(not has_rows(o) for o in (gate, up, y)):
        return False
    return MIN_ROWS <= window(y).rows <= MAX_PARTS


def lower_gated(ctx: CudaLoweringContext) -> None:
    """One kernel."""
    g, u = (window(operand) for operand in ctx.node.inputs)
    y = window(ctx.node.output)
    parts = -(-y.shape[3] // (4 * LANES * UNITS))
    args = (*g.args, *u.args, *y.args, y.buffer)
    ctx.call("gated_rows", "gated_rows", args, (parts, y.rows, 1), lanes=LANES, UNITS=UNITS)
    ctx.can_write_halves()


NARROW_ROWS: Final = 1024
"""Rows of a prompt from which on gate and up are written as bf16: then a product writes, and a
gated one reads, half as much."""


def fits_narrow(contexts: list[CudaLoweringContext]) -> bool:
    """Whether gate and up are products of many rows by cuBLAS, with weights of bf16 of one shape.

    Nobody but the gated product sees them, so they may be rounded as it is.
    """
    *products, gated = contexts
    first, second = (ctx.node for ctx in products)
    w, x = first.inputs
    if w.dtype.name != "bf16" or prod(x.shape[:-1]) < NARROW_ROWS:
        return False
    other, rows = second.inputs
    if not x.is_same_window(rows) or (w.shape, w.strides) != (other.shape, other.strides):
        return False
    outputs, given = (first.output, second.output), gated.node.inputs
    if outputs[0].strides != outputs[1].strides or given[0].is_same_window(given[1]):
        return False
    if not all(any(o.is_same_window(made) for made in outputs) for o in given):
        return False
    if lanes_of(w.shape[-2], prod(x.shape[:-1]))[1] > MAX_UNITS:
        return False
    return all(fits_rounded(ctx) for ctx in products) and fits_gated(gated)


def lower_narrow(contexts: list[CudaLoweringContext]) -> None:
    """Two products by one call, whose rows of bf16 lie in those of f32, and one kernel."""
    *products, gated = contexts
    lower_rounded_together(products)
    gated.scratch_nbytes = products[0].scratch_nbytes
    *before, call = products[0].calls
    assert isinstance(call, ProductCall)
    w, x, y = call.rows
    gated.calls.extend([*before, replace(call, is_narrow=True, rows=(w, x, 2 * y))])
    lower_gated(gated)
    n, rows = gated.node.output.shape[-1], prod(gated.node.output.shape[:-1])
    lanes, units = lanes_of(n, rows)
    kernel = gated.calls[-1]
    assert isinstance(kernel, KernelCall)
    defines = {**dict(kernel.defines), "LANES": str(lanes), "UNITS": str(units), "NARROW": "1"}
    whole = replace(kernel, groups=(1, rows, 1), lanes=lanes)
    gated.calls[-1] = replace(whole, defines=tuple(sorted(defines.items())))
