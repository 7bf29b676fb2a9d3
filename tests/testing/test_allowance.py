"""How far rounded products may be off, beside states."""

import numpy as np
import pytest

from ggsched.backend.precision import ROUNDING
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F16, F32
from ggsched_testing.allowance import far_off, is_within, rounding_allowances
from ggsched_testing.oracle.interpreter import run_oracle


def product_plus(leaf):
    """Return a graph of a product of f16 weights and a sum, and its values."""
    g = GraphBuilder("product and sum")
    w, x = g.weight("w", (3, 8), F16), g.input("x", (5, 8))
    graph = g.build(g.add(g.mul_mat(w, x), leaf(g)))
    rng = np.random.default_rng(0)
    values = {"w": rng.random((3, 8)).astype(np.float16), "x": rng.random((5, 8), np.float32)}
    return graph, values


@pytest.mark.parametrize("content", [None, 2.0], ids=["zeros", "set"])
def test_a_state_beside_a_product(content):
    """A state changes nothing about what a product may lose, whatever the state holds."""
    graph, values = product_plus(lambda g: g.state("s", (5, 3), F32))
    before = {} if content is None else {"s": np.full((5, 3), content, np.float32)}
    states = {name: array.copy() for name, array in before.items()}
    expected = run_oracle(graph, values, states=states)
    ((_, allowed),) = rounding_allowances(graph, values, expected, before).items()
    sizes = values["x"] @ values["w"].T.astype(np.float32)
    assert (allowed >= ROUNDING["f16"] * sizes * 0.99).all()
    assert (allowed <= ROUNDING["f16"] * sizes * 2.5 + 1e-6).all()


def packed(array, dtype):
    """Round to f16, or to bf16 as uint16 bits."""
    if dtype is F16:
        return array.astype(np.float16)
    bits = array.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def as_f32(array, dtype):
    if dtype is F16:
        return array.astype(np.float32)
    return (array.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("dtype", [F16, BF16], ids=["f16", "bf16"])
def test_a_gate_of_two_products(dtype):
    """Errors of a gate's two products, which cancel here and there, are allowed to add up."""
    g = GraphBuilder("gate of two products")
    gate, up = g.weight("gate", (33, 4), dtype), g.weight("up", (33, 4), dtype)
    x = g.input("x", (20, 4))
    graph = g.build(g.swiglu(g.mul_mat(gate, x), g.mul_mat(up, x)))
    for seed in range(8):
        rng = np.random.default_rng(seed)
        values = {name: packed(rng.standard_normal((33, 4)), dtype) for name in ("gate", "up")}
        values["x"] = rng.standard_normal((20, 4)).astype(np.float32)
        rounded = {**values, "x": as_f32(packed(values["x"], dtype), dtype)}
        ((tid, wanted),) = run_oracle(graph, values).items()
        allowed = rounding_allowances(graph, values, {tid: wanted})[tid]
        assert is_within(run_oracle(graph, rounded)[tid], wanted, allowed)
        far = wanted + 8 * allowed.max()
        assert not is_within(far, wanted, allowed)
        for seen, off in ((run_oracle(graph, rounded)[tid], []), (far, [tid])):
            assert far_off({tid: seen}, graph, values, {tid: wanted}) == off


def test_results_within_the_tolerance_cost_no_runs_of_the_oracle(monkeypatch):
    graph, values = product_plus(lambda g: g.input("y", (5, 3)))
    values["y"] = np.zeros((5, 3), np.float32)
    expected = run_oracle(graph, values)
    monkeypatch.setattr("ggsched_testing.allowance.run_oracle", None)
    assert far_off(expected, graph, values, expected) == []
