"""LCH: long rows, many rows, all ranks, many nodes and programs, large constants."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ggsched.backend.program import BoundNode
from ggsched.errors import GraphError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F32, I32
from ggsched.ir.tensor import Role, Tensor
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.cases_fusions import Chain, chains
from ggsched_testing.conformance.cases_ops import check_graph
from ggsched_testing.conformance.context import TestContext, vector
from ggsched_testing.conformance.draws import is_declared
from ggsched_testing.conformance.long_work import exact_node
from ggsched_testing.conformance.oprun import agrees, prepare
from ggsched_testing.generators.values import DrawnGraph, LeafRule, values_for

Make = Callable[[GraphBuilder], Tensor]

# --- LCH-1, LCH-2 -----------------------------------------------------------------------------

LENGTHS: Final = ((1 << 16) - 1, 1 << 16, (1 << 17) + 3)


@case("LCH-1", "Long vectors are written completely, and nothing beside them.", "launch")
def lch1_long_vectors(w: TestContext) -> None:
    q = w.stream()
    for count in LENGTHS:
        x, y = w.buffer(4 * count + 64), w.buffer(4 * count + 64)
        numbers, around = w.numbers(count), w.bytes(4 * count + 64)
        w.put(q, x, numbers)
        w.put(q, y, around)
        w.order(q)
        w.launch(q, w.compute(q, [(x, 0)], (y, 32), count))
        expected = around.copy()
        expected[32 : 32 + 4 * count] = w.result(numbers).view(np.uint8)
        w.equal(w.get(q, y), expected, f"{count} elements, and what is around them")


@case("LCH-1", "Of hundreds of nodes in a program, each one runs.", "launch")
def lch1_many_nodes(w: TestContext) -> None:
    q, count = w.stream(), 320
    x, y = w.buffer(16 * count), w.buffer(16 * count)
    numbers = w.numbers(4 * count)
    w.put(q, x, numbers)
    w.put(q, y, np.zeros(4 * count, np.float32))
    w.order(q)
    order = [int(i) for i in w.rng.permutation(count)]
    nodes: list[BoundNode] = [exact_node(w, i, (x, 16 * i), (y, 16 * i), 4) for i in order]
    program = w.compile(nodes, q)
    w.program[-1] = f"p = compile({count} nodes of four elements)"
    w.launch(q, program)
    w.equal(w.get(q, y), w.result(numbers), f"the results of {count} nodes")


@case("LCH-1", "Each of a hundred open programs is launched as it was compiled.", "launch")
def lch1_many_programs(w: TestContext) -> None:
    q, count = w.stream(), 100
    x, y = w.buffer(16 * count), w.buffer(16 * count)
    numbers = w.numbers(4 * count)
    w.put(q, x, numbers)
    w.put(q, y, np.zeros(4 * count, np.float32))
    w.order(q)
    lines = len(w.program)
    programs = [w.compute(q, [(x, 16 * i)], (y, 16 * i), 4) for i in range(count)]
    for i in map(int, w.rng.permutation(count)):
        w.launch(q, programs[i])
    w.program[lines:] = [f"{count} programs of four elements each, launched in random order"]
    w.equal(w.get(q, y), w.result(numbers), f"the results of {count} programs")


@case("LCH-2", "Long operands keep their bytes.", "launch")
def lch2_long_inputs_stay(w: TestContext) -> None:
    q, count = w.stream(), LENGTHS[-1]
    x, y, z = (w.buffer(4 * count) for _ in range(3))
    a, b = w.numbers(count), w.numbers(count)
    w.put(q, x, a)
    w.put(q, y, b)
    w.order(q)
    w.launch(q, w.compute(q, [(x, 0), (y, 0)], (z, 0), count))
    w.equal(w.get(q, z), w.result(a, b), "the result")
    w.equal(w.get(q, x), a, "the first operand after a launch")
    w.equal(w.get(q, y), b, "the second operand after a launch")


# --- LCH-3: sizes -----------------------------------------------------------------------------

SMALL: Final = LeafRule(amp=0.25)
RANKED: Final = LeafRule("ranked")


def _long_graphs(w: TestContext) -> Iterator[DrawnGraph]:
    """Yield a graph for each op with long rows, many rows, or row numbers beyond a byte."""
    rows = int(w.rng.integers(258, 300))
    width = int(w.rng.integers(1030, 1500))
    long = 2048 + 4 * int(w.rng.integers(1, 40))
    makers: dict[str, tuple[Make, Mapping[str, LeafRule]]] = {
        "mul_mat": (
            lambda g: g.mul_mat(g.weight("w", (5, long)), g.input("x", (3, long))),
            {"w": SMALL, "x": SMALL},
        ),
        "mul_mat_id": (
            lambda g: g.op(
                "mul_mat_id",
                g.weight("w", (rows, 4, 32)),
                g.input("x", (2, 1, 32)),
                g.input("ids", (2, 3), I32),
            ),
            {"w": SMALL, "x": SMALL, "ids": LeafRule("ids", bound=rows)},
        ),
        "add_id": (
            lambda g: g.op(
                "add_id",
                g.input("x", (2, 3, 8)),
                g.weight("w", (rows, 8)),
                g.input("ids", (2, 3), I32),
            ),
            {"ids": LeafRule("ids", bound=rows)},
        ),
        "get_rows": (
            lambda g: g.op("get_rows", g.weight("w", (rows, 8)), g.input("ids", (rows,), I32)),
            {"ids": LeafRule("ids", bound=rows)},
        ),
        "set_rows": (
            lambda g: g.op(
                "set_rows",
                g.input("dst", (rows, 8)),
                g.input("src", (rows - 1, 8)),
                g.input("ids", (rows - 1,), I32),
            ),
            {"ids": LeafRule("ids", bound=rows, distinct=True)},
        ),
        "argsort": (lambda g: g.op("argsort", g.input("x", (2, width))), {"x": RANKED}),
        "top_k": (lambda g: g.op("top_k", g.input("x", (2, width)), k=7), {"x": RANKED}),
        "top_k of one": (lambda g: g.op("top_k", g.input("x", (2, 33 * width)), k=1), {}),
        "repeat": (lambda g: g.op("repeat", g.input("x", (3, 5)), shape=(3 * rows, 50)), {}),
        "concat": (
            lambda g: g.op("concat", g.input("x", (rows, 5)), g.input("y", (rows, 7)), axis=1),
            {},
        ),
        **{op: (_row_op(op, width), {"x": SMALL}) for op in _ROW_OPS},
        **{op: (_row_op(op, 70, rows), {"x": SMALL}) for op in ("cont", "gelu", "clamp")},
    }
    for op, (make, rules) in makers.items():
        g = GraphBuilder(f"long {op}")
        drawn = DrawnGraph(g.build(make(g)), rules)
        if is_declared(drawn.graph, w.device.facts):
            yield drawn


_ROW_OPS: Final = ("sum_rows", "rms_norm", "norm", "soft_max", "silu", "scale")


def _row_op(op: str, width: int, rows: int = 3) -> Make:
    params: dict[str, Any] = {"min": -0.1, "max": 0.1} if op == "clamp" else {}
    return lambda g: g.op(op, g.input("x", (rows, width)), **params)


@case("LCH-3", "Long rows, many rows and high row numbers agree with the oracle.")
def lch3_long_operands(w: TestContext) -> None:
    q = w.stream()
    for drawn in _long_graphs(w):
        check_graph(w, q, drawn)


# --- LCH-3: ranks -----------------------------------------------------------------------------


def _ranked_graphs(w: TestContext) -> Iterator[DrawnGraph]:
    """Yield graphs of operands of one to four axes, repeated along each choice of axes."""
    shape = (2, 3, 4, 4)
    for op in ("add", "sub", "mul"):
        for rank in range(1, 5):
            own = shape[4 - rank :]
            for other in {rank, int(w.rng.integers(1, rank + 1))}:
                ones = w.rng.integers(0, 2, other)
                second = tuple(
                    1 if one else n for one, n in zip(ones, own[rank - other :], strict=True)
                )
                yield from _graph(op, lambda g, a=own, b=second, op=op: g.op(  # type: ignore[misc]
                    op, g.input("x", a), g.input("y", b)
                ))  # fmt: skip
        full, middle = (2, 3, 4, 4), (2, 3, 1, 4)
        for second in (middle, (3, 1, 4), (1, 3, 4, 1), (4, 4), (2, 1, 1, 1)):
            yield from _graph(
                op,
                lambda g, a=full, b=second, op=op: g.op(op, g.input("x", a), g.input("y", b)),  # type: ignore[misc]
            )
    square = (4, 4, 4, 4)
    for second in ((4,), (4, 4), (4, 4, 4)):
        yield from _graph(
            "add",
            lambda g, b=second: g.op("add", g.input("x", square), g.input("y", b)),  # type: ignore[misc]
        )
    for weight, rows in (
        ((5, 8), (3, 8)),
        ((5, 8), (2, 3, 8)),
        ((5, 8), (2, 3, 4, 8)),
        ((3, 5, 8), (3, 4, 8)),
        ((3, 5, 8), (2, 3, 4, 8)),
        ((2, 5, 8), (6, 4, 8)),
        ((2, 2, 5, 8), (2, 6, 4, 8)),
        ((1, 2, 5, 8), (3, 4, 1, 8)),
    ):
        yield from _graph(
            "mul_mat",
            lambda g, a=weight, b=rows: g.mul_mat(g.weight("w", a), g.input("x", b)),  # type: ignore[misc]
        )
    for op in ("scale", "soft_max", "rms_norm", "sum_rows", "silu", "cont"):
        for rank in range(1, 5):
            yield from _graph(
                op,
                lambda g, a=shape[4 - rank :], op=op: g.op(op, g.input("x", a)),  # type: ignore[misc]
            )


def _graph(op: str, make: Make) -> Iterator[DrawnGraph]:
    g = GraphBuilder(f"{op} of some rank")
    try:
        yield DrawnGraph(g.build(make(g)), {"x": SMALL, "w": SMALL, "y": SMALL})
    except GraphError:  # this op has another idea of ranks
        return


@case("LCH-3", "Operands of one to four axes are matched and repeated as the oracle does.")
def lch3_ranks(w: TestContext) -> None:
    q = w.stream()
    for drawn in _ranked_graphs(w):
        if is_declared(drawn.graph, w.device.facts):
            check_graph(w, q, drawn)


# --- LCH-3: far from zero ---------------------------------------------------------------------


@case("LCH-3", "clamp keeps NaN.", "op clamp")
def lch3_clamp_keeps_nan(w: TestContext) -> None:
    g = GraphBuilder("clamp of NaN")
    x = g.input("x", (2, 9))
    graph = g.build(g.op("clamp", x, min=-0.5, max=0.5))
    row = np.array([np.nan, -np.inf, np.inf, 0.25, -np.nan, 1.0, -1.0, 0.0, np.nan], np.float32)
    check_graph(w, w.stream(), DrawnGraph(graph, {}), {"x": np.stack([row, row[::-1]])})


@case("LCH-3", "silu and swiglu of finite numbers are finite, far below zero too.")
def lch3_silu_far_below_zero(w: TestContext) -> None:
    q = w.stream()
    row = np.array([-1e30, -1e4, -200.0, -104.0, -100.0, -89.0, -88.0, -60.0, 60.0], np.float32)
    for op in ("silu", "swiglu"):
        g = GraphBuilder(f"{op} far below zero")
        x = g.input("x", (2, 9))
        operands = [x, g.input("y", (2, 9))] if op == "swiglu" else [x]
        drawn = DrawnGraph(g.build(g.op(op, *operands)), {})
        if is_declared(drawn.graph, w.device.facts):
            values = {"x": np.stack([row, row[::-1]]), "y": np.ones((2, 9), np.float32)}
            with np.errstate(over="ignore"):
                check_graph(w, q, drawn, {n: values[n] for n in ("x", "y")[: len(operands)]})


@case(
    "LCH-3",
    "sigmoid, tanh, softplus, gelu and soft_max of finite numbers are finite, far from zero too.",
)
def lch3_far_from_zero(w: TestContext) -> None:
    q = w.stream()
    row = np.array([-1e30, -1e4, -104.0, -89.0, -60.0, 46.0, 89.0, 104.0, 1e4], np.float32)
    large = np.where(row == np.float32(1e4), np.float32(1e30), row)
    for op in ("sigmoid", "tanh", "softplus", "gelu", "soft_max"):
        g = GraphBuilder(f"{op} far from zero")
        drawn = DrawnGraph(g.build(g.op(op, g.input("x", (4, 9)))), {})
        if is_declared(drawn.graph, w.device.facts):
            x = np.stack([row, row[::-1], large, large[::-1]])
            with np.errstate(over="ignore"):
                check_graph(w, q, drawn, {"x": x})


# --- LCH-7 ------------------------------------------------------------------------------------


@case("LCH-7", "Large constants that are rewritten while the device is idle are seen.", "launch")
def lch7_large_constants(w: TestContext) -> None:
    q = w.stream()
    for count in (1 << 14, (1 << 16) + 5):
        c, y = w.buffer(4 * count), w.buffer(4 * count)
        w.put(q, c, w.numbers(count))
        node = exact_node(w, 0, (c, 0), (y, 0), count)
        constant = replace(vector(c, 0, count), is_constant=True)
        inputs = [constant if o.buffer is c else o for o in node.inputs]
        program = w.compile([replace(node, inputs=tuple(inputs))], q)
        for _ in range(2):
            numbers = w.numbers(count)
            w.put(q, c, numbers)
            w.order(q)
            w.launch(q, program)
            w.equal(w.get(q, y), w.result(numbers), f"of {count} constants that were rewritten")


@case("LCH-7", "Constants of groups that are rewritten while the device is idle are seen.",
      "fusions")  # fmt: skip
def lch7_group_constants(w: TestContext) -> None:
    seen: set[str] = set()
    for chain in chains(w):
        roots = list(chain.drawn.graph.roots(Role.WEIGHT))
        if chain.group.pattern in seen or not any(t.dtype is F32 for t in roots):
            continue
        seen.add(chain.group.pattern)
        _rewritten_weights(w, chain)


def _rewritten_weights(w: TestContext, chain: Chain) -> None:
    graph, q = chain.drawn.graph, w.stream()
    values = values_for(chain.drawn, w.seed)
    prepared = prepare(w, q, graph, values, group=chain.group, constant=True)
    w.launch(q, prepared.program)
    w.sync(q)
    arena = prepared.before.copy()
    fresh = values_for(chain.drawn, w.seed + 1)
    fresh = {name: fresh[name] if v.dtype != np.int32 else v for name, v in values.items()}
    for t in graph.tensors:
        if not t.is_view and t.name in fresh and t.role is not Role.TEMP:
            start = prepared.start[t.id]
            arena[start : start + t.nbytes] = np.frombuffer(fresh[t.name].tobytes(), np.uint8)
    w.put(q, prepared.arena, arena)
    w.order(q)
    w.launch(q, prepared.program)
    after = w.get(q, prepared.arena)
    w.close(prepared.program, prepared.arena, q)
    w.require(
        agrees(w, prepared, after, fresh),
        f"{chain.group.pattern}: weights rewritten while idle are not seen",
    )
    w.program.clear()
