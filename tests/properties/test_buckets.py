"""Calls of any size through buckets give what graphs of that very size give."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ggsched
from ggsched.ir.builder import GraphBuilder
from ggsched.scheduler import Scheduler

RNG = np.random.default_rng(3)
W = RNG.standard_normal((6, 4)).astype(np.float32)


def attended(size):
    """Rows that look at all rows, a mask to leave some out, and a sum over them."""
    g = GraphBuilder("attended")
    x, mask = g.input("x", (size, 4)), g.input("mask", (1, size))
    keys = x @ W.T
    shares = g.soft_max(g.mul_mat(keys, keys), mask)
    y = g.mul_mat(g.cont(g.transpose(x)), shares)
    total = g.sum_rows(g.cont(g.transpose(x)))
    return g.build(y=y, shares=shares, total=total)


def values(size):
    return {
        "x": RNG.standard_normal((size, 4)).astype(np.float32),
        "mask": np.where(np.arange(size) % 3 == 1, -1, 0).astype(np.float32)[None],
    }


def bucketed(scheduler, build=attended, **options):
    given = {
        "sizes": (4, 16, 8),
        "inputs": {"x": 0, "mask": -1},
        "outputs": {"y": 0},
        "fills": {"mask": -np.inf},
    }
    return ggsched.Bucketed(scheduler, build, **(given | options))


@given(
    st.lists(st.integers(1, 16), min_size=1, max_size=8),
    st.integers(1, 3),
    st.sets(st.integers(1, 15), max_size=3),
)
@settings(max_examples=25, deadline=None)
def test_as_without_buckets(calls, limit, sizes):
    with Scheduler(["cpu:0"]) as scheduler, Scheduler(["cpu:0"]) as plain:
        calling = bucketed(scheduler, sizes=(*sizes, 16), limit=limit)
        for size in calls:
            inputs = values(size)
            found = calling.run(inputs)
            wanted = plain.run(attended(size), inputs).named
            assert found.keys() == wanted.keys()
            np.testing.assert_allclose(found["y"], wanted["y"], rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(found["total"], wanted["total"], rtol=1e-4, atol=1e-5)
            whole = found["shares"]
            assert whole.shape == (calling.bucket(size),) * 2  # it was not declared
            np.testing.assert_allclose(whole[:size, :size], wanted["shares"], rtol=1e-4, atol=1e-6)
            assert not whole[:size, size:].any()
            assert len(calling.kept) <= limit


def test_the_one_used_least_recently_gives_way():
    built = []

    def build(size):
        built.append(size)
        return attended(size)

    with Scheduler(["cpu:0"]) as scheduler:
        calling = bucketed(scheduler, build, limit=2)
        for size in (3, 8, 4, 16, 1, 5):
            calling.run(values(size))
        assert built == [4, 8, 16, 8]
        assert scheduler.plan_cache.misses == len(built)  # plans went with their graphs
        assert [g.named("x").shape[0] for g in calling.kept] == [4, 8]


def test_a_forgotten_graph_runs_again():
    graph, inputs = attended(4), values(4)
    with Scheduler(["cpu:0"]) as scheduler:
        scheduler.forget(graph)
        before = scheduler.run(graph, inputs)["y"]
        scheduler.forget(graph)
        np.testing.assert_array_equal(scheduler.run(graph, inputs)["y"], before)
        assert scheduler.plan_cache.misses == 2
        assert scheduler.resident_nbytes("weight")


@pytest.mark.parametrize(
    ("options", "inputs", "said"),
    [
        ({}, values(17), "size 17 is beyond the largest bucket, 16"),
        ({}, {**values(4), "mask": values(5)["mask"]}, "disagree about the size: 'x' 4, 'mask' 5"),
        ({}, {"x": values(4)["x"]}, "mask: no data"),
        ({}, {**values(4), "x": np.float32(1)}, "no axis 0|array"),
        ({"sizes": ()}, values(4), "positive"),
        ({"sizes": (0, 4)}, values(4), "positive"),
        ({"sizes": ("a",)}, values(4), "positive"),
        ({"build": lambda n: None}, values(4), r"build\(4\): None is not a graph"),
        ({}, {**values(3), "mask": np.zeros((1, 3), np.int32)}, "int32 holds no -inf as padding"),
        ({"limit": 0}, values(4), "at least one"),
        ({"inputs": {}}, values(4), "no input has the size"),
        ({"fills": {"z": 1}}, values(4), "not padded"),
        ({"outputs": {"z": 0}}, values(4), "no output 'z' in the graph of bucket 4"),
        ({"outputs": {"total": 0, "y": 1}, "sizes": (8,)}, values(4), "axis 0 was declared"),
    ],
)
def test_refused(options, inputs, said):
    with Scheduler(["cpu:0"]) as scheduler, pytest.raises(ggsched.GgschedError, match=said):
        bucketed(scheduler, **options).run(inputs)
