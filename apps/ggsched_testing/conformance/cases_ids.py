"""LCH-3: ids out of range, in every op that takes ids, read and written."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from ggsched.errors import DeviceFault, GraphError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F16, F32, I32, Q4_K, Q8_0, DType
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Tensor
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.cases_ops import check_graph
from ggsched_testing.conformance.context import TestContext
from ggsched_testing.conformance.draws import is_declared
from ggsched_testing.conformance.oprun import prepare
from ggsched_testing.generators.values import DrawnGraph, LeafRule, values_for

ROWS: Final = 6
"""Rows that ids choose from."""

LOWEST: Final = -(1 << 31)
BAD: Final = (-1, ROWS, -ROWS, ROWS + 1, LOWEST, (1 << 31) - 1, 1 << 24)
"""Ids out of range: the first behind either end, ones that wrap when multiplied, and others."""

Make = Callable[[GraphBuilder, DType], Tensor]


def _get_rows(g: GraphBuilder, dtype: DType) -> Tensor:
    return g.op("get_rows", g.input("table", (ROWS, 8), dtype), g.input("ids", (4,), I32))


def _get_rows_of_batches(g: GraphBuilder, dtype: DType) -> Tensor:
    return g.op("get_rows", g.input("table", (2, ROWS, 8), dtype), g.input("ids", (2, 2), I32))


def _set_rows(g: GraphBuilder, dtype: DType) -> Tensor:
    src, ids = g.input("src", (4, 8)), g.input("ids", (4,), I32)
    return g.op("set_rows", g.input("table", (ROWS, 8), dtype), src, ids)


def _mul_mat_id(g: GraphBuilder, dtype: DType) -> Tensor:
    ids = g.input("ids", (2, 2), I32)
    return g.op(
        "mul_mat_id", g.weight("table", (ROWS, 4, 32), dtype), g.input("x", (2, 1, 32)), ids
    )


def _add_id(g: GraphBuilder, dtype: DType) -> Tensor:
    ids = g.input("ids", (2, 2), I32)
    return g.op("add_id", g.input("x", (2, 2, 8)), g.weight("table", (ROWS, 8)), ids)


def _mul_mat_id_of_some(g: GraphBuilder, dtype: DType) -> Tensor:
    w, x, ids = (
        g.weight("table", (2, 4, 32), dtype),
        g.input("x", (2, 1, 32)),
        g.input("ids", (2, 2), I32),
    )
    return g.op("mul_mat_id", w, x, ids, first=3, of=ROWS)


def _add_id_of_some(g: GraphBuilder, dtype: DType) -> Tensor:
    bias, ids = g.weight("table", (2, 8)), g.input("ids", (2, 2), I32)
    return g.op("add_id", g.input("x", (2, 2, 8)), bias, ids, first=3, of=ROWS)


OPS: Final[Mapping[str, tuple[Make, ...]]] = {
    "get_rows": (_get_rows, _get_rows_of_batches),
    "set_rows": (_set_rows,),
    "mul_mat_id": (_mul_mat_id, _mul_mat_id_of_some),
    "add_id": (_add_id, _add_id_of_some),
}


def _graphs(w: TestContext) -> Iterator[Graph]:
    for op, makers in OPS.items():
        for dtype in (F32, F16, I32) if op != "add_id" else (F32,):
            if f"{op}:{dtype}" in w.device.facts.ops:
                for make in makers:
                    g = GraphBuilder(f"{op} {dtype}")
                    with suppress(GraphError):  # rows of some types cannot be written
                        yield g.build(make(g, dtype))


@case(
    "LCH-3",
    "Negative ids and ones too large fail the launch, wherever they stand, and write nothing.",
)
def lch3_ids_at_the_edges(w: TestContext) -> None:
    for graph in _graphs(w):
        if is_declared(graph, w.device.facts):
            rules = {"ids": LeafRule("ids", bound=ROWS, distinct=graph.nodes[0].op == "set_rows")}
            values = values_for(DrawnGraph(graph, rules), w.seed)
            for i, bad in enumerate(BAD):
                _launch_with(w, graph, values, bad, i)


MANY: Final = 150
"""Ids of one launch, more than a block of threads may look at."""


def _many_ids(g: GraphBuilder, op: str, dtype: DType) -> Tensor:
    """Add a node of an op with many ids, and as many rows."""
    flat, pairs = (MANY,), (MANY // 2, 2)
    match op:
        case "get_rows":
            return g.op(op, g.input("table", (MANY, 8), dtype), g.input("ids", flat, I32))
        case "set_rows":
            src, ids = g.input("src", (MANY, 8)), g.input("ids", flat, I32)
            return g.op(op, g.input("table", (MANY, 8), dtype), src, ids)
        case "mul_mat_id":
            x, ids = g.input("x", (MANY // 2, 1, 32)), g.input("ids", pairs, I32)
            return g.op(op, g.weight("table", (MANY, 4, 32), dtype), x, ids)
        case _:
            x, ids = g.input("x", (*pairs, 8)), g.input("ids", pairs, I32)
            return g.op(op, x, g.weight("table", (MANY, 8)), ids)


@case("LCH-3", "An id out of range fails the launch, also among many and behind many.")
def lch3_ids_among_many(w: TestContext) -> None:
    for op in OPS:
        for dtype in (F32, F16) if op != "add_id" else (F32,):
            g = GraphBuilder(f"{op} {dtype} of many ids")
            graph = g.build(_many_ids(g, op, dtype))
            if not is_declared(graph, w.device.facts):
                continue
            rules = {"ids": LeafRule("ids", bound=MANY, distinct=op == "set_rows")}
            values = values_for(DrawnGraph(graph, rules), w.seed)
            places = (MANY - 1, 64, int(w.rng.integers(65, MANY)))
            for place, bad in zip(places, (MANY, -1, LOWEST), strict=True):
                _launch_with(w, graph, values, bad, 0, place)


@case(
    "LCH-3",
    "Rows become 0 whose experts are elsewhere; where rows of biases are, nothing is added.",
    "expert ranges",
    since=(1, 7),
)
def lch3_experts_elsewhere(w: TestContext) -> None:
    q = w.stream()
    for dtype in (F32, BF16, Q8_0, Q4_K):
        for tokens in (2, MANY // 2):
            g = GraphBuilder(f"some experts of {dtype} for {tokens} tokens")
            width, here = max(64, dtype.block), {"first": 2, "of": 7}
            x, ids = g.input("x", (tokens, 1, width)), g.input("ids", (tokens, 2), I32)
            made = g.mul_mat_id(g.weight("w", (3, 16, width), dtype), x, ids, **here)
            graph = g.build(made, g.add_id(made, g.weight("bias", (3, 16)), ids, **here))
            rules = {**dict.fromkeys("wx", LeafRule(amp=0.25)), "ids": LeafRule("ids", bound=7)}
            if is_declared(graph, w.device.facts):
                check_graph(w, q, DrawnGraph(graph, rules))


def _launch_with(
    w: TestContext,
    graph: Graph,
    values: Mapping[str, Any],
    bad: int,
    number: int,
    place: int | None = None,
) -> None:
    q = w.stream()
    ids = values["ids"].copy()
    flat = ids.reshape(-1)
    if place is None:
        place = (flat.size - 1, 0, int(w.rng.integers(flat.size)))[number % 3]
    flat[place] = bad
    w.log(f"graph: {graph.nodes[0].op}, id {place} is {bad}")
    prepared = prepare(w, q, graph, {**values, "ids": ids})
    try:
        w.launch(q, prepared.program)
        error = w.refused(DeviceFault, w.sync, q)
    except DeviceFault as raised:  # where the work is done in the call
        error = raised
    label = graph.label(graph.nodes[0])
    w.require(label in error.one_line(), f"the error does not name {label}: {error.one_line()}")
    w.close(q)
    other = w.stream()
    after = w.get(other, prepared.arena)
    beside = ~prepared.written()
    w.equal(after[beside], prepared.before[beside], "bytes that a launch with a bad id must leave")
    w.close(other, prepared.program, prepared.arena)
    w.program.clear()
