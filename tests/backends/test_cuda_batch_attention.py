"""Attention in batches as one kernel, on a GPU in software, against products in float64."""

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")

from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched import GraphBuilder
from ggsched.ir.dtype import BF16, BOOL
from ggsched.scheduler import Scheduler
from ggsched_cuda_kernels import kernel_selection
from tests.backends.software_kernels import in_software
from tests.kernels.test_fibers import NEEDS, Runner

pytestmark = NEEDS

OFF = {"f32": 1e-6, "tf32": 2e-3, "bf16": 1.6e-2}


@pytest.fixture(scope="module", params=OFF)
def precision(request):
    """Each precision in turn, and GPUs that compute with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GGSCHED_PRECISION", request.param)
        yield request.param


@pytest.fixture(scope="module")
def software(compiled_kernels, precision):
    with in_software(Runner(compiled_kernels), arch=80):
        yield


def run(graph, values):
    """Return the result, and the kernels that made it."""
    kernels = []

    def lowered(nodes, profile):
        calls, memory = kernel_selection.lower(nodes, profile)
        kernels.extend(getattr(call, "kernel", "product") for call in calls)
        return calls, memory

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ggsched_cuda.program.lower", lowered)
        with Scheduler(["cuda:0"]) as scheduler:
            (found,) = scheduler.run(graph, values).named.values()
    return found, kernels


def heads_of(g, name, batches, heads, rows, width):
    """Return rows of heads as a projection has them: heads are behind rows."""
    return g.permute(g.input(name, (batches, rows, heads, width)), 0, 2, 1, 3)


def attention(sizes, *, scale, mask_shape=None, behind=()):
    """Return a graph of attention, and values of its inputs."""
    batches, heads, tokens, rows, width, across = sizes
    g = GraphBuilder()
    q, k, v = (
        heads_of(g, name, batches, heads, n, columns)
        for name, n, columns in (("q", tokens, width), ("k", rows, width), ("v", rows, across))
    )
    scores = g.mul_mat(k, q)
    masks = [] if mask_shape is None else [g.input("mask", mask_shape)]
    shares = g.soft_max(scores, *masks, scale=scale)
    made = g.mul_mat(g.transpose(v), shares)
    rng = np.random.default_rng(sum(sizes))
    values = {}
    if "where" in behind:
        values["seen"] = rng.random((batches, 1, tokens, 1)) < 0.7
        seen = g.input("seen", values["seen"].shape, BOOL)
        made = g.op("nd.where", seen, made, g.constant(np.float32(3)))
    if "cont" in behind:
        made = g.cont(g.permute(made, 0, 2, 1, 3))
    graph = g.build(y=made)
    names = [*"qkv", *(["mask"] if masks else [])]
    values |= {n: rng.standard_normal(graph.named(n).shape).astype("f") for n in names}
    if masks:
        hidden = rng.random(mask_shape) < 0.4
        hidden[..., 0] = False
        values["mask"] = np.where(hidden, np.float32(-np.inf), values["mask"])
    return graph, values


def exact(values, scale):
    """Return the same in float64."""
    q, k, v = (values[n].astype(float).transpose(0, 2, 1, 3) for n in "qkv")
    scores = q @ k.swapaxes(-1, -2) * scale + values.get("mask", 0.0)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    made = shares / shares.sum(axis=-1, keepdims=True) @ v
    return np.where(values["seen"], made, 3.0) if "seen" in values else made


CASES = {
    "whole tiles": ((1, 2, 64, 64, 64, 64), {"scale": 0.125}),
    "a mask for all heads, several steps": (
        (2, 3, 33, 70, 16, 24), {"scale": 0.25, "mask_shape": (2, 1, 33, 70)}
    ),
    "columns that fill no vector": (
        (2, 1, 5, 9, 7, 3), {"scale": 0.3, "mask_shape": (5, 9)}
    ),
    "no scale, one key": ((1, 1, 1, 1, 8, 8), {"scale": 1.0}),
    "heads are joined": ((2, 3, 20, 21, 8, 6), {"scale": 0.5, "behind": ("cont",)}),
    "one head, odd columns": ((2, 1, 4, 6, 5, 5), {"scale": 0.5, "behind": ("cont",)}),
    "tokens that see nothing": (
        (2, 2, 20, 9, 8, 8), {"scale": 0.5, "mask_shape": (2, 1, 1, 9), "behind": ("where",)}
    ),
    "both": (
        (2, 2, 9, 20, 8, 10),
        {"scale": 0.5, "mask_shape": (20,), "behind": ("where", "cont")},
    ),
    "wide heads": ((1, 1, 17, 33, 128, 120), {"scale": 0.09, "mask_shape": (33,)}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_group_is_one_kernel(software, precision, case):
    sizes, how = CASES[case]
    graph, values = attention(sizes, **how)
    found, kernels = run(graph, values)
    assert kernels == ["batch_attention"]
    wanted = exact(values, how["scale"])
    found = found.transpose(0, 2, 1, 3) if "cont" in how.get("behind", ()) else found
    assert np.abs(found - wanted).max() <= OFF[precision] * max(1, np.abs(values["v"]).max())


def test_a_row_that_sees_nothing_is_nan_as_by_softmax(software):
    graph, values = attention((1, 1, 3, 65, 8, 8), scale=1.0, mask_shape=(3, 65))
    values["mask"][:] = 0
    values["mask"][1] = -np.inf
    values["mask"][2, :64] = -np.inf  # nothing of the first step
    found, kernels = run(graph, values)
    assert kernels == ["batch_attention"]
    assert np.isnan(found[0, 0, 1]).all()
    assert np.isfinite(found[0, 0, [0, 2]]).all()
    np.testing.assert_allclose(found[0, 0, 2], values["v"][0, 64, 0], rtol=1e-2)


@settings(max_examples=3, deadline=None)
@given(
    sizes=st.tuples(*(st.integers(1, n) for n in (2, 3, 40, 70, 20, 20))),
    how=st.fixed_dictionaries({"scale": st.sampled_from([1.0, 0.5])}),
    is_masked=st.booleans(),
)
def test_drawn_sizes(software, precision, sizes, how, is_masked):
    mask_shape = (sizes[0], 1, *sizes[2:4]) if is_masked else None
    graph, values = attention(sizes, mask_shape=mask_shape, **how)
    found, _ = run(graph, values)
    wanted = exact(values, how["scale"])
    assert np.abs(found - wanted).max() <= 2 * OFF[precision] * max(1, np.abs(values["v"]).max())


def test_rows_in_16_bits_are_written_for_the_product_that_follows(software, monkeypatch):
    monkeypatch.setenv("GGSCHED_ACTIVATIONS", "auto")
    sizes, how = (2, 2, 20, 21, 16, 16), {"scale": 0.25, "behind": ("cont",)}
    values = attention(sizes, **how)[1]
    g = GraphBuilder()
    q, k, v = (heads_of(g, n, 2, 2, 20 if n == "q" else 21, 16) for n in "qkv")
    joined = g.mul_mat(g.transpose(v), g.soft_max(g.mul_mat(k, q), scale=0.25))
    joined = g.reshape(g.cont(g.permute(joined, 0, 2, 1, 3)), 2, 20, 32)
    w = np.random.default_rng(1).standard_normal((24, 32)).astype("f")
    bits = (w.view(np.uint32) >> 16).astype(np.uint16)
    graph = g.build(y=g.mul_mat(g.input("w", (24, 32), BF16), joined))
    found, kernels = run(graph, {**values, "w": bits})
    assert kernels == ["batch_attention", "product"]
    wanted = exact(values, 0.25).transpose(0, 2, 1, 3).reshape(2, 20, 32)
    w = (bits.astype(np.uint32) << 16).view(np.float32).astype(float)
    np.testing.assert_allclose(found, wanted @ w.T, atol=0.08)


def test_scores_that_are_read_again_are_computed(software):
    g = GraphBuilder()
    q, k, v = (g.input(name, (2, 8, 16)) for name in "qkv")
    shares = g.soft_max(g.mul_mat(k, q))
    graph = g.build(y=g.mul_mat(g.transpose(v), shares), shares=shares)
    rng = np.random.default_rng(3)
    values = {n: rng.standard_normal((2, 8, 16)).astype("f") for n in "qkv"}
    with Scheduler(["cuda:0"]) as scheduler:
        found = scheduler.run(graph, values).named
    np.testing.assert_allclose(found["shares"] @ values["v"], found["y"], atol=2e-2)
