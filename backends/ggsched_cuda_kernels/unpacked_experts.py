"""Products of many rows with the weights of experts of several scales, such as K-quants.

Their elements are too far from numbers of f16 to be unpacked on the way to the tensor cores, as
``tile_product`` does with types of one scale. So the weights of a few experts at a time are
unpacked to f16 in scratch memory (``to_f16``, which scales rows that f16 cannot hold), and
multiplied from there by the rows that chose them. All experts are unpacked, so there have to be
rows enough.
"""

from math import prod
from typing import Final

from ggsched.ir.dtype import F16
from ggsched_cuda_kernels.calls import CudaLoweringContext
from ggsched_cuda_kernels.products import PIECE_NBYTES, ROWS_AT_ONCE, SPLIT_LANES
from ggsched_cuda_kernels.tiles import (
    CUTS,
    DECLARED_NBYTES,
    Cut,
    Factor,
    multiply,
    planes_of,
    shared_nbytes,
)
from ggsched_kernels import SCRATCH
from ggsched_kernels.block_bytes import alignment_of
from ggsched_kernels.calls import Window, i32, i64, window
from ggsched_kernels.lower_matrix import prepare_route
from ggsched_kernels.lowering_context import weight_define

LEAST_ROWS: Final = 8
"""Rows for each expert, on average. One by one a row of qwen3 30B-A3B in q4_k took 0.6 us on an
H200 (2.6 ms for the 4,096 rows of a product); to unpack an expert is predicted to take 4.7, from
products of an 8B with 32 to 128 rows."""

UNIT: Final = 8
"""Elements that a lane unpacks, 16 bytes of f16."""


def fits_unpacked_experts(site: CudaLoweringContext) -> bool:
    """Whether activations may be rounded, rows are many, and those of the weight lie evenly."""
    (w, x, ids), y = site.node.inputs, site.node.output
    if planes_of(site) > 1 or not site.profile.num_sms or 0 in (*w.shape, *x.shape, *y.shape):
        return False
    if prod(ids.shape) < LEAST_ROWS * w.shape[0] or w.shape[-1] % UNIT:
        return False
    experts, n, k = w.shape
    if max(experts * n, k, 2 * k, prod(y.shape[:-1])) >= 1 << 31:
        return False
    if w.strides[-1] != w.dtype.block_nbytes or (y.shape[-1] > 1 and y.strides[-1] != 4):
        return False
    if experts > 1 and w.strides[0] != n * w.strides[1]:
        return False
    if any(place % alignment_of(w.dtype) for place in (w.offset, w.strides[1])):
        return False
    needed = shared_nbytes(F16, _cut(site), 1)
    return needed + DECLARED_NBYTES <= site.profile.local_nbytes


def lower_unpacked_experts(site: CudaLoweringContext) -> None:
    """List the rows of each expert, convert those of x; unpack some experts, multiply, go on."""
    w = site.node.inputs[0]
    experts, n, k = w.shape
    each, whole, tiles = 2 * n * k, window(w), prepare_route(site)
    at_once = max(1, min(experts, PIECE_NBYTES // each))
    at, undo = site.scratch(at_once * each), site.scratch(4 * at_once * n)
    for first in range(0, experts, at_once):
        last = min(experts, first + at_once)
        source = (whole.buffer, i64(whole.offset + first * n * w.strides[1]), i64(w.strides[1]))
        rows = (last - first) * n
        args = (*source, SCRATCH, i64(at), i64(undo), i32(k), i32(rows))
        defines = weight_define(w.dtype)
        groups = (-(-rows // ROWS_AT_ONCE), 1, 1)
        site.call("to_f16", "to_f16", args, groups, lanes=SPLIT_LANES, **defines)
        # Where expert 0 would be; rows whose id is out of range belong to one past the last expert.
        shape, strides = (1, experts, n, k), (experts * each, each, 2 * k, 2)
        weight = Window(SCRATCH, at - first * each, shape, strides)
        end = last + (last == experts)
        unpacked = (SCRATCH, i64(undo - 4 * first * n), i32(first), i32(end))
        multiply(site, _cut(site), tiles, Factor(weight, F16, unpacked), is_routed=True)


def _cut(site: CudaLoweringContext) -> Cut:
    return Cut(CUTS["f16"].blocks, CUTS["f16"].stages, rows=site.profile.tile_rows)
