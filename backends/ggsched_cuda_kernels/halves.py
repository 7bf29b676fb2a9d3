"""Rows in 16 bits that the kernel which makes them writes too, for the product that follows.

A product of many rows by cuBLAS wants rows of bf16 beside weights of bf16 (``products``). Norms,
gated products and attention have these rows in registers: they write them to FACTOR as they go,
where a kernel of its own would read all again. Weights of f16 and packed ones want rows of f16,
with a scale for each row, which only thread blocks with whole rows can compute: those of norms
have them, others are divided anew.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Final

from ggsched.backend.program import BoundNode, Operand
from ggsched.ir.tensor import contiguous_strides
from ggsched_cuda_kernels.calls import Call, CudaLoweringContext
from ggsched_cuda_kernels.decode.fused import MAX_LANES, MAX_UNITS, lanes_of
from ggsched_cuda_kernels.operands import is_same
from ggsched_cuda_kernels.passes import fits_passes
from ggsched_cuda_kernels.products import fits_rounded
from ggsched_cuda_kernels.tiles import BLOCK, fits_rows, rows_layout
from ggsched_cuda_kernels.tiles import DTYPES as TILED
from ggsched_kernels import FACTOR, KernelCall, TuningProfile
from ggsched_kernels.retained import Retained

WHOLE_ROWS: Final = frozenset({"rms_mul", "sum_norm"})
"""Kernels whose groups have whole rows anyway."""

NO_ROWS: Final = frozenset({"batch_attention", "chain_rows"})
"""Kernels whose groups have parts of rows."""

WARP: Final = 32

JOINED_PAIRS: Final = 1 << 13
"""Pairs of floats of shares that a group has registers for."""

MIN_ROWS: Final = 2
"""Rows from which on products of 16 bits are cuBLAS's (``products.ROUNDED_ROWS``)."""


def writing_halves(
    call: Call,
    made: Operand,
    following: Sequence[Sequence[BoundNode]],
    profile: TuningProfile,
    retained: Retained,
) -> Call:
    """Return a call that writes rows of 16 bits too, if the next product takes them; else the call.

    Args:
        call: The last call of the node that makes an operand.
        following: Groups of nodes behind it.
        profile: How kernels are cut.
        retained: What is prepared; the operand was written, and what was made of it is forgotten.
    """
    if not isinstance(call, KernelCall) or call.halves < 0 or not following:
        return call
    product = following[0][0]
    if product.op != "mul_mat":
        return call
    kind = product.inputs[0].dtype.name
    is_bf16 = kind == "bf16"
    x, rows = product.inputs[1], prod(product.inputs[1].shape[:-1])
    if not is_same(x, made) or not (_is_dense(x) and _is_dense(made)):
        return call
    if rows < MIN_ROWS or x.shape[-1] % BLOCK or profile.activations != "auto" or kind == "f32":
        return call
    ctx = CudaLoweringContext(product, profile)
    if not _takes_tiles(ctx) and (fits_passes(ctx) or not fits_rounded(ctx)):
        return call
    writer = call if is_bf16 else with_whole_rows(call, x.shape[-1], rows)
    if writer is None:
        return call
    layout = rows_layout(x, 1)
    assert retained.prepare(FACTOR, x, layout.how(is_bf16=is_bf16), layout.nbytes)
    args = list(writer.args)
    args[writer.halves] = FACTOR
    defines = tuple(sorted((*writer.defines, ("HALVES", "1" if is_bf16 else "2"))))
    return replace(writer, args=tuple(args), defines=defines)


def with_whole_rows(call: KernelCall, n: int, rows: int) -> KernelCall | None:
    """Return a call with a group for each row of n elements, or None if that cannot be."""
    if call.kernel in WHOLE_ROWS:
        return call
    if call.kernel in NO_ROWS:
        return None
    defines = dict(call.defines)
    if call.kernel == "gated_rows":
        lanes, units = lanes_of(n, rows)
        defines["UNITS"] = str(units)
        groups, fits = (1, rows, 1), units <= MAX_UNITS
    elif call.kernel != "flash_join":
        return None
    else:  # a warp has a head
        across = int(defines["ACROSS"])
        lanes = WARP * (n // across)
        at_once = JOINED_PAIRS // (lanes * -(-across // (2 * WARP)))
        defines["WARPS_OF_ROW"] = "1"
        defines["AT_ONCE"] = str(max(1, min(int(defines["AT_ONCE"]), at_once)))
        groups, fits = (rows, 1, 1), lanes <= MAX_LANES
    defines["LANES"] = str(lanes)
    if not fits:
        return None
    return replace(call, groups=groups, lanes=lanes, defines=tuple(sorted(defines.items())))


def _takes_tiles(ctx: CudaLoweringContext) -> bool:
    return ctx.node.inputs[0].dtype.name in TILED and fits_rows(ctx)


def _is_dense(o: Operand) -> bool:
    return all(
        n == 1 or a == b
        for n, a, b in zip(o.shape, o.strides, contiguous_strides(o.dtype, o.shape), strict=True)
    )


__all__ = ["MIN_ROWS", "with_whole_rows", "writing_halves"]
