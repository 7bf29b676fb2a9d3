"""Outputs that ``build`` names."""

import numpy as np
import pytest

from ggsched.errors import GraphError, UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.text import parse_graph, print_graph
from ggsched.scheduler import Scheduler

X = np.ones((3, 4), np.float32)


def test_by_name_by_tensor_and_by_id():
    g = GraphBuilder()
    x, cache = g.input("x", (3, 4)), g.state("cache", (3, 4))
    y, z = x + 1, x * 3
    kept = g.cpy(z, cache)
    graph = g.build(z, y=y, part=g.rows(y, 1, 2), kept=kept, x=x)
    assert parse_graph(print_graph(graph)) == graph
    with Scheduler(["cpu:0"]) as scheduler:
        found = scheduler.run(graph, {"x": X})
    assert set(found.named) == {"y", "part", "kept", "x"}
    assert found["part"].shape == (1, 4)
    np.testing.assert_array_equal(found["kept"], 3 * X)
    np.testing.assert_array_equal(found["y"], found[y])
    np.testing.assert_array_equal(found[z], 3 * X)
    np.testing.assert_array_equal(found["x"], X)
    with pytest.raises(UsageError, match="outputs: y, part, kept, x"):
        found["z"]


def test_graphs_that_differ_in_names_share_a_plan():
    g = GraphBuilder()
    y = g.input("x", (3, 4)) + 1
    a, b = g.build(a=y), g.build(b=y)
    assert a.digest == b.digest
    with Scheduler(["cpu:0"]) as scheduler:
        np.testing.assert_array_equal(
            scheduler.run(a, {"x": X})["a"], scheduler.run(b, {"x": X})["b"]
        )


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        (lambda g, x, y: ((), {}), "at least one output"),
        (lambda g, x, y: ((), {"a": y, "b": y}), "one tensor is the outputs 'a' and 'b'"),
        (lambda g, x, y: ((), {"a": x}), "the input 'x' cannot be called 'a'"),
        (lambda g, x, y: ((x,), {"x": y}), "two outputs are called 'x'"),
        (lambda g, x, y: ((), {"a": 3}), "3 is not a tensor"),
        (lambda g, x, y: ((), {"a": GraphBuilder().input("z", ())}), "another builder"),
    ],
)
def test_refused(outputs, said):
    g = GraphBuilder()
    x = g.input("x", (3, 4))
    positional, named = outputs(g, x, g.silu(x))
    with pytest.raises(GraphError, match=said):
        g.build(*positional, **named)
