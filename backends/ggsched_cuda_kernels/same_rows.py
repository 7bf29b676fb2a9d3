"""Products of the same rows with several weights, as one call: queries, keys, values; gate and up.

Each product of a few rows takes its launch, its conversion of the rows and its first loads, some
8 us of the 10 to 35 that it has; and one of few columns hardly fills the GPU (H200, 8B): keys and
values of 512 tokens are 32 tiles each.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from math import prod
from typing import Final

from ggsched.backend.program import BoundNode
from ggsched_cuda_kernels.calls import CudaLoweringContext
from ggsched_cuda_kernels.products import fits_rounded, lower_rounded_together
from ggsched_cuda_kernels.tiles import DTYPES as TILED
from ggsched_cuda_kernels.tiles import fits_rows, fits_together, lower_rows_together
from ggsched_kernels import TuningProfile
from ggsched_kernels.lower_warps import can_join_blocks, columns_at_once, lower_blocks
from ggsched_kernels.retained import Retained

MAX_WEIGHTS: Final = 3
"""Weights of one call."""


def join_same_rows(
    groups: Sequence[Sequence[BoundNode]], at: int, profile: TuningProfile, retained: Retained
) -> tuple[int, CudaLoweringContext] | None:
    """Return how many groups from ``at`` on one call computes, and its context; None below two."""
    contexts: list[CudaLoweringContext] = []
    for group in groups[at : at + MAX_WEIGHTS]:
        ctx = CudaLoweringContext(group[0], profile, retained)
        if len(group) > 1 or not _is_product(ctx) or not _is_alike(ctx, contexts):
            break
        contexts.append(ctx)
    if contexts and _by_batch(contexts[0]):
        if fits_together(contexts):
            lower_rows_together(contexts)
            return _joined(contexts)
        contexts = list(takewhile(lambda ctx: _is_shaped_like(ctx, contexts[0]), contexts))
    if len(contexts) < 2:
        return None
    if _by_tiles(contexts[0]):
        lower_rows_together(contexts)
    elif _by_batch(contexts[0]):
        lower_rounded_together(contexts)
    else:
        lower_blocks(*contexts)
    return _joined(contexts)


def _joined(contexts: Sequence[CudaLoweringContext]) -> tuple[int, CudaLoweringContext]:
    last = contexts[-1]
    last.calls = [replace(call, label=last.node.label) for call in contexts[0].calls]
    last.scratch_nbytes = contexts[0].scratch_nbytes
    return len(contexts), last


def _is_product(ctx: CudaLoweringContext) -> bool:
    """Whether a node is a product with one weight that a kernel of several takes."""
    node = ctx.node
    if node.op != "mul_mat" or 0 in node.output.shape or 0 in node.inputs[1].shape:
        return False
    if prod(node.inputs[0].shape[:-2]) != 1:
        return False
    return _by_tiles(ctx) or _by_batch(ctx) or _by_blocks(ctx)


def _by_tiles(ctx: CudaLoweringContext) -> bool:
    return ctx.node.inputs[0].dtype.name in TILED and fits_rows(ctx)


def _by_batch(ctx: CudaLoweringContext) -> bool:
    """Whether it is one of cuBLAS, of bf16 as it lies."""
    return ctx.node.inputs[0].dtype.name == "bf16" and not fits_rows(ctx) and fits_rounded(ctx)


def _by_blocks(ctx: CudaLoweringContext) -> bool:
    w, x = ctx.node.inputs
    if not w.dtype.is_quantized:
        return False
    rows = prod(x.shape[:-1])
    is_few = 1 < rows == x.shape[-2] <= ctx.profile.few_rows
    return is_few and ctx.profile.num_sms > 0 and columns_at_once(ctx) > 0


def _is_alike(ctx: CudaLoweringContext, others: Sequence[CudaLoweringContext]) -> bool:
    """Whether a product can be of one call with others, and touches nothing that these write."""
    node = ctx.node
    w, x = node.inputs
    if node.output.meets(x):
        return False
    for other in others:
        weight, rows = other.node.inputs
        is_same_x = x.is_same_window(rows)
        if not is_same_x or weight.dtype is not w.dtype or _by_tiles(other) != _by_tiles(ctx):
            return False
        if not (_by_tiles(ctx) or _by_batch(ctx)) and not can_join_blocks(ctx, other):
            return False
        made = other.node.output
        if any(made.meets(o) for o in (w, x, node.output)) or node.output.meets(weight):
            return False
    return True


def _is_shaped_like(ctx: CudaLoweringContext, other: CudaLoweringContext) -> bool:
    """Whether two products can be batches of one."""
    (w, weight), (y, made) = (
        (ctx.node.inputs[0], other.node.inputs[0]),
        (ctx.node.output, other.node.output),
    )
    return (w.shape, w.strides, y.strides) == (weight.shape, weight.strides, made.strides)


__all__ = ["join_same_rows"]
