"""Converters of Fourier transforms. Complex numbers have a last axis: real and imaginary parts."""

import numpy as np

from ggsched.ir.dtype import dtype_by_name
from ggsched_import.common.emit import Const, Value
from ggsched_import.common.fourier import fourier, joined_parts, parts_of, real_signal
from ggsched_import.onnx.call import Call, converts
from ggsched_import.onnx.ops_layout import bounded
from ggsched_import.onnx.types import name_of


def _signal(c: Call) -> Value:
    x = c.x()
    if not x.shape or x.shape[-1] not in (1, 2):
        raise c.bad("the last axis must have the real or both parts")
    return x


@converts("DFT")
def _dft(c: Call) -> Value:
    x, inverse, onesided = _signal(c), c.attr("inverse", False), c.attr("onesided", False)
    rank = len(x.shape)
    if c.opset < 20:
        axis = c.axis(1, rank)
    else:
        axis = c.normal_axis(c.ints_at(2)[0] if c.has(2) else -2, rank)
    if axis == rank - 1:
        raise c.bad("the axis of the parts cannot be transformed")
    n = c.ints_at(1)[0] if c.has(1) else x.shape[axis]
    is_real = inverse and onesided
    if is_real and not c.has(1):
        n = 2 * (n - 1)
    x = _resized(c, x, axis, n // 2 + 1 if is_real else n)
    parts = parts_of(c.emit, x)
    if is_real:
        made = real_signal(c.emit, parts, axis, n, 1 / max(n, 1))
        return c.emit.reshape(made, (*made.shape, 1))
    scale = 1 / max(n, 1) if inverse else 1.0
    keep = n // 2 + 1 if onesided else n
    found = fourier(c.emit, parts, axis, 1 if inverse else -1, scale, keep)
    return joined_parts(c.emit, *found)


def _resized(c: Call, x: Value, axis: int, n: int) -> Value:
    """Return the first n elements along an axis, filled up with zeros."""
    pads = [0] * 2 * len(x.shape)
    pads[len(x.shape) + axis] = n - x.shape[axis]
    return c.nd("pad", x, c.like(0, x), pads=tuple(pads), value=True) if any(pads) else x


@converts("STFT")
def _stft(c: Call) -> Value:
    x, step = _signal(c), c.ints_at(1)[0]
    window = c.maybe(2)
    if len(x.shape) != 3 or step < 1:
        raise c.bad("needs signals (batch, length, parts) and a step from 1 on")
    n = c.ints_at(3)[0] if c.has(3) else window.shape[0] if window is not None else x.shape[1]
    if not 0 < n <= x.shape[1]:
        raise c.bad(f"frames of {n} elements in a signal of {x.shape[1]}")
    count, _ = bounded(c, ((x.shape[1] - n) // step + 1, n))
    frames = np.arange(count)[:, None] * step + np.arange(n)
    parts: list[Value | None] = []
    for v in parts_of(c.emit, x):
        cut = None if v is None else c.nd("gather", v, Const(frames), axis=1)
        parts.append(cut if cut is None or window is None else c.nd("mul", cut, window))
    assert parts[0] is not None  # the real part
    keep = n // 2 + 1 if c.attr("onesided", True) else n
    return joined_parts(c.emit, *fourier(c.emit, (parts[0], parts[1]), 2, -1, 1.0, keep))


@converts("MelWeightMatrix")
def _mel(c: Call) -> Value:
    """Return triangles over the bins of a transform, whose edges are evenly spaced in mels."""
    count, length, rate, low, high = (c.const(i).reshape(-1)[0] for i in range(5))
    bounded(c, (int(length) // 2 + 1, int(count)))
    first, last = (2595 * np.log10(1 + f / 700) for f in (low, high))
    mels = first + np.arange(count + 2) * (last - first) / (count + 2)
    edges = ((length + 1) * 700 * (10 ** (mels / 2595) - 1) // rate).astype(np.int64)
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    j = np.arange(length // 2 + 1)[:, None]
    rising, falling = (j - left) / (centre - left).clip(1), (right - j) / (right - centre).clip(1)
    made = np.where(j == centre, 1, np.where(j < centre, rising, falling).clip(0))
    return Const(made.astype(dtype_by_name(name_of(c.attr("output_datatype", 1), c.where)).host))
