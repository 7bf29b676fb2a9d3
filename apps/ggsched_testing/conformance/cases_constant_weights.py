"""LCH-7: weights that are constant, in the shapes and types for which devices have fast ways."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ggsched.backend.program import Group
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import FLOAT_DTYPES, I32, DType
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role, Tensor
from ggsched_testing.conformance.call_trace import flat
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.cases_fusions import chains
from ggsched_testing.conformance.context import TestContext
from ggsched_testing.conformance.exact import EXACT_OPS
from ggsched_testing.conformance.oprun import agrees, prepare
from ggsched_testing.generators.values import DrawnGraph, LeafRule, values_for

Array = npt.NDArray[Any]

SIZES: Final = ((1, 64), (1, 256), (3, 256))
"""Rows that are multiplied, and how long they are: some tokens of decoding."""

COLUMNS: Final = 64
EXPERTS: Final = 4
AMP: Final = LeafRule(amp=0.25)


@case("LCH-7", "Products of constant weights with a few rows.", "op mul_mat")
def lch7_mul_mat(w: TestContext) -> None:
    def made(g: GraphBuilder, dtype: DType, rows: int, width: int) -> tuple[Tensor, ...]:
        x = _written(w, g, g.input("x", (rows, width)))
        columns = max(COLUMNS, dtype.block)
        hidden = g.mul_mat(g.weight("first", (columns, width), dtype), x)
        return (g.mul_mat(g.weight("second", (32, columns), dtype), hidden),)

    _check_all(w, "mul_mat", made)


@case("LCH-7", "Products of a few rows with constant experts.", "op mul_mat_id")
def lch7_mul_mat_id(w: TestContext) -> None:
    def made(g: GraphBuilder, dtype: DType, rows: int, width: int) -> tuple[Tensor, ...]:
        x = _written(w, g, g.input("x", (rows, 1, width)))
        experts = g.weight("first", (EXPERTS, COLUMNS, width), dtype)
        return (g.op("mul_mat_id", experts, x, g.input("ids", (rows, 2), I32)),)

    _check_all(w, "mul_mat_id", made)


@case("LCH-7", "Rows of constant tables.", "op get_rows")
def lch7_get_rows(w: TestContext) -> None:
    def made(g: GraphBuilder, dtype: DType, rows: int, width: int) -> tuple[Tensor, ...]:
        x = _written(w, g, g.input("x", (rows, width)))
        table = g.weight("first", (EXPERTS, width), dtype)
        found = g.op("get_rows", table, g.input("ids", (rows,), I32))
        return (found,) if x.role is Role.INPUT else (x, found)

    _check_all(w, "get_rows", made)


@case("LCH-7", "Groups of nodes with constant weights.", "fusions")
def lch7_every_pattern(w: TestContext) -> None:
    for chain in chains(w):
        w.program.append(f"group {chain.group.pattern}, seed {w.seed}")
        _check(w, chain.drawn.graph, values_for(chain.drawn, w.seed), chain.group)


Maker = Callable[[GraphBuilder, DType, int, int], tuple[Tensor, ...]]


def _check_all(w: TestContext, op: str, make: Maker) -> None:
    for drawn in _graphs(w, op, make):
        _check(w, drawn.graph, values_for(drawn, w.seed))


def _graphs(w: TestContext, op: str, make: Maker) -> Iterator[DrawnGraph]:
    rules = {**dict.fromkeys(("x", "first", "second"), AMP), "ids": LeafRule("ids", bound=EXPERTS)}
    for dtype in FLOAT_DTYPES:
        if f"{op}:{dtype}" in w.device.facts.ops:
            for rows, least in SIZES:
                width = -(-least // dtype.block) * dtype.block
                g = GraphBuilder(f"{op} {dtype} {rows} x {width}")
                yield DrawnGraph(g.build(*make(g, dtype, rows, width)), rules)


def _written(w: TestContext, g: GraphBuilder, x: Tensor) -> Tensor:
    """Let a node write what the next one reads: that is who must not be overtaken."""
    for op in EXACT_OPS:
        if not op.through and f"{op.name}:f32" in w.device.facts.ops:
            params: dict[str, Any] = dict(op.params)
            return g.op(op.name, *[x] * op.arity, **params)
    return x


def _check(
    w: TestContext, graph: Graph, values: Mapping[str, Array], group: Group | None = None
) -> None:
    """Run nodes whose weights are there and whose inputs come at the last moment."""
    q = w.stream()
    roots = list(graph.roots(Role.INPUT))
    blank = {t.name: np.zeros_like(values[t.name]) for t in roots}
    prepared = prepare(w, q, graph, {**values, **blank}, group=group, constant=True)
    before = prepared.before.copy()
    hold = None if w.device.facts.copy_order == "host" else w.hold(q)
    for t in roots:
        raw, start = flat(values[t.name]), prepared.start[t.id]
        before[start : start + raw.size] = raw
        w.upload(q, raw, prepared.arena, start)
    w.order(q)
    w.launch(q, prepared.program)
    w.pause()
    if hold is not None:
        hold.release()
    after = w.get(q, prepared.arena)
    w.close(prepared.program, prepared.arena, q)
    text = "\n".join(f"  {graph.label(n)}" for n in graph.nodes)
    w.require(
        agrees(w, prepared, after, values), f"with constant weights other numbers come of\n{text}"
    )
    beside = ~prepared.written()
    w.equal(after[beside], before[beside], f"bytes beside the results of\n{text}")
    w.program.clear()
