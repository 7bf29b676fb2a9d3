"""Short convolutions and linear attention over many tokens of several sequences."""

import numpy as np
import pytest

from ggsched.errors import DeviceFault, UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import I32
from ggsched_cpu.device import CpuDevice, CpuSettings
from ggsched_testing.eager import run_direct
from ggsched_testing.oracle.interpreter import run_oracle
from tests.backends.opencl_devices import opencl_device

TOKENS, SLOTS = 75, 3


CPUS = {
    "cpu": CpuSettings(threads=1),
    "cpu, several threads": CpuSettings(threads=3),
    "cpu by reference": CpuSettings(kernels="numpy"),
}


@pytest.fixture(params=[*CPUS, "opencl", "opencl as a GPU"])
def device(request):
    if request.param in CPUS:
        made = CpuDevice(0, CPUS[request.param])
    else:
        made = opencl_device(profile="gpu" if "GPU" in request.param else "cpu")
    yield made
    made.close()


def places(rng):
    """Return slots and positions: runs of sequences, one of which begins within the batch."""
    slots = np.repeat([1, 0, 1], [TOKENS - 10, 4, 6]).astype(np.int32)
    positions = np.concatenate([np.arange(9, TOKENS - 1), [0, 1, 2, 3], range(200, 206)])
    positions[40] = 0
    return slots, positions[:TOKENS].astype(np.int32)


def conv_graph(tokens=TOKENS, taps=4, channels=24):
    g = GraphBuilder("convolution")
    state, x = g.input("state", (SLOTS, taps - 1, channels)), g.input("x", (tokens, channels))
    ids = g.input("slots", (tokens,), I32), g.input("positions", (tokens,), I32)
    out, after = g.short_conv(state, x, g.weight("w", (channels, taps)), *ids)
    return g.build(g.cont(out), g.cont(after))


def attention_graph(tokens=TOKENS, *, beta=True, tiled=False, width=20, across=24):
    g = GraphBuilder("linear attention")
    state = g.input("state", (SLOTS, 6, width, across))
    q, k = (g.input(name, (tokens, 2, width)) for name in "qk")
    v, decay = g.input("v", (tokens, 6, across)), g.input("decay", (tokens, 6))
    ids = g.input("slots", (tokens,), I32), g.input("positions", (tokens,), I32)
    strength = g.input("beta", (tokens, 6)) if beta else None
    out, after = g.linear_attention(
        state, q, k, v, decay, *ids, beta=strength, scale=0.25, tiled=tiled
    )
    return g.build(g.cont(out), g.cont(after))


def values_of(graph, seed=0):
    rng = np.random.default_rng(seed)
    slots, positions = places(rng)
    found = {}
    for t in graph.tensors:
        if t.role.value in ("input", "weight") and not t.is_view:
            found[t.name] = rng.standard_normal(t.shape).astype(np.float32)
    n = found["x" if "x" in found else "v"].shape[0]
    found |= {"slots": slots[-n:].copy(), "positions": positions[-n:].copy()}
    if "decay" in found:
        found["decay"] = -np.exp(found["decay"])
        for name in "qk":
            found[name] /= np.linalg.norm(found[name], axis=-1, keepdims=True)
    if "beta" in found:
        found["beta"] = 1 / (1 + np.exp(-found["beta"]))
    # What a slot held before its sequence began does not matter, whatever it is.
    found["positions"][np.flatnonzero(found["slots"] == 0)[:1]] = 0
    found["state"][0] = np.nan
    return found


GRAPHS = {
    "convolution": conv_graph(),
    "convolution of one token": conv_graph(1),
    "two taps, odd channels": conv_graph(taps=2, channels=7),
    "delta rule": attention_graph(),
    "delta rule, tiled": attention_graph(tiled=True, width=33, across=7),
    "delta rule of one token": attention_graph(1),
    "without a delta": attention_graph(beta=False),
    "without a delta, tiled": attention_graph(5, beta=False, tiled=True, across=40),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_against_the_oracle(device, name):
    graph = GRAPHS[name]
    values = values_of(graph)
    if "one token" in name:
        values["state"][0] = 1.0
    found, wanted = run_direct(device, graph, values), run_oracle(graph, values)
    for tid, array in wanted.items():
        np.testing.assert_allclose(found[tid], array, 1e-4, 1e-5)


@pytest.mark.parametrize("make", [conv_graph, attention_graph])
def test_batches_of_five_are_one_batch(device, make):
    """The state after one batch is the state before the next."""
    whole, part = make(TOKENS), make(5)
    values = values_of(whole)
    wanted = run_direct(device, whole, values)
    state, rows = values["state"], []
    fixed = {"w", "state"}
    for start in range(0, TOKENS, 5):
        own = {n: a if n in fixed else a[start : start + 5] for n, a in values.items()}
        out, state = run_direct(device, part, {**own, "state": state}).values()
        rows.append(out)
    out, after = wanted.values()
    np.testing.assert_allclose(np.concatenate(rows), out, 1e-4, 1e-5)
    np.testing.assert_allclose(state, after, 1e-4, 1e-5)


@pytest.mark.parametrize("slot", [-1, SLOTS])
@pytest.mark.parametrize("make", [conv_graph, attention_graph])
def test_a_slot_that_is_not_there(device, make, slot):
    graph = make(3)
    values = values_of(graph)
    values["slots"][1] = slot
    with pytest.raises((UsageError, DeviceFault), match=f"row {slot} was requested"):
        run_direct(device, graph, values)
