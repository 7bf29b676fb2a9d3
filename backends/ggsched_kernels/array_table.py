"""Ops of the library ``nd`` as expressions: of elements A, B and C, and parameters P0 to P2."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

REAL: Final = ("f32", "f16")
SIGNED: Final = ("i64", "i32", "i16", "i8")
WHOLE: Final = (*SIGNED, "u64", "u32", "u16", "u8")
NUMBERS: Final = (*REAL, *WHOLE)
BOOL: Final = ("bool",)
EVERY: Final = (*NUMBERS, *BOOL)


@dataclass(frozen=True, slots=True)
class Expression:
    """How an element of the result is computed.

    Attributes:
        text: In OpenCL C.
        types: Of the first operand.
        params: Names of parameters that become P0, P1, P2.
    """

    text: str
    types: Sequence[str] = REAL
    params: tuple[str, ...] = ()


_SOFTPLUS: Final = "(log1p(exp(-fabs(A))) + fmax(A, 0.0f))"
_ROOT_HALF: Final = "0.70710678118654752f"
_REST: Final = "A % WHOLE_DIVISOR(B)"
_WRAPPED: Final = f"({_REST} != 0 && (({_REST} < 0) != (B < 0)) ? {_REST} + B : {_REST})"
_TO_WHOLE: Final = "CAT(OF_REAL_, Y_T)(A)"

ELEMENTS: Final[dict[str, Expression]] = {
    # functions that OpenCL has
    **{
        name: Expression(f"{function}(A)")
        for name, function in {
            "exp": "exp", "log": "log", "sqrt": "sqrt", "rsqrt": "1.0f / sqrt", "floor": "floor",
            "ceil": "ceil", "round": "rint", "sin": "sin", "cos": "cos", "tan": "tan",
            "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh",
            "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "tanh": "tanh", "erf": "erf",
            "expm1": "expm1", "log1p": "log1p",
        }.items()
    },
    "reciprocal": Expression("1.0f / A"),
    "sigmoid": Expression("1.0f / (1.0f + exp(-A))"),
    "silu": Expression("A / (1.0f + exp(-A))"),
    "softplus": Expression(_SOFTPLUS),
    "softsign": Expression("A / (1.0f + fabs(A))"),
    "mish": Expression(f"A * tanh({_SOFTPLUS})"),
    "hard_swish": Expression("A * clamp(A / 6.0f + 0.5f, 0.0f, 1.0f)"),
    "hard_sigmoid": Expression(
        "NAN_MIN(NAN_MAX(A * P0 + P1, 0.0f), 1.0f)", params=("alpha", "beta")
    ),
    "leaky_relu": Expression("A < 0 ? A * P0 : A", params=("alpha",)),
    "threshold": Expression("A > P0 ? A : 0.0f", params=("alpha",)),
    "elu": Expression(
        "A > 0 ? P1 * A : P1 * P0 * expm1(A / P2)", params=("alpha", "gamma", "inner")
    ),
    "gelu": Expression(f"0.5f * A * (1.0f + erf(A * {_ROOT_HALF}))"),
    "gelu_tanh": Expression(
        "A / (1.0f + exp(-1.5957691216057308f * (A + 0.044715f * A * A * A)))"
    ),
    "relu": Expression("A < 0 ? 0 : A", NUMBERS),
    "abs": Expression("fabs(A)", NUMBERS),
    "neg": Expression("-A", NUMBERS),
    "sign": Expression("A != A ? A : (A > 0) - (A < 0)", NUMBERS),
    "not": Expression("!A", BOOL),
    "bit_not": Expression("~A", WHOLE),
    "is_nan": Expression("A != A"),
    "is_inf": Expression(
        "A == INFINITY ? P1 > 0 : A == -INFINITY && P0 > 0", params=("negative", "positive")
    ),
    # two operands
    "add": Expression("A + B", NUMBERS),
    "sub": Expression("A - B", NUMBERS),
    "mul": Expression("A * B", NUMBERS),
    "min": Expression("NAN_MIN(A, B)", NUMBERS),
    "max": Expression("NAN_MAX(A, B)", NUMBERS),
    "prelu": Expression("A < 0 ? A * B : A", NUMBERS),
    "and": Expression("A && B", BOOL),
    "or": Expression("A || B", BOOL),
    "xor": Expression("A != B", BOOL),
    "bit_and": Expression("A & B", WHOLE),
    "bit_or": Expression("A | B", WHOLE),
    "bit_xor": Expression("A ^ B", WHOLE),
    "gcd": Expression("gcd_of(MAGNITUDE(A), MAGNITUDE(B))", WHOLE),
    "equal": Expression("A == B", EVERY),
    "less": Expression("A < B", NUMBERS),
    "less_equal": Expression("A <= B", NUMBERS),
    "greater": Expression("A > B", NUMBERS),
    "greater_equal": Expression("A >= B", NUMBERS),
    "pow": Expression("pow(A, (float)B)"),
    "atan2": Expression("atan2(A, B)"),
    # three
    "where": Expression("A ? B : C", BOOL),
    "clip": Expression("NAN_MIN(NAN_MAX(A, B), C)", NUMBERS),
    # moved
    "copy": Expression("A", EVERY),
    "transpose": Expression("A", EVERY),
    "expand": Expression("A", EVERY),
    "slice": Expression("A", EVERY),
    "concat": Expression("A", EVERY),
    "cast": Expression("A", EVERY),
}  # fmt: skip
"""By op, without the prefix."""

BY_TYPE: Final[dict[str, dict[str, str]]] = {
    "div": {**dict.fromkeys(REAL, "A / B"), **dict.fromkeys(WHOLE, "QUOTIENT(A, B)")},
    "mod": {**dict.fromkeys(REAL, "(P0 > 0 ? fmod(A, B) : floor_mod(A, B))"),
            **dict.fromkeys(WHOLE, f"(B == 0 ? 0 : P0 > 0 ? {_REST} : {_WRAPPED})")},
    "abs": dict.fromkeys(WHOLE, "A < 0 ? (UA)0 - (UA)A : (UA)A"),
    "neg": dict.fromkeys(WHOLE, "(UA)0 - (UA)A"),
    "add": dict.fromkeys(WHOLE, "(UA)A + (UA)B"),
    "sub": dict.fromkeys(WHOLE, "(UA)A - (UA)B"),
    "mul": dict.fromkeys(WHOLE, "(UA)A * (UA)B"),
    "prelu": dict.fromkeys(WHOLE, "A < 0 ? (UA)A * (UA)B : (UA)A"),
    "cast": dict.fromkeys(REAL, _TO_WHOLE),
}  # fmt: skip
"""Ops that are written otherwise for integers, which wrap and do not trap (LCH-8)."""

BY_TYPE_PARAMS: Final = {"mod": ("fmod",)}


MOVES: Final = ("copy", "transpose", "expand", "slice", "concat")
"""Ops that move elements without computing."""

WINDOWS: Final = ("conv", "max_pool", "average_pool")
"""Ops on windows that slide, computed in f32."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """How elements are combined: the start, the step, and what is done to each and to the end."""

    first: str
    step: str
    mapped: str = "A"
    last: str = "TOTAL"


REDUCTIONS: Final[dict[str, Reduction]] = {
    "reduce_sum": Reduction("0", "((a) + (b))"),
    "reduce_mean": Reduction("0", "((a) + (b))", last="TOTAL / COUNT"),
    "reduce_prod": Reduction("1", "((a) * (b))"),
    "reduce_max": Reduction("-INFINITY", "NAN_MAX(a, b)"),
    "reduce_min": Reduction("INFINITY", "NAN_MIN(a, b)"),
    "reduce_l1": Reduction("0", "((a) + (b))", "fabs(A)"),
    "reduce_l2": Reduction("0", "((a) + (b))", "A * A", "sqrt(TOTAL)"),
    "reduce_sum_square": Reduction("0", "((a) + (b))", "A * A"),
}
"""By op, in f32 and f16."""


TAKES: Final = ("gather_nd", "gather_elements")
"""Ops that move elements from places that indices name."""

PUTS: Final = ("scatter_nd", "scatter_elements")
"""Ops that put updates to places that indices name, in numbers and bool."""

COMBINED: Final[dict[str, str]] = {
    "none": "NEW",
    "add": "OLD + NEW",
    "mul": "OLD * NEW",
    "max": "NAN_MAX(OLD, NEW)",
    "min": "NAN_MIN(OLD, NEW)",
}
"""What an update makes of an element, by the reduction."""

COMBINED_WHOLE: Final = {"add": "(UA)OLD + (UA)NEW", "mul": "(UA)OLD * (UA)NEW"}
"""Those of integers, which wrap."""

COMBINED_BOOL: Final = {
    "add": "OLD || NEW", "mul": "OLD && NEW", "max": "OLD || NEW", "min": "OLD && NEW",
}  # fmt: skip

RUNNING: Final = {"cum_sum": ("0", "add"), "cum_prod": ("1", "mul")}
"""Where sums and products of an axis begin, and how they go on."""

BEST: Final = {"arg_max": "A > B", "arg_min": "A < B"}
"""Ops whose result is the index of an element that is better than all others."""


def combined(how: str, dtype: str) -> str:
    """Return what makes of OLD and NEW a new element of a type."""
    own = COMBINED_BOOL if dtype == "bool" else COMBINED_WHOLE if dtype in WHOLE else {}
    return own.get(how, COMBINED[how])
