"""Operands that are no ordinary numbers, and what each op makes of them (LCH-8).

``SPECIAL`` has the meaning by hand: rows of (op, operands, result).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import dtype_by_name
from ggsched.ir.graph import Graph

Array = npt.NDArray[Any]

INF: Final = float("inf")
NAN: Final = float("nan")
LEAST: Final = -(2**31)
MOST: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Special:
    """An op on special operands.

    Attributes:
        op: Its name.
        operands: Elements of each operand, in nested lists.
        result: Elements of the result.
        types: Of the operands: one for all, or one for each.
        params: Of the op.
        has_sign: Whether the sign of zero is part of the meaning.
    """

    op: str
    operands: tuple[Any, ...]
    result: Any
    types: tuple[str, ...] = ("f32",)
    params: Mapping[str, Any] = field(default_factory=dict)
    has_sign: bool = False

    def graph(self) -> tuple[Graph, dict[str, Array]]:
        """Return a graph of one node, and its inputs."""
        g, values, operands = GraphBuilder(f"special {self.op}"), {}, []
        types = self.types * len(self.operands) if len(self.types) == 1 else self.types
        for name, elements, kind in zip("abcdef", self.operands, types, strict=False):
            dtype = dtype_by_name(kind)
            values[name] = np.array(elements, dtype.host)
            operands.append(g.input(name, values[name].shape, dtype))
        return g.build(g.op(self.op, *operands, **self.params)), values

    def differs(self, found: Array) -> str:
        """Say how a result differs from the meaning; empty if it does not."""
        wanted = np.array(self.result, found.dtype)
        kwargs: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6, "equal_nan": True}
        is_right = found.shape == wanted.shape and np.allclose(found, wanted, **kwargs)
        if is_right and self.has_sign:
            is_number = wanted == wanted
            is_right = np.array_equal(np.signbit(found[is_number]), np.signbit(wanted[is_number]))
        if is_right:
            return ""
        params = f", {dict(self.params)}" if self.params else ""
        return f"{self.op}{self.operands}{params} is {found.tolist()}, not {wanted.tolist()}"


def _arithmetic(prefix: str) -> Iterator[Special]:
    """IEEE 754 leaves no choice, nor about the sign of zero."""
    a, b = [INF, INF, 1.0, -1.0, 0.0, -0.0], [INF, -INF, 0.0, INF, -0.0, -0.0]
    nothing = [NAN] * 2
    for name, numbers in {
        "add": [INF, NAN, 1.0, INF, 0.0, -0.0],
        "sub": [NAN, INF, 1.0, -INF, 0.0, 0.0],
        "mul": [INF, -INF, 0.0, -INF, -0.0, 0.0],
        "div": [NAN, NAN, INF, -0.0, NAN, NAN],
    }.items():
        yield Special(prefix + name, ([*a, NAN, 0.0], [*b, 0.0, NAN]), numbers + nothing,
                      has_sign=True)  # fmt: skip


def _functions() -> Iterator[Special]:
    x = [INF, -INF, NAN]
    yield Special("clamp", (x,), [1.0, -1.0, NAN], params={"min": -1.0, "max": 1.0})
    yield Special("scale", (x,), [-INF, INF, NAN], params={"scale": -2.0, "bias": 1.0})
    for prefix in ("", "nd."):
        yield Special(prefix + "sigmoid", (x,), [1.0, 0.0, NAN])
        yield Special(prefix + "tanh", (x,), [1.0, -1.0, NAN])
        yield Special(prefix + "softplus", (x,), [INF, 0.0, NAN])
        yield Special(prefix + "silu", (x,), [INF, NAN, NAN])
        yield Special(prefix + "gelu", (x,), [INF, NAN, NAN])
    yield Special("swiglu", ([*x, 0.0], [1.0, 1.0, 1.0, INF]), [INF, NAN, NAN, NAN])
    gated = [2 / (1 + np.exp(-2.0)) * 3, NAN, NAN]
    limits: dict[str, Any] = {"alpha": 1.0, "limit": 2.0}
    yield Special("swiglu_oai", ([INF, NAN, 1.0], [INF, 1.0, NAN]), gated, params=limits)
    yield Special("nd.gelu_tanh", (x,), [INF, NAN, NAN])
    yield Special("nd.relu", (x,), [INF, 0.0, NAN])
    yield Special("nd.hard_sigmoid", (x,), [1.0, 0.0, NAN])
    yield Special("nd.exp", (x,), [INF, 0.0, NAN])
    yield Special("nd.log", ([INF, 0.0, -1.0, NAN],), [INF, -INF, NAN, NAN])
    yield Special("nd.sqrt", ([INF, -0.0, -1.0, NAN],), [INF, -0.0, NAN, NAN], has_sign=True)
    yield Special("nd.reciprocal", ([INF, -INF, 0.0, -0.0],), [0.0, -0.0, INF, -INF], has_sign=True)
    yield Special("nd.abs", ([-0.0, -INF, NAN],), [0.0, INF, NAN], has_sign=True)
    yield Special("nd.neg", ([0.0, -0.0, -INF],), [-0.0, 0.0, INF], has_sign=True)
    yield Special("nd.sign", (x,), [1.0, -1.0, NAN])
    yield Special("nd.is_nan", (x,), [False, False, True])
    yield Special("nd.is_inf", (x,), [True, True, False])
    yield Special("nd.is_inf", (x,), [True, False, False], params={"negative": False})
    yield Special("nd.is_inf", (x,), [False, True, False], params={"positive": False})
    yield Special("nd.pow", ([0.0, 0.0, NAN, INF], [0.0, -1.0, 0.0, 0.0]), [1.0, INF, 1.0, 1.0])
    mod = [1.0, INF, 1.0, -1.0, NAN], [0.0, 2.0, INF, INF, 1.0]
    yield Special("nd.mod", mod, [NAN, NAN, 1.0, INF, NAN])
    yield Special("nd.mod", mod, [NAN, NAN, 1.0, -1.0, NAN], params={"fmod": True})
    for name, wanted in (("max", [NAN, NAN, INF]), ("min", [NAN, NAN, -INF])):
        yield Special(f"nd.{name}", ([NAN, 1.0, INF], [1.0, NAN, -INF]), wanted)
    yield Special("nd.less", ([NAN, -0.0, -INF], [1.0, 0.0, INF]), [False, False, True])
    yield Special("nd.equal", ([NAN, -0.0, INF], [NAN, 0.0, INF]), [False, True, True])


def _rows() -> Iterator[Special]:
    nothing = [-INF, -INF, -INF]
    half = [0.0, -INF, 0.0]
    rows = [nothing, half, [0.0, NAN, 0.0], [INF, 0.0, 0.0]]
    shares = [[NAN] * 3, [0.5, 0.0, 0.5], [NAN] * 3, [NAN] * 3]
    yield Special("soft_max", (rows,), shares)
    yield Special("soft_max", ([[0.0] * 3] * 4, rows), shares, params={"mask": True})
    yield Special("soft_max", ([[nothing, half]], [0.0]), [[[0.0] * 3, [1 / 3, 0.0, 1 / 3]]],
                  params={"sinks": True})  # fmt: skip
    yield Special("nd.softmax", (rows,), shares)
    yield Special("nd.softmax", (np.transpose(rows).tolist(),), np.transpose(shares).tolist(),
                  params={"axis": 0})  # fmt: skip
    yield Special("nd.log_softmax", (rows[:2],), [[NAN] * 3, [-np.log(2), -INF, -np.log(2)]])
    long = [[-INF] * 200, [0.0] * 200]
    yield Special("soft_max", (long,), [[NAN] * 200, [1 / 200] * 200])
    yield Special("sum_rows", ([[INF, -INF], [INF, 1.0], [NAN, 1.0]],), [[NAN], [INF], [NAN]])
    yield Special("rms_norm", ([[NAN, 1.0], [INF, 1.0], [1.0, 1.0]],),
                  [[NAN, NAN], [NAN, 0.0], [1.0, 1.0]], params={"eps": 0.0})  # fmt: skip
    yield Special("norm", ([[NAN, 1.0], [INF, 1.0], [1.0, -1.0]],),
                  [[NAN, NAN], [NAN, NAN], [1.0, -1.0]], params={"eps": 0.0})  # fmt: skip
    mixed = [[NAN, 1.0, -INF, INF, NAN, 0.0, -0.0]]
    yield Special("argsort", (mixed,), [[2, 5, 6, 1, 3, 0, 4]])
    yield Special("argsort", (mixed,), [[3, 1, 5, 6, 2, 0, 4]], params={"descending": True})
    yield Special("top_k", (mixed,), [[3, 1, 5, 6, 2, 0]], params={"k": 6})
    yield Special("nd.top_k", (mixed,), [[0, 4, 3, 1]], params={"k": 4})
    yield Special("nd.top_k", (mixed,), [[2, 5, 6, 1]], params={"k": 4, "largest": False})
    for name in ("arg_max", "arg_min"):
        yield Special(f"nd.{name}", (mixed,), [[0]], params={"axis": 1})
    for name, of_nan, of_nothing in (
        ("sum", NAN, 0.0), ("mean", NAN, NAN), ("max", NAN, -INF), ("min", NAN, INF),
        ("prod", NAN, 1.0), ("l1", NAN, 0.0), ("l2", NAN, 0.0), ("sum_square", NAN, 0.0),
        ("log_sum", NAN, -INF), ("log_sum_exp", NAN, -INF),
    ):  # fmt: skip
        params: dict[str, Any] = {"axes": (1,), "keepdims": False}
        yield Special(f"nd.reduce_{name}", ([[1.0, NAN]],), [of_nan], params=params)
        yield Special(f"nd.reduce_{name}", ([[], []],), [of_nothing] * 2, params=params)
    for name, least in (("max", LEAST), ("min", MOST), ("mean", 0), ("sum", 0), ("prod", 1)):
        yield Special(f"nd.reduce_{name}", ([[]],), [least], ("i32",),
                      {"axes": (1,), "keepdims": False})  # fmt: skip


def _products() -> Iterator[Special]:
    w, x = [[1.0, 0.0], [0.0, 1.0]], [[INF, 1.0], [NAN, 1.0], [1.0, 2.0]]
    yield Special("mul_mat", (w, x), [[INF, NAN], [NAN, NAN], [1.0, 2.0]])
    k, q = [[[1.0, 0.0]], [[0.0, 1.0]]], [[[1.0, 1.0]], [[1.0, 1.0]], [[NAN, 1.0]]]
    v = [[[1.0, 5.0]], [[3.0, 7.0]]]
    none, first = [[[0.0, 0.0]]], [[[1.0, 5.0]]]
    mask = [[-INF, -INF], [0.0, -INF], [0.0, 0.0]]
    nan = [[[NAN, NAN]]]
    yield Special("attention", (k, v, q, mask), none + first + nan, params={"mask": True})
    bounds = [[1, 1], [0, 1], [0, 2]]
    yield Special("attention", (k, v, q, bounds), none + first + nan,
                  ("f32", "f32", "f32", "i32"), {"bounds": True})  # fmt: skip
    # A mask of -inf is added: what is NaN, or infinite before it, is not hidden by it.
    keys, values = ([[[x] * 8] for x in pair] for pair in ((-1.0, 1.0), (1.0, 3.0)))
    q = [[[x, *[1.0] * 7]] for x in (INF, NAN, 1.0)]
    masks = [[0.0, -INF], [-INF, -INF], [-INF, -INF]]
    yield Special("attention", (keys, values, q, masks), [[[x] * 8] for x in (NAN, NAN, 0.0)],
                  params={"mask": True})  # fmt: skip


def _integers() -> Iterator[Special]:
    i32 = ("i32",)
    yield Special("nd.add", ([MOST, LEAST], [1, -1]), [LEAST, MOST], i32)
    yield Special("nd.sub", ([LEAST, MOST], [1, -1]), [MOST, LEAST], i32)
    yield Special("nd.mul", ([1 << 16, MOST], [1 << 16, 2]), [0, -2], i32)
    yield Special("nd.neg", ([LEAST],), [LEAST], i32)
    yield Special("nd.abs", ([LEAST],), [LEAST], i32)
    yield Special("nd.add", ([255, 1], [1, 1]), [0, 2], ("u8",))
    divided = [7, -7, 0, LEAST, -7, 7], [0, 0, 0, -1, 2, -2]
    yield Special("nd.div", divided, [0, 0, 0, LEAST, -3, -3], i32)
    yield Special("nd.mod", divided, [0, 0, 0, 0, 1, -1], i32)
    yield Special("nd.mod", divided, [0, 0, 0, 0, -1, 1], i32, {"fmod": True})
    divided = [12, -12, 0, LEAST, LEAST, 7], [18, 8, 0, -1, 0, 0]
    yield Special("nd.gcd", divided, [6, 4, 0, 1, LEAST, 7], i32)
    yield Special("nd.gcd", ([12, 255], [18, 34]), [6, 17], ("u8",))
    low = -(2**63)
    yield Special("nd.div", ([low, 5], [-1, 0]), [low, 0], ("i64",))
    yield Special("nd.mod", ([low, 5], [-1, 0]), [0, 0], ("i64",))
    counts = [31, 32, 64, -1]
    yield Special("nd.shift", ([1] * 4, counts), [LEAST, 0, 0, 0], i32)
    yield Special("nd.shift", ([-5] * 4, counts), [-1] * 4, i32, {"left": False})
    yield Special("nd.shift", ([255] * 3, [7, 8, 200]), [1, 0, 0], ("u8",), {"left": False})
    powers = [2, 1, -1, -1, 0, 0, 2], [-1, -3, -3, -2, -1, 0, 40]
    yield Special("nd.pow", powers, [0, 1, -1, 1, 0, 1, 0], i32)
    floats = [NAN, INF, -INF, -1.5, 300.5, 3e9]
    yield Special(
        "nd.cast", (floats,), [0, 2**63 - 1, low, -1, 300, 3 * 10**9], params={"to": "i64"}
    )
    yield Special("nd.cast", (floats,), [0, -1, 0, -1, 300, 3 * 10**9 - 2**32],
                  params={"to": "i32"})  # fmt: skip
    yield Special("nd.cast", (floats[:5],), [0, 255, 0, 255, 44], params={"to": "u8"})
    yield Special(
        "nd.cast", ([NAN, INF, 1e19],), [0, 2**64 - 1, 9999999980506447872], params={"to": "u64"}
    )
    yield Special("nd.cast", ([NAN, 0.5, -0.0],), [True, True, False], params={"to": "bool"})
    yield Special("nd.cast", ([LEAST, 256],), [True, True], i32, {"to": "bool"})
    yield Special("nd.cast", ([LEAST, 257],), [0, 1], i32, {"to": "u8"})
    yield Special("nd.cast", ([1e30, -70000.0, NAN],), [INF, -INF, NAN], params={"to": "f16"})
    yield Special("nd.round_to", ([NAN, INF, -INF, 0.5],), [0, 127, -128, 0])


SPECIAL: Final = (
    *_arithmetic(""),
    *_arithmetic("nd."),
    *_functions(),
    *_rows(),
    *_products(),
    *_integers(),
)
"""The meaning of ops on special operands."""


__all__ = ["SPECIAL", "Special"]
