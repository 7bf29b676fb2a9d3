"""What stands behind a product, and layer norms, as one kernel each, on a GPU in software."""

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")

from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched import GraphBuilder
from ggsched.ir.dtype import BF16
from ggsched_testing.oracle.interpreter import run_oracle
from tests.backends.software_kernels import in_software
from tests.backends.test_cuda_batch_attention import run
from tests.kernels.test_fibers import NEEDS, Runner

pytestmark = NEEDS

ROWS = 200  # with 24 columns more than the kernel for few elements takes


@pytest.fixture(scope="module")
def software(compiled_kernels):
    with in_software(Runner(compiled_kernels), arch=80):
        yield


def agrees(graph, values):
    """Compare with the oracle; return the kernels, products of a library among them."""
    found, kernels = run(graph, values)
    (wanted,) = run_oracle(graph, values).values()
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)
    return kernels


def values_of(graph, seed=0):
    rng = np.random.default_rng(seed)
    names = [t.name for t in graph.tensors if t.role.value in ("input", "weight") and t.name]
    return {n: rng.standard_normal(graph.named(n).shape).astype("f") for n in set(names)}


def product(g, n=24, batches=(1, ROWS)):
    return g.mul_mat(g.input("w", (n, 16)), g.input("x", (*batches, 16)))


ACTIVATIONS = {
    "gelu": lambda g, x: g.gelu(x),
    "exact gelu": lambda g, x: g.op("nd.gelu", x),
    "relu": lambda g, x: g.clamp(x, 0.0, float("inf")),
    "silu, half of it": lambda g, x: g.scale(g.silu(x), 0.5),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_bias_and_an_activation_are_one_pass(software, name):
    g = GraphBuilder()
    graph = g.build(y=ACTIVATIONS[name](g, g.add(product(g), g.input("b", (24,)))))
    assert agrees(graph, values_of(graph)) == ["product", "chain_rows"]


@pytest.mark.parametrize("residual_first", [False, True])
def test_a_bias_and_a_residual_are_one_pass(software, residual_first):
    g = GraphBuilder()
    biased, r = g.add(product(g), g.input("b", (24,))), g.input("r", (1, ROWS, 24))
    graph = g.build(y=g.add(r, biased) if residual_first else g.add(biased, r))
    assert agrees(graph, values_of(graph)) == ["product", "chain_rows"]


def test_a_residual_with_another_number_of_axes(software):
    g = GraphBuilder()
    biased = g.add(product(g, batches=(ROWS,)), g.input("b", (24,)))
    graph = g.build(y=g.add(g.input("r", (1, ROWS, 24)), g.reshape(biased, 1, ROWS, 24)))
    assert "chain_rows" in agrees(graph, values_of(graph))


def test_rows_in_16_bits_are_written_for_the_product_that_follows(software, monkeypatch):
    monkeypatch.setenv("GGSCHED_ACTIVATIONS", "auto")
    g = GraphBuilder()
    rows = g.gelu(g.add(product(g, n=32), g.input("b", (32,))))
    graph = g.build(y=g.mul_mat(g.input("v", (8, 32), BF16), rows))
    values = values_of(graph)
    values["v"] = (values["w"][:8].repeat(2, 1).view(np.uint32) >> 16).astype(np.uint16)
    found, kernels = run(graph, values)
    assert kernels == ["product", "chain_rows", "product"]
    (wanted,) = run_oracle(graph, values).values()
    assert np.abs(found - wanted).max() < 2e-2 * np.abs(wanted).max()


def test_columns_that_fill_no_vector(software):
    g = GraphBuilder()
    biased = g.add(product(g, n=10), g.input("b", (10,)))
    graph = g.build(y=g.gelu(g.add(biased, g.input("r", (1, ROWS, 10)))))
    assert "chain_rows" not in agrees(graph, values_of(graph))


@settings(max_examples=3, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 40)),
    ends=st.lists(st.sampled_from(["bias", "residual", "number", "gelu", "clamp"]), min_size=1),
    seed=st.integers(0, 99),
)
def test_drawn_chains(software, shape, ends, seed):
    g = GraphBuilder()
    made = g.op("nd.relu", g.input("x", shape))
    for i, end in enumerate(ends[:6]):
        sizes = {"bias": shape[-1:], "residual": shape, "number": (1,)}
        if end in sizes:
            made = g.mul(made, g.input(f"v{i}", sizes[end]))
        else:
            made = g.gelu(made) if end == "gelu" else g.clamp(made, -1.0, 2.0)
    graph = g.build(y=made)
    agrees(graph, values_of(graph, seed))


@pytest.mark.parametrize(("n", "is_apart"), [(8, True), (768, False), (1028, False), (132, True)])
def test_a_layer_norm_is_one_kernel(software, n, is_apart):
    g = GraphBuilder()
    x = g.input("x", (2, n, 3) if is_apart else (2, 3, n))
    normed = g.norm(g.transpose(x) if is_apart else x, 1e-5)
    graph = g.build(y=g.add(g.mul(normed, g.input("w", (n,))), g.input("b", (n,))))
    values = values_of(graph)
    values["x"] = values["x"] * 3 + 50
    found, kernels = run(graph, values)
    assert kernels == ["rms_mul"]
    x = values["x"].astype(float)
    x = x.swapaxes(1, 2) if is_apart else x
    wanted = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(found, wanted * values["w"] + values["b"], atol=1e-4)
