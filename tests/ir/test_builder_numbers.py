"""Numbers as operands and names as types, as people write them."""

import numpy as np
import pytest

from ggsched import GraphBuilder
from ggsched.errors import GgschedError, GraphError
from ggsched.ir.dtype import F16, F32
from ggsched_testing.oracle.interpreter import run_oracle

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
    for odd in ("1.0x", "1.0", b"1", None, 1j, [1.0, 2.0]):
        with pytest.raises(GraphError, match="neither a tensor nor a number"):
            g.add(x, odd)
    with pytest.raises(GraphError, match="a number is too large"):
        g.mul(x, 10**400)
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
    for odd in (None, 5, np.float32):
        with pytest.raises(GraphError, match="is not an element type"):
            g.input("z", (2,), odd)
    with pytest.raises(GraphError, match="is not an element type"):
        g.cont(g.input("v", (2,)), 5)


@pytest.mark.parametrize("shape", [3, None, "ab", (3.0, 2), ("3",), ((1, 2), 3)])
def test_shapes_that_are_none(shape):
    g = GraphBuilder("odd")
    x = g.input("x", (4, 8))
    for call in (g.weight, g.repeat, g.view):
        with pytest.raises(GraphError, match="are not whole numbers"):
            call(*(("w", shape) if call == g.weight else (x, shape)))


def test_places_that_are_none():
    g = GraphBuilder("odd")
    x = g.input("x", (4, 8))
    for odd in (None, "a", 1.5, (2, 3)):
        with pytest.raises(GraphError, match="are not whole numbers"):
            g.rows(x, odd, 3)
        with pytest.raises(GraphError, match="are not whole numbers"):
            g.view(x, (2, 8), offset=odd)
        with pytest.raises(GraphError, match="are not whole numbers"):
            g.view(x, (2, 8), strides=(32, odd))
