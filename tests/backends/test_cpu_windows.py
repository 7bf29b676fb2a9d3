"""Compiled convolutions against the oracle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched import GraphBuilder, Scheduler
from ggsched_cpu import native
from ggsched_cpu.device import CpuDevice, CpuSettings
from ggsched_cpu.kernels.library import Library
from ggsched_cpu.kernels.target import AVX2, AVX512
from ggsched_cpu.program import compile_steps
from ggsched_testing.oracle.interpreter import run_oracle
from tests.backends import against_oracle
from tests.backends.test_cpu_other_targets import runs_here

pytestmark = pytest.mark.skipif(native.library() is None, reason="no compiled kernels")


ACTIVATIONS = {
    "none": [],
    "clamp": [("clamp", {"min": -0.5, "max": 0.5})],
    "silu": [("silu", {})],
    "hard_swish, scale": [("nd.hard_swish", {}), ("scale", {"scale": 0.5, "bias": 1.0})],
}


@st.composite
def convolutions(draw):
    """Return shapes and parameters, of one or two dimensions."""
    n = draw(st.integers(1, 2))
    few = st.integers(1, 3)
    each = draw(st.sampled_from([1, 2, 3, 4, 7, 8, 9, 13, 21]))
    kernel = [draw(st.integers(1, 4)) for _ in range(n)]
    dilations = [draw(st.integers(1, 2)) for _ in range(n)]
    spatial = [
        d * (k - 1) + 1 + draw(st.integers(0, 300 if n == 1 else 40))
        for d, k in zip(dilations, kernel, strict=True)
    ]
    groups, per = draw(st.sampled_from([1, 2, 3, 9])), draw(st.integers(1, 9))
    params = {
        "strides": [draw(few) for _ in range(n)],
        "dilations": dilations,
        "pads": [draw(st.integers(0, 2)) for _ in range(2 * n)],
        "group": groups,
        "bias": draw(st.booleans()),
    }
    x = (draw(st.integers(1, 2)), groups * per, *spatial)
    return x, (groups * each, per, *kernel), params


def convolution(drawn, turned=False, behind=(), kept=False):
    """Return a graph, and values of its inputs and weights."""
    x_shape, w_shape, params = drawn
    g = GraphBuilder()
    n = len(x_shape)
    perm = tuple(reversed(range(n))) if turned else tuple(range(n))
    x = g.permute(g.input("x", tuple(x_shape[a] for a in perm)), *perm)
    operands = [x, g.weight("w", w_shape)]
    if params["bias"]:
        operands.append(g.weight("b", w_shape[:1]))
    y = first = g.op("nd.conv", *operands, **params)
    for op, own in behind:
        y = g.op(op, y, **own)
    return g.build(y, first) if kept else g.build(y)


def values_of(graph, seed=0):
    rng = np.random.default_rng(seed)
    return {
        t.name: rng.standard_normal(t.shape).astype(np.float32)
        for t in graph.tensors
        if t.name and not t.is_view
    }


@given(
    drawn=convolutions(),
    seed=st.integers(0, 1000),
    turned=st.booleans(),
    behind=st.sampled_from(list(ACTIVATIONS.values())),
    kept=st.booleans(),
)
def test_convolutions(drawn, seed, turned, behind, kept):
    """Tiles of every remainder, x dense or not, with ops on results that are read or not."""
    graph = convolution(drawn, turned, behind, kept and bool(behind))
    values = values_of(graph, seed)
    wanted = run_oracle(graph, values)
    with Scheduler(["cpu:0"], weights=values) as scheduler:
        for _ in range(2):
            found = scheduler.run(graph, {"x": values["x"]})
    for tid, value in wanted.items():
        np.testing.assert_allclose(found[tid], value, rtol=1e-4, atol=2e-5)


PARAMS = {"strides": [1], "dilations": [1], "pads": [1, 1], "group": 1, "bias": True}
SHAPES = (1, 6, 100), (10, 6, 3), PARAMS


def test_ops_behind_a_convolution_are_part_of_it():
    """Counted in the rows of tables: the pads, and the convolution with two ops behind it."""
    graph = convolution(SHAPES, behind=ACTIVATIONS["hard_swish, scale"])
    assert [op for op, _ in tasks_of(graph)] == ["n0 nd.conv", "n0 nd.conv"]
    kept = convolution(SHAPES, behind=ACTIVATIONS["hard_swish, scale"], kept=True)
    assert {op for op, _ in tasks_of(kept)} == {"n0 nd.conv", "n1 nd.hard_swish", "n2 scale"}


def tasks_of(graph):
    """Return label and work of each step of the program that runs a graph."""
    made = []

    def keep(nodes, kernels=None):
        made.extend((step.label, step.work) for step in compile_steps(nodes, kernels))
        return compile_steps(nodes, kernels)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ggsched_cpu.device.compile_steps", keep)
        values = values_of(graph)
        with Scheduler(["cpu:0"], weights=values) as scheduler:
            scheduler.run(graph, {"x": values["x"]})
    return made


@pytest.mark.parametrize("channels", [500, 700, 1200])
def test_windows_of_many_elements(channels):
    """Panels get narrower with the windows; those that fit no panel have no kernel."""
    params = {"strides": [1, 1], "dilations": [1, 1], "pads": [1, 1, 1, 1], "group": 1}
    graph = convolution(((1, channels, 3, 19), (5, channels, 3, 3), {**params, "bias": False}))
    values = values_of(graph)
    (wanted,) = run_oracle(graph, values).values()
    with Scheduler(["cpu:0"], weights=values) as scheduler:
        (found,) = scheduler.run(graph, {"x": values["x"]}).values()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["avx2", "avx512"])
def test_convolutions_for_other_targets(monkeypatch, tmp_path, name):
    """What tiles and panels of other processors compute, where this one runs them."""
    target = {"avx2": AVX2, "avx512": AVX512}[name]
    if not runs_here(target):
        pytest.skip(f"this processor does not run code for {target.title}")
    native.walk_functions()  # kept for the process, so they must not be those of ``made``
    made = Library(target, tmp_path)
    monkeypatch.setattr("ggsched_cpu.native.library", lambda: made)
    for threads in (1, 3):
        device = CpuDevice(0, CpuSettings(threads=threads))
        for each, per, stride in ((13, 5, 1), (20, 3, 2), (2, 1, 1), (9, 7, 3)):
            params = {"strides": [stride] * 2, "dilations": [1, 1], "pads": [1, 0, 1, 2],
                      "group": 2, "bias": True}  # fmt: skip
            drawn = (2, 2 * per, 21, 58), (2 * each, per, 3, 2), params
            graph = convolution(drawn, behind=ACTIVATIONS["silu"])
            against_oracle.check(device, graph, values_of(graph))
        device.close()


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
