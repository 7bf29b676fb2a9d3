"""Arithmetic of one element at a time. The result may be the very bytes of an operand."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ggsched_cpu.kernels.emit import Builder, Value
from ggsched_cpu.kernels.target import Target
from ggsched_cpu.kernels.vectors import (
    Chunk,
    Row,
    exp,
    expm1,
    one_plus_exp,
    over_chunks,
    over_rows,
    own_slot,
    sigmoid_times,
    softplus,
    tanh,
)

Formula = Callable[[Builder, Sequence[Value], Sequence[Value]], Value]
"""From vectors of the operands and splats of the parameters."""


def _scale(b: Builder, x: Sequence[Value], p: Sequence[Value]) -> Value:
    # Not a fused product: without a bias the result is that of a product.
    return b.fadd(b.fmul(x[0], p[0]), p[1])


def _clamp(b: Builder, x: Sequence[Value], p: Sequence[Value]) -> Value:
    return b.fmin(b.fmax(x[0], p[0]), p[1])


def _gelu(b: Builder, x: Sequence[Value], p: Sequence[Value]) -> Value:
    v = x[0]
    cube = b.fadd(b.fmul(b.fmul(v, v), 0.044715), 1.0)
    angle = b.fmul(b.fmul(cube, v), math.sqrt(2.0 / math.pi))
    return b.fmul(b.fmul(b.fadd(tanh(b, angle), 1.0), 0.5), v)


def _swiglu_oai(b: Builder, x: Sequence[Value], p: Sequence[Value]) -> Value:
    alpha, limit = p
    gate = b.fmin(x[0], limit)
    up = b.fmin(b.fmax(x[1], b.fmul(limit, -1.0)), limit)
    return b.fmul(sigmoid_times(b, gate, alpha), b.fadd(up, 1.0))


_ERF: Final = (
    *(-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05),
    *(-7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02),
)
_ERF_UNDER: Final = (
    *(-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03),
    *(-7.37332916720468e-03, -1.42647390514189e-02),
)


def _erf(b: Builder, x: Value) -> Value:
    """Return the error function by Eigen's rational function, within 3e-7."""
    v = b.fmin(b.fmax(x, -4.0), 4.0)
    square = b.fmul(v, v)
    above, under = b.same(v, _ERF[0]), b.same(v, _ERF_UNDER[0])
    for c in _ERF[1:]:
        above = b.fma(above, square, c)
    for c in _ERF_UNDER[1:]:
        under = b.fma(under, square, c)
    return b.fdiv(b.fmul(v, above), under)


def _exact_gelu(b: Builder, x: Sequence[Value], p: Sequence[Value]) -> Value:
    v = x[0]
    share = b.fadd(_erf(b, b.fmul(v, math.sqrt(0.5))), 1.0)
    return b.fmul(b.fmul(v, 0.5), share)


def _hard_sigmoid(b: Builder, x: Value, alpha: Value | float, beta: Value | float) -> Value:
    return b.fmin(b.fmax(b.fma(x, alpha, beta), 0.0), 1.0)


def _negative(b: Builder, x: Value, made: Value) -> Value:
    """Return another number where x is below 0."""
    return b.select(b.compare("olt", x, 0.0), made, x)


def _elu(b: Builder, x: Sequence[Value], p: Sequence[Value]) -> Value:
    v, (alpha, gamma, inner) = x[0], p
    below = b.fmul(b.fmul(gamma, alpha), expm1(b, b.fdiv(b.fmin(v, 0.0), inner)))
    return b.select(b.compare("ogt", v, 0.0), b.fmul(gamma, v), below)


def _softsign(b: Builder, x: Sequence[Value], p: Sequence[Value]) -> Value:
    return b.fdiv(x[0], b.fadd(b.intrinsic("fabs", x[0]), 1.0))


def _threshold(b: Builder, x: Sequence[Value], p: Sequence[Value]) -> Value:
    return b.select(b.compare("ogt", x[0], p[0]), x[0], b.zero(x[0].type))


def _either(how: str) -> Formula:
    """Return the formula of the one of two that compares so, and NaN where one is."""

    def formula(b: Builder, x: Sequence[Value], p: Sequence[Value]) -> Value:
        a, other = x
        takes = b.binary("or", b.compare(how, a, other), b.compare("uno", a, a))
        return b.select(takes, a, other)

    return formula


FORMULAS: Final[Mapping[str, tuple[int, tuple[str, ...], Formula]]] = {
    "add": (2, (), lambda b, x, p: b.fadd(x[0], x[1])),
    "sub": (2, (), lambda b, x, p: b.fsub(x[0], x[1])),
    "mul": (2, (), lambda b, x, p: b.fmul(x[0], x[1])),
    "div": (2, (), lambda b, x, p: b.fdiv(x[0], x[1])),
    "scale": (1, ("scale", "bias"), _scale),
    "clamp": (1, ("min", "max"), _clamp),
    "silu": (1, (), lambda b, x, p: sigmoid_times(b, x[0])),
    "sigmoid": (1, (), lambda b, x, p: b.fdiv(b.same(x[0], 1.0), one_plus_exp(b, x[0]))),
    "tanh": (1, (), lambda b, x, p: tanh(b, x[0])),
    "softplus": (1, (), lambda b, x, p: softplus(b, x[0])),
    "gelu": (1, (), _gelu),
    "swiglu": (2, (), lambda b, x, p: b.fmul(sigmoid_times(b, x[0]), x[1])),
    "swiglu_oai": (2, ("alpha", "limit"), _swiglu_oai),
    "nd.abs": (1, (), lambda b, x, p: b.intrinsic("fabs", x[0])),
    "nd.ceil": (1, (), lambda b, x, p: b.intrinsic("ceil", x[0])),
    "nd.elu": (1, ("alpha", "gamma", "inner"), _elu),
    "nd.erf": (1, (), lambda b, x, p: _erf(b, x[0])),
    "nd.exp": (1, (), lambda b, x, p: exp(b, x[0])),
    "nd.expm1": (1, (), lambda b, x, p: expm1(b, x[0])),
    "nd.floor": (1, (), lambda b, x, p: b.intrinsic("floor", x[0])),
    "nd.gelu": (1, (), _exact_gelu),
    "nd.hard_sigmoid": (1, ("alpha", "beta"), lambda b, x, p: _hard_sigmoid(b, x[0], *p)),
    "nd.hard_swish": (1, (), lambda b, x, p: b.fmul(x[0], _hard_sigmoid(b, x[0], 1.0 / 6.0, 0.5))),
    "nd.leaky_relu": (1, ("alpha",), lambda b, x, p: _negative(b, x[0], b.fmul(x[0], p[0]))),
    "nd.max": (2, (), _either("oge")),
    "nd.min": (2, (), _either("ole")),
    "nd.mish": (1, (), lambda b, x, p: b.fmul(x[0], tanh(b, softplus(b, x[0])))),
    "nd.neg": (1, (), lambda b, x, p: b.fsub(b.same(x[0], -0.0), x[0])),
    "nd.prelu": (2, (), lambda b, x, p: _negative(b, x[0], b.fmul(x[0], x[1]))),
    "nd.reciprocal": (1, (), lambda b, x, p: b.fdiv(b.same(x[0], 1.0), x[0])),
    "nd.round": (1, (), lambda b, x, p: b.intrinsic("rint", x[0])),
    "nd.rsqrt": (1, (), lambda b, x, p: b.fdiv(b.same(x[0], 1.0), b.intrinsic("sqrt", x[0]))),
    "nd.softsign": (1, (), _softsign),
    "nd.sqrt": (1, (), lambda b, x, p: b.intrinsic("sqrt", x[0])),
    "nd.threshold": (1, ("alpha",), _threshold),
}
"""By op: number of operands, names of the parameters, formula. The arguments of a kernel are the
operands, the result, and the parameters."""

SPREAD: Final = ("add", "sub", "mul", "div", "nd.max", "nd.min", "nd.prelu")
"""These have a second kernel, whose second operand has one element in each row."""


def elementwise(name: str, target: Target, op: str, *, spread: bool) -> Builder:
    """Return a kernel."""
    b = Builder(name, target)
    count, params, formula = FORMULAS[op]
    lanes = target.lanes
    given = [b.splat(b.arg_f32(own_slot(count + 1) + i), lanes) for i in range(len(params))]

    def row(row: Row) -> None:
        *inputs, out = row.pointers
        single = b.splat(b.load("float", inputs[1], 4), lanes) if spread else None

        def chunk(c: Chunk) -> None:
            loaded = [
                single if single is not None and i == 1 else c.load(p) for i, p in enumerate(inputs)
            ]
            c.store(formula(b, loaded, given), out)

        over_chunks(b, row.columns, chunk)

    over_rows(b, count + 1, row)
    return b
