"""Arithmetic of one element at a time. The result may be the very bytes of an operand."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Final

from ggsched_cpu.kernels.emit import Builder, Value, vector_of
from ggsched_cpu.kernels.target import Target
from ggsched_cpu.kernels.vectors import (
    Chunk,
    Row,
    exp,
    expm1,
    log,
    log1p,
    one_plus_exp,
    operand_slot,
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


def _compared(how: str) -> Formula:
    return lambda b, x, p: b.compare(how, x[0], x[1])


def _is_infinite(b: Builder, x: Sequence[Value], p: Sequence[Value]) -> Value:
    ends = zip(p, (-math.inf, math.inf), strict=True)
    found = [
        b.binary("and", b.compare("oeq", x[0], end), b.compare("une", on, 0.0)) for on, end in ends
    ]
    return b.binary("or", *found)


def _sign(b: Builder, x: Sequence[Value], p: Sequence[Value]) -> Value:
    one = b.intrinsic("copysign", b.same(x[0], 1.0), x[0])
    return b.select(b.compare("one", x[0], 0.0), one, b.fadd(x[0], 0.0))


_ATAN: Final = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)


def _atan(b: Builder, x: Sequence[Value], p: Sequence[Value]) -> Value:
    """As in the Cephes library, within 2e-7."""
    v = b.intrinsic("fabs", x[0])
    is_large, is_middle = (
        b.compare("ogt", v, 2.414213562373095),
        b.compare("ogt", v, 0.4142135623730950),
    )
    middle = b.fdiv(b.fsub(v, 1.0), b.fadd(v, 1.0))
    t = b.select(is_large, b.fdiv(b.same(v, -1.0), v), b.select(is_middle, middle, v))
    start = b.select(is_middle, b.same(v, math.pi / 4), b.same(v, 0.0))
    start = b.select(is_large, b.same(v, math.pi / 2), start)
    square, poly = b.fmul(t, t), b.same(v, _ATAN[0])
    for term in _ATAN[1:]:
        poly = b.fma(poly, square, term)
    made = b.fadd(start, b.fma(b.fmul(poly, square), t, t))
    return b.intrinsic("copysign", made, x[0])


def _atanh(b: Builder, x: Sequence[Value], p: Sequence[Value]) -> Value:
    v = b.intrinsic("fabs", x[0])
    ratio = b.fdiv(b.fmul(v, 2.0), b.fsub(b.same(v, 1.0), v))
    return b.intrinsic("copysign", b.fmul(log1p(b, ratio), 0.5), x[0])


_MORE_STEPS: Final = 5
"""A quotient of f32 has 277 bits at most, and a step takes off 52."""


def _mod(b: Builder, x: Sequence[Value], p: Sequence[Value]) -> Value:
    """Return the exact remainder: in f64 a quotient is too large by one at most."""
    a, m = (b.cast("fpext", v, "double") for v in x)
    zero = b.same(a, 0.0)

    def step(rest: Value) -> Value:
        quotient = b.intrinsic("trunc", b.fdiv(rest, m))
        return b.fma(b.fsub(b.same(a, -0.0), quotient), m, rest)

    def of_sign(value: Value, of: Value) -> Value:
        """Add m to a rest of the other sign than ``of``; a rest of 0 gets its sign."""
        differs = b.binary("xor", b.compare("olt", value, zero), b.compare("olt", of, zero))
        more = b.fadd(value, b.intrinsic("copysign", m, of))
        is_zero = b.compare("oeq", value, zero)
        return b.select(is_zero, b.intrinsic("copysign", zero, of), b.select(differs, more, value))

    rest, size = b.var(step(a)), b.intrinsic("fabs", m)
    is_long = b.compare("oge", b.intrinsic("fabs", b.get(rest)), size)
    with b.when(b.intrinsic("vector.reduce.or", is_long, type_="i1")):
        for _ in range(_MORE_STEPS):
            b.set(rest, step(b.get(rest)))
    is_all = b.binary(
        "and", b.compare("oeq", size, math.inf), b.compare("one", b.intrinsic("fabs", a), math.inf)
    )
    found = of_sign(b.select(is_all, a, b.get(rest)), a)
    is_fmod = b.compare("une", p[0], 0.0)
    return b.cast("fptrunc", b.select(is_fmod, found, of_sign(found, m)), "float")


_FORMULAS: Final[Mapping[str, tuple[int, tuple[str, ...], Formula]]] = {
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
    "nd.atan": (1, (), _atan),
    "nd.atanh": (1, (), _atanh),
    "nd.log": (1, (), lambda b, x, p: log(b, x[0])),
    "nd.log1p": (1, (), lambda b, x, p: log1p(b, x[0])),
    "nd.mod": (2, ("fmod",), _mod),
    "nd.relu": (1, (), lambda b, x, p: b.fmax(x[0], 0.0)),
    "nd.sign": (1, (), _sign),
    "nd.equal": (2, (), _compared("oeq")),
    "nd.less": (2, (), _compared("olt")),
    "nd.less_equal": (2, (), _compared("ole")),
    "nd.greater": (2, (), _compared("ogt")),
    "nd.greater_equal": (2, (), _compared("oge")),
    "nd.is_inf": (1, ("negative", "positive"), _is_infinite),
    "nd.is_nan": (1, (), lambda b, x, p: b.compare("uno", x[0], x[0])),
    "nd.where": (3, (), lambda b, x, p: b.select(x[0], x[1], x[2])),
}
_BUILT_IN: Final = ("add", "sub", "mul", "div", "silu", "sigmoid", "tanh", "softplus")

FORMULAS: Final = {
    **_FORMULAS,
    **{f"nd.{op}": _FORMULAS[op] for op in _BUILT_IN},
    "nd.gelu_tanh": _FORMULAS["gelu"],
}
"""By op: number of operands, names of the parameters, formula. The arguments of a kernel are the
operands, the result, and the parameters."""

TESTS: Final = frozenset(op for op in FORMULAS if op[3:] in (
    "equal", "less", "less_equal", "greater", "greater_equal", "is_inf", "is_nan"
))  # fmt: skip
"""Ops whose results are bool; of ``nd.where`` the first operand is. All others are f32."""


def bool_operands(op: str) -> tuple[bool, ...]:
    """Return which operands of a kernel are bool, the result last."""
    count = FORMULAS[op][0]
    return (op == "nd.where", *(False,) * (count - 1), op in TESTS)


def elementwise(name: str, target: Target, op: str, element: str = "float") -> Builder:
    """Return a kernel. In a row an operand has adjacent elements, or one that stands for all.

    Args:
        name: Of the kernel.
        target: The processor.
        op: Which formula.
        element: Of operands that are not bool: ``float`` or ``half``, which is computed as f32.
    """
    b = Builder(name, target)
    count, params, formula = FORMULAS[op]
    lanes = target.lanes
    given = [b.splat(b.arg_f32(own_slot(count + 1) + i), lanes) for i in range(len(params))]
    stored = "i16" if element == "half" else element
    *kinds, result = ("i8" if is_bool else stored for is_bool in bool_operands(op))
    steps = [b.arg(operand_slot(i) + 1) for i in range(count)]
    are_single = [b.compare("eq", step, 0) for step in steps]
    singles = [b.var(b.zero(vector_of(lanes, kind))) for kind in kinds]
    is_spread = reduce(partial(b.binary, "or"), are_single)
    is_plain = b.binary("xor", is_spread, Value("true", "i1"))

    def row(row: Row) -> None:
        *inputs, out = row.pointers
        for i, (kind, is_single, single) in enumerate(zip(kinds, are_single, singles, strict=True)):
            with b.when(is_single):
                b.set(single, b.splat(b.load(kind, inputs[i]), lanes))
            inputs[i] = b.select(is_single, Value(single.pointer, "ptr"), inputs[i])

        def chunk(ways: Sequence[Value | None], c: Chunk) -> None:
            loaded = [c.load(*place) for place in zip(inputs, kinds, ways, strict=True)]
            made = formula(b, [_number(b, v) for v in loaded], given)
            if result == "i8":
                made = b.cast("zext", made, "i8")
            elif result == "i16":
                made = b.cast("bitcast", b.cast("fptrunc", made, "half"), "i16")
            c.store(made, out)

        with b.when(is_plain):
            over_chunks(b, row.columns, partial(chunk, [None] * count))
        with b.when(is_spread):
            over_chunks(b, row.columns, partial(chunk, steps))

    over_rows(b, count + 1, row)
    return b


def _number(b: Builder, x: Value) -> Value:
    """Return what was read as f32, or as bits where it is bool."""
    match x.element:
        case "i8":
            return b.compare("ne", x, 0)
        case "i16":
            return b.cast("fpext", b.cast("bitcast", x, "half"), "float")
    return x
