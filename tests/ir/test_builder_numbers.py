"""Numbers as operands and names as types, as people write them."""

import numpy as np
import pytest

from ggsched import GraphBuilder
from ggsched.errors import GgschedError, GraphError
from ggsched.ir.dtype import F16, F32
from ggsched.testing.oracle.interpreter import run_oracle

X = np.array([[1.0, -2.0, 0.5]], np.float32)


@pytest.mark.parametrize(
    ("op", "expected"),
    [("add", X + 1.5), ("sub", X - 1.5), ("mul", X * 1.5), ("div", X / 1.5)],
)
@pytest.mark.parametrize("number", [1.5, np.float32(1.5)])
def test_numbers(op, expected, number):
    g = GraphBuilder("numbers")
    y = getattr(g, op)(g.input("x", X.shape), number)
    graph = g.build(y)
    (out,) = run_oracle(graph, {"x": X}).values()
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_what_is_neither():
    g = GraphBuilder("odd")
    x = g.input("x", (2, 3))
    for odd in ("1.0x", None, [1.0, 2.0]):
        with pytest.raises(GraphError, match="neither a tensor nor a number"):
            g.add(x, odd)
    with pytest.raises(GraphError, match="division by 0"):
        g.div(x, 0)
    with pytest.raises(GraphError, match="1.0 is not a tensor"):
        g.mul_mat(1.0, x)
    with pytest.raises(GraphError, match="is not a tensor"):
        g.add(1.0, x)


def test_types_by_name():
    g = GraphBuilder("types")
    assert g.input("x", (2,), "f32").dtype is F32
    assert g.weight("w", (2,), dtype="f16").dtype is F16
    assert g.state("s", (2,), "f32").dtype is F32
    assert g.cont(g.input("y", (2,)), "f16").dtype is F16
    with pytest.raises(GgschedError, match="float32"):
        g.input("z", (2,), "float32")
