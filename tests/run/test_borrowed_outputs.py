"""Outputs without copies: views of the plan's memory, which the next run writes."""

import numpy as np
import pytest
from hypothesis import given

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.tensor import Role
from ggsched.scheduler import Scheduler
from ggsched_testing.generators.strategies import graphs, seeds
from ggsched_testing.generators.values import values_for
from ggsched_testing.sim import SimConfig, SimWorld

X = np.arange(8, dtype=np.float32)


def doubled():
    g = GraphBuilder("doubled")
    x = g.input("x", (8,))
    return g.build(g.scale(x, 2.0), x)


@pytest.fixture(params=["cpu", "sim"])
def scheduler(request):
    where = ["cpu:0"] if request.param == "cpu" else [SimWorld([SimConfig()]).open(0)]
    with Scheduler(where) as made:
        yield made


def test_views_hold_until_the_next_run(scheduler):
    graph = doubled()
    first = scheduler.run(graph, {"x": X}, copy=False)
    made, given_back = (first[tid] for tid in graph.outputs)
    kept = scheduler.run(graph, {"x": X})
    np.testing.assert_array_equal(made, 2 * X)
    np.testing.assert_array_equal(given_back, X)
    again = scheduler.run(graph, {"x": X + 1}, copy=False)
    for tid in graph.outputs:
        assert np.shares_memory(first[tid], again[tid])
        assert not np.shares_memory(kept[tid], again[tid])
        with pytest.raises(ValueError, match="read-only"):
            again[tid][0] = 1.0
    np.testing.assert_array_equal(made, 2 * (X + 1))
    np.testing.assert_array_equal(kept[graph.outputs[0]], 2 * X)
    assert all(array.flags.writeable for array in kept.values())


def test_views_outlive_the_scheduler(scheduler):
    graph = doubled()
    lent = scheduler.run(graph, {"x": X}, copy=False)[graph.outputs[0]]
    scheduler.close()
    np.testing.assert_array_equal(lent, 2 * X)


@given(drawn=graphs(), seed=seeds())
def test_views_have_what_copies_have(drawn, seed):
    graph, values = drawn.graph, values_for(drawn, seed)
    inputs = {t.name: values[t.name] for t in graph.roots(Role.INPUT)}
    with Scheduler(["cpu:0"], weights=values) as scheduler:
        copies = scheduler.run(graph, inputs)
        scheduler.clear_states()
        views = scheduler.run(graph, inputs, copy=False)
        assert copies.keys() == views.keys()
        for tid, copy in copies.items():
            assert views[tid].tobytes() == copy.tobytes()
            assert not views[tid].flags.writeable
