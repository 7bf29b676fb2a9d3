"""Lowering of matrix-vector products whose weight is a transposed view."""

from typing import Final

from ggsched_cuda.calls import CudaSite
from ggsched_kernels.calls import MAX_PARTS, window
from ggsched_kernels.site import weight_define

LANES: Final = 256
WIDEST: Final = 128
"""Columns of a group, at most; a power of two like the smaller numbers."""


def fits_columns(site: CudaSite) -> bool:
    """Whether columns of a plain weight lie side by side, and rows are few."""
    w, x = site.node.inputs
    y = window(site.node.output)
    if 0 in (*w.shape, *x.shape) or w.dtype.is_quantized or w.shape[-1] == 1:
        return False
    size = w.dtype.block_nbytes
    return (
        y.shape[2] <= site.profile.few_rows
        and w.strides[-2] == size
        and w.strides[-1] != size
        and y.shape[0] * y.shape[1] <= MAX_PARTS
    )


def lower_columns(site: CudaSite) -> None:
    """One group for up to 128 columns of a batch."""
    w, x = site.node.inputs
    a, b, y = site.contiguous(x), window(w), window(site.node.output)
    columns = min(WIDEST, max(32, 1 << (y.shape[3] - 1).bit_length()))
    groups = (-(-y.shape[3] // columns), y.shape[0] * y.shape[1], y.shape[2])
    defines = {"lanes": LANES, "COLUMNS": columns, **weight_define(w.dtype)}
    site.call("columns", "columns_split", (*b.args, *a.args, *y.args), groups, **defines)
