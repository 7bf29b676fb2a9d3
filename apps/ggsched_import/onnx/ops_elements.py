"""Converters of ops on elements."""

from typing import Final

import numpy as np

from ggsched.ops.nd import library
from ggsched_import.common.emit import Const, Value
from ggsched_import.onnx.call import CONVERTERS, Call, converts
from ggsched_import.onnx.types import name_of

_SAME: Final = {op.onnx: op for op in library().values() if op.onnx}


def _same(c: Call) -> Value:
    op = _SAME[c.op]
    return c.nd(op.name.removeprefix("nd."), *[c.x(i) for i in range(len(op.operands))])


CONVERTERS.update(dict.fromkeys(_SAME, _same))


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
    return c.nd("silu", x) if alpha == 1.0 else c.nd("mul", x, c.nd("sigmoid", scaled(c, x, alpha)))


def scaled(c: Call, x: Value, factor: float) -> Value:
    """Multiply with a number, if it is not 1."""
    return x if factor == 1.0 else c.nd("mul", x, c.like(factor, x))


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
    if c.outputs == 1:
        return (x,)
    kept = Const(np.ones((1,) * len(x.shape), bool))
    return x, c.nd("expand", kept, shape=x.shape) if x.shape else kept
