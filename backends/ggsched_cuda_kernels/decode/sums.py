"""Sums of a few elements each and what is added to them, as one kernel (LCH-6).

The results of chosen experts lie one after the other, so the elements of a sum lie far apart. The
shared kernel has a group for each sum, which is good for long rows only.
"""

from collections.abc import Sequence
from math import prod
from typing import Final

from ggsched.backend.program import BoundNode, Operand
from ggsched_cuda_kernels.calls import CudaLoweringContext
from ggsched_cuda_kernels.operands import PIECE, other_operand
from ggsched_kernels.calls import (
    MAX_PARTS,
    MAX_PEERS,
    Arg,
    TuningProfile,
    i64,
    window,
    window_of,
)

MAX_ELEMENTS: Final = 32
"""Of a sum; a lane has all of them under way at once."""
LANES: Final = 64
AXES: Final = 4


def fits_sum_add(nodes: list[CudaLoweringContext]) -> bool:
    """Whether sums are short, and the rows of x are those of the result."""
    sums, add = (ctx.node for ctx in nodes)
    x, y = sums.inputs[0], add.output
    z = other_operand(sums.output, add)
    if z is None or any(o.dtype.name != "f32" for o in (x, y, z)):
        return False
    if not 2 <= len(x.shape) <= AXES or not y.shape or not 0 < x.shape[-1] <= MAX_ELEMENTS:
        return False
    # Sums lie in the order of their rows, whatever the shape that they are added in.
    return y.shape[-1] == x.shape[-2] and 0 < prod(y.shape[:-1]) <= MAX_PARTS


def lower_sum_add(nodes: list[CudaLoweringContext]) -> None:
    """One kernel instead of the sum."""
    ctx = nodes[-1]
    sums, add = nodes[0].node, ctx.node
    x, y = sums.inputs[0], window(add.output)
    z = other_operand(sums.output, add)
    assert z is not None  # it fits
    args = (*_turned(x), *window(z, add.output.shape).args, *y.args)
    grid = (-(-y.shape[-1] // LANES), y.rows, 1)
    ctx.call("sum_add", "sum_add", args, grid, lanes=LANES, COUNT=x.shape[-1])


def join_last_sum(
    groups: Sequence[Sequence[BoundNode]], at: int, profile: TuningProfile
) -> tuple[int, CudaLoweringContext] | None:
    """Return the context of sums that end a program, whose results other GPUs add up; None if not.

    They are one row, which the call can also write where the other GPUs read it.
    """
    (node, *others), is_last = groups[at], at + 1 == len(groups)
    if node.op != "sum_rows" or others or not is_last or not profile.reads_peers:
        return None
    x, y = node.inputs[0], node.output
    count, n = x.shape[-1], prod(y.shape)
    if len(x.shape) < 2 or x.shape[-2] != n or not 0 < count <= MAX_ELEMENTS:
        return None
    plain = window(y)
    is_row = all(s == 4 for e, s in zip(plain.shape[2:], plain.strides[2:], strict=True) if e > 1)
    if not is_row or n % 4 or y.offset % PIECE or {x.dtype.name, y.dtype.name} != {"f32"}:
        return None
    ctx, places = CudaLoweringContext(node, profile), 1 + MAX_PEERS
    args = (*_turned(x), *window_of(y, (1, 1, 1, n), (0, 0, 0, 4)).args, *[i64(0)] * places)
    grid = (-(-n // LANES), 1, 1)
    ctx.call("sum_add", "sum_sent", args, grid, lanes=LANES, COUNT=count, ALSO=places)
    ctx.can_also_write(y, len(args) - places, places)
    return 1, ctx


def _turned(x: Operand) -> tuple[Arg, Arg]:
    """Return x with the elements of a sum along the last axis but one."""
    plain = window(x)
    (a, b, n, count), (sa, sb, sn, sc) = plain.shape, plain.strides
    return window_of(x, (a, b, count, n), (sa, sb, sc, sn)).args
