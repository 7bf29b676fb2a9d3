"""Built-in ops that compute each element of the result from one of each operand.

A line of ``Elementwise`` declares an op completely: builders, random graphs, conformance cases,
sharding, costs and the oracle take it from here, and every device that computes by references can
run it. References of ops that ``ggsched.ops.nd`` has for other types too are those of both.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol

from ggsched.ops.lazy import Array, np
from ggsched.ops.record import (
    FUNCTIONS,
    Method,
    Operand,
    Param,
    Shape,
    Unary,
    broadcasts_to,
    method,
    need,
    op,
    records,
    same,
)

LARGEST: Final = 3.4028234663852886e38
"""The largest f32."""


def _broadcast(x: Sequence[Operand], **_: Param) -> tuple[str, Shape]:
    need(broadcasts_to(x[1].shape, x[0].shape), "operand 1 does not broadcast to operand 0")
    return same(x)


def _alike(x: Sequence[Operand], **_: Param) -> tuple[str, Shape]:
    need(x[0].shape == x[1].shape, "gate and up must have one shape")
    return same(x)


def _unary(
    name: str,
    doc: str,
    reference: Callable[..., Any],
    bound: Callable[..., Any],
    *example: str,
    spelled: Mapping[str, Any] | None = None,
    **more: Any,
) -> Any:
    """Return the method of an op on the elements of f32 ``x``."""
    how: dict[str, Any] = {"sharding": "elements", "over": (0,), "doc": doc, **more}
    record = op(name, "x", rule=same, reference=reference, bound=bound, **how)
    return method(record, *example, **(spelled or {}))


def _binary(
    name: str,
    doc: str,
    reference: Callable[..., Any],
    bound: Callable[..., Any],
    scaled: Callable[[float], tuple[float, float]] | None = None,
    **more: Any,
) -> Any:
    """Return the method of an op on elements of ``a`` and of ``b``, which is broadcast to ``a``."""
    how: dict[str, Any] = {"sharding": "linear", "over": (0, 1), "doc": doc, **more}
    record = op(name, "a", "b", rule=_broadcast, reference=reference, bound=bound, **how)
    return method(record, scaled=scaled)


def _gated(name: str, doc: str, reference: Callable[..., Any], **more: Any) -> Any:
    """Return the method of an op on elements of two operands of one shape."""

    def bound(gate: float, up: float, e: float, e_up: float, **_: Param) -> tuple[float, float]:
        mag = gate * (up + 1)
        return mag, 1.5 * e * (up + 1) + e_up * gate + 8 * mag

    how: dict[str, Any] = {"sharding": "elements", "over": (0, 1), "doc": doc, **more}
    record = op(
        name, "gate", "up", rule=_alike, reference=reference, bound=bound, family=FUNCTIONS, **how
    )
    return method(record)


# --- references of more than one operation --------------------------------------------------------


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x))."""
    return np.asarray(1 / (1 + np.exp(-x)))


def softplus(x: Array) -> Array:
    """Return log(1 + exp(x)), without overflow."""
    return np.asarray(np.log1p(np.exp(-abs(x))) + np.maximum(x, 0))


def silu(x: Array) -> Array:
    """Return x * sigmoid(x)."""
    return np.asarray(x * sigmoid(x))


def gelu_tanh(x: Array) -> Array:
    """Return gelu by its approximation with tanh."""
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def _swiglu_oai(gate: Array, up: Array, alpha: float, limit: float) -> Array:
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return np.asarray(gate * sigmoid(alpha * gate) * (up + 1.0))


def _decomposed_swiglu_oai(g: Any, gate: Any, up: Any, *, alpha: float, limit: float) -> Any:
    gate, up = g.clamp(gate, -LARGEST, limit), g.clamp(up, -limit, limit)
    return g.mul(g.mul(gate, g.sigmoid(g.scale(gate, alpha))), g.scale(up, 1.0, 1.0))


# --- bounds of results: magnitudes, then errors ---------------------------------------------------


def _bent(m: float, e: float) -> tuple[float, float]:
    return m, 1.2 * e + 4 * m


def _unit(m: float, e: float) -> tuple[float, float]:
    return 1.0, e + 4


def _scaled(m: float, e: float, scale: float, bias: float) -> tuple[float, float]:
    mag = abs(scale) * m + abs(bias)
    return mag, abs(scale) * e + mag


def _limited(m: float, e: float, **limits: float) -> tuple[float, float]:
    return min(m, max(-limits["min"], limits["max"])), e


def _added(a: float, b: float, e_a: float, e_b: float) -> tuple[float, float]:
    return a + b, e_a + e_b + (a + b)


# --- the ops --------------------------------------------------------------------------------------


class Elementwise(Protocol):
    """Methods of builders for ops on elements. Examples go on from that of ``GraphBuilder``."""

    add: ClassVar[Method] = _binary(
        "add", "Return ``a + b``, b broadcast to a; a number is added as by ``scale``.",
        lambda a, b: a + b, _added, lambda n: (1.0, n),
    )  # fmt: skip
    sub: ClassVar[Method] = _binary(
        "sub", "Return ``a - b``, b broadcast to a; a number is taken off as by ``scale``.",
        lambda a, b: a - b, _added, lambda n: (1.0, -n),
        decompose=lambda g, a, b: g.add(a, g.scale(b, -1.0)),
    )  # fmt: skip
    mul: ClassVar[Method] = _binary(
        "mul", "Return ``a * b``, b broadcast to a; a number multiplies as by ``scale``.",
        lambda a, b: a * b, lambda a, b, i, j: (a * b, i * b + j * a + a * b), lambda n: (n, 0.0),
    )  # fmt: skip
    div: ClassVar[Method] = _binary(
        "div", "Return ``a / b``, b broadcast to a; the reciprocal of a number, which may differ "
        "in the last bit, multiplies as by ``scale``.",
        lambda a, b: a / b, lambda a, b, i, j: (4 * a, 4 * i + 4 * a), lambda n: (1.0 / n, 0.0),
    )  # fmt: skip
    silu: ClassVar[Unary] = _unary(
        "silu", "Return ``x * sigmoid(x)``.", silu, _bent, array="silu", family=FUNCTIONS,
        aten="silu",
        decompose=lambda g, x: g.mul(x, g.sigmoid(x)),
    )  # fmt: skip
    gelu: ClassVar[Unary] = _unary(
        "gelu", "Return gelu, by its approximation with tanh.", gelu_tanh, _bent,
        array="gelu_tanh", family=FUNCTIONS,
    )  # fmt: skip
    sigmoid: ClassVar[Unary] = _unary(
        "sigmoid", "Return ``1 / (1 + exp(-x))``.", sigmoid, _unit,
        array="sigmoid", family=FUNCTIONS, onnx="Sigmoid", aten="sigmoid",
        decompose=lambda g, x: g.scale(g.tanh(g.scale(x, 0.5)), 0.5, 0.5),
    )  # fmt: skip
    tanh: ClassVar[Unary] = _unary(
        "tanh", "Return the hyperbolic tangent.", lambda x: np.tanh(x), _unit,
        array="tanh", family=FUNCTIONS, onnx="Tanh", aten="tanh",
    )  # fmt: skip
    softplus: ClassVar[Unary] = _unary(
        "softplus", "Return ``log(1 + exp(x))``.", softplus,
        lambda m, e: (m + 1.0, e + 4 * (m + 1.0)), array="softplus", onnx="Softplus",
        family=FUNCTIONS,
    )  # fmt: skip
    scale: ClassVar[Method] = _unary(
        "scale", "Return ``x * scale + bias``.", lambda x, scale, bias: x * scale + bias, _scaled,
        "g.scale(x, 0.5, 1.0).shape", "(4, 64)", scale=1.0, bias=0.0, sharding="linear",
        draws={"scale": (0.5, -1.0, 2.0, 0.25), "bias": (0.0, 0.5, -0.25)},
    )  # fmt: skip
    clamp: ClassVar[Method] = _unary(
        "clamp", "Return ``x`` limited to ``[low, high]``.",
        lambda x, min, max: np.minimum(np.maximum(x, min), max), _limited,
        "g.clamp(x, -1.0, 1.0).shape", "(4, 64)", spelled={"low": "min", "high": "max"},
        min=0.0, max=0.0, draws={"min": (-1.0, -0.5, -0.0), "max": (1.0, 0.25, 2.0)},
    )  # fmt: skip
    swiglu: ClassVar[Method] = _gated(
        "swiglu", "Return ``silu(gate) * up``.", lambda gate, up: silu(gate) * up,
        decompose=lambda g, gate, up: g.mul(g.silu(gate), up),
    )  # fmt: skip
    swiglu_oai: ClassVar[Method] = _gated(
        "swiglu_oai", "Return ``g * sigmoid(alpha * g) * (u + 1)``, g capped by limit, u on both "
        "sides.", _swiglu_oai, decompose=_decomposed_swiglu_oai, alpha=1.702, limit=7.0,
    )  # fmt: skip


ELEMENTWISE: Final = tuple(records(Elementwise))
"""Every op of this module."""

UNARY: Final = tuple(op.name for op in ELEMENTWISE if op.rule is same)
BINARY: Final = tuple(op.name for op in ELEMENTWISE if op.rule is _broadcast)
GATED: Final = tuple(op.name for op in ELEMENTWISE if op.rule is _alike)
"""Their names by the shapes that they take."""

__all__ = [
    "BINARY",
    "ELEMENTWISE",
    "GATED",
    "UNARY",
    "Elementwise",
    "gelu_tanh",
    "sigmoid",
    "silu",
    "softplus",
]
