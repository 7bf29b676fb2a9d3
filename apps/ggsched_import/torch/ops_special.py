"""Converters of special functions, which are computed by series of ops on elements."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from ggsched.ir.dtype import dtype_by_name
from ggsched_import.common.emit import Value
from ggsched_import.torch.call import CONVERTERS, Call, Operand, converts

_SHIFT: Final = {"f32": 4, "f64": 8}
"""Where series in 1/x are exact with as many terms as the next table says."""

_TERMS: Final = {"f32": 4, "f64": 7}

_BERNOULLI: Final = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
"""B2, B4, ..."""


def polynomial(c: Call, x: Value, terms: Sequence[float]) -> Value:
    """Return a polynomial, whose coefficient of the highest power comes first."""
    kind = x.dtype.name
    total: Value = c.const(terms[0], kind)
    for term in terms[1:]:
        total = c.nd("add", c.nd("mul", total, x), c.const(term, kind))
    return total


class _Real:
    """Arithmetic on values of one type, with numbers as constants."""

    def __init__(self, c: Call, kind: str) -> None:
        self.c, self.kind = c, kind

    def __call__(self, op: str, *x: Value | float) -> Value:
        given = (self.c.const(v, self.kind) if isinstance(v, (int, float)) else v for v in x)
        return self.c.nd(op, *given)


def _wide(c: Call, x: Operand) -> Value:
    """Return an operand as f32 or f64."""
    found = c.floating(x)
    return c.cast(found, "f32") if found.dtype.name == "f16" else found


def _from_sine(of: _Real, x: Value) -> Value:
    """Return the distance of x to the nearest integer, times pi."""
    return of("mul", of("sub", x, of("round", x)), math.pi)


@converts("lgamma", "digamma", "polygamma")
def _gamma(c: Call, *args: Operand) -> Value:
    """Return the logarithm of the gamma function, or its first or second derivative.

    Below 0 the functions are mirrored; small x are shifted to where a series in 1/x is exact.
    """
    *order, self = args
    if order and order[0] not in (0, 1):
        raise c.bad(f"polygamma of order {order[0]} is not supported")
    name = c.name if not order else "trigamma" if order[0] else "digamma"
    x = _wide(c, self)
    kind = x.dtype.name
    of, shift = _Real(c, kind), _SHIFT[kind]
    below = of("less", x, 0.0)
    z = of("where", below, of("sub", 1.0, x), x)
    is_small = of("less", z, shift)
    y = of("where", is_small, of("add", z, shift), z)
    inverse = of("div", 1.0, y)
    square = of("mul", inverse, inverse)
    steps = [z, *(of("add", z, i) for i in range(1, shift))]
    numbers = list(enumerate(_BERNOULLI[: _TERMS[kind]], start=1))[::-1]
    wave = _from_sine(of, x)
    if name == "lgamma":
        series = polynomial(c, square, [b / (2 * k * (2 * k - 1)) for k, b in numbers])
        main = of("sub", of("mul", of("sub", y, 0.5), of("log", y)), y)
        main = of("add", main, of("add", of("mul", series, inverse), math.log(2 * math.pi) / 2))
        product = steps[0]
        for step in steps[1:]:
            product = of("mul", product, step)
        found = of("sub", main, of("log", of("where", is_small, product, 1.0)))
        sine = of("log", of("abs", of("sin", wave)))
        mirrored = of("sub", of("sub", math.log(math.pi), sine), found)
        found = of("where", below, mirrored, found)
        found = of("where", of("equal", of("abs", x), math.inf), math.inf, found)
    elif name == "digamma":
        series = polynomial(c, square, [b / (2 * k) for k, b in numbers])
        main = of("sub", of("log", y), of("mul", inverse, 0.5))
        main = of("sub", main, of("mul", series, square))
        found = of("sub", main, _sum_below(of, is_small, [of("div", 1.0, v) for v in steps]))
        mirrored = of("sub", found, of("div", math.pi, of("tan", wave)))
        mirrored = of("where", of("equal", wave, 0.0), math.nan, mirrored)
        found = of("where", below, mirrored, found)
    else:
        series = polynomial(c, square, [b for _, b in numbers])
        main = of("add", inverse, of("mul", square, 0.5))
        main = of("add", main, of("mul", of("mul", series, square), inverse))
        terms = [of("div", 1.0, of("mul", v, v)) for v in steps]
        found = of("add", main, _sum_below(of, is_small, terms))
        sine = of("div", math.pi, of("sin", wave))
        found = of("where", below, of("sub", of("mul", sine, sine), found), found)
    return c.cast(found, c.floating(self).dtype.name)


def _sum_below(of: _Real, is_small: Value, terms: Sequence[Value]) -> Value:
    total = terms[0]
    for term in terms[1:]:
        total = of("add", total, term)
    return of("where", is_small, total, 0.0)


_SPLIT: Final = {"f32": 8.0, "f64": 20.0}
"""Up to where modified Bessel functions are power series; beyond, series in 1/x are exact."""


def _bessel_terms(order: int, at: float, eps: float) -> tuple[list[float], list[float]]:
    """Return coefficients of powers of ``(x / 2) ** 2``, and of 1/x; the highest power first."""
    near, far = [1.0], [1.0]
    size = term = 1.0
    while term > eps * size:
        k = len(near)
        near.append(near[-1] / (k * (k + order)))
        term = near[-1] * (at / 2) ** (2 * k)
        size += term
    while abs(far[-1]) > eps * at ** (len(far) - 1):
        k = len(far)
        far.append(far[-1] * ((2 * k - 1) ** 2 - 4 * order**2) / (8 * k))
    return near[::-1], far[::-1]


@converts("i0", "special_i0e", "special_i1", "special_i1e")
def _bessel(c: Call, self: Operand) -> Value:
    """Return modified Bessel functions of the first kind, e: times ``exp(-abs(x))``."""
    x = _wide(c, self)
    kind = x.dtype.name
    of, order, is_scaled = _Real(c, kind), int("1" in c.name), c.name.endswith("e")
    at, eps = _SPLIT[kind], float(np.finfo(dtype_by_name(kind).host).eps) / 4
    near, far = _bessel_terms(order, at, eps)
    size = of("abs", x)
    inside = of("min", size, at)
    half = of("mul", inside, 0.5)
    small = polynomial(c, of("mul", half, half), near)
    small = of("mul", small, half) if order else small
    small = of("mul", small, of("exp", of("neg", inside))) if is_scaled else small
    outside = of("max", size, at)
    large = of("div", polynomial(c, of("div", 1.0, outside), far),
               of("sqrt", of("mul", outside, 2 * math.pi)))  # fmt: skip
    if not is_scaled:  # in two factors, since the exponential alone overflows earlier
        root = of("exp", of("mul", outside, 0.5))
        large = of("mul", of("mul", large, root), root)
    found = of("where", of("greater", size, at), large, small)
    if order:
        found = of("where", of("less", x, 0.0), of("neg", found), found)
    found = of("where", of("is_nan", x), x, found)
    return c.cast(found, c.floating(self).dtype.name)


@converts("gcd", "lcm")
def _gcd(c: Call, self: Operand, other: Operand) -> Value:
    a, b = c.joined(self, other)
    divisor = c.nd("gcd", a, b)
    if c.name == "gcd":
        return divisor
    a, b = (v if v.dtype.name[0] == "u" else c.nd("abs", v) for v in (a, b))
    return c.nd("mul", c.nd("div", a, divisor), b)


@converts("frexp")
def _mantissa(c: Call, self: Value) -> list[Value]:
    """Return mantissas from 0.5 to 1, and exponents: by powers of two, which are exact."""
    x = _wide(c, self)
    kind = x.dtype.name
    of, width = _Real(c, kind), 64 if kind == "f32" else 512
    powers = [width >> i for i in range(width.bit_length())]
    size, exponent = of("abs", x), c.nd("mul", x, c.const(0, kind))
    for at, by in (*((p, p) for p in powers), (0, 1), *((-p, -p) for p in (width, *powers))):
        is_far = of("greater_equal" if by > 0 else "less", size, 2.0**at)
        size = of("where", is_far, of("mul", size, 2.0**-by), size)
        exponent = of("where", is_far, of("add", exponent, by), exponent)
    is_plain = of("greater", of("mul", size, 0.0), -1.0)  # neither infinite nor NaN
    is_plain = of("and", is_plain, of("greater", size, 0.0))
    size = CONVERTERS["copysign"](c, size, x)
    found = c.cast(of("where", is_plain, size, x), self.dtype.name)
    return [found, c.cast(of("where", is_plain, exponent, 0.0), "i32")]


@converts("nextafter")
def _next_after(c: Call, self: Operand, other: Operand) -> Value:
    """Add what rounds to the next number: Rump et al., BIT 49, 2009, algorithm 2."""
    a, b = c.joined(self, other)
    kind = a.dtype.name
    of, info = _Real(c, kind), np.finfo(dtype_by_name(kind).host)
    unit, least = float(info.eps) / 2, float(info.smallest_subnormal)
    step = unit * (1 + 2 * unit)
    size = of("abs", a)
    is_tiny, is_large = of("less", size, least / unit), of("less", least / unit / unit / 2, size)

    def moved(x: Value, by: Value | float) -> Value:
        return of("where", of("greater", b, a), of("add", x, by), of("sub", x, by))

    scaled = of("div", a, unit)
    middle = of("mul", moved(scaled, of("mul", of("abs", scaled), step)), unit)
    found = of("where", is_tiny, moved(a, least), middle)
    found = of("where", is_large, moved(a, of("mul", size, step)), found)
    last = CONVERTERS["copysign"](c, c.const(float(info.max), kind), a)
    found = of("where", of("equal", size, math.inf), last, found)
    return of("where", of("or", of("equal", a, b), of("is_nan", b)), b, found)
