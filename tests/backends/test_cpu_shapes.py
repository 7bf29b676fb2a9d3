"""Shapes and places that random graphs rarely have: no elements, no axes, strided results."""

import numpy as np
import pytest

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F16, F32, FLOAT_DTYPES, I32
from ggsched.ir.ops import OPS
from ggsched.ops.elementwise import BINARY, GATED, UNARY
from ggsched_testing.generators.values import DrawnGraph, LeafRule, values_for
from tests.backends.against_oracle import whole
from tests.backends.test_cpu_ops import check

ELEMENTWISE = (*UNARY, *BINARY, *GATED)
IN_PLACE = sorted(name for name, op in OPS.items() if 0 in op.may_overwrite)


NODES = {
    "attention": lambda g, x, a, b, c: g.op(
        "attention", g.input("k", (5, 1, c)), g.input("v", (5, 1, 7)), x
    ),
    "get_rows": lambda g, x, a, b, c: g.get_rows(table(g, c), ids(g, a, b)),
    "set_rows": lambda g, x, a, b, c: g.set_rows(
        g.state("dst", (a + 2, c)), g.input("src", (a, c)), g.input("rows", (a,), I32)
    ),
    "mul_mat": lambda g, x, a, b, c: g.mul_mat(g.weight("w", (1, 7, c)), x),
    "mul_mat_id": lambda g, x, a, b, c: g.mul_mat_id(g.weight("w", (5, 7, c)), x, ids(g, a, b)),
    "concat": lambda g, x, a, b, c: g.concat(x, g.input("y", (a, 2, c)), 1),
    "cpy": lambda g, x, a, b, c: g.cpy(x, g.input("y", x.shape, F16)),
    "repeat": lambda g, x, a, b, c: g.repeat(x, (2 * a, b, 3 * c)),
    "top_k": lambda g, x, a, b, c: g.top_k(x, 1),
    "short_conv": lambda g, x, a, b, c: g.op(
        "short_conv", g.input("state", (2, 3, c)), g.reshape(x, a * b, c), g.weight("w", (c, 4)),
        *places(g, a * b),
    ),
    "linear_attention": lambda g, x, a, b, c: g.op(
        "linear_attention", g.input("state", (2, b, 3, c)), g.input("q", (a, 1, 3)),
        g.input("k", (a, 1, 3)), x, g.input("decay", (a, b)), *places(g, a),
    ),
}  # fmt: skip

OPERANDS = {
    "add_id": lambda g, a, b, c: (table(g, c), ids(g, a, b)),
    "rope": lambda g, a, b, c: (g.input("ids", (a,), I32),),
    "soft_max": lambda g, a, b, c: (g.input("mask", (b, c)),),
    **{op: lambda g, a, b, c: (g.input("positive", (b, 1)),) for op in BINARY},
    **{op: lambda g, a, b, c: (g.input("y", (a, b, c)),) for op in GATED},
}

PARAMS = {
    "rope": {"n_dims": 4},
    "soft_max": {"mask": True},
    "scale": {"scale": 2.0, "bias": 1.0},
    "clamp": {"min": -0.5, "max": 0.5},
}


def places(g, tokens):
    return g.input("slots", (tokens,), I32), g.input("at", (tokens,), I32)


def table(g, c):
    return g.weight("w", (5, c))


def ids(g, a, b):
    return g.input("ids", (a, b), I32)


def apply(g, op, x, *, inplace=False):
    """Add a node on x of shape (A, B, C)."""
    if op in NODES:
        return NODES[op](g, x, *x.shape)
    more = OPERANDS[op](g, *x.shape) if op in OPERANDS else ()
    return g.op(op, x, *more, inplace=inplace, **PARAMS.get(op, {}))


RULES = {
    "ids": LeafRule("ids", bound=5),
    "rows": LeafRule("ids", bound=4, distinct=True),
    "slots": LeafRule("ids", bound=2),
    "at": LeafRule("ids", bound=3),
    "mask": LeafRule("mask"),
    "positive": LeafRule("positive"),
    "x": LeafRule("ranked"),
}


# Some need columns, or a whole number of copies.
SHAPES = [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 4), (2, 3, 4), (1, 1, 4)]
WITHOUT_COLUMNS = set(OPS) - {"attention", "rope", "top_k", "repeat"}
WITHOUT_ROWS = set(OPS) - {"repeat"}


def cases():
    for shape in SHAPES:
        fits = WITHOUT_COLUMNS if shape[-1] == 0 else WITHOUT_ROWS if 0 in shape else set(OPS)
        yield from ((op, shape) for op in sorted(fits))


@pytest.mark.filterwarnings("ignore:Mean of empty slice")  # the oracle's
@pytest.mark.parametrize(("op", "shape"), list(cases()))
def test_no_elements(op, shape):
    g = GraphBuilder()
    graph = g.build(apply(g, op, g.input("x", shape)))
    unless_empty = ("x", "mask") if 0 in shape else ()
    rules = {name: rule for name, rule in RULES.items() if name not in unless_empty}
    check(graph, values_for(DrawnGraph(graph, rules), 0), runs=2)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_products_of_nothing(dtype):
    k = whole(32, dtype)
    for tokens, rows, columns in ((0, 3, k), (2, 0, k), (2, 3, 0)):
        g = GraphBuilder()
        w, ids = g.weight("w", (4, rows, columns), dtype), g.input("ids", (tokens, 2), I32)
        x = g.input("x", (tokens, 2, columns))
        batch = g.input("b", (4, tokens, columns))
        graph = g.build(g.mul_mat_id(w, x, ids), g.mul_mat(w, batch))
        check(graph, values_for(DrawnGraph(graph, {"ids": LeafRule("ids", bound=4)}), 0))


@pytest.mark.parametrize("op", ELEMENTWISE)
def test_numbers_without_axes(op):
    g = GraphBuilder()
    x, y = g.input("x", ()), g.input("positive", ())
    operands = (x, y) if len(OPS[op].operands) == 2 else (x,)
    graph = g.build(g.op(op, *operands))
    rules = {"positive": LeafRule("positive")}
    check(graph, values_for(DrawnGraph(graph, rules), 0))


@pytest.mark.parametrize("op", IN_PLACE)
@pytest.mark.parametrize("layout", ["dense", "rows", "columns", "turned"])
def test_in_place(op, layout):
    """The result takes the bytes of x, which may be a window with gaps or a transposed one."""
    g = GraphBuilder()
    whole = g.state("x", {"turned": (3, 8, 6)}.get(layout, (3, 12, 16)))
    match layout:
        case "dense":
            x = g.view(whole, (3, 6, 8))
        case "rows":
            x = g.view(whole, (3, 6, 8), whole.strides, 16)
        case "columns":
            x = g.view(whole, (3, 6, 8), (whole.strides[0], whole.strides[1], 8))
        case _:
            x = g.transpose(whole)

    first = apply(g, op, x, inplace=True)
    graph = g.build(first, whole)
    values = values_for(DrawnGraph(graph, RULES), 0)
    rng = np.random.default_rng(0)
    start = rng.uniform(-1, 1, whole.shape).astype(np.float32)
    check(graph, values, states={"x": start})


@pytest.mark.parametrize("op", [op for op in IN_PLACE if 1 in OPS[op].may_overwrite])
def test_both_operands_are_the_result(op):
    g = GraphBuilder()
    x = g.input("x", (3, 8))
    graph = g.build(g.op(op, x, x, inplace=True))
    check(graph, values_for(DrawnGraph(graph, {"x": LeafRule("positive")}), 0))


@pytest.mark.parametrize("into", ["cpy", "set_rows"])
@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_results_with_gaps(into, dtype):
    g = GraphBuilder()
    cache = g.state("cache", (6, 20), dtype)
    window = g.view(cache, (6, 8), cache.strides, 4 * dtype.block_nbytes)
    if into == "cpy":
        out = g.cpy(g.input("x", (6, 8)), window)
    else:
        out = g.set_rows(window, g.input("x", (3, 8)), g.input("rows", (3,), I32))
    graph = g.build(out, cache)
    rules = {"rows": LeafRule("ids", bound=6, distinct=True)}
    check(graph, values_for(DrawnGraph(graph, rules), 0), runs=2, atol=1e-3)
