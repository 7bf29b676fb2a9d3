"""Converters of complex numbers, which are computed as their real and imaginary parts."""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ggsched.ops.nd.declare import broadcast
from ggsched_import.common.emit import Const, Value
from ggsched_import.common.fourier import fourier, joined_parts, parts_of, real_signal
from ggsched_import.torch.call import (
    CONVERTERS,
    OF_COMPLEX,
    Call,
    Operand,
    Results,
    convert,
    converts,
)
from ggsched_import.torch.types import PART, Complex

Number = Operand | Complex | complex

MAX_PRODUCTS: Final = 8
"""The largest exponent of a power that is computed by products."""

PARTWISE: Final = (
    "alias", "clone", "contiguous", "detach", "lift_fresh_copy", "view", "reshape", "_unsafe_view",
    "flatten", "unflatten", "permute", "transpose", "t", "squeeze", "unsqueeze", "expand",
    "expand_as", "repeat", "tile", "repeat_interleave.self_int", "split_with_sizes", "split",
    "chunk", "unbind", "select", "slice", "narrow", "flip", "roll", "constant_pad_nd", "tril",
    "triu", "index_select", "gather", "index", "_unsafe_index", "index_put", "scatter",
    "scatter_add", "select_scatter", "slice_scatter", "unfold", "diagonal", "sum", "mean", "neg",
    "cumsum", "cat", "stack", "where.self", "masked_fill", "_to_copy", "full", "full_like", "fill",
    "zeros", "zeros_like", "ones", "ones_like", "empty", "empty_like", "new_zeros", "new_ones",
    "new_full", "copy", "scalar_tensor",
)  # fmt: skip
"""Ops that do the same with both parts: they move and add elements."""

_ELEMENTS: Final = {
    "constant_pad_nd": (2,), "index_put": (2,), "scatter": (3,), "scatter_add": (3,),
    "select_scatter": (1,), "slice_scatter": (1,), "cat": (0,), "stack": (0,), "where": (1, 2),
    "masked_fill": (2,), "full": (1,), "full_like": (1,), "fill": (1,), "new_full": (2,),
    "copy": (1,), "scalar_tensor": (0,), "_to_copy": (0,), "sum": (0,), "mean": (0,),
}  # fmt: skip
"""Places of operands that become elements of the result; the imaginary part of real ones is 0."""


def _partwise(c: Call, *args: Any, **kwargs: Any) -> Results:
    """Convert an op for the real and for the imaginary parts."""
    own = _ELEMENTS.get(c.name, ())
    made = []
    for is_imag in (False, True):
        given = [_part(a, is_imag, i in own) for i, a in enumerate(args)]
        named = {k: _part(a, is_imag, False) for k, a in kwargs.items()}
        op = c.op.replace("ones", "zeros") if is_imag else c.op
        made.append(convert(op, c.emit, c.where, given, named, c.used))
    real, imag = made
    if not isinstance(real, (list, tuple)):
        return Complex(real, imag)
    pairs = zip(real, imag, strict=True)
    return [None if a is None else Complex(a, b) for a, b in pairs]


def _part(value: Any, is_imag: bool, is_element: bool) -> Any:
    """Return what an argument is where the real or the imaginary parts are computed."""
    if isinstance(value, (list, tuple)):
        return [_part(v, is_imag, is_element) for v in value]
    if isinstance(value, (Complex, complex)):
        return value.imag if is_imag else value.real
    if isinstance(value, str):
        return PART.get(value, value)
    if is_imag and is_element:
        return 0.0 if isinstance(value, (int, float)) else _zeros(value)
    return value


def _zeros(x: Value) -> Const:
    return Const(np.zeros(x.shape, x.dtype.host))


OF_COMPLEX.update(dict.fromkeys(PARTWISE, _partwise))


@converts("_to_copy", table=OF_COMPLEX)
def _to_copy(c: Call, self: Value | Complex, **kwargs: Any) -> Results:
    """Convert; as a real type take the real parts."""
    kind = kwargs.get("dtype")
    if isinstance(self, Complex) and kind is not None and kind not in PART:
        return c.cast(self.real, kind)
    return _partwise(c, self, **kwargs)


# --- parts ----------------------------------------------------------------------------------------


@converts("view_as_complex")
def _view_as_complex(c: Call, self: Value) -> Complex:
    real, imag = parts_of(c.emit, self)
    assert imag is not None  # of two parts
    return Complex(real, imag)


@converts("complex")
def _complex(c: Call, real: Value, imag: Value) -> Complex:
    return _made(c, real, imag)


@converts("polar")
def _polar(c: Call, abs: Operand, angle: Operand) -> Complex:
    size, turn = c.joined(abs, angle)
    return _made(c, *(c.nd("mul", size, c.nd(f, turn)) for f in ("cos", "sin")))


@converts("view_as_real", table=OF_COMPLEX)
def _view_as_real(c: Call, self: Complex) -> Value:
    return joined_parts(c.emit, self.real, self.imag)


@converts("real", "imag", table=OF_COMPLEX)
def _one_part(c: Call, self: Complex) -> Value:
    return self.real if c.name == "real" else self.imag


@converts("_conj", "conj", "_conj_physical", "conj_physical", table=OF_COMPLEX)
def _conj(c: Call, self: Complex) -> Complex:
    return Complex(self.real, c.nd("neg", self.imag))


@converts("abs", table=OF_COMPLEX)
def _abs(c: Call, self: Complex) -> Value:
    found: Value = CONVERTERS["hypot"](c, self.real, self.imag)
    return found


@converts("angle", table=OF_COMPLEX)
def _angle(c: Call, self: Complex) -> Value:
    return c.nd("atan2", self.imag, self.real)


@converts("angle")
def _real_angle(c: Call, self: Value) -> Value:
    x = c.floating(self)
    return c.nd("atan2", c.nd("mul", x, c.const(0, x.dtype.name)), x)


# --- arithmetic -----------------------------------------------------------------------------------

Parts = tuple[Operand, Operand | None]
"""Parts of an operand; None for an imaginary part of 0."""


def _parts(x: Number) -> Parts:
    return (x.real, x.imag) if isinstance(x, (Complex, complex)) else (x, None)


def _made(c: Call, real: Operand, imag: Operand | None) -> Complex:
    """Return complex numbers of parts, broadcast against each other."""
    a, b = c.joined(real, 0.0 if imag is None else imag)
    shape = broadcast(a.shape, b.shape)
    return Complex(c.expand(a, shape), c.expand(b, shape))


def _plus(c: Call, a: Operand | None, b: Operand | None, op: str = "add") -> Operand | None:
    """Add or subtract parts."""
    if b is None:
        return a
    if a is None:
        return b if op == "add" else c.nd("neg", *c.joined(b))
    return c.nd(op, *c.joined(a, b))


def _times(c: Call, a: Operand | None, b: Operand | None) -> Operand | None:
    return None if a is None or b is None else c.nd("mul", *c.joined(a, b))


def _sum(c: Call, a: Number, b: Number, op: str = "add") -> Complex:
    (real, imag), (real_b, imag_b) = _parts(a), _parts(b)
    total = _plus(c, real, real_b, op)
    assert total is not None  # of two numbers
    return _made(c, total, _plus(c, imag, imag_b, op))


@converts("add", "sub", "rsub", table=OF_COMPLEX)
def _scaled_sum(c: Call, self: Number, other: Number, alpha: Number = 1) -> Complex:
    a, b = self, other if alpha == 1 else _product(c, other, alpha)
    if c.name == "rsub":
        a, b = b, a
    return _sum(c, a, b, "add" if c.name == "add" else "sub")


def _product(c: Call, self: Number, other: Number) -> Complex:
    (a, b), (x, y) = _parts(self), _parts(other)
    real = _plus(c, _times(c, a, x), _times(c, b, y), "sub")
    assert real is not None  # of two numbers
    return _made(c, real, _plus(c, _times(c, a, y), _times(c, b, x)))


OF_COMPLEX["mul"] = _product


@converts("square", table=OF_COMPLEX)
def _square(c: Call, self: Complex) -> Complex:
    return _product(c, self, self)


@converts("div", table=OF_COMPLEX)
def _quotient(c: Call, self: Number, other: Number) -> Complex:
    a, b = _parts(self)
    x, y = _parts(other)
    if y is None:
        imag = None if b is None else c.nd("div", *c.joined(b, x))
        return _made(c, c.nd("div", *c.joined(a, x)), imag)
    # Of the larger part's size, so that squares do not overflow.
    x, y = c.joined(x, y)
    size = c.nd("max", c.nd("abs", x), c.nd("abs", y))
    x, y = c.nd("div", x, size), c.nd("div", y, size)
    under = c.nd("mul", size, c.nd("add", c.nd("mul", x, x), c.nd("mul", y, y)))
    above = _product(c, self, Complex(x, c.nd("neg", y)))
    return _made(c, *(c.nd("div", *c.joined(v, under)) for v in (above.real, above.imag)))


@converts("reciprocal", table=OF_COMPLEX)
def _reciprocal(c: Call, self: Complex) -> Complex:
    return _quotient(c, 1.0, self)


@converts("exp", table=OF_COMPLEX)
def _exp(c: Call, self: Complex) -> Complex:
    return _polar(c, c.nd("exp", self.real), self.imag)


@converts("log", table=OF_COMPLEX)
def _log(c: Call, self: Complex) -> Complex:
    return Complex(c.nd("log", _abs(c, self)), _angle(c, self))


@converts("sqrt", table=OF_COMPLEX)
def _sqrt(c: Call, self: Complex) -> Complex:
    """Return the root with a real part from 0 on."""
    kind = self.real.dtype.name
    size = c.nd("add", _abs(c, self), c.nd("abs", self.real))
    large = c.nd("sqrt", c.nd("mul", size, c.const(0.5, kind)))
    twice = c.nd("mul", large, c.const(2, kind))
    is_zero = c.nd("equal", large, c.const(0, kind))
    small = c.nd("where", is_zero, large, c.nd("div", c.nd("abs", self.imag), twice))
    is_left = c.nd("less", self.real, c.const(0, kind))
    imag = CONVERTERS["copysign"](c, c.nd("where", is_left, large, small), self.imag)
    return Complex(c.nd("where", is_left, small, large), imag)


_WAVES: Final = {
    "sin": (("sin", "cosh"), ("cos", "sinh"), 1),
    "cos": (("cos", "cosh"), ("sin", "sinh"), -1),
    "sinh": (("sinh", "cos"), ("cosh", "sin"), 1),
    "cosh": (("cosh", "cos"), ("sinh", "sin"), 1),
}
"""Functions of both parts whose products are the real and the imaginary part, and its sign."""


@converts(*_WAVES, table=OF_COMPLEX)
def _wave(c: Call, self: Complex) -> Complex:
    *products, sign = _WAVES[c.name]
    real, imag = (c.nd("mul", c.nd(f, self.real), c.nd(g, self.imag)) for f, g in products)
    return Complex(real, imag if sign > 0 else c.nd("neg", imag))


@converts("sigmoid", table=OF_COMPLEX)
def _sigmoid(c: Call, self: Complex) -> Complex:
    return _quotient(c, 1.0, _sum(c, _exp(c, _product(c, self, -1.0)), 1.0))


@converts("tanh", table=OF_COMPLEX)
def _tanh(c: Call, self: Complex) -> Complex:
    """Return ``(sinh 2a + i sin 2b) / (cosh 2a + cos 2b)``."""
    a, b = (c.nd("mul", v, c.const(2, v.dtype.name)) for v in (self.real, self.imag))
    ends = (c.const(v, a.dtype.name) for v in (-80, 80))  # where it is 1, and cosh still finite
    a = c.nd("clip", a, *ends)
    under = c.nd("add", c.nd("cosh", a), c.nd("cos", b))
    return Complex(c.nd("div", c.nd("sinh", a), under), c.nd("div", c.nd("sin", b), under))


@converts("pow", table=OF_COMPLEX)
def _power(c: Call, self: Number, exponent: Number) -> Complex:
    if isinstance(exponent, int) and 0 < abs(exponent) <= MAX_PRODUCTS:
        made = self
        for _ in range(abs(exponent) - 1):
            made = _product(c, made, self)
        return _product(c, made, 1.0) if exponent > 0 else _quotient(c, 1.0, made)
    base = _made(c, *_parts(self))
    return _exp(c, _product(c, _log(c, base), exponent))


@converts("sgn", table=OF_COMPLEX)
def _direction(c: Call, self: Complex) -> Complex:
    size = _abs(c, self)
    zero = c.const(0, size.dtype.name)
    is_zero = c.nd("equal", size, zero)
    parts = (c.nd("where", is_zero, zero, c.nd("div", v, size)) for v in (self.real, self.imag))
    return _made(c, *parts)


@converts("eq", "ne", table=OF_COMPLEX)
def _equal(c: Call, self: Number, other: Number) -> Value:
    (a, b), (x, y) = _parts(self), _parts(other)
    imag = c.joined(0.0 if b is None else b, 0.0 if y is None else y)
    made = c.nd("and", c.nd("equal", *c.joined(a, x)), c.nd("equal", *imag))
    return made if c.name == "eq" else c.nd("not", made)


@converts("isnan", "isinf", "isfinite", table=OF_COMPLEX)
def _class(c: Call, self: Complex) -> Value:
    both = (CONVERTERS[c.name](c, v) for v in (self.real, self.imag))
    return c.nd("and" if c.name == "isfinite" else "or", *both)


@converts("matmul", "mm", "bmm", "mv", "dot", "vdot", table=OF_COMPLEX)
def _matmul(c: Call, self: Number, other: Number) -> Complex:
    (a, b), (x, y) = _parts(self), _parts(other)
    b = b if b is None or c.name != "vdot" else c.nd("neg", *c.joined(b))

    def product(v: Operand | None, w: Operand | None) -> Operand | None:
        return None if v is None or w is None else c.nd("matmul", *c.joined(v, w))

    real = _plus(c, product(a, x), product(b, y), "sub")
    assert real is not None  # of two numbers
    return _made(c, real, _plus(c, product(a, y), product(b, x)))


@converts("linear", table=OF_COMPLEX)
def _linear(c: Call, input: Number, weight: Complex, bias: Number | None = None) -> Complex:
    made = _matmul(c, input, Complex(c.swap(weight.real), c.swap(weight.imag)))
    return made if bias is None else _sum(c, made, bias)


@converts("addmm", "baddbmm", "addmv", table=OF_COMPLEX)
def _addmm(
    c: Call, self: Number, a: Number, b: Number, beta: Number = 1, alpha: Number = 1
) -> Complex:
    return _sum(c, _product(c, self, beta), _product(c, _matmul(c, a, b), alpha))


@converts("linalg_vector_norm", table=OF_COMPLEX)
def _norm(c: Call, self: Complex, *args: Any, **kwargs: Any) -> Results:
    return CONVERTERS["linalg_vector_norm"](c, _abs(c, self), *args, **kwargs)


# --- Fourier transforms ---------------------------------------------------------------------------


def _scale(shape: Sequence[int], axes: Sequence[int], normalization: int) -> float:
    """Return the factor of sums over axes: 1, one by the root of their size, or by their size."""
    n = math.prod(shape[a] for a in axes)
    return (1.0, n**-0.5, 1.0 / n)[normalization] if n else 1.0


def _each(c: Call, x: Complex, axes: Sequence[int], sign: int, scale: float) -> Complex:
    """Transform complex numbers along axes."""
    for axis in axes:
        x = Complex(*fourier(c.emit, (x.real, x.imag), axis, sign, scale))
        scale = 1.0
    return x


@converts("_fft_c2c", table=OF_COMPLEX)
def _fft(c: Call, self: Complex, dim: Sequence[int], normalization: int, forward: bool) -> Complex:
    axes = c.axes(dim, len(self.shape))
    return _each(c, self, axes, -1 if forward else 1, _scale(self.shape, axes, normalization))


@converts("_fft_r2c")
def _rfft(c: Call, self: Value, dim: Sequence[int], normalization: int, onesided: bool) -> Complex:
    axes = c.axes(dim, len(self.shape))
    n = self.shape[axes[-1]]
    scale = _scale(self.shape, axes, normalization)
    keep = n // 2 + 1 if onesided else n
    made = Complex(*fourier(c.emit, (c.floating(self), None), axes[-1], -1, scale, keep))
    return _each(c, made, axes[:-1], -1, 1.0)


@converts("_fft_c2r", table=OF_COMPLEX)
def _irfft(
    c: Call, self: Complex, dim: Sequence[int], normalization: int, last_dim_size: int
) -> Value:
    axes = c.axes(dim, len(self.shape))
    n, last = last_dim_size, axes[-1]
    if self.shape[last] != n // 2 + 1:
        raise c.bad(f"{self.shape[last]} frequencies of a real signal of {n} elements")
    shape = (*self.shape[:last], n, *self.shape[last + 1 :])
    x = _each(c, self, axes[:-1], 1, 1.0)
    return real_signal(c.emit, (x.real, x.imag), last, n, _scale(shape, axes, normalization))
