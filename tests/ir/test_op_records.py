"""What follows from the record of an op: methods of builders, checks, bounds of results."""

import inspect

import numpy as np
import pytest

from ggsched.errors import GraphError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.ops import BUILT_IN, OPS
from ggsched.ops import Methods
from ggsched.ops.elementwise import ELEMENTWISE, UNARY

DERIVED = sorted(name for name in dir(Methods) if hasattr(getattr(Methods, name), "record"))


def test_every_built_in_op_has_a_method():
    assert set(DERIVED) == set(BUILT_IN) - {"cont"}
    assert callable(GraphBuilder.cont)
    assert all(getattr(Methods, name).record is OPS[name] for name in DERIVED)


@pytest.mark.parametrize("name", DERIVED)
def test_a_method_takes_what_the_record_has(name):
    names = list(inspect.signature(getattr(GraphBuilder(), name)).parameters)
    op = OPS[name]
    operands = {o.rstrip("?") for o in op.operands}
    assert set(names[: len(operands)]) == operands
    assert len(set(names)) == len(names)
    assert ("inplace" in names) == (0 in op.may_overwrite)


def test_operands_by_place_by_name_and_left_out():
    g = GraphBuilder()
    x, mask = g.input("x", (2, 3)), g.input("mask", (3,))
    made = [
        g.soft_max(x, mask, None, scale=0.5),
        g.soft_max(x, mask=mask, scale=0.5),
        g.soft_max(mask=mask, scale=0.5, x=x),
        g.op("soft_max", x, mask, mask=True, scale=0.5),
    ]
    assert len(made) == len(g.nodes)
    assert len({(n.inputs, repr(n.params)) for n in g.nodes}) == 1
    assert g.clamp(x, -1, high=1).shape == g.clamp(x, min=-1, max=1).shape
    assert repr(g.nodes[-1].params) == repr(g.nodes[-2].params)


def test_what_a_method_refuses():
    g = GraphBuilder()
    x = g.input("x", (2, 3))
    with pytest.raises(GraphError, match="takes 1 operands"):
        g.silu()
    with pytest.raises(GraphError, match="takes 1 operands"):
        g.silu(x, x)
    with pytest.raises(GraphError, match="no parameter 'eps'"):
        g.silu(x, eps=1.0)
    with pytest.raises(GraphError, match="cannot work in place"):
        g.sum_rows(x, inplace=True)
    with pytest.raises(GraphError, match="None is not a tensor"):
        g.mul_mat(x, None)


@pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda op: op.name)
def test_bounds_hold(op):
    """Results of operands as large as stated are no larger than the bound says."""
    rng = np.random.default_rng(0)
    for mag in (0.25, 1.0, 4.0):
        operands = [rng.uniform(-mag, mag, 500) for _ in op.operands]
        if op.name == "div":  # random graphs divide by numbers in [1/4, 1]
            operands[1] = rng.uniform(0.25, 1.0, 500)
        draws = {name: values[0] for name, values in op.draws.items()}
        params = op.full(draws)
        found = np.abs(op.reference(*operands, **params)).max()
        largest, error = op.bound(*[mag] * len(operands), *[1.0] * len(operands), **params)
        assert found <= largest * (1 + 1e-12)
        assert error >= 0


def test_an_array_op_is_the_same_on_f32():
    x = np.linspace(-8, 8, 99)
    twins = {op.name: OPS[f"nd.{op.array}"] for op in ELEMENTWISE if op.array}
    assert set(twins) == set(UNARY) - {"scale", "clamp"}
    for name, twin in twins.items():
        np.testing.assert_array_equal(OPS[name].reference(x), twin.reference(x))
