"""Compiled LSTM, GRU, borders and convolutions of few windows against the oracle."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched import GraphBuilder
from ggsched_cpu.native import library
from ggsched_cpu.program import compile_steps
from tests.backends.test_cpu_moves import check

pytestmark = pytest.mark.skipif(library() is None, reason="no compiled kernels")

GATES = {"nd.lstm": 4, "nd.gru": 3}


def check_and_tell(graph, values, rtol):
    """Compare with the oracle; return whether all of the program were compiled tasks."""
    made = []

    def keep(nodes, kernels=None):
        found = compile_steps(nodes, kernels)
        made.extend(found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ggsched_cpu.device.compile_steps", keep)
        check(graph, values, rtol)
    return not any(step.by_reference for step in made)


@st.composite
def cells(draw):
    """Return a graph of one recurrent op, with or without each optional operand."""
    op = draw(st.sampled_from(sorted(GATES)))
    steps, batch = draw(st.sampled_from([1, 4, 2])), draw(st.sampled_from([1, 3, 8, 21]))
    width, hidden = draw(st.sampled_from([3, 16])), draw(st.sampled_from([5, 16, 40]))
    directions = draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    count, gates = 1 + (directions == "bidirectional"), GATES[op] * hidden
    g = GraphBuilder()
    operands = [
        g.input("x", (steps, batch, width)),
        g.weight("w", (count, gates, width)),
        g.weight("r", (count, gates, hidden)),
    ]
    params = {"directions": directions}
    shapes = {"bias": (count, 2 * gates), "h0": (count, batch, hidden)}
    if op == "nd.lstm":
        shapes["c0"] = shapes["h0"]
    else:
        params["reset_after"] = draw(st.booleans())
    for name, shape in shapes.items():
        if draw(st.booleans()):
            operands.append(g.input(name, shape))
            params[name] = True
    return g.build(g.op(op, *operands, **params))


def drawn(graph, seed, size=0.5):
    rng = np.random.default_rng(seed)
    return {
        t.name: (size * rng.standard_normal(t.shape)).astype(np.float32)
        for t in graph.tensors
        if t.name and not t.is_view
    }


@settings(max_examples=25)
@given(graph=cells(), seed=st.integers(0, 99))
def test_cells(graph, seed):
    assert check_and_tell(graph, drawn(graph, seed), 2e-5)


@pytest.mark.parametrize(
    "params",
    [{"clip": 0.5}, {"activations": "relu,tanh,tanh"}, {"input_forget": True}, {"steps": 300}],
)
def test_cells_for_which_there_are_no_tasks(params):
    steps = params.pop("steps", 2)
    g = GraphBuilder()
    x = g.input("x", (steps, 2, 4))
    weights = g.weight("w", (1, 24, 4)), g.weight("r", (1, 24, 6))
    graph = g.build(g.op("nd.lstm", x, *weights, **params))
    assert not check_and_tell(graph, drawn(graph, 0), 1e-4)


@st.composite
def padded(draw):
    """Return a graph of a border in any mode, of an array that may be turned."""
    n = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 6)) for _ in range(n))
    mode = draw(st.sampled_from(["constant", "reflect", "edge", "wrap"]))
    g = GraphBuilder()
    x = g.input("x", shape, draw(st.sampled_from(["f32", "f16", "i64"])))
    if draw(st.booleans()):
        x = g.permute(x, *reversed(range(n)))
    pads = tuple(draw(st.integers(-((m - 1) // 2), 4)) for m in (*x.shape, *x.shape))
    operands = [x]
    if mode == "constant" and draw(st.booleans()):
        operands.append(g.input("value", (1,), x.dtype))
    return g.build(g.op("nd.pad", *operands, pads=pads, mode=mode, value=len(operands) > 1))


@settings(max_examples=40)
@given(graph=padded(), seed=st.integers(0, 99))
def test_borders(graph, seed):
    rng = np.random.default_rng(seed)
    values = {
        t.name: (9 * rng.standard_normal(t.shape)).astype(t.dtype.host)
        for t in graph.tensors
        if t.name and not t.is_view
    }
    check(graph, values)


@st.composite
def few_windows(draw):
    """Return a graph of a convolution with four results of each channel at most."""
    n = draw(st.integers(1, 2))
    kernel = [draw(st.integers(1, 3)) for _ in range(n)]
    strides, dilations = ([draw(st.integers(1, 2)) for _ in range(n)] for _ in range(2))
    pads = [draw(st.integers(0, 1)) for _ in range(2 * n)]
    wanted = draw(st.sampled_from([[1] * n, [2] * n, [4, *[1] * (n - 1)], [*[1] * (n - 1), 3]]))
    spatial = [
        max(1, d * (k - 1) + 1 + s * (m - 1) - pads[i] - pads[n + i])
        for i, (k, d, s, m) in enumerate(zip(kernel, dilations, strides, wanted, strict=True))
    ]
    channels, bias = draw(st.sampled_from([32, 40, 1, 129])), draw(st.booleans())
    if channels == 1:
        kernel[-1], spatial[-1] = 64, spatial[-1] + 64 * dilations[-1]
    g = GraphBuilder()
    operands = [
        g.input("x", (1, channels, *spatial)),
        g.weight("w", (draw(st.sampled_from([1, 7, 64])), channels, *kernel)),
    ]
    if bias:
        operands.append(g.weight("b", operands[1].shape[:1]))
    how = {"strides": strides, "dilations": dilations, "pads": pads, "bias": bias}
    y = g.op("nd.conv", *operands, group=1, **how)
    return g.build(g.silu(y, inplace=True) if draw(st.booleans()) else y)


@settings(max_examples=25)
@given(graph=few_windows(), seed=st.integers(0, 99))
def test_convolutions_of_few_windows(graph, seed):
    assert check_and_tell(graph, drawn(graph, seed), 1e-4)
