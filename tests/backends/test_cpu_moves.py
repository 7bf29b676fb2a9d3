"""Compiled moves, pools and reductions of the library against the oracle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched import GgschedError, GraphBuilder, Scheduler
from ggsched_cpu.native import library
from ggsched_testing.oracle.interpreter import run_oracle
from tests.backends.test_cpu_windows import tasks_of

pytestmark = pytest.mark.skipif(library() is None, reason="no compiled kernels")

DTYPES = ("f32", "f16", "i64", "i32", "u8", "bool")


def values_of(graph, seed):
    rng = np.random.default_rng(seed)
    return {
        t.name: (5 * rng.standard_normal(t.shape)).astype(t.dtype.host)
        for t in graph.tensors
        if t.name and not t.is_view
    }


def check(graph, values, rtol=0.0):
    wanted = run_oracle(graph, values)
    with Scheduler(["cpu:0"], weights=values) as scheduler:
        given = {t.name: values[t.name] for t in graph.tensors if t.role.name == "INPUT"}
        found = scheduler.run(graph, given)
    for tid, value in wanted.items():
        np.testing.assert_allclose(found[tid], value, rtol=rtol, atol=rtol / 10)


@st.composite
def moves(draw):
    """Return a graph of one move of an array of any axes, dense or turned."""
    g = GraphBuilder()
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=5)))
    n = len(shape)
    axis = draw(st.integers(0, n - 1))
    x = g.input("x", shape, draw(st.sampled_from(DTYPES)))
    perm = tuple(draw(st.permutations(range(n))))
    if draw(st.booleans()):
        x = g.permute(x, *perm)
    match draw(st.sampled_from(["slice", "concat", "transpose", "expand", "copy"])):
        case "slice":
            starts = tuple(draw(st.integers(0, m - 1)) for m in x.shape)
            steps = tuple(draw(st.sampled_from([1, 1, 2, -1])) for _ in x.shape)
            stops = tuple(m if s > 0 else -1 for m, s in zip(x.shape, steps, strict=True))
            y = g.op("nd.slice", x, starts=starts, stops=stops, steps=steps)
        case "concat":
            other = [m + (i == axis) for i, m in enumerate(x.shape)]
            y = g.op("nd.concat", x, g.input("b", tuple(other), x.dtype), x, axis=axis)
        case "transpose":
            y = g.op("nd.transpose", x, perm=perm)
        case "expand":
            wider = tuple(3 if m == 1 else m for m in x.shape)
            y = g.op("nd.expand", x, shape=(2, *wider))
        case _:
            y = g.op("nd.copy", x)
    return g.build(y)


@given(graph=moves(), seed=st.integers(0, 99))
def test_moves(graph, seed):
    check(graph, values_of(graph, seed))


@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    axis=st.integers(0, 3),
    dtype=st.sampled_from(DTYPES),
    count=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_gather(shape, axis, dtype, count, seed):
    """Indices below zero count from the end."""
    g = GraphBuilder()
    axis %= len(shape)
    x, ids = g.input("x", tuple(shape), dtype), g.input("ids", (count,), "i64")
    graph = g.build(g.op("nd.gather", x, ids, axis=axis))
    n = shape[axis]
    chosen = np.random.default_rng(seed).integers(-n, n, count)
    check(graph, {**values_of(graph, seed), "ids": chosen})


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("index", [3, -4, 1 << 40])
def test_indices_out_of_range_are_errors(axis, index):
    g = GraphBuilder()
    x, ids = g.input("x", (3, 3)), g.input("ids", (2,), "i64")
    graph = g.build(g.op("nd.gather", x, ids, axis=axis))
    with Scheduler(["cpu:0"]) as scheduler, pytest.raises(GgschedError):
        scheduler.run(graph, {"x": np.ones((3, 3), np.float32), "ids": np.array([0, index])})


@given(data=st.data(), seed=st.integers(0, 99))
def test_pools(data, seed):
    n = data.draw(st.integers(1, 2))
    kernel, strides, dilations = (
        tuple(data.draw(st.integers(1, 3 if i == 0 else 2)) for _ in range(n)) for i in range(3)
    )
    pads = tuple(data.draw(st.integers(0, 1)) for _ in range(2 * n))
    spatial = tuple(data.draw(st.integers(5, 40)) for _ in range(n))
    g = GraphBuilder()
    x = g.input("x", (2, 3, *spatial))
    params = {"kernel": kernel, "strides": strides, "dilations": dilations, "pads": pads}
    graph = g.build(g.op("nd.max_pool", x, **params))
    values = values_of(graph, seed)
    values["x"][0, 0].flat[3] = np.nan
    check(graph, values)


@given(
    shape=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    kept=st.integers(0, 2),
    op=st.sampled_from(["mean", "sum", "max"]),
    keepdims=st.booleans(),
    seed=st.integers(0, 99),
)
def test_reductions_of_the_last_axes(shape, kept, op, keepdims, seed):
    g = GraphBuilder()
    axes = tuple(range(min(kept, len(shape) - 1), len(shape)))
    x = g.input("x", tuple(shape))
    graph = g.build(g.op(f"nd.reduce_{op}", x, axes=axes, keepdims=keepdims))
    values = values_of(graph, seed)
    values["x"][0].flat[0] = [np.nan, np.inf, 1.0, -np.inf][seed % 4]
    check(graph, values, rtol=1e-4)


@pytest.mark.parametrize(
    ("op", "params"),
    [
        ("nd.slice", {"starts": (0, 1), "stops": (3, 3), "steps": (1, 1)}),
        ("nd.transpose", {"perm": (1, 0)}),
        ("nd.expand", {"shape": (2, 1, 1)}),
        ("nd.reduce_mean", {"axes": (1,)}),
    ],
)
def test_these_are_tasks(op, params):
    """No call of numpy stands between compiled nodes."""
    g = GraphBuilder()
    graph = g.build(g.op(op, g.input("x", (3, 4)), **params))
    assert [type(work).__name__ for _, work in tasks_of(graph)] == ["Task"]
