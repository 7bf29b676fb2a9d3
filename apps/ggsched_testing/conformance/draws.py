"""Graphs of a few nodes around one op and one type, drawn from a seed, for the op cases."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np

from ggsched.errors import GraphError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F32, I32, Q8_0, DType, dtype_by_name
from ggsched.ir.graph import Graph
from ggsched.ir.ops import OPS, operand_dtypes
from ggsched.ir.tensor import Tensor
from ggsched.ops.elementwise import BINARY, GATED, UNARY
from ggsched.topology.caps import DeviceFacts, lacking
from ggsched_testing.generators.graph_gen import LONGEST_ROW, GraphGenerator
from ggsched_testing.generators.graph_gen_ops import STEPS
from ggsched_testing.generators.graph_gen_views import draw_view
from ggsched_testing.generators.values import DrawnGraph, LeafRule

PATIENCE: Final = 300
"""Draws without a node as wanted, after which no more are tried."""

_CHOICES: Final = 48


def graphs_with(
    op: str, dtype: DType, count: int, rng: np.random.Generator
) -> Iterator[DrawnGraph]:
    """Yield up to ``count`` graphs with a node of an op whose first operand has a type.

    The first ones are plain; later ones have views, several nodes, and nodes that write in place.
    Fewer come where no graph has such a node.
    """
    if dtype not in operand_dtypes(OPS[op]):
        return
    if (op, dtype.name) in _BY_HAND:
        yield _BY_HAND[op, dtype.name]()
        return
    if dtype.block > LONGEST_ROW:  # ``strided_graphs`` have them
        return
    made = misses = 0
    while made < count and misses < PATIENCE:
        drawn = _draw(op, dtype, made + misses, rng)
        if drawn is None:
            misses += 1
        else:
            made += 1
            yield drawn


def is_declared(graph: Graph, facts: DeviceFacts) -> bool:
    """Return whether a device declares every op of a graph (LCH-3)."""
    first = [graph.tensors[n.tensors[0]].dtype.name for n in graph.nodes]
    asked = [(n.op, t, n.params.get("of")) for n, t in zip(graph.nodes, first, strict=True)]
    return not any(lacking(facts, *node) for node in asked)


def declared_types(facts: DeviceFacts) -> Iterator[tuple[str, DType]]:
    """Yield each op, but for those of libraries, with each type that a device declares it for."""
    for key in sorted(facts.ops):
        op, colon, dtype = key.partition(":")
        if colon and "." not in op:  # libraries have tests of their own
            yield op, dtype_by_name(dtype)


def _draw(op: str, dtype: DType, attempt: int, rng: np.random.Generator) -> DrawnGraph | None:
    d = GraphGenerator(write_inputs=True, weight_dtypes=(F32 if dtype is I32 else dtype,))
    for step in range(1 + attempt % 3):
        d.feed(rng.bytes(_CHOICES))
        if step:
            draw_view(d)
        elif dtype is I32:
            d.ids_for((d.number(1, 4),), d.number(1, 4))
        d.pick(STEPS[op])(d)
    if not d.results or not (dtype is I32 or any(t.dtype is dtype for t in d.floats)):
        return None
    graph = d.g.build(*d.results)
    return DrawnGraph(graph, dict(d.rules)) if _has(graph, op, dtype) else None


def _has(graph: Graph, op: str, dtype: DType) -> bool:
    return any(n.op == op and graph.tensors[n.tensors[0]].dtype is dtype for n in graph.nodes)


def _joined_ids() -> DrawnGraph:
    g = GraphBuilder("concat of ids")
    a, b = g.input("a", (3,), I32), g.input("b", (2,), I32)
    rules = {name: LeafRule("ids", bound=9) for name in "ab"}
    return DrawnGraph(g.build(g.op("concat", a, b, axis=0)), rules)


def _kept_rows(dtype: DType) -> Callable[[], DrawnGraph]:
    """Rows of a cache that are written and read again: only plain types are compared in memory."""

    def make() -> DrawnGraph:
        g = GraphBuilder(f"rows of {dtype}")
        ids = LeafRule("ids", bound=5, distinct=True)
        kept = g.op("set_rows", g.input("kept", (5, 96), dtype), g.input("rows", (3, 96)),
                    g.input("ids", (3,), I32))  # fmt: skip
        read = g.op("get_rows", kept, g.input("all", (5,), I32))
        return DrawnGraph(g.build(read), {"ids": ids, "all": ids})

    return make


_BY_HAND: Final[Mapping[tuple[str, str], Callable[[], DrawnGraph]]] = {
    ("concat", I32.name): _joined_ids,
    ("set_rows", BF16.name): _kept_rows(BF16),
    ("set_rows", Q8_0.name): _kept_rows(Q8_0),
}


def empty_graphs(op: str, dtype: DType) -> Iterator[DrawnGraph]:
    """Yield graphs with a node of an op that has nothing to do."""
    make = _EMPTY.get(op)
    if make is None or dtype not in (F32, I32):
        return
    for shape in ((0, 4), (3, 0)) if op in _ANY_SHAPE else ((0, 4),):
        g = GraphBuilder(f"{op} of nothing")
        try:
            result = make(g, shape, dtype)
            yield DrawnGraph(g.build(result), {})
        except GraphError:
            continue


def _unary(op: str) -> Callable[[GraphBuilder, tuple[int, ...], DType], Tensor]:
    return lambda g, shape, dtype: g.op(op, g.input("x", shape, dtype))


def _binary(op: str) -> Callable[[GraphBuilder, tuple[int, ...], DType], Tensor]:
    return lambda g, shape, dtype: g.op(op, g.input("x", shape, dtype), g.input("y", shape, dtype))


def _product(g: GraphBuilder, shape: tuple[int, ...], dtype: DType) -> Tensor:
    return g.op("mul_mat", g.weight("w", (3, shape[-1]), dtype), g.input("x", shape))


def _lookup(g: GraphBuilder, shape: tuple[int, ...], dtype: DType) -> Tensor:
    table = g.input("table", (3, shape[-1]), dtype)
    return g.op("get_rows", table, g.input("ids", (0,), I32))


def _store(g: GraphBuilder, shape: tuple[int, ...], dtype: DType) -> Tensor:
    dst = g.input("dst", (3, shape[-1]), dtype)
    return g.op("set_rows", dst, g.input("src", shape), g.input("ids", (0,), I32))


def _no_tokens(g: GraphBuilder, shape: tuple[int, ...], dtype: DType) -> Tensor:
    kept = [g.input(name, (3, 1, 4), dtype) for name in ("k", "v")]
    return g.op("attention", *kept, g.input("q", (shape[0], 2, 4)))


def _no_rows(g: GraphBuilder, shape: tuple[int, ...], dtype: DType) -> Tensor:
    state, w = g.input("state", (2, 3, shape[1]), dtype), g.input("w", (shape[1], 4))
    ids = g.input("slots", shape[:1], I32), g.input("positions", shape[:1], I32)
    return g.op("short_conv", state, g.input("x", shape), w, *ids)


def _no_queries(g: GraphBuilder, shape: tuple[int, ...], dtype: DType) -> Tensor:
    state, v = g.input("state", (2, 2, 4, 8), dtype), g.input("v", (shape[0], 2, 8))
    q, k = (g.input(name, (shape[0], 1, 4)) for name in "qk")
    ids = g.input("slots", shape[:1], I32), g.input("positions", shape[:1], I32)
    return g.op("linear_attention", state, q, k, v, g.input("decay", (shape[0], 2)), *ids)


_ANY_SHAPE: Final = frozenset({*UNARY, *BINARY, *GATED, "cont", "cpy", "mul_mat"})

_EMPTY: Final[Mapping[str, Callable[[GraphBuilder, tuple[int, ...], DType], Tensor]]] = {
    **{op: _unary(op) for op in UNARY},
    **{op: _unary(op) for op in ("cont", "rms_norm", "norm", "soft_max", "sum_rows", "argsort")},
    **{op: _binary(op) for op in (*BINARY, *GATED, "cpy")},
    "mul_mat": _product,
    "attention": _no_tokens,
    "get_rows": _lookup,
    "set_rows": _store,
    "short_conv": _no_rows,
    "linear_attention": _no_queries,
}
