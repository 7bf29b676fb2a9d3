"""Converters of ops on elements."""

from typing import Final

import numpy as np

from ggsched.importers.common.emit import Const, Value
from ggsched.importers.onnx.call import CONVERTERS, Call, converts
from ggsched.importers.onnx.types import name_of

_UNARY: Final = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh",
    "Atan": "atan", "Atanh": "atanh", "BitwiseNot": "bit_not", "Ceil": "ceil", "Cos": "cos",
    "Cosh": "cosh", "Erf": "erf", "Exp": "exp", "Floor": "floor", "HardSwish": "hard_swish",
    "IsNaN": "is_nan", "Log": "log", "Mish": "mish", "Neg": "neg", "Not": "not",
    "Reciprocal": "reciprocal", "Relu": "relu", "Round": "round", "Sigmoid": "sigmoid",
    "Sign": "sign", "Sin": "sin", "Sinh": "sinh", "Softplus": "softplus", "Softsign": "softsign",
    "Sqrt": "sqrt", "Tan": "tan", "Tanh": "tanh",
}  # fmt: skip
_BINARY: Final = {
    "Add": "add", "And": "and", "BitwiseAnd": "bit_and", "BitwiseOr": "bit_or",
    "BitwiseXor": "bit_xor", "Div": "div", "Equal": "equal", "Greater": "greater",
    "GreaterOrEqual": "greater_equal", "Less": "less", "LessOrEqual": "less_equal", "Mul": "mul",
    "Or": "or", "Pow": "pow", "Sub": "sub", "Xor": "xor",
}  # fmt: skip


def _unary(c: Call) -> Value:
    return c.nd(_UNARY[c.op], c.x())


def _binary(c: Call) -> Value:
    return c.nd(_BINARY[c.op], c.x(), c.x(1))


CONVERTERS.update(dict.fromkeys(_UNARY, _unary))
CONVERTERS.update(dict.fromkeys(_BINARY, _binary))


@converts("Max", "Min", "Sum", "Mean")
def _many(c: Call) -> Value:
    name = {"Max": "max", "Min": "min"}.get(c.op, "add")
    made = c.x()
    for i in range(1, len(c.inputs)):
        made = c.nd(name, made, c.x(i))
    return c.nd("div", made, c.like(len(c.inputs), made)) if c.op == "Mean" else made


@converts("Mod")
def _mod(c: Call) -> Value:
    return c.nd("mod", c.x(), c.x(1), fmod=c.attr("fmod", False))


@converts("BitShift")
def _shift(c: Call) -> Value:
    return c.nd("shift", c.x(), c.x(1), left=c.need("direction", str) == "LEFT")


@converts("Where")
def _where(c: Call) -> Value:
    return c.nd("where", c.x(), c.x(1), c.x(2))


@converts("PRelu")
def _prelu(c: Call) -> Value:
    return c.nd("prelu", c.x(), c.x(1))


@converts("IsInf")
def _is_inf(c: Call) -> Value:
    negative, positive = c.attr("detect_negative", True), c.attr("detect_positive", True)
    return c.nd("is_inf", c.x(), negative=negative, positive=positive)


@converts("LeakyRelu")
def _leaky(c: Call) -> Value:
    return c.nd("leaky_relu", c.x(), alpha=c.attr("alpha", 0.01))


@converts("Elu")
def _elu(c: Call) -> Value:
    return c.nd("elu", c.x(), alpha=c.attr("alpha", 1.0))


@converts("Celu")
def _celu(c: Call) -> Value:
    alpha = c.attr("alpha", 1.0)
    return c.nd("elu", c.x(), alpha=alpha, inner=alpha)


@converts("Selu")
def _selu(c: Call) -> Value:
    alpha = c.attr("alpha", 1.67326319217681884765625)
    return c.nd("elu", c.x(), alpha=alpha, gamma=c.attr("gamma", 1.05070102214813232421875))


@converts("HardSigmoid")
def _hard_sigmoid(c: Call) -> Value:
    return c.nd("hard_sigmoid", c.x(), alpha=c.attr("alpha", 0.2), beta=c.attr("beta", 0.5))


@converts("ThresholdedRelu")
def _threshold(c: Call) -> Value:
    return c.nd("threshold", c.x(), alpha=c.attr("alpha", 1.0))


@converts("Gelu")
def _gelu(c: Call) -> Value:
    return c.nd("gelu_tanh" if c.attr("approximate", "none") == "tanh" else "gelu", c.x())


@converts("Swish")
def _swish(c: Call) -> Value:
    x, alpha = c.x(), c.attr("alpha", 1.0)
    if alpha == 1.0:
        return c.nd("silu", x)
    return c.nd("mul", x, c.nd("sigmoid", c.nd("mul", x, c.like(alpha, x))))


@converts("Clip")
def _clip(c: Call) -> Value:
    x = c.x()
    kind = np.dtype(x.dtype.host)
    info = np.finfo(kind) if kind.kind == "f" else np.iinfo(kind)
    low = c.maybe(1) or c.like(c.attr("min", float(info.min)) if kind.kind == "f" else info.min, x)
    high = c.maybe(2) or c.like(c.attr("max", float(info.max)) if kind.kind == "f" else info.max, x)
    return c.nd("clip", x, low, high)


@converts("Cast")
def _cast(c: Call) -> Value:
    return cast_to(c, c.x(), name_of(c.need("to", int), c.where))


@converts("CastLike")
def _cast_like(c: Call) -> Value:
    return cast_to(c, c.x(), c.x(1).dtype.name)


def cast_to(c: Call, x: Value, to: str) -> Value:
    """Convert, if the type is another one."""
    return x if x.dtype.name == to else c.nd("cast", x, to=to)


@converts("Identity", "Dropout")
def _identity(c: Call) -> tuple[Value, ...]:
    x = c.x()
    if c.op == "Dropout" and c.has(2) and bool(c.const(2).reshape(-1)[0]):
        rate = float(c.const(1).reshape(-1)[0]) if c.has(1) else 0.5
        if rate:
            raise c.bad("training is not supported")
    return (x, Const(np.ones(x.shape, bool))) if c.outputs > 1 else (x,)


@converts("QuantizeLinear")
def _quantize(c: Call) -> Value:
    x, scale = c.x(), c.x(1)
    to = c.x(2).dtype.name if c.has(2) else "u8"
    if to not in ("u8", "i8", "u16", "i16"):
        raise c.bad(f"quantising to {to} is not supported")
    info = np.iinfo(np.dtype(c.x(2).dtype.host)) if c.has(2) else np.iinfo(np.uint8)
    scaled = c.nd("round", c.nd("div", x, _spread(c, scale, x)))
    if c.has(2):
        zero = c.nd("cast", _spread(c, c.x(2), x), to=x.dtype.name)
        scaled = c.nd("add", scaled, zero)
    return c.nd("round_to", scaled, to=to, low=int(info.min), high=int(info.max))


@converts("DequantizeLinear")
def _dequantize(c: Call) -> Value:
    x, scale = c.x(), c.x(1)
    to = scale.dtype.name
    if c.has(2):
        zero = c.nd("cast", _spread(c, c.x(2), x), to="i32")
        x = c.nd("sub", c.nd("cast", x, to="i32"), zero)
    return c.nd("mul", c.nd("cast", x, to=to), _spread(c, scale, x))


def _spread(c: Call, value: Value, x: Value) -> Value:
    """Return a scale or zero point in the shape in which it meets x: one or per axis."""
    if c.attr("block_size", 0):
        raise c.bad("blocked scales are not supported")
    if value.shape in ((), (1,)):
        return c.emit.reshape(value, ())
    axis = c.axis(1, len(x.shape))
    return c.emit.reshape(value, (value.shape[0], *(1,) * (len(x.shape) - axis - 1)))


@converts("DynamicQuantizeLinear")
def _dynamic(c: Call) -> tuple[Value, ...]:
    x = c.x()
    axes = tuple(range(len(x.shape)))
    zero = c.like(0, x)
    low = c.nd("min", c.nd("reduce_min", x, axes=axes, keepdims=False), zero)
    high = c.nd("max", c.nd("reduce_max", x, axes=axes, keepdims=False), zero)
    scale = c.nd("div", c.nd("sub", high, low), c.like(255, x))
    point = c.nd("clip", c.nd("div", c.nd("neg", low), scale), zero, c.like(255, x))
    point = c.nd("round", point)
    scaled = c.nd("add", c.nd("round", c.nd("div", x, scale)), point)
    return c.nd("round_to", scaled, to="u8", low=0, high=255), scale, c.nd("cast", point, to="u8")
