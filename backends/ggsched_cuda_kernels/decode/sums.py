"""Sums of a few numbers each and what is added to them, as one kernel (LCH-6).

The results of chosen experts lie one after the other, so the numbers of a sum lie far apart. The
shared kernel has a group for each sum, which is good for long rows only.
"""

from math import prod
from typing import Final

from ggsched.backend.program import Operand
from ggsched_cuda_kernels.calls import CudaLoweringContext
from ggsched_cuda_kernels.operands import other_operand
from ggsched_kernels.calls import MAX_PARTS, Arg, window, window_of

MAX_NUMBERS: Final = 32
"""Of a sum; a lane has all of them under way at once."""
LANES: Final = 64
AXES: Final = 4


def fits_sum_add(nodes: list[CudaLoweringContext]) -> bool:
    """Whether sums are short, and the rows of x are those of the result."""
    sums, add = (site.node for site in nodes)
    x, y = sums.inputs[0], add.output
    z = other_operand(sums.output, add)
    if z is None or any(o.dtype.name != "f32" for o in (x, y, z)):
        return False
    if not 2 <= len(x.shape) <= AXES or not y.shape or not 0 < x.shape[-1] <= MAX_NUMBERS:
        return False
    # Sums lie in the order of their rows, whatever the shape that they are added in.
    return y.shape[-1] == x.shape[-2] and 0 < prod(y.shape[:-1]) <= MAX_PARTS


def lower_sum_add(nodes: list[CudaLoweringContext]) -> None:
    """One kernel instead of the sum."""
    site = nodes[-1]
    sums, add = nodes[0].node, site.node
    x, y = sums.inputs[0], window(add.output)
    z = other_operand(sums.output, add)
    assert z is not None  # it fits
    args = (*_turned(x), *window(z, add.output.shape).args, *y.args)
    grid = (-(-y.shape[-1] // LANES), y.rows, 1)
    site.call("sum_add", "sum_add", args, grid, lanes=LANES, COUNT=x.shape[-1])


def _turned(x: Operand) -> tuple[Arg, Arg]:
    """Return x with the numbers of a sum along the last axis but one."""
    plain = window(x)
    (a, b, n, count), (sa, sb, sn, sc) = plain.shape, plain.strides
    return window_of(x, (a, b, count, n), (sa, sb, sc, sn)).args
