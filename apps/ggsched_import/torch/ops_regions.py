"""Converters of torchvision's ops on regions of images."""

from typing import Any

import numpy as np

from ggsched_import.common.emit import Value
from ggsched_import.torch.call import Call, converts
from ggsched_import.torch.ops_layout import select
from ggsched_import.torch.ops_reductions import reduced

Axis = list[tuple[Value, Value]]
"""Indices (regions, places) and weights of what a place along one axis lies between."""


@converts("torchvision.roi_align")
def _roi_align(
    c: Call, input: Value, rois: Value, spatial_scale: float, pooled_height: int,
    pooled_width: int, sampling_ratio: int = -1, aligned: bool = False,
) -> Value:  # fmt: skip
    """Average samples, each between four elements, of every bin of every region."""
    if sampling_ratio <= 0:
        raise c.bad(
            "a number of samples that depends on the regions is not supported",
            hint="give sampling_ratio",
        )
    corners = _corners(c, rois, spatial_scale)
    if aligned:
        corners = [c.nd("sub", v, c.const(0.5, "f32")) for v in corners]
    images = c.cast(select(c, rois, 1, 0), "i64")
    extents = (pooled_height, pooled_width)
    axes = [
        _sampled(c, corners[1 - i], corners[3 - i], bins, sampling_ratio, size, aligned)
        for i, (bins, size) in enumerate(zip(extents, input.shape[2:], strict=True))
    ]
    total: Value | None = None
    for row, row_share in axes[0]:
        for column, column_share in axes[1]:
            found = _elements(c, input, images, row, column)
            share = c.nd("mul", _along(c, row_share, 1), _along(c, column_share, 2))
            found = c.nd("mul", found, c.reshape(share, (*share.shape, 1)))
            total = found if total is None else c.nd("add", total, found)
    assert total is not None
    count, channels, s = rois.shape[0], input.shape[1], sampling_ratio
    split = c.reshape(total, (count, pooled_height, s, pooled_width, s, channels))
    return c.permute(reduced(c, "mean", split, [2, 4], False), (0, 3, 1, 2))


def _corners(c: Call, rois: Value, scale: float) -> list[Value]:
    """Return the left, upper, right and lower edges of regions, in elements of the images."""
    return [c.nd("mul", select(c, rois, 1, i), c.const(scale, "f32")) for i in range(1, 5)]


def _sampled(
    c: Call, start: Value, end: Value, bins: int, samples: int, size: int, aligned: bool
) -> Axis:
    extent = c.nd("sub", end, start)
    if not aligned:
        extent = c.nd("max", extent, c.const(1, "f32"))
    steps = (np.arange(bins * samples) + 0.5) / samples / bins
    at = c.nd("mul", c.reshape(extent, (-1, 1)), c.const(steps, "f32"))  # type: ignore[arg-type]
    at = c.nd("add", c.reshape(start, (-1, 1)), at)
    inside = c.nd(
        "and",
        c.nd("greater_equal", at, c.const(-1, "f32")),
        c.nd("less_equal", at, c.const(size, "f32")),
    )
    zero, last = c.const(0, "f32"), c.const(size - 1, "f32")
    at = c.nd("clip", at, zero, last)
    low = c.nd("floor", at)
    high = c.nd("min", c.nd("add", low, c.const(1, "f32")), last)
    share = c.nd("sub", at, low)
    shares = c.nd("sub", c.const(1, "f32"), share), share
    return [
        (c.cast(place, "i64"), c.nd("where", inside, weight, zero))
        for place, weight in zip((low, high), shares, strict=True)
    ]


def _along(c: Call, x: Value, axis: int) -> Value:
    """Return (regions, places) with an axis for the places of the other dimension."""
    return c.reshape(x, (x.shape[0], *((x.shape[1], 1) if axis == 1 else (1, x.shape[1]))))


def _elements(c: Call, x: Value, images: Value, rows: Value, columns: Value) -> Value:
    """Return (regions, rows, columns, channels) of images (N, C, H, W)."""
    shape = (rows.shape[0], rows.shape[1], columns.shape[1], 1)
    indices = [
        c.expand(c.reshape(v, (*v.shape, 1)), shape)
        for v in (c.reshape(images, (-1, 1, 1)), _along(c, rows, 1), _along(c, columns, 2))
    ]
    return c.nd("gather_nd", c.permute(x, (0, 2, 3, 1)), c.concat(indices, 3))


@converts("torchvision.roi_pool")
def _roi_pool(
    c: Call, input: Value, rois: Value, spatial_scale: float, pooled_height: int, pooled_width: int
) -> list[Any]:
    """Take the largest element of each bin: of all elements of the image, those that are in it."""
    if c.used not in (None, frozenset({0})):
        raise c.bad("indices of the largest elements are not supported")
    half = c.const(0.5, "f32")  # C's round: away from 0 where both are as near
    corners = [
        c.nd("mul", c.nd("sign", v), c.nd("floor", c.nd("add", c.nd("abs", v), half)))
        for v in _corners(c, rois, spatial_scale)
    ]
    x = c.nd("gather", input, c.cast(select(c, rois, 1, 0), "i64"), axis=0)
    lowest = c.const(-np.inf, x.dtype.name)
    for axis, count in enumerate((pooled_height, pooled_width), 2):
        inside = _bins(c, corners[3 - axis], corners[5 - axis], count, input.shape[axis])
        regions, *rest = inside.shape
        inside = c.reshape(inside, (regions, *(1,) * (axis - 1), *rest, *(1,) * (3 - axis)))
        wide = c.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))
        x = reduced(c, "max", c.nd("where", inside, wide, lowest), [axis + 1], False)
    is_empty = c.nd("equal", x, lowest)
    return [c.nd("where", is_empty, c.const(0, x.dtype.name), x), None]


def _bins(c: Call, start: Value, end: Value, count: int, size: int) -> Value:
    """Return (regions, bins, elements): whether an element of an axis is in a bin."""
    one = c.const(1, "f32")
    extent = c.nd("max", c.nd("add", c.nd("sub", end, start), one), one)
    each = c.nd("div", c.reshape(extent, (-1, 1)), c.const(count, "f32"))
    first = c.reshape(start, (-1, 1))
    steps = np.arange(count)[None]
    low = c.nd("floor", c.nd("mul", each, c.const(steps, "f32")))  # type: ignore[arg-type]
    high = c.nd("ceil", c.nd("mul", each, c.const(steps + 1, "f32")))  # type: ignore[arg-type]
    limits = [c.reshape(c.nd("add", v, first), (-1, count, 1)) for v in (low, high)]
    places = c.const(np.arange(size), "f32")  # type: ignore[arg-type]
    return c.nd("and", c.nd("greater_equal", places, limits[0]), c.nd("less", places, limits[1]))
