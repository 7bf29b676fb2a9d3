"""Compiled convolutions of few channels against the oracle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched import GraphBuilder, Scheduler
from ggsched.testing.oracle.interpreter import run_oracle
from ggsched_cpu.native import library

pytestmark = pytest.mark.skipif(library() is None, reason="no compiled kernels")


@st.composite
def convolutions(draw):
    """Return shapes and parameters, of one or two dimensions."""
    n = draw(st.integers(1, 2))
    few = st.integers(1, 3)
    each = draw(few)
    kernel = [draw(few) for _ in range(n)]
    dilations = [draw(st.integers(1, 2)) for _ in range(n)]
    spatial = [
        d * (k - 1) + 1 + draw(st.integers(0, 40)) for d, k in zip(dilations, kernel, strict=True)
    ]
    groups, per = draw(few), draw(st.integers(1, 5))
    params = {
        "strides": [draw(few) for _ in range(n)],
        "dilations": dilations,
        "pads": [draw(st.integers(0, 2)) for _ in range(2 * n)],
        "group": groups,
        "bias": draw(st.booleans()),
    }
    x = (draw(st.integers(1, 2)), groups * per, *spatial)
    return x, (groups * each, per, *kernel), params


@given(drawn=convolutions(), seed=st.integers(0, 1000), turned=st.booleans())
def test_convolutions(drawn, seed, turned):
    x_shape, w_shape, params = drawn
    rng = np.random.default_rng(seed)
    g = GraphBuilder()
    n = len(x_shape)
    perm = tuple(reversed(range(n))) if turned else tuple(range(n))
    x = g.permute(g.input("x", tuple(x_shape[a] for a in perm)), *perm)
    operands = [x, g.weight("w", w_shape)]
    if params["bias"]:
        operands.append(g.weight("b", w_shape[:1]))
    graph = g.build(g.op("nd.conv", *operands, **params))
    values = {
        t.name: rng.standard_normal(t.shape).astype(np.float32)
        for t in graph.tensors
        if t.name and not t.is_view
    }
    wanted = run_oracle(graph, values)
    with Scheduler(["cpu:0"], weights=values) as scheduler:
        for _ in range(2):
            found = scheduler.run(graph, {"x": values["x"]})
    for tid, value in wanted.items():
        np.testing.assert_allclose(found[tid], value, rtol=1e-4, atol=1e-5)


NAMES = ("erf", "exp", "gelu", "hard_sigmoid", "hard_swish", "sqrt")


@pytest.mark.parametrize("dtype", ["f32", "f16", "f64"])
@pytest.mark.parametrize("op", NAMES)
def test_functions_of_the_library(op, dtype):
    g = GraphBuilder()
    x = g.input("x", (3, 1, 2, 1, 37), dtype)
    graph = g.build(g.op(f"nd.{op}", x))
    value = np.linspace(-5, 5, x.size).astype(x.dtype.host).reshape(x.shape)
    value = abs(value) if op == "sqrt" else value
    value[0, 0, 0, 0, :3] = np.inf, np.nan, 0
    wanted = run_oracle(graph, {"x": value})
    with Scheduler(["cpu:0"]) as scheduler:
        found = scheduler.run(graph, {"x": value})
    tolerance = 2e-3 if dtype == "f16" else 1e-5
    for tid in graph.outputs:
        np.testing.assert_allclose(found[tid], wanted[tid], rtol=tolerance, atol=tolerance / 10)
