"""Products of more rows than decoding has, a few rows at a time, where that reads least.

A thread block of ``tile_product`` goes along the whole sum, so weights of few rows leave most
multiprocessors idle; unpacking a weight writes and reads two or four bytes for each element. The
kernels for few rows read it packed, once for each ``few_rows`` rows of x. On an H200 8 rows of a
q8_0 weight of 4096 x 4096 take 14 us, of 14336 x 4096 unpacked 270 us at up to 128 rows (H100).
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Final

from ggsched.backend.program import BoundNode, Operand
from ggsched_cuda_kernels.calls import CudaLoweringContext
from ggsched_cuda_kernels.tiles import planes_of
from ggsched_kernels import SCRATCH, lower_nodes
from ggsched_kernels.lower_warps import WARP_BLOCKS, lower_by_warps
from ggsched_kernels.lowering_context import LoweringContext

DTYPES: Final = frozenset(WARP_BLOCKS)

MAX_PIECES: Final = {1: 2, 2: 4}
"""By planes of the products that a weight is unpacked for: one of f16, or three of bf16."""


def fits_pieces(site: CudaLoweringContext) -> bool:
    """Whether rows of x are few enough, in one matrix, and kernels for few rows take them."""
    w, x = site.node.inputs
    few, rows = site.profile.few_rows, x.shape[-2]
    if 0 in (*w.shape, *x.shape) or prod(w.shape[:-2]) != 1 or prod(x.shape[:-2]) != 1:
        return False
    if not few < rows <= MAX_PIECES[planes_of(site)] * few:
        return False
    return all(lower_by_warps(LoweringContext(p, site.profile)) for p in _pieces(site.node, few))


def lower_pieces(site: CudaLoweringContext) -> None:
    """One product for each piece."""
    for piece in _pieces(site.node, site.profile.few_rows):
        made = lower_nodes([piece], site.profile, site.retained)
        site.calls.extend(made.calls)
        site.scratch_nbytes = max(site.scratch_nbytes, made.memory.get(SCRATCH, 0))


def _pieces(node: BoundNode, few: int) -> Iterator[BoundNode]:
    """Yield products of rows that follow each other, about equally many each."""
    w, x = node.inputs
    rows = x.shape[-2]
    count = -(-rows // few)
    ends = [rows * i // count for i in range(count + 1)]
    for first, end in pairwise(ends):
        output = _rows(node.output, first, end)
        yield replace(node, inputs=(w, _rows(x, first, end)), output=output)


def _rows(operand: Operand, first: int, end: int) -> Operand:
    """Return rows of a matrix of floats."""
    shape = (*operand.shape[:-2], end - first, operand.shape[-1])
    row, column = operand.strides[-2:]
    size = operand.dtype.block_nbytes
    nbytes = (end - first - 1) * row + (operand.shape[-1] - 1) * column + size
    return replace(operand, offset=operand.offset + first * row, nbytes=nbytes, shape=shape)


__all__ = ["DTYPES", "MAX_PIECES", "fits_pieces", "lower_pieces"]
