"""Kernels that do a few small nodes of a token at once, on the host; see ``test_fibers``."""

from dataclasses import replace

import numpy as np
import pytest

from ggsched.backend.program import Group
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import I32
from ggsched.ir.tensor import Role
from ggsched_testing.eager import bound_nodes
from ggsched_testing.oracle.interpreter import run_oracle
from tests.kernels.test_fibers import H200, NEEDS, laid_out

pytestmark = NEEDS


def lowered(nodes):
    from ggsched_cuda_kernels.kernel_selection import lower

    return lower(nodes, H200)[0]


def values_of(graph, rng):
    roots = [*graph.roots(Role.INPUT), *graph.roots(Role.STATE), *graph.roots(Role.WEIGHT)]
    return {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in roots}


# --- elements ---------------------------------------------------------------------------------


def gates(tokens=1, heads=6, width=5):
    """Return the gates of linear attention, and the scale of its heads; all are results."""
    g = GraphBuilder("gates")
    scaled = g.scale(g.input("x", (tokens, heads, width)), 0.25, 1.0)
    alpha = g.input("alpha", (tokens, 2, 2 * heads))
    part = g.view(alpha, (tokens, 2, heads), alpha.strides, heads * 4)
    added = g.add(part, g.weight("bias", (2, heads)))
    rate = g.softplus(added)
    gate = g.mul(g.reshape(rate, tokens, -1), g.weight("a", (2 * heads,)))
    return g.build(scaled, added, rate, gate, g.sigmoid(alpha), g.swiglu(gate, gate))


@pytest.mark.parametrize("tokens", [1, 3])
def test_elements(runner, tokens):
    graph = gates(tokens)
    values = values_of(graph, np.random.default_rng(1))
    nodes, memory = laid_out(graph, values)
    (call,) = lowered(nodes)
    assert (call.kernel, call.groups) == ("elements", (1, 1, 1))
    runner.run(call)
    for tid, wanted in run_oracle(graph, values).items():
        got = memory[graph.tensors[tid].storage].view.view(np.float32).reshape(wanted.shape)
        np.testing.assert_allclose(got, wanted, 2e-6, 1e-6)


def test_results_of_elements_lie_on_each_other(runner):
    g = GraphBuilder("chain")
    x = g.input("x", (2, 700))
    a = g.scale(x, 2.0)
    b = g.add(a, x)
    graph = g.build(g.mul(b, b))
    values = values_of(graph, np.random.default_rng(2))
    _, memory = laid_out(graph, values)
    root, *made = [t.storage for t in (x, a, b, graph.tensors[graph.outputs[0]])]
    memory[made[1]] = memory[made[0]]
    memory[made[2]] = memory[root]
    (call,) = lowered(bound_nodes(graph, memory))
    runner.run(call)
    wanted = (3 * values["x"]) ** 2
    np.testing.assert_allclose(memory[root].view.view(np.float32).reshape(2, 700), wanted, 1e-5)


def test_one_node_and_many_elements_stay_apart():
    g = GraphBuilder("apart")
    x = g.input("x", (2, 4096))
    y = g.scale(x, 2.0)
    graph = g.build(y, g.silu(y), g.tanh(g.input("z", (3,))))
    nodes, _ = laid_out(graph, values_of(graph, np.random.default_rng(0)))
    assert [call.kernel for call in lowered(nodes)] == ["unary"] * 3


# --- states -----------------------------------------------------------------------------------


def conv_step(slots=3, channels=70, taps=4, *, silu=True, tokens=1):
    g = GraphBuilder("conv step")
    state = g.state("state", (slots, (taps - 1) * channels))
    x = g.input("x", (tokens, channels))
    ids = g.input("slots", (tokens,), I32), g.input("positions", (tokens,), I32)
    rows = g.reshape(state, slots, taps - 1, channels)
    out, after = g.short_conv(rows, x, g.weight("w", (channels, taps)), *ids)
    kept = g.cpy(g.reshape(after, *state.shape), state)
    return g.build(out, g.silu(out) if silu else g.tanh(out), kept)


def attention_step(slots=2, heads=4, width=20, across=33, tokens=1, *, beta=True):
    g = GraphBuilder("attention step")
    state = g.state("state", (slots, heads * width * across))
    q, k = (g.input(name, (tokens, 2, width)) for name in "qk")
    v, decay = g.input("v", (tokens, heads, across)), g.input("decay", (tokens, heads))
    ids = g.input("slots", (tokens,), I32), g.input("positions", (tokens,), I32)
    strength = g.input("beta", (tokens, heads)) if beta else None
    matrices = g.reshape(state, slots, heads, width, across)
    out, after = g.linear_attention(matrices, q, k, v, decay, *ids, beta=strength)
    kept = g.cpy(g.reshape(after, *state.shape), state)
    return g.build(g.cont(out), kept)


CASES = {
    "conv": (conv_step(), ["conv_step"]),
    "conv without silu": (conv_step(silu=False), ["conv_step", "unary"]),
    "conv, two taps": (conv_step(1, 9, 2), ["conv_step"]),
    "conv of tokens": (conv_step(tokens=2), ["short_conv", "copy_f32", "unary"]),
    "attention": (attention_step(), ["linear_attention", "copy_f32"]),
    "attention of tokens": (
        attention_step(3, tokens=5, beta=False),
        ["linear_attention", "copy_f32"],
    ),
    "attention by warps": (attention_step(2, 4, 32, 21, 6), ["delta_scan", "copy_f32"]),
    "attention by warps, without a delta": (
        attention_step(1, 2, 64, 16, 3, beta=False),
        ["delta_scan", "copy_f32"],
    ),
}
SLOW = (
    "attention by warps, without a delta",
    "conv, two taps",
    "conv of tokens",
    "attention of tokens",
)


@pytest.mark.parametrize("slot", [0, 1, 7])
@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in CASES]
)
def test_states(runner, name, begins, slot):
    graph, kernels = CASES[name]
    values = values_of(graph, np.random.default_rng(3))
    tokens = values["slots"].size
    values["slots"] = np.full(tokens, slot, np.int32)
    values["positions"] = np.arange(tokens, dtype=np.int32) + (0 if begins else 5)
    if tokens > 4:  # another sequence between, and one that begins within the batch
        values["slots"][2], values["positions"][3:] = 0, np.arange(tokens - 3)
    if "decay" in values:
        values["decay"] = -np.abs(values["decay"])
    slots = next(t.shape[0] for t in graph.tensors if t.name == "state")
    nodes, memory = laid_out(graph, values)
    calls = lowered(nodes)
    # The copy that is left is the one that makes a result contiguous.
    assert [call.kernel for call in calls] == kernels
    for call in calls:
        runner.run(call)
    if slot >= slots:
        assert runner.fault.any()
        runner.fault[:] = 0
        return
    for tid, wanted in run_oracle(graph, values, states={"state": values["state"].copy()}).items():
        t = graph.tensors[tid]
        got = memory[t.storage].view.view(np.float32)[t.offset // 4 :][: wanted.size]
        np.testing.assert_allclose(got.reshape(wanted.shape), wanted, 1e-5, 1e-5)


# --- norms ------------------------------------------------------------------------------------


def test_gated_norm(runner):
    """Heads of a gate that are columns of something wider."""
    g = GraphBuilder("gated norm")
    x, both = g.input("x", (3, 4, 36)), g.input("both", (3, 4, 72))
    z = g.view(both, x.shape, both.strides, 36 * 4)
    normed = g.mul(g.rms_norm(x, 1e-5), g.weight("w", (36,)))
    graph = g.build(g.swiglu(z, normed))
    values = values_of(graph, np.random.default_rng(5))
    nodes, memory = laid_out(graph, values)
    group = Group("rms_norm+mul+swiglu", tuple(n.node for n in nodes))
    (call,) = lowered([replace(n, group=group) for n in nodes])
    assert call.kernel == "rms_mul"
    runner.run(call)
    ((tid, wanted),) = run_oracle(graph, values).items()
    got = memory[graph.tensors[tid].storage].view.view(np.float32).reshape(wanted.shape)
    np.testing.assert_allclose(got, wanted, 1e-5, 1e-6)
