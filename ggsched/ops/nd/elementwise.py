"""Ops on elements: arithmetic, functions, comparisons, logic, selection, conversion."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from ggsched.ops.elementwise import ELEMENTWISE, softplus
from ggsched.ops.nd.declare import (
    ANY,
    BOOLS,
    FLOATS,
    INTS,
    NUMBERS,
    Array,
    broadcast,
    compared,
    joined,
    nd_op,
    numpy_type,
    tested,
    whole,
)
from ggsched.ops.record import ELEMENTS, FUNCTIONS, Operand, Param, Shape, same

_ERF: Final = (
    (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05),
    (-7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02),
)
_ERF_UNDER: Final = (
    (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03),
    (-7.37332916720468e-03, -1.42647390514189e-02),
)


def erf(x: Array) -> Array:
    """Return the error function; f32 by Eigen's rational function, within 3e-7."""
    if x.dtype == np.float64:
        return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x))
    x = np.clip(x.astype(np.float32), -4, 4)
    square = x * x
    above = np.zeros_like(x)
    for c in (*_ERF[0], *_ERF[1]):
        above = above * square + np.float32(c)
    under = np.zeros_like(x)
    for c in (*_ERF_UNDER[0], *_ERF_UNDER[1]):
        under = under * square + np.float32(c)
    return np.asarray(x * above / under)


def _unary(
    name: str, reference: Callable[..., Any], types: Sequence[str] = FLOATS, **more: Any
) -> None:
    nd_op(name, "x", rule=same, types=types, over=(0,), **more)(reference)


def _binary(name: str, reference: Callable[..., Any], types: Sequence[str], **more: Any) -> None:
    nd_op(name, "a", "b", rule=joined, types=types, over=(0, 1), **more)(reference)


def _comparison(
    name: str, reference: Callable[..., Any], types: Sequence[str] = ANY, **names: Any
) -> None:
    nd_op(name, "a", "b", rule=compared, types=types, **names)(reference)


for _name, _f in {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
}.items():
    _family = ELEMENTS if _name in ("sqrt", "floor", "ceil", "round") else FUNCTIONS
    _unary(_name, _f, family=_family, onnx=_name.capitalize(), aten=_name)

for _op in ELEMENTWISE:
    if _op.array:
        _unary(_op.array, _op.reference, family=_op.family, onnx=_op.onnx, aten=_op.aten)

_unary("log1p", np.log1p, family=FUNCTIONS, aten="log1p")
_unary("expm1", np.expm1, family=FUNCTIONS, aten="expm1")
_unary("abs", np.abs, NUMBERS, onnx="Abs", aten="abs")
_unary("neg", np.negative, NUMBERS, onnx="Neg", aten="neg")
_unary("sign", np.sign, NUMBERS, onnx="Sign", aten="sign")
_unary("reciprocal", lambda x: 1 / x, onnx="Reciprocal", aten="reciprocal")
_unary("rsqrt", lambda x: 1 / np.sqrt(x), aten="rsqrt")
_unary("erf", erf, family=FUNCTIONS, onnx="Erf", aten="erf")
_unary("softsign", lambda x: x / (1 + abs(x)), onnx="Softsign")
_unary("relu", lambda x: np.maximum(x, 0), NUMBERS, onnx="Relu", aten="relu")
_unary("mish", lambda x: x * np.tanh(softplus(x)), family=FUNCTIONS, onnx="Mish", aten="mish")
_unary("hard_swish", lambda x: x * np.clip(x / 6 + 0.5, 0, 1), onnx="HardSwish", aten="hardswish")
_unary(
    "gelu",
    lambda x: 0.5 * x * (1 + erf(x * np.asarray(math.sqrt(0.5), x.dtype))),
    family=FUNCTIONS,
)
_unary(
    "leaky_relu", lambda x, alpha: np.where(x < 0, x * np.asarray(alpha, x.dtype), x), alpha=0.01
)
_unary(
    "elu",
    lambda x, alpha, gamma, inner: np.where(
        x > 0, gamma * x, gamma * alpha * np.expm1(np.minimum(x, 0) / inner)
    ),
    family=FUNCTIONS,
    alpha=1.0,
    gamma=1.0,
    inner=1.0,
)
_unary("hard_sigmoid", lambda x, alpha, beta: np.clip(x * alpha + beta, 0, 1), alpha=0.2, beta=0.5)
_unary("threshold", lambda x, alpha: np.where(x > alpha, x, np.zeros_like(x)), alpha=1.0)
_unary("not", np.logical_not, BOOLS, onnx="Not")
_unary("bit_not", np.bitwise_not, INTS, onnx="BitwiseNot")

_binary("add", np.add, NUMBERS, onnx="Add")
_binary("sub", np.subtract, NUMBERS, onnx="Sub")
_binary("mul", np.multiply, NUMBERS, onnx="Mul")
_binary("min", np.minimum, NUMBERS)
_binary("max", np.maximum, NUMBERS)
_binary("and", np.logical_and, BOOLS, onnx="And")
_binary("or", np.logical_or, BOOLS, onnx="Or")
_binary("xor", np.logical_xor, BOOLS, onnx="Xor")
_binary("bit_and", np.bitwise_and, INTS, onnx="BitwiseAnd")
_binary("bit_or", np.bitwise_or, INTS, onnx="BitwiseOr")
_binary("bit_xor", np.bitwise_xor, INTS, onnx="BitwiseXor")
_binary("gcd", np.gcd, INTS, family=FUNCTIONS)
_binary("atan2", np.arctan2, FLOATS, family=FUNCTIONS)
# Remainders have the sign of the divisor, or for ``fmod`` of the dividend; those of integers by 0
# are 0. Negative counts of bits, and those from the width on, shift out every bit.
_binary("mod", lambda a, b, fmod: np.fmod(a, b) if fmod else np.mod(a, b), NUMBERS, fmod=False)
_binary(
    "shift",
    lambda a, b, left: np.left_shift(a, b) if left else np.right_shift(a, b),
    INTS,
    left=True,
)
_binary("prelu", lambda x, slope: np.where(x < 0, x * slope, x), NUMBERS, onnx="PRelu")

nd_op("is_nan", "x", rule=tested, types=FLOATS, onnx="IsNaN")(lambda x: np.isnan(x))
nd_op("is_inf", "x", rule=tested, types=FLOATS, negative=True, positive=True)(
    lambda x, negative, positive: (negative & np.isneginf(x)) | (positive & np.isposinf(x))
)
_comparison("equal", np.equal, onnx="Equal", aten="eq")
_comparison("less", np.less, NUMBERS, onnx="Less", aten="lt")
_comparison("less_equal", np.less_equal, NUMBERS, onnx="LessOrEqual", aten="le")
_comparison("greater", np.greater, NUMBERS, onnx="Greater", aten="gt")
_comparison("greater_equal", np.greater_equal, NUMBERS, onnx="GreaterOrEqual", aten="ge")


@nd_op("div", "a", "b", rule=joined, types=NUMBERS, over=(0, 1), onnx="Div")
def div(a: Array, b: Array) -> Array:
    """Divide; quotients of integers are rounded towards zero, those by 0 are 0."""
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    quotient = np.floor_divide(a, b)
    is_low = (quotient * b != a) & ((a < 0) != (b < 0)) & (b != 0)
    return np.asarray(quotient + is_low.astype(a.dtype))


def _power(x: Sequence[Operand], **_: Param) -> tuple[str, Shape]:
    return x[0].dtype.name, broadcast(x[0].shape, x[1].shape)


@nd_op("pow", "a", "b", rule=_power, types=NUMBERS, family=FUNCTIONS, onnx="Pow")
def power(a: Array, b: Array) -> Array:
    """Return ``a ** b`` in the type of ``a``.

    Integers to a negative power are rounded towards zero; those of 0 are 0.
    """
    if a.dtype.kind == "f":
        return np.asarray(np.power(a, b.astype(a.dtype)))
    if b.dtype.kind == "f":
        return whole(np.power(a.astype(np.float64), b), a.dtype)
    bits = np.power(a.astype(np.uint64), np.maximum(b, 0).astype(np.uint64)).astype(a.dtype)
    unit = np.where((a == 1) | (b % 2 == 0), 1, -1).astype(a.dtype)
    is_unit = (a == 1) | (a.astype(np.int64) == -1) & (a.dtype.kind == "i")
    return np.where(b < 0, np.where(is_unit, unit, a.dtype.type(0)), bits)


def _where(x: Sequence[Operand], **_: Param) -> tuple[str, Shape]:
    if x[1].dtype is not x[2].dtype:
        raise ValueError("both alternatives must have one type")
    return x[1].dtype.name, broadcast(*(t.shape for t in x))


@nd_op("where", "condition", "a", "b", rule=_where, types=BOOLS, onnx="Where")
def where(condition: Array, a: Array, b: Array) -> Array:
    """Select elements of a where the condition holds, of b elsewhere."""
    return np.where(condition, a, b)


def _clip(x: Sequence[Operand], **_: Param) -> tuple[str, Shape]:
    if any(t.size != 1 for t in x[1:]) or len({t.dtype for t in x}) > 1:
        raise ValueError("limits must be one element of the type of x")
    return same(x)


@nd_op("clip", "x", "low", "high", rule=_clip, types=NUMBERS, over=(0,))
def clip(x: Array, low: Array, high: Array) -> Array:
    """Limit elements from below, then from above."""
    return np.minimum(np.maximum(x, low.reshape(())), high.reshape(()))


def _cast(x: Sequence[Operand], to: str) -> tuple[str, Shape]:
    return to, x[0].shape


@nd_op("cast", "x", rule=_cast, to="f32")
def cast(x: Array, to: str) -> Array:
    """Convert: floats to integers as ``whole``, integers by low bits, bools where not 0."""
    kind = numpy_type(to)
    return whole(x, kind) if x.dtype.kind == "f" and kind.kind in "iu" else x.astype(kind)


def _rounded(x: Sequence[Operand], to: str, **_: Param) -> tuple[str, Shape]:
    return to, x[0].shape


@nd_op("round_to", "x", rule=_rounded, types=FLOATS, to="i8", low=-128, high=127)
def round_to(x: Array, to: str, low: int, high: int) -> Array:
    """Round to the nearest integer, ties to even, within limits; NaN becomes 0."""
    return whole(np.clip(np.rint(x), low, high), numpy_type(to))
