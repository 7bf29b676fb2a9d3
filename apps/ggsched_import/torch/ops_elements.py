"""Converters of ops on elements."""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ggsched.ops.nd import library
from ggsched.ops.nd.declare import ANY, FLOATS, NUMBERS
from ggsched_import.common.emit import Value
from ggsched_import.torch.call import CONVERTERS, Call, Operand, converts, is_float, kind_of
from ggsched_import.torch.ops_layout import random_numbers
from ggsched_import.torch.types import promoted

_SAME: Final = {op.aten: op for op in library().values() if op.aten}

WHOLE: Final = {name: name for name in ("ceil", "floor", "round")}
"""Functions that leave integers as they are."""


def _taking(types: Sequence[str], *operands: str) -> dict[str, str]:
    """Return the ops that take operands, the first of such types, by their names in PyTorch."""
    return {
        aten: op.name.removeprefix("nd.")
        for aten, op in _SAME.items()
        if (op.types[0], op.operands) == (types, operands) and aten not in WHOLE
    }


FUNCTIONS: Final = _taking(FLOATS, "x")
"""Functions whose results are floats, by the name of the op of the library."""

ANY_NUMBER: Final = {**_taking(NUMBERS, "x"), "sgn": "sign"}

ARITHMETIC: Final = {"mul": "mul", "maximum": "max", "minimum": "min"}
COMPARISONS: Final = {**_taking(ANY, "a", "b"), **_taking(NUMBERS, "a", "b")}
LOGIC: Final = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}
BITS: Final = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"}

_ON_BOOLS: Final = {"mul": "and", "maximum": "or", "minimum": "and", "add": "or"}


def _function(c: Call, x: Value) -> Value:
    return c.nd(FUNCTIONS[c.name], c.floating(x))


def _whole(c: Call, x: Value) -> Value:
    return c.nd(WHOLE[c.name], x) if is_float(x) else x


def _number(c: Call, x: Value) -> Value:
    return c.nd(ANY_NUMBER[c.name], x)


def _arithmetic(c: Call, self: Operand, other: Operand) -> Value:
    a, b = c.joined(self, other)
    if a.dtype.name == "bool":
        return c.nd(_ON_BOOLS[c.name], a, b)
    return c.nd(ARITHMETIC[c.name], a, b)


def _ordered(c: Call, self: Operand, other: Operand) -> list[Value]:
    """Return operands of a comparison: bools as integers, which have an order."""
    a, b = c.joined(self, other)
    return [c.cast(v, "u8") for v in (a, b)] if a.dtype.name == "bool" else [a, b]


def _comparison(c: Call, self: Operand, other: Operand) -> Value:
    operands = c.joined(self, other) if c.name == "eq" else _ordered(c, self, other)
    return c.nd(COMPARISONS[c.name], *operands)


def _logic(c: Call, self: Operand, other: Operand) -> Value:
    return c.nd(LOGIC[c.name], c.value(self, "bool"), c.value(other, "bool"))


def _bits(c: Call, self: Operand, other: Operand) -> Value:
    a, b = c.joined(self, other)
    name = BITS[c.name]
    return c.nd(name if a.dtype.name == "bool" else f"bit_{name}", a, b)


for _table, _converter in (
    (FUNCTIONS, _function),
    (WHOLE, _whole),
    (ANY_NUMBER, _number),
    (ARITHMETIC, _arithmetic),
    (COMPARISONS, _comparison),
    (LOGIC, _logic),
    (BITS, _bits),
):
    CONVERTERS.update(dict.fromkeys(_table, _converter))


@converts("add", "sub", "rsub")
def _sum(c: Call, self: Operand, other: Operand, alpha: Any = 1) -> Value:
    a, b = c.joined(self, other, *(() if alpha == 1 else (alpha,)))[:2]
    if a.dtype.name == "bool":
        return c.nd("or", a, b)
    if c.name == "rsub":
        a, b = b, a if alpha == 1 else c.nd("mul", a, c.const(alpha, a.dtype.name))
    elif alpha != 1:
        b = c.nd("mul", b, c.const(alpha, b.dtype.name))
    return c.nd("add" if c.name == "add" else "sub", a, b)


@converts("div", "true_divide")
def _div(c: Call, self: Operand, other: Operand, rounding_mode: str | None = None) -> Value:
    if rounding_mode == "floor":
        return floor_divide(c, self, other)
    kind = promoted(kind_of(self), kind_of(other))
    if rounding_mode is None:
        kind = promoted(kind, 1.0)
    made = c.nd("div", c.value(self, kind), c.value(other, kind))
    return _trunc(c, made) if rounding_mode == "trunc" else made


@converts("floor_divide")
def floor_divide(c: Call, self: Operand, other: Operand) -> Value:
    """Divide, rounding down."""
    a, b = c.joined(self, other)
    if is_float(a):
        return c.nd("floor", c.nd("div", a, b))
    return c.nd("div", c.nd("sub", a, c.nd("mod", a, b)), b)


@converts("remainder", "fmod")
def _remainder(c: Call, self: Operand, other: Operand) -> Value:
    return c.nd("mod", *c.joined(self, other), fmod=c.name == "fmod")


@converts("pow")
def _pow(c: Call, self: Operand, exponent: Operand) -> Value:
    a, b = c.joined(self, exponent)
    return c.nd("pow", a, b)


@converts("atan2")
def _atan2(c: Call, self: Value, other: Value) -> Value:
    a, b = c.joined(c.floating(self), other)
    return c.nd("atan2", a, b)


@converts("bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__")
def _shift(c: Call, self: Operand, other: Operand) -> Value:
    return c.nd("shift", *c.joined(self, other), left="l" in c.name.replace("bitwise_", "")[:5])


@converts("trunc", "fix")
def _trunc(c: Call, self: Value) -> Value:
    if not is_float(self):
        return self
    zero = c.const(0, self.dtype.name)
    return c.nd("where", c.nd("less", self, zero), c.nd("ceil", self), c.nd("floor", self))


@converts("round.decimals")
def _round(c: Call, self: Value, decimals: int = 0) -> Value:
    factor = c.const(10.0**decimals, self.dtype.name)
    return c.nd("div", c.nd("round", c.nd("mul", self, factor)), factor)


@converts("frac")
def _frac(c: Call, self: Value) -> Value:
    return c.nd("sub", self, _trunc(c, self))


@converts("log2", "log10", "exp2")
def _based(c: Call, self: Value) -> Value:
    x = c.floating(self)
    kind = x.dtype.name
    if c.name == "exp2":
        return c.nd("pow", c.const(2, kind), x)
    base = 2.0 if c.name == "log2" else 10.0
    return c.nd("mul", c.nd("log", x), c.const(1 / math.log(base), kind))


@converts("erfc")
def _erfc(c: Call, self: Value) -> Value:
    x = c.floating(self)
    return c.nd("sub", c.const(1, x.dtype.name), c.nd("erf", x))


@converts("signbit")
def _sign_bit(c: Call, self: Value) -> Value:
    zero = c.const(0, self.dtype.name)
    below = c.nd("less", self, zero)
    if not is_float(self):
        return below
    at_zero = c.nd("less", c.nd("reciprocal", self), zero)  # 1 / -0 is -infinity
    return c.nd("or", below, c.nd("and", c.nd("equal", self, zero), at_zero))


@converts("copysign")
def _copysign(c: Call, self: Value, other: Operand) -> Value:
    a, b = c.joined(c.floating(self), other)
    size = c.nd("abs", a)
    return c.nd("where", _sign_bit(c, b), c.nd("neg", size), size)


@converts("fmax", "fmin")
def _without_nan(c: Call, self: Operand, other: Operand) -> Value:
    a, b = c.joined(self, other)
    made = c.nd(c.name[1:], a, b)
    if not is_float(a):
        return made
    return c.nd("where", c.nd("is_nan", a), b, c.nd("where", c.nd("is_nan", b), a, made))


@converts("hypot")
def _hypot(c: Call, self: Operand, other: Operand) -> Value:
    """Of the larger one's size, so that squares do not overflow."""
    a, b = (c.nd("abs", v) for v in c.joined(self, other))
    high, low = c.nd("max", a, b), c.nd("min", a, b)
    one = c.const(1, high.dtype.name)
    ratio = c.nd("div", low, high)
    made = c.nd("mul", high, c.nd("sqrt", c.nd("add", c.nd("mul", ratio, ratio), one)))
    is_end = c.nd("or", c.nd("is_inf", high), c.nd("equal", high, c.const(0, one.dtype.name)))
    return c.nd("where", is_end, high, made)


@converts("ldexp")
def _ldexp(c: Call, self: Operand, other: Operand) -> Value:
    a, b = c.joined(c.value(self, promoted(kind_of(self), 1.0)), other)
    return c.nd("mul", a, c.nd("pow", c.const(2, a.dtype.name), b))


@converts("fake_quantize_per_tensor_affine_cachemask", "fake_quantize_per_tensor_affine")
def _fake_quantize(
    c: Call, self: Value, scale: Operand, zero_point: Operand, quant_min: int, quant_max: int
) -> Any:
    kind = self.dtype.name
    factor, zero = c.value(scale, kind), c.value(zero_point, kind)
    whole = c.nd("add", c.nd("round", c.nd("div", self, factor)), zero)
    limits = [c.const(v, kind) for v in (quant_min, quant_max)]
    kept = c.nd("clip", whole, *limits)
    made = c.nd("mul", c.nd("sub", kept, zero), factor)
    return [made, c.nd("equal", kept, whole)] if "cachemask" in c.name else made


@converts("rrelu_with_noise_functional")
def _rrelu(
    c: Call, self: Value, noise: Value, lower: float = 1 / 8, upper: float = 1 / 3,
    training: bool = False, generator: Any = None,
) -> list[Value]:  # fmt: skip
    if training:
        raise random_numbers(c)
    return [_leaky(c, self, (lower + upper) / 2), noise]


_ERFINV: Final = (
    (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
     -0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
    (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
     -0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)  # fmt: skip
"""Of Giles' approximation, near 0 and near 1."""


@converts("erfinv")
def _erfinv(c: Call, self: Value) -> Value:
    x = c.floating(self)
    kind = x.dtype.name
    one = c.const(1, kind)
    w = c.nd("neg", c.nd("log", c.nd("sub", one, c.nd("mul", x, x))))
    is_near = c.nd("less", w, c.const(5, kind))
    sides = c.nd("sub", w, c.const(2.5, kind)), c.nd("sub", c.nd("sqrt", w), c.const(3, kind))
    made = []
    for terms, t in zip(_ERFINV, sides, strict=True):
        total: Value = c.const(terms[0], kind)
        for term in terms[1:]:
            total = c.nd("add", c.nd("mul", total, t), c.const(term, kind))
        made.append(c.nd("mul", total, x))
    found = c.nd("where", is_near, *made)
    if kind == "f64":  # two steps of Newton's
        for _ in range(2):
            off = c.nd("sub", c.nd("erf", found), x)
            slope = c.nd("mul", c.nd("exp", c.nd("neg", c.nd("mul", found, found))),
                         c.const(2 / math.sqrt(math.pi), kind))  # fmt: skip
            found = c.nd("sub", found, c.nd("div", off, slope))
    infinite = c.nd("mul", x, c.const(math.inf, kind))
    return c.nd("where", c.nd("equal", c.nd("abs", x), one), infinite, found)


@converts("square")
def _square(c: Call, self: Value) -> Value:
    return c.nd("mul", self, self)


@converts("ne")
def _ne(c: Call, self: Operand, other: Operand) -> Value:
    return c.nd("not", c.nd("equal", *c.joined(self, other)))


@converts("logical_not")
def _not(c: Call, self: Value) -> Value:
    return c.nd("not", c.cast(self, "bool"))


@converts("bitwise_not")
def _bit_not(c: Call, self: Value) -> Value:
    return c.nd("not" if self.dtype.name == "bool" else "bit_not", self)


@converts("isnan", "isinf", "isfinite")
def _class(c: Call, self: Value) -> Value:
    x = c.floating(self)
    if c.name == "isnan":
        return c.nd("is_nan", x)
    inf = c.nd("is_inf", x)
    return inf if c.name == "isinf" else c.nd("not", c.nd("or", inf, c.nd("is_nan", x)))


@converts("where")
def _where(c: Call, condition: Value, self: Operand, other: Operand) -> Value:
    a, b = c.joined(self, other)
    return c.nd("where", c.cast(condition, "bool"), a, b)


@converts("masked_fill")
def _masked_fill(c: Call, self: Value, mask: Value, value: Operand) -> Value:
    return c.nd("where", mask, c.value(value, self.dtype.name), self)


@converts("clamp", "clip")
def _clamp(c: Call, self: Value, min: Any = None, max: Any = None) -> Value:
    limits = [v for v in (min, max) if v is not None]
    kind = promoted(self.dtype.name, *map(kind_of, limits))
    x = c.cast(self, kind)
    if min is not None and max is not None and all(isinstance(v, (int, float)) for v in limits):
        return c.nd("clip", x, c.const(min, kind), c.const(max, kind))
    x = x if min is None else c.nd("max", x, c.value(min, kind))
    return x if max is None else c.nd("min", x, c.value(max, kind))


@converts("clamp_min", "clamp_max")
def _clamp_one(c: Call, self: Value, limit: Any) -> Value:
    return _clamp(c, self, limit) if c.name == "clamp_min" else _clamp(c, self, None, limit)


@converts("hardtanh")
def _hard_tanh(c: Call, self: Value, min_val: float = -1, max_val: float = 1) -> Value:
    return _clamp(c, self, min_val, max_val)


@converts("gelu")
def _gelu(c: Call, self: Value, approximate: str = "none") -> Value:
    return c.nd("gelu_tanh" if approximate == "tanh" else "gelu", self)


@converts("leaky_relu")
def _leaky(c: Call, self: Value, negative_slope: float = 0.01) -> Value:
    return c.nd("leaky_relu", self, alpha=float(negative_slope))


@converts("elu")
def _elu(
    c: Call, self: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Value:
    return c.nd("elu", self, alpha=float(alpha), gamma=float(scale), inner=1 / float(input_scale))


@converts("hardsigmoid")
def _hard_sigmoid(c: Call, self: Value) -> Value:
    return c.nd("hard_sigmoid", self, alpha=1 / 6, beta=0.5)


@converts("softplus")
def _softplus(c: Call, self: Value, beta: float = 1, threshold: float = 20) -> Value:
    kind = self.dtype.name
    scaled = self if beta == 1 else c.nd("mul", self, c.const(beta, kind))
    made = c.nd("softplus", scaled)
    made = made if beta == 1 else c.nd("div", made, c.const(beta, kind))
    return c.nd("where", c.nd("greater", scaled, c.const(threshold, kind)), self, made)


@converts("prelu", "_prelu_kernel")
def _prelu(c: Call, self: Value, weight: Value) -> Value:
    if c.name == "prelu" and len(self.shape) > 1:
        weight = c.reshape(weight, (-1, *(1,) * (len(self.shape) - 2)))
    return c.nd("prelu", self, weight)


@converts("_to_copy", "to.dtype", "to.dtype_layout")
def _to_copy(c: Call, self: Value, *args: Any, dtype: str | None = None, **_: Any) -> Value:
    kind = next((a for a in args if isinstance(a, str)), dtype)
    return self if kind is None else c.cast(self, kind)


@converts("prims.convert_element_type")
def _convert_element_type(c: Call, a: Operand, dtype: str) -> Value:
    return c.value(a, dtype)


@converts("type_as")
def _type_as(c: Call, self: Value, other: Value) -> Value:
    return c.cast(self, other.dtype.name)


@converts("nan_to_num")
def _nan_to_num(
    c: Call, self: Value, nan: float | None = None, posinf: Any = None, neginf: Any = None
) -> Value:
    if not is_float(self):
        return self
    kind, info = self.dtype.name, np.finfo(np.dtype(self.dtype.host))
    high = float(info.max) if posinf is None else posinf
    low = float(info.min) if neginf is None else neginf
    x = c.nd("where", c.nd("is_nan", self), c.const(nan or 0.0, kind), self)
    x = c.nd("where", c.nd("is_inf", x, positive=True, negative=False), c.const(high, kind), x)
    return c.nd("where", c.nd("is_inf", x, positive=False, negative=True), c.const(low, kind), x)
