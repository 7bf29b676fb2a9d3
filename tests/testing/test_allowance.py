"""How far rounded products may be off, beside states."""

import numpy as np
import pytest

from ggsched.backend.precision import ROUNDING
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F16, F32
from ggsched.testing.allowance import rounding_allowances
from ggsched.testing.oracle.interpreter import run_oracle


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
