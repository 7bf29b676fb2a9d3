"""A graph for each op whose operands have gaps, or lie the other way round (LCH-3).

Random draws seldom give an op strided operands, and a kernel that takes every operand for
contiguous passes them all.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ggsched.errors import GraphError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F16, F32, I32, DType
from ggsched.ir.tensor import Tensor
from ggsched.ops.elementwise import BINARY, GATED, UNARY
from ggsched_testing.generators.values import DrawnGraph, LeafRule

PLAIN: Final = LeafRule()
POSITIVE: Final = LeafRule("positive")
RANKED: Final = LeafRule("ranked")
WIDTH: Final = 4


@dataclass(slots=True)
class Making:
    """A graph under way.

    Attributes:
        dtype: Type of the op's first operand.
        crosswise: Whether the last two axes of plain operands are exchanged; if not, each row
            is followed by a gap.
        rules: What the numbers are like.
    """

    g: GraphBuilder
    dtype: DType
    crosswise: bool
    rules: dict[str, LeafRule] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """Length of rows of the first operand: whole blocks."""
        return max(WIDTH, self.dtype.block)

    def leaf(self, name: str, *shape: int, dtype: DType = F32, rule: LeafRule = PLAIN) -> Tensor:
        """Return a strided view of a fresh input."""
        self.rules[name] = rule
        if self.crosswise and len(shape) > 1 and not dtype.is_quantized:
            flipped = (*shape[:-2], shape[-1], shape[-2])
            return self.g.transpose(self.g.input(name, flipped, dtype))
        gap = dtype.block if dtype.is_quantized else 1
        base = self.g.input(name, (*shape[:-1], shape[-1] + gap), dtype)
        return self.g.view(base, shape, base.strides)

    def first(self, name: str, *shape: int, rule: LeafRule = PLAIN) -> Tensor:
        """Return the first operand."""
        return self.leaf(name, *shape, dtype=self.dtype, rule=rule)

    def ids(self, name: str, *shape: int, bound: int, distinct: bool = False) -> Tensor:
        """Return row numbers, with gaps between them if they need not differ."""
        rule = LeafRule("ids", bound=bound, distinct=distinct)
        if not distinct:
            return self.leaf(name, *shape, dtype=I32, rule=rule)
        self.rules[name] = rule
        return self.g.input(name, shape, I32)


Maker = Callable[[Making], Tensor]


def _unary(op: str, rule: LeafRule = PLAIN, **params: Any) -> Maker:
    return lambda m: m.g.op(op, m.first("x", 3, m.width, rule=rule), **params)


def _binary(op: str, rule: LeafRule = PLAIN) -> Maker:
    return lambda m: m.g.op(op, m.leaf("x", 3, WIDTH), m.leaf("y", 3, WIDTH, rule=rule))


def _rope(m: Making) -> Tensor:
    x = m.g.permute(m.leaf("x", 2, 3, 8), 1, 0, 2)
    return m.g.op("rope", x, m.ids("at", 3, bound=50), n_dims=8)


def _soft_max(m: Making) -> Tensor:
    x, mask = m.leaf("x", 2, 3, WIDTH), m.leaf("mask", 3, WIDTH)
    return m.g.op("soft_max", x, mask, mask=True)


def _attention(m: Making) -> Tensor:
    width = max(8, m.dtype.block)
    q, mask = m.leaf("q", 3, 4, width), m.leaf("mask", 3, 6)
    kept = [m.g.permute(m.first(name, 2, 6, width), 1, 0, 2) for name in ("k", "v")]
    m.rules["bounds"] = LeafRule("bounds", bound=6)
    bounds = m.g.view(m.g.input("bounds", (6, 2), I32), (3, 2), (16, 4))
    return m.g.op("attention", *kept, q, mask, bounds, scale=0.25, mask=True, bounds=True)


def _mul_mat(m: Making) -> Tensor:
    return m.g.op("mul_mat", m.first("w", 2, 3, m.width), m.leaf("x", 4, 5, m.width))


def _mul_mat_id(m: Making) -> Tensor:
    w, x = m.first("w", 3, 5, m.width), m.leaf("x", 4, 2, m.width)
    return m.g.op("mul_mat_id", w, x, m.ids("ids", 4, 2, bound=3))


def _add_id(m: Making) -> Tensor:
    x, bias = m.leaf("x", 4, 2, WIDTH), m.leaf("bias", 3, WIDTH)
    return m.g.op("add_id", x, bias, m.ids("ids", 4, 2, bound=3))


def _get_rows(m: Making) -> Tensor:
    rule = LeafRule("ids", bound=9) if m.dtype is I32 else PLAIN
    return m.g.op("get_rows", m.first("table", 5, m.width, rule=rule), m.ids("ids", 3, bound=5))


def _set_rows(m: Making) -> Tensor:
    dst, src = m.first("dst", 5, m.width), m.leaf("src", 3, m.width)
    kept = m.g.op("set_rows", dst, src, m.ids("ids", 3, bound=5, distinct=True))
    if m.dtype in (F32, F16):
        return kept
    # Only plain types can be compared as they are in memory.
    return m.g.op("get_rows", kept, m.ids("all", 5, bound=5))


def _cpy(m: Making) -> Tensor:
    to = m.dtype if m.dtype is I32 else F16 if m.dtype is F32 else F32
    rule = LeafRule("ids", bound=9) if m.dtype is I32 else PLAIN
    source = m.first("x", 3, m.width, rule=rule)
    return m.g.op("cpy", source, m.leaf("y", 3, m.width, dtype=to, rule=rule))


def _cont(m: Making) -> Tensor:
    rule = LeafRule("ids", bound=9) if m.dtype is I32 else PLAIN
    # Only plain types can be compared as they are in memory.
    to = "" if m.dtype in (F32, F16, I32) else "f32"
    return m.g.op("cont", m.first("x", 3, m.width, rule=rule), dtype=to)


def _concat(m: Making) -> Tensor:
    rule = LeafRule("ids", bound=9) if m.dtype is I32 else PLAIN
    parts = [m.leaf(name, 3, n, dtype=m.dtype, rule=rule) for name, n in (("x", 4), ("y", 2))]
    return m.g.op("concat", *parts, axis=1)


def _repeat(m: Making) -> Tensor:
    return m.g.op("repeat", m.leaf("x", 3, WIDTH), shape=(6, 2 * WIDTH))


def _short_conv(m: Making) -> Tensor:
    state, x, w = m.leaf("state", 2, 3, WIDTH), m.leaf("x", 5, WIDTH), m.leaf("w", WIDTH, 4)
    slots, positions = m.ids("slots", 5, bound=2), m.ids("at", 5, bound=3)
    return m.g.op("short_conv", state, x, w, slots, positions)


def _linear_attention(m: Making) -> Tensor:
    state, v = m.leaf("state", 2, 4, 6, 8), m.leaf("v", 5, 4, 8)
    q, k = m.leaf("q", 5, 2, 6), m.leaf("k", 5, 2, 6)
    decay, beta = m.leaf("decay", 5, 4), m.leaf("beta", 5, 4)
    ids = m.ids("slots", 5, bound=2), m.ids("at", 5, bound=3)
    return m.g.op("linear_attention", state, q, k, v, decay, *ids, beta, scale=0.25, beta=True)


_MAKERS: Final[Mapping[str, Maker]] = {
    **{op: _unary(op) for op in (*UNARY, "rms_norm", "norm", "sum_rows")},
    **{op: _binary(op) for op in (*BINARY, *GATED)},
    "div": _binary("div", POSITIVE),
    "clamp": _unary("clamp", min=-0.5, max=0.5),
    "argsort": _unary("argsort", RANKED),
    "top_k": _unary("top_k", RANKED, k=2),
    "rope": _rope,
    "soft_max": _soft_max,
    "attention": _attention,
    "mul_mat": _mul_mat,
    "mul_mat_id": _mul_mat_id,
    "add_id": _add_id,
    "get_rows": _get_rows,
    "set_rows": _set_rows,
    "cpy": _cpy,
    "cont": _cont,
    "concat": _concat,
    "repeat": _repeat,
    "short_conv": _short_conv,
    "linear_attention": _linear_attention,
}


def strided_graphs(op: str, dtype: DType) -> Iterator[DrawnGraph]:
    """Yield graphs of one node with strided operands, as far as the op allows them."""
    for crosswise in (False, True):
        m = Making(GraphBuilder(f"strided {op}"), dtype, crosswise)
        try:
            graph = m.g.build(_MAKERS[op](m))
        except GraphError:
            continue  # e.g. quantised operands that have to be contiguous
        yield DrawnGraph(graph, m.rules)


def tied_graphs(op: str) -> Iterator[DrawnGraph]:
    """Yield graphs that sort equal elements, whose order the op defines."""
    orders: tuple[dict[str, Any], ...] = ({"descending": False}, {"descending": True})
    for params in ({"k": 1}, {"k": 3}) if op == "top_k" else orders:
        g = GraphBuilder(f"{op} of equal elements")
        # What lies below the limit is equal then.
        x = g.op("clamp", g.input("x", (3, 16)), min=0.0, max=0.25)
        yield DrawnGraph(g.build(g.op(op, x, **params)), {"x": replace(PLAIN, amp=1.0)})
