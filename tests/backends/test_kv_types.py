"""Rows of a KV cache in each of its types: what is written, and attention that reads it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched.backend.elements import encode
from ggsched.backend.packed import quantize
from ggsched.errors import DeviceFault, GraphError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import I32, KV_DTYPES, Q4_0, Q8_0
from ggsched_cpu.device import CpuDevice, CpuSettings
from ggsched_testing.eager import run_direct
from ggsched_testing.oracle.interpreter import run_oracle
from tests.backends.opencl_devices import opencl_device
from tests.kernels.test_fibers import NEEDS, Runner


@pytest.fixture(scope="module", params=["compiled", "numpy", "opencl", "cuda"])
def device(request, compiled_kernels):
    if request.param == "opencl":
        made = opencl_device()
        yield made
        made.close()
    elif request.param == "cuda":
        yield request.getfixturevalue("software_gpu")
    else:
        kernels = "numpy" if request.param == "numpy" else "auto"
        made = CpuDevice(0, CpuSettings(kernels=kernels, threads=2))
        yield made
        made.close()


@pytest.fixture(scope="module")
def software_gpu(compiled_kernels):
    pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")
    for mark in NEEDS:
        if mark.args and mark.args[0]:
            pytest.skip(mark.kwargs["reason"])
    from ggsched_cuda.harness import CudaHarness
    from tests.backends.software_kernels import in_software

    with pytest.MonkeyPatch.context() as patch, in_software(Runner(compiled_kernels)):
        patch.setenv("GGSCHED_ACTIVATIONS", "f32")  # what is compared is what was stored
        (made,) = CudaHarness().open(1, 0)
        yield made
        made.close()


def stored_rows(dtype, rows, width=96):
    """Return a graph that stores rows and reads all of the cache."""
    g = GraphBuilder("rows")
    ids = g.input("ids", (rows,), I32)
    kept = g.set_rows(g.state("kept", (rows + 2, width), dtype), g.input("x", (rows, width)), ids)
    return g.build(g.get_rows(kept, g.input("all", (rows + 2,), I32)))


def check_rows(device, dtype, x):
    count = len(x)
    values = {"x": x, "ids": np.arange(count, dtype=np.int32)[::-1] + 1}
    values["all"] = np.arange(count + 2, dtype=np.int32)
    graph = stored_rows(dtype, count, x.shape[1])
    ((_, wanted),) = run_oracle(graph, values).items()
    ((_, found),) = run_direct(device, graph, values).items()
    np.testing.assert_array_equal(found, wanted)
    return wanted[1:-1][::-1]


@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
@given(seed=st.integers(0, 1 << 30), size=st.sampled_from([1.0, 1e-3, 300.0, 1e-9, 1e30]))
@settings(max_examples=4)
def test_rows_are_stored_to_the_bit(device, dtype, seed, size):
    """Ties too: multiples of a half round away from zero in q8_0, to even elsewhere."""
    rng = np.random.default_rng(seed)
    x = (size * rng.standard_normal((3, 96))).astype(np.float32)
    x[1] = rng.integers(-254, 255, 96) / 2
    x[1, 0::32] = 127
    check_rows(device, dtype, x)


@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
def test_numbers_that_are_not_finite_zeros_and_tiny_ones(device, dtype):
    x = np.random.default_rng(1).standard_normal((6, 96)).astype(np.float32)
    x[0, 3], x[1, 40], x[1, 70], x[3, :32] = np.nan, np.inf, -np.inf, -0.0
    x[2] *= np.float32(1e-12)
    x[4] *= np.float32(1e36)
    x[5] *= np.float32(1e-42)
    stored = check_rows(device, dtype, x)
    if dtype is Q8_0:
        is_nan = np.isnan(stored).reshape(6, 3, 32).all(-1)
        assert np.argwhere(is_nan).tolist() == [[0, 0], [1, 1], [1, 2]]
        assert not stored[[2, 5]].any()


def test_blocks_are_those_of_gguf_files():
    """Of the reference, which is compared with the ``gguf`` package where it comes from."""
    x = np.random.default_rng(2).standard_normal((4, 64)).astype(np.float32)
    graph = stored_rows(Q8_0, 4, 64)
    ids = {"ids": np.arange(4, dtype=np.int32), "all": np.arange(6, dtype=np.int32)}
    states = {}
    run_oracle(graph, {"x": x, **ids}, states=states)
    np.testing.assert_array_equal(states["kept"][:4], quantize(x, Q8_0))


@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
def test_a_row_that_is_stored_again_stays_as_it_is(device, dtype):
    """Copies of sequences read rows as f32 and store them."""
    x = np.random.default_rng(4).standard_normal((3, 64)).astype(np.float32)
    once = check_rows(device, dtype, x)
    np.testing.assert_array_equal(check_rows(device, dtype, once), once)


def attention(dtype, tokens, groups, share, rows, width, across, kind):
    """Return a graph that stores keys and values of some tokens and attends to the cache."""
    g, first = GraphBuilder("attention"), 1
    ids = g.input("ids", (tokens,), I32)
    kept = []
    for name, n in (("k", width), ("v", across)):
        cache = g.state(f"{name} cache", (rows + 2, groups * n), dtype)
        written = g.set_rows(cache, g.input(name, (tokens, groups * n)), ids)
        kept.append(g.reshape(g.rows(written, first, first + rows), rows, groups, n))
    heads = groups * share
    made = g.attention(
        g.input("q", (tokens, heads, width)), *kept, scale=width**-0.5,
        bounds=g.input("bounds", (tokens, 2), I32) if kind in ("causal", "window") else None,
        mask=g.input("mask", (tokens, rows)) if kind == "mask" else None,
        sinks=g.input("sinks", (heads,)) if kind == "window" else None,
        soft_cap=5.0 if kind == "mask" else 0.0,
    )  # fmt: skip
    return g.build(made)


def drawn(graph, dtype, tokens, rows, rng):
    values = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in graph.tensors
              if t.name in ("k", "v", "q", "mask", "sinks")}  # fmt: skip
    values["ids"] = rng.permutation(rows + 1)[:tokens].astype(np.int32)
    end = rng.integers(0, rows + 2, tokens)
    values["bounds"] = np.stack([end - rng.integers(0, rows + 3, tokens), end], -1).astype(np.int32)
    if "mask" in values:
        values["mask"][rng.random(values["mask"].shape) < 0.3] = -np.inf
        values["mask"][:, 0] = 0.0
    caches = [t for t in graph.tensors if t.name in ("k cache", "v cache") and not t.is_view]
    states = {
        t.name: encode(rng.standard_normal(t.shape).astype(np.float32), t.dtype) for t in caches
    }
    return values, states


@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
@given(
    shape=st.tuples(
        st.sampled_from([1, 2, 9, 20]), st.integers(1, 2), st.sampled_from([1, 2, 4]),
        st.sampled_from([20, 33, 150]), st.sampled_from([(32, 32), (64, 32), (32, 64)]),
    ),
    kind=st.sampled_from(["causal", "window", "mask", "all"]),
    seed=st.integers(0, 1 << 30),
)  # fmt: skip
@settings(max_examples=5)
def test_attention_reads_what_was_stored(device, dtype, shape, kind, seed):
    tokens, groups, share, rows, (width, across) = shape
    if device.facts.backend == "cuda":  # each width and kind is a program; see ``test_fibers``
        tokens, share, width, across, kind = 9, 2, 32, 32, "window"
    graph = attention(dtype, tokens, groups, share, rows, width, across, kind)
    values, states = drawn(graph, dtype, tokens, rows, np.random.default_rng(seed))
    kept = {name: array.copy() for name, array in states.items()}
    ((tid, wanted),) = run_oracle(graph, values, states=kept).items()
    found = run_direct(device, graph, values, states)[tid]
    within = 2e-3 if dtype is Q8_0 and device.facts.backend == "cuda" else 2e-5
    np.testing.assert_allclose(found, wanted, 1e-4, within)
    for name, array in kept.items():
        np.testing.assert_array_equal(states[name], array)


def test_rows_that_are_not_whole_blocks_are_refused():
    g = GraphBuilder("rows")
    with pytest.raises(GraphError, match="does not fill whole q8_0 blocks"):
        g.state("kept", (4, 48), Q8_0)
    kept = g.state("kept", (4, 96), Q8_0)
    with pytest.raises(GraphError, match="whole q8_0 blocks"):
        g.reshape(kept, 4, 2, 48)
    other = g.state("other", (4, 64), Q4_0)
    with pytest.raises(GraphError, match="f32, f16, bf16 or q8_0"):
        g.set_rows(other, g.input("x", (1, 64)), g.input("ids", (1,), I32))


def test_a_row_that_does_not_exist_changes_nothing(device):
    graph = stored_rows(Q8_0, 2, 32)
    values = {"x": np.ones((2, 32), np.float32), "ids": np.array([1, 9], np.int32)}
    values["all"] = np.arange(4, dtype=np.int32)
    with pytest.raises((DeviceFault, Exception), match="9"):
        run_direct(device, graph, values)


def test_the_cpu_has_kernels_for_all_types():
    """None of them runs by the reference arithmetic."""
    from ggsched_cpu.kernels.families import FAMILIES

    assert {f"attention_{t}" for t in KV_DTYPES} <= set(FAMILIES)
