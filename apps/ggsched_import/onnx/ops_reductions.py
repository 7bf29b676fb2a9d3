"""Converters of reductions, sorts, and what normalises."""

from math import prod
from typing import Final

import numpy as np

from ggsched_import.common.emit import Const, Value
from ggsched_import.onnx.call import CONVERTERS, Call, converts
from ggsched_import.onnx.ops_elements import cast_to
from ggsched_import.onnx.ops_layout import axes_of
from ggsched_import.onnx.types import name_of

_REDUCTIONS: Final = {
    "ReduceL1": "l1", "ReduceL2": "l2", "ReduceLogSum": "log_sum",
    "ReduceLogSumExp": "log_sum_exp", "ReduceMax": "max", "ReduceMean": "mean",
    "ReduceMin": "min", "ReduceProd": "prod", "ReduceSum": "sum",
    "ReduceSumSquare": "sum_square",
}  # fmt: skip


def _reduce(c: Call) -> Value:
    x = c.x()
    axes = axes_of(c, 1, len(x.shape))
    if not axes:
        if c.attr("noop_with_empty_axes", False):
            return _unreduced(c, x)
        axes = tuple(range(len(x.shape)))
    keepdims = c.attr("keepdims", True)
    return c.nd("reduce_" + _REDUCTIONS[c.op], x, axes=axes, keepdims=keepdims)


def _unreduced(c: Call, x: Value) -> Value:
    """Return what is left of a reduction over no axes: its function of each element."""
    match c.op:
        case "ReduceL1" | "ReduceL2":
            return c.nd("abs", x)
        case "ReduceLogSum":
            return c.nd("log", x)
        case "ReduceSumSquare":
            return c.nd("mul", x, x)
    return x


CONVERTERS.update(dict.fromkeys(_REDUCTIONS, _reduce))


@converts("ArgMax", "ArgMin")
def _arg(c: Call) -> Value:
    x = c.x()
    axis, keepdims = c.axis(0, len(x.shape)), c.attr("keepdims", True)
    last = c.attr("select_last_index", False)
    return c.nd(
        "arg_max" if c.op == "ArgMax" else "arg_min", x, axis=axis, keepdims=keepdims, last=last
    )


@converts("TopK")
def _top_k(c: Call) -> tuple[Value, ...]:
    x = c.x()
    k = int(c.const(1).reshape(-1)[0]) if c.has(1) else c.need("k", int)
    axis = c.axis(-1, len(x.shape))
    indices = c.nd("top_k", x, k=k, axis=axis, largest=c.attr("largest", True))
    return c.nd("gather_elements", x, indices, axis=axis), indices


@converts("CumSum", "CumProd")
def _running(c: Call) -> Value:
    x = c.x()
    axis = c.normal_axis(int(c.const(1).reshape(-1)[0]), len(x.shape))
    how = {"exclusive": c.attr("exclusive", False), "reverse": c.attr("reverse", False)}
    return c.nd("cum_sum" if c.op == "CumSum" else "cum_prod", x, axis=axis, **how)


@converts("Softmax", "LogSoftmax", "Hardmax")
def _softmax(c: Call) -> Value:
    x = c.x()
    name = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Hardmax": "hardmax"}[c.op]
    if c.opset >= 13:
        return c.nd(name, x, axis=c.axis(-1, len(x.shape)))
    axis = c.axis(1, len(x.shape))  # then all axes from there on were one
    flat = c.emit.reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))
    return c.emit.reshape(c.nd(name, flat, axis=1), x.shape)


@converts("BatchNormalization")
def _batch_norm(c: Call) -> Value:
    if c.attr("training_mode", False) or c.outputs > 1:
        raise c.bad("training is not supported")
    x = c.x()
    shape = (-1, *(1,) * (len(x.shape) - 2)) if len(x.shape) > 1 else (-1,)
    scale, bias, mean, variance = (
        c.emit.reshape(c.x(i), (prod(c.x(i).shape), *shape[1:])) for i in range(1, 5)
    )
    eps = c.like(c.attr("epsilon", 1e-5), variance)
    scale = cast_to(c, scale, variance.dtype.name)
    factor = c.nd("div", scale, c.nd("sqrt", c.nd("add", variance, eps)))
    offset = c.nd("sub", cast_to(c, bias, mean.dtype.name), c.nd("mul", mean, factor))
    kind = x.dtype.name
    return c.nd("add", c.nd("mul", x, cast_to(c, factor, kind)), cast_to(c, offset, kind))


@converts("InstanceNormalization")
def _instance_norm(c: Call) -> Value:
    x = c.x()
    axes = tuple(range(2, len(x.shape)))
    made = c.nd("normalize", x, axes=axes, eps=c.attr("epsilon", 1e-5))
    scale, bias = (c.emit.reshape(c.x(i), (prod(c.x(i).shape), *(1,) * len(axes))) for i in (1, 2))
    return c.nd("add", c.nd("mul", made, scale), bias)


@converts("LayerNormalization")
def _layer_norm(c: Call) -> tuple[Value, ...]:
    x, eps = c.x(), c.attr("epsilon", 1e-5)
    axis = c.axis(-1, len(x.shape))
    axes = tuple(range(axis, len(x.shape)))
    made = c.nd("mul", c.nd("normalize", x, axes=axes, eps=eps), c.x(1))
    if c.has(2):
        made = c.nd("add", made, c.x(2))
    if c.outputs == 1:
        return (made,)
    mean = c.nd("reduce_mean", x, axes=axes, keepdims=True)
    centred = c.nd("sub", x, mean)
    variance = c.nd("reduce_mean", c.nd("mul", centred, centred), axes=axes, keepdims=True)
    deviation = c.nd("sqrt", c.nd("add", variance, c.like(eps, x)))
    return made, mean, c.nd("reciprocal", deviation)


@converts("GroupNormalization")
def _group_norm(c: Call) -> Value:
    x, groups = c.x(), c.need("num_groups", int)
    n, channels, *rest = x.shape
    if groups < 1 or channels % groups:
        raise c.bad(f"{channels} channels do not make {groups} groups")
    grouped = c.emit.reshape(x, (n, groups, prod((channels // groups, *rest))))
    made = c.nd("normalize", grouped, axes=(2,), eps=c.attr("epsilon", 1e-5))
    scale, bias = c.x(1), c.x(2)
    if c.opset < 21:  # one for each group
        made = c.nd("mul", made, c.emit.reshape(scale, (groups, 1)))
        return c.emit.reshape(c.nd("add", made, c.emit.reshape(bias, (groups, 1))), x.shape)
    made = c.emit.reshape(made, x.shape)
    per = (channels, *(1,) * len(rest))
    return c.nd("add", c.nd("mul", made, c.emit.reshape(scale, per)), c.emit.reshape(bias, per))


@converts("LpNormalization")
def _lp_norm(c: Call) -> Value:
    x, p = c.x(), c.attr("p", 2)
    axis = c.axis(-1, len(x.shape))
    norm = c.nd("reduce_l1" if p == 1 else "reduce_l2", x, axes=(axis,), keepdims=True)
    is_zero = c.nd("equal", norm, c.like(0, x))
    return c.nd("div", x, c.nd("where", is_zero, c.like(1, x), norm))


@converts("MeanVarianceNormalization")
def _mvn(c: Call) -> Value:
    x = c.x()
    axes = tuple(c.normal_axis(int(a), len(x.shape)) for a in c.attr("axes", (0, 2, 3)))
    return c.nd("normalize", x, axes=axes, eps=1e-18)


@converts("LRN")
def _lrn(c: Call) -> Value:
    return c.nd(
        "lrn",
        c.x(),
        size=c.need("size", int),
        alpha=c.attr("alpha", 1e-4),
        beta=c.attr("beta", 0.75),
        bias=c.attr("bias", 1.0),
    )


def _random(c: Call) -> Value:
    raise c.bad("random numbers are not supported")


CONVERTERS.update(
    dict.fromkeys(
        ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial"),
        _random,
    )
)


@converts("HannWindow", "HammingWindow", "BlackmanWindow")
def _window(c: Call) -> Value:
    size = int(c.const(0).reshape(-1)[0])
    if not 0 < size <= 1 << 24:
        raise c.bad(f"a window of {size} elements")
    kind = name_of(c.attr("output_datatype", 1), c.where)
    n = np.arange(size) * 2 * np.pi / (size if c.attr("periodic", True) else max(size - 1, 1))
    a = {
        "HannWindow": (0.5, 0.5, 0.0),
        "HammingWindow": (25 / 46, 1 - 25 / 46, 0.0),
        "BlackmanWindow": (0.42, 0.5, 0.08),
    }[c.op]
    made = Const(a[0] - a[1] * np.cos(n) + a[2] * np.cos(2 * n))
    return cast_to(c, made, kind)
