"""Gated products of some rows: each element is loaded and stored once, by fours."""

from typing import Final

from ggsched_cuda_kernels.calls import CudaLoweringContext
from ggsched_cuda_kernels.halves import MIN_ROWS
from ggsched_cuda_kernels.operands import has_rows
from ggsched_kernels.calls import MAX_PARTS, window

LANES: Final = 256
UNITS: Final = 2
"""Vectors of four that a lane has under way of each operand."""


def fits_gated(site: CudaLoweringContext) -> bool:
    """Whether there are some rows of vectors of four, and none is broadcast."""
    (gate, up), y = site.node.inputs, site.node.output
    if gate.shape != up.shape or any(not has_rows(o) for o in (gate, up, y)):
        return False
    return MIN_ROWS <= window(y).rows <= MAX_PARTS


def lower_gated(site: CudaLoweringContext) -> None:
    """One kernel."""
    g, u = (window(operand) for operand in site.node.inputs)
    y = window(site.node.output)
    parts = -(-y.shape[3] // (4 * LANES * UNITS))
    args = (*g.args, *u.args, *y.args, y.buffer)
    site.call("gated_rows", "gated_rows", args, (parts, y.rows, 1), lanes=LANES, UNITS=UNITS)
    site.can_write_halves()
