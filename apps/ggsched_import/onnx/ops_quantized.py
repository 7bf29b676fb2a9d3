"""Converters of arithmetic on quantised numbers: x stands for ``scale * (x - zero_point)``."""

from collections.abc import Sequence
from math import prod
from typing import Final

import numpy as np

from ggsched_import.common.emit import Const, Value
from ggsched_import.onnx.call import Call, converts
from ggsched_import.onnx.ops_elements import cast_to
from ggsched_import.onnx.ops_layout import sliced
from ggsched_import.onnx.ops_products import geometry
from ggsched_import.onnx.types import name_of

_EXACT: Final = 1 << 24
"""Integers below it are f32 numbers."""
_LARGEST: Final = 255
"""Magnitude of the difference of two 8-bit numbers."""


@converts("QuantizeLinear")
def _quantize(c: Call) -> Value:
    x, scale = c.x(), c.x(1)
    to = c.x(2).dtype.name if c.has(2) else "u8"
    if not c.has(2) and c.attr("output_dtype", 0):
        to = name_of(c.attr("output_dtype", 0), c.where)
    scaled = c.nd("round", c.nd("div", x, _spread(c, scale, x)))
    if c.has(2):
        zero = c.nd("cast", _spread(c, c.x(2), x), to=x.dtype.name)
        scaled = c.nd("add", scaled, zero)
    return _saturated(c, scaled, to)


@converts("DequantizeLinear")
def _dequantize(c: Call) -> Value:
    x, scale = c.x(), c.x(1)
    to = scale.dtype.name
    floats = _before_saturation(c, x, to)
    wide, kind = (x, "i32") if floats is None else (floats, to)
    if c.has(2):
        zero = c.nd("cast", _spread(c, c.x(2), x), to=kind)
        wide = c.nd("sub", cast_to(c, wide, kind), zero)
    return c.nd("mul", cast_to(c, wide, to), _spread(c, scale, x))


def _before_saturation(c: Call, x: Value, to: str) -> Value | None:
    """Return integers that were floats of this type as such, without a way through memory."""
    known = None if isinstance(x, Const) else c.emit.rounded.get(x.id)
    if known is None or known[0].dtype.name != to:
        return None
    floats, low, high = known
    return c.nd("clip", floats, c.like(low, floats), c.like(high, floats))


def _saturated(c: Call, rounded: Value, to: str) -> Value:
    """Return whole numbers as integers of 8 or 16 bits, the nearest where they are not there."""
    if to not in ("u8", "i8", "u16", "i16"):
        raise c.bad(f"quantising to {to} is not supported")
    info = np.iinfo(f"{to[0]}{int(to[1:]) // 8}")
    made = c.nd("round_to", rounded, to=to, low=int(info.min), high=int(info.max))
    if not isinstance(made, Const):
        c.emit.rounded[made.id] = rounded, int(info.min), int(info.max)
    return made


def _spread(c: Call, value: Value, x: Value) -> Value:
    """Return a scale or zero point in the shape in which it meets x: one, per axis, or blocked."""
    if c.attr("block_size", 0):
        return _blocked(c, value, x)
    if value.shape in ((), (1,)):
        return c.emit.reshape(value, ())
    return _of_channels(c, value, len(x.shape) - c.axis(1, len(x.shape)))


def _blocked(c: Call, value: Value, x: Value) -> Value:
    """Return a number for each block along an axis, repeated for the elements of its block."""
    axis, size = c.axis(1, len(x.shape)), c.attr("block_size", 0)
    before, extent, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    count = -(-extent // size) if size > 0 else 0
    if value.shape != (*before, count, *after):
        raise c.bad(f"scales of shape {list(value.shape)} for blocks of {size} along axis {axis}")
    wide = c.emit.reshape(value, (*before, count, 1, *after))
    wide = c.nd("expand", wide, shape=(*before, count, size, *after))
    whole = c.emit.reshape(wide, (*before, count * size, *after))
    return sliced(c, whole, {axis: (0, extent, 1)})


@converts("MatMulInteger")
def _matmul_integer(c: Call) -> Value:
    a, b = c.x(), c.x(1)
    if not c.has(2) and not c.has(3):
        return c.nd("matmul_i32", a, b)
    return c.nd("cast", product_of_quantized(c, a, b, c.maybe(2), c.maybe(3)), to="i32")


@converts("QLinearMatMul")
def _qlinear_matmul(c: Call) -> Value:
    a, b = c.x(), c.x(3)
    made = product_of_quantized(c, a, b, c.x(2), c.x(5))
    scales = [_wide(c, _of_rows(c, c.x(1), a)), _wide(c, c.x(4))]
    return _requantized(c, made, scales, 6)


@converts("ConvInteger")
def _conv_integer(c: Call) -> Value:
    return c.nd("cast", _conv_of(c, c.x(), c.x(1), c.maybe(2), c.maybe(3)), to="i32")


@converts("QLinearConv")
def _qlinear_conv(c: Call) -> Value:
    x, w = c.x(), c.x(3)
    made = _conv_of(c, x, w, c.x(2), c.x(5))
    n = len(w.shape) - 1
    if c.has(8):
        bias = c.nd("cast", c.x(8), to=made.dtype.name)
        made = c.nd("add", made, _of_channels(c, bias, n))
    scales = [_wide(c, c.x(1)), _wide(c, _of_channels(c, c.x(4), n))]
    return _requantized(c, made, scales, 6)


def product_of_quantized(
    c: Call, a: Value, b: Value, a_zero: Value | None, b_zero: Value | None
) -> Value:
    """Return the product of the differences."""
    b = _centred(c, b, b_zero)
    kind = _sums(b, -2, a.shape[-1])
    return c.nd("matmul", _centred(c, a, _of_rows(c, a_zero, a), kind), cast_to(c, b, kind))


def _conv_of(c: Call, x: Value, w: Value, x_zero: Value | None, w_zero: Value | None) -> Value:
    """Return the convolution of the differences; what is around x is its zero point."""
    w = _centred(c, w, None if w_zero is None else _of_channels(c, w_zero, len(w.shape)))
    kind = _sums(w, tuple(range(1, len(w.shape))), prod(w.shape[1:]))
    more = geometry(c, tuple(w.shape[2:]))
    values = _centred(c, x, x_zero, kind), cast_to(c, w, kind)
    return c.nd("conv", *values, **more, group=c.attr("group", 1), bias=False)


def _sums(w: Value, axes: int | tuple[int, ...], terms: int) -> str:
    """Return the type in which sums of products of 8-bit differences with w are exact.

    In whatever order they are added up: the sum of all magnitudes is a number of that type.
    """
    most = terms * _LARGEST
    if isinstance(w, Const) and w.array.ndim > 1 and w.array.size:
        most = int(np.abs(w.array.astype(np.int64)).sum(axes).max())
    return "f32" if most * _LARGEST < _EXACT else "f64"


def _centred(c: Call, x: Value, zero: Value | None, kind: str = "i16") -> Value:
    """Return differences to a zero point, which all of these types hold."""
    floats = _before_saturation(c, x, kind)
    wide = c.nd("cast", x, to=kind) if floats is None else floats
    if zero is None:
        return wide
    if zero.shape == (1,):
        zero = c.emit.reshape(zero, ())
    return c.nd("sub", wide, c.nd("cast", zero, to=kind))


def _of_rows(c: Call, value: Value | None, x: Value) -> Value | None:
    """Return numbers of the rows of a matrix as a column."""
    if value is None or len(value.shape) != 1 or value.shape == (1,) or len(x.shape) < 2:
        return value
    return c.emit.reshape(value, (*value.shape, 1))


def _of_channels(c: Call, value: Value, axes: int) -> Value:
    """Return numbers of channels in the shape in which they meet a result with more axes."""
    if value.shape in ((), (1,)):
        return c.emit.reshape(value, ())
    return c.emit.reshape(value, (*value.shape, *(1,) * (axes - 1)))


def _wide(c: Call, scale: Value | None) -> Value:
    assert scale is not None
    return c.nd("cast", scale, to="f32")


def _requantized(c: Call, sums: Value, scales: Sequence[Value], i: int) -> Value:
    """Return sums times two scales, by that of operand ``i``, about its zero point behind it."""
    a, b = scales
    factor = c.nd("div", c.nd("mul", a, b), _wide(c, c.x(i)))
    rounded = c.nd("round", c.nd("mul", c.nd("cast", sums, to="f32"), factor))
    zero = c.x(i + 1)
    return _saturated(c, c.nd("add", rounded, c.nd("cast", zero, to="f32")), zero.dtype.name)


@converts("DynamicQuantizeLinear")
def dynamically_quantized(c: Call) -> tuple[Value, Value, Value]:
    """Return an input in u8, its scale and its zero point."""
    x = c.x()
    axes = tuple(range(len(x.shape)))
    zero = c.like(0, x)
    low = c.nd("min", c.nd("reduce_min", x, axes=axes, keepdims=False), zero)
    high = c.nd("max", c.nd("reduce_max", x, axes=axes, keepdims=False), zero)
    scale = c.nd("div", c.nd("sub", high, low), c.like(255, x))
    point = c.nd("clip", c.nd("div", c.nd("neg", low), scale), zero, c.like(255, x))
    point = c.nd("round", point)
    scaled = c.nd("add", c.nd("round", c.nd("div", x, scale)), point)
    return _saturated(c, scaled, "u8"), scale, c.nd("cast", point, to="u8")
