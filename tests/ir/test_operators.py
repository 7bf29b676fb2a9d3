"""Operators mean what numpy's do, on built-in ops where these can compute it."""

import numpy as np
import pytest

from ggsched.errors import GraphError, UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.scheduler import Scheduler
from ggsched_testing.oracle.interpreter import run_oracle

RNG = np.random.default_rng(0)


def arrays(*shapes, dtype=np.float32):
    return [RNG.uniform(1, 2, shape).astype(dtype) for shape in shapes]


CASES = {
    "numbers": (lambda x: 1 - 2 * (x + 3) / 4 - x * 0.5, [(3, 4)]),
    "reciprocal": (lambda x: 2 / x, [(3, 4)]),
    "minus": (lambda x: -x, [(3, 4)]),
    "rows": (lambda a, b: a * b - b + a / b, [(3, 4), (3, 4)]),
    "broadcast": (lambda a, b: a + b, [(3, 4), (4,)]),
    "the other way": (lambda a, b: a + b, [(4,), (3, 4)]),
    "both ways": (lambda a, b: a * b, [(3, 1), (1, 4)]),
    "product": (lambda a, b: a @ b, [(3, 4), (4, 5)]),
    "batches": (lambda a, b: a @ b, [(2, 3, 4), (2, 4, 5)]),
    "vector": (lambda a, b: a @ b, [(4,), (4, 5)]),
    "comparisons": (lambda a, b: a < b, [(3, 4), (3, 4)]),
    "at least": (lambda a, b: a >= b, [(3, 4), (4,)]),
}


@pytest.mark.parametrize("name", CASES)
def test_as_in_numpy(name):
    function, shapes = CASES[name]
    values = arrays(*shapes)
    g = GraphBuilder()
    graph = g.build(function(*(g.input(f"x{i}", s) for i, s in enumerate(shapes))))
    given = {f"x{i}": v for i, v in enumerate(values)}
    (found,) = run_oracle(graph, given).values()
    np.testing.assert_allclose(found, function(*values), rtol=1e-5)


def test_integers_are_those_of_the_library():
    g = GraphBuilder()
    a, b = (g.input(name, (3,), "i64") for name in "ab")
    graph = g.build(-(a * b - a))
    values = {"a": np.arange(3), "b": np.arange(3) + 5}
    (found,) = run_oracle(graph, values).values()
    assert found.tolist() == (-(values["a"] * values["b"] - values["a"])).tolist()
    assert {n.op for n in graph.nodes} == {"nd.mul", "nd.sub", "nd.neg"}


def test_built_in_ops_where_they_can():
    g = GraphBuilder()
    x, w = g.input("x", (3, 4)), g.weight("w", (4, 5))
    graph = g.build(-(x @ w + 1) * g.input("b", (5,)))
    assert {n.op for n in graph.nodes} == {"mul_mat", "scale", "mul"}


def test_messages():
    g = GraphBuilder("g")
    x, n = g.input("x", (3, 4)), g.input("n", (2,), "i64")
    with pytest.raises(GraphError, match="takes two tensors"):
        x @ 3
    with pytest.raises(GraphError, match="numbers need f32"):
        n + 1
    with pytest.raises(GraphError, match="neither a tensor nor a number"):
        x + "one"
    with pytest.raises(GraphError, match="another builder"):
        x + GraphBuilder().input("x", (3, 4))
    graph = g.build(x + 1)
    with pytest.raises(GraphError, match="has no operators"):
        graph.tensors[0] + 1


def test_a_graph_keeps_no_builder():
    g = GraphBuilder()
    y = g.input("x", (2,)) + 1
    graph = g.build(y)
    assert all(t.builder is None for t in graph.tensors)
    assert graph.tensors[y.id] == y
    assert "builder" not in repr(y)


def test_outputs_by_name_and_by_tensor():
    g = GraphBuilder("two")
    x = g.input("x", (2,))
    y, z, other = g.silu(x, name="y"), x * 2, g.tanh(x)
    graph = g.build(y, z)
    with Scheduler(["cpu:0"]) as scheduler:
        found = scheduler.run(graph, {"x": np.ones(2, np.float32)})
    assert found["y"] is found[y] is found[y.id]
    assert found[z].tolist() == [2, 2]
    assert list(found) == list(graph.outputs)
    assert list(found.named) == ["y"]
    with pytest.raises(UsageError, match=r"no output 'z'.*outputs: y"):
        found["z"]
    with pytest.raises(UsageError, match="is not an output"):
        found[other]
    with pytest.raises(KeyError):
        found[other.id]
