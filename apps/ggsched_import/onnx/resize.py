"""Resizing: along each axis a matrix of weights, or indices, that the shapes determine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from ggsched.ir.tensor import MAX_AXES
from ggsched.ops.nd.sampling import cubic
from ggsched_import.common.emit import Array, Const, Value
from ggsched_import.onnx.call import Call, converts

MAX_MATRIX = 1 << 24
MAX_EXTENT = 1 << 24
"""Of an axis that a file can request: each element's place is computed when the file is read."""

Weight = Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis: from how many elements to how many, by which scale, of which region."""

    size: int
    out: int
    scale: float
    start: float
    end: float


@converts("Resize", "Upsample")
def _resize(c: Call) -> Value:
    x = c.x()
    n = len(x.shape)
    axes = tuple(c.normal_axis(int(a), n) for a in c.attr("axes", tuple(range(n))))
    roi, scales, sizes = _inputs(c)
    outs = _extents(c, axes, scales, sizes)
    mode = c.attr("mode", "nearest")
    crops = c.attr("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    made, outside = x, []
    repeats: dict[int, int] = {}
    for i, a in enumerate(axes):
        region = (roi[i], roi[len(axes) + i]) if crops and roi is not None else (0.0, 1.0)
        axis = _Axis(x.shape[a], outs[i][0], outs[i][1], *region)
        if axis.out == axis.size and axis.scale == 1.0 and not crops:
            continue
        if axis.out > MAX_EXTENT:
            raise c.bad(f"from {axis.size} to {axis.out} elements is too large")
        at = _places(c, axis)
        if mode == "nearest":
            indices = _nearest(c, at, axis.size)
            if _are_repeats(indices, axis) and n < MAX_AXES:
                repeats[a] = axis.out // axis.size
            else:
                made = c.nd("gather", made, Const(indices), axis=a)
        else:
            made = _weighted(c, made, a, at, axis, mode)
        if crops:
            outside.append((a, (at < 0) | (at > axis.size - 1)))
    made = _repeated(c, made, repeats)
    for a, mask in outside:
        if mask.any():
            fill = c.like(c.attr("extrapolation_value", 0.0), x)
            shape = [len(mask) if i == a else 1 for i in range(n)]
            made = c.nd("where", Const(mask.reshape(shape)), fill, made)
    return made


def _are_repeats(indices: Array, axis: _Axis) -> bool:
    """Whether each element is taken several times, one after the other."""
    times, rest = divmod(axis.out, max(1, axis.size))
    if rest or times < 2:
        return False
    return bool((indices == np.arange(axis.out) // times).all())


def _repeated(c: Call, x: Value, repeats: Mapping[int, int]) -> Value:
    """Repeat each element along some axes."""
    axes = list(repeats)
    while axes:
        some, axes = axes[: MAX_AXES - len(x.shape)], axes[MAX_AXES - len(x.shape) :]
        apart = [(n, 1) if a in some else (n,) for a, n in enumerate(x.shape)]
        wide = [(n, repeats[a]) if a in some else (n,) for a, n in enumerate(x.shape)]
        made = c.emit.reshape(x, [n for pair in apart for n in pair])
        made = c.nd("expand", made, shape=tuple(n for pair in wide for n in pair))
        x = c.emit.reshape(made, [prod(pair) for pair in wide])
    return x


def _inputs(
    c: Call,
) -> tuple[list[float] | None, list[float] | None, tuple[int, ...] | None]:
    """Return roi, scales and sizes, of which one of the last two is given."""
    at = 1 if c.op == "Upsample" or c.opset < 11 else 2
    roi = [float(v) for v in c.const(1).reshape(-1)] if at == 2 and c.has(1) else None
    scales = None
    if c.has(at) and c.x(at).shape != (0,):
        scales = [float(v) for v in c.const(at).reshape(-1)]
    elif "scales" in c.attrs:
        scales = [float(v) for v in c.attr("scales", ())]
    sizes = c.ints_at(3) if c.has(3) and c.x(3).shape != (0,) else None
    if (scales is None) == (sizes is None):
        raise c.bad("needs either scales or sizes")
    return roi or None, scales, sizes


def _extents(
    c: Call,
    axes: tuple[int, ...],
    scales: list[float] | None,
    sizes: tuple[int, ...] | None,
) -> list[tuple[int, float]]:
    """Return extent and scale of each axis."""
    shape = c.x().shape
    given = scales if scales is not None else sizes
    if given is None or len(given) != len(axes):
        raise c.bad("needs a scale or a size for each axis")
    if scales is not None:
        if any(not 0 < s < 1e6 for s in scales):
            raise c.bad(f"scales {scales}")
        return [(int(np.floor(shape[a] * s)), s) for a, s in zip(axes, scales, strict=True)]
    assert sizes is not None
    policy = c.attr("keep_aspect_ratio_policy", "stretch")
    ratios = [n / shape[a] for a, n in zip(axes, sizes, strict=True)]
    if policy == "stretch":
        return list(zip(sizes, ratios, strict=True))
    s = min(ratios) if policy == "not_larger" else max(ratios)
    return [(int(np.floor(s * shape[a] + 0.5)), s) for a in axes]


def _places(c: Call, axis: _Axis) -> Array:
    """Return where each element of the result lies along the operand's axis."""
    mode = c.attr("coordinate_transformation_mode", "half_pixel" if c.opset >= 11 else "asymmetric")
    i = np.arange(axis.out, dtype=np.float64)
    exact = axis.scale * axis.size
    match mode:
        case "half_pixel":
            return np.asarray((i + 0.5) / axis.scale - 0.5)
        case "half_pixel_symmetric":
            adjusted = axis.size / 2 * (1 - axis.out / exact)
            return np.asarray(adjusted + (i + 0.5) / axis.scale - 0.5)
        case "pytorch_half_pixel":
            return np.asarray((i + 0.5) / axis.scale - 0.5 if axis.out > 1 else i * 0)
        case "align_corners":
            return np.asarray(i * (axis.size - 1) / (exact - 1) if exact > 1 else i * 0)
        case "asymmetric":
            return np.asarray(i / axis.scale)
        case "tf_crop_and_resize":
            last = axis.size - 1
            if axis.out > 1:
                step = (axis.end - axis.start) * last / (axis.out - 1)
                return np.asarray(axis.start * last + i * step)
            return np.asarray(i * 0 + 0.5 * (axis.start + axis.end) * last)
    raise c.bad(f"coordinates {mode!r} are not supported")


def _nearest(c: Call, at: Array, size: int) -> Array:
    at = np.round(at, 9)  # what rounding of the scale added
    match c.attr("nearest_mode", "round_prefer_floor" if c.opset >= 11 else "floor"):
        case "round_prefer_floor":
            found = np.ceil(at - 0.5)
        case "round_prefer_ceil":
            found = np.floor(at + 0.5)
        case "floor":
            found = np.floor(at)
        case "ceil":
            found = np.ceil(at)
        case other:
            raise c.bad(f"nearest_mode {other!r} is not supported")
    return np.asarray(np.clip(found, 0, size - 1)).astype(np.int64)


def _weighted(c: Call, x: Value, a: int, at: Array, axis: _Axis, mode: str) -> Value:
    if axis.out * axis.size > MAX_MATRIX:
        raise c.bad(f"from {axis.size} to {axis.out} elements is too large")
    scale = min(axis.scale, 1.0) if c.attr("antialias", False) else 1.0
    if mode == "cubic":
        matrix = _cubic(c, at, axis.size, scale)
    elif mode == "linear":
        matrix = _linear(at, axis.size, scale)
    else:
        raise c.bad(f"mode {mode!r} is not supported")
    return c.nd("along", x, Const(matrix.astype(x.dtype.host)), axis=a)


def _spread(
    at: Array, size: int, reach: float, weight: Weight, scale: float, excludes: bool
) -> Array:
    """Return the matrix whose rows are weights around places; those outside go to the edge."""
    matrix = np.zeros((len(at), size))
    first = np.ceil(at - reach / scale - 1e-9).astype(np.int64)
    count = int(np.floor(2 * reach / scale)) + 2
    for row, (place, low) in enumerate(zip(at, first, strict=True)):
        index = low + np.arange(count)
        share = weight(abs(index - place) * scale)
        if excludes:
            share = np.where((index < 0) | (index >= size), 0, share)
        np.add.at(matrix[row], np.clip(index, 0, size - 1), share)
    if excludes or scale < 1:
        matrix /= matrix.sum(1, keepdims=True)
    return matrix


def _linear(at: Array, size: int, scale: float) -> Array:
    return _spread(at, size, 1.0, lambda d: np.asarray(np.maximum(0, 1 - d)), scale, False)


def _cubic(c: Call, at: Array, size: int, scale: float) -> Array:
    weight = partial(cubic, a=c.attr("cubic_coeff_a", -0.75))
    excludes = c.attr("exclude_outside", False)
    return _spread(at, size, 2.0, weight, scale, excludes)
