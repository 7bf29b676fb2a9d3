"""Linear attention of several tokens: which nodes the kernel ``delta_scan`` takes, and its call."""

from typing import Final

from ggsched.backend.program import Operand
from ggsched_cuda_kernels.calls import CudaLoweringContext
from ggsched_cuda_kernels.operands import has_rows
from ggsched_kernels.lower_recurrent import linear_attention_args

SHARE: Final = 8
"""Lanes that keep a column together."""
LANES: Final = 128
MAX_WIDTH: Final = 256
"""Of a key; a lane keeps its part of three of them, and of the column, in registers."""


def fits_scan(ctx: CudaLoweringContext) -> bool:
    """Whether there are several tokens, and lanes can load their parts of keys as vectors."""
    state, q, k, *_ = ctx.node.inputs
    width = state.shape[2]
    if width % (4 * SHARE) or width > MAX_WIDTH or q.shape[0] <= 1:
        return False
    return has_rows(q) and has_rows(k)


def lower_scan(ctx: CudaLoweringContext, copied: Operand | None = None) -> None:
    """Add the call; ``copied`` as for ``lower_linear_attention``."""
    state, *_ = ctx.node.inputs
    count, heads, width, across = state.shape
    args, defines = linear_attention_args(ctx, copied)
    grid = (count * heads, -(-across // (LANES // SHARE)), 1)
    ctx.call("delta_scan", "delta_scan", args, grid, lanes=LANES, KEPT=width // SHARE, **defines)
