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
