"""Schedules change the order of pieces of work and never the meaning."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.errors import GraphError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.join import join_graphs
from ggsched.ir.schedule import Action, apply_schedule, rounds
from ggsched_testing.oracle.interpreter import run_oracle

TWO_EACH = [[0, 2], [1, 3]]


def layers(n):
    """Each layer adds what it has seen to its input."""
    g = GraphBuilder("layers")
    x = g.input("x", (4,))
    for k in range(n):
        s = g.state(f"s{k}", (4,))
        x = g.op("add", x, s, name=f"l{k}")
        g.op("cpy", x, s, name=f"l{k}")
    return g.build(x)


def joined(n=4, m=4):
    j = join_graphs([layers(n)] * m)
    return j, [int(node.name[1:].split("@")[0]) for node in j.graph.nodes]


def outputs(j, m):
    values = {f"x@{k}": np.arange(4, dtype=np.float32) + k for k in range(m)}
    return run_oracle(j.graph, values, states={})


@given(m=st.integers(1, 6), size=st.integers(1, 4))
def test_the_meaning_stays(m, size):
    j, stage_of = joined(4, m)
    for schedule in (rounds(m, TWO_EACH, 1), rounds(m, TWO_EACH, size)):
        other = apply_schedule(j, stage_of, schedule)
        assert sorted(other.part_of) == sorted(j.part_of)
        for tid, array in outputs(j, m).items():
            np.testing.assert_array_equal(outputs(other, m)[tid], array)


def test_rounds_by_hand():
    first, second = rounds(3, TWO_EACH, 2)
    assert [(a.part, a.stage) for a in first] == [(0, 0), (1, 0), (0, 2), (1, 2), (2, 0), (2, 2)]
    assert [(a.part, a.stage) for a in second] == [(0, 1), (1, 1), (0, 3), (1, 3), (2, 1), (2, 3)]


def test_an_order_in_which_everybody_waits():
    j, stage_of = joined(2, 2)
    schedule = [[Action(1, 0), Action(0, 0)], [Action(0, 1), Action(1, 1)]]
    with pytest.raises(GraphError, match="every device waits for another"):
        apply_schedule(j, stage_of, schedule)


def test_nothing_twice_and_nothing_missing():
    j, stage_of = joined(2, 1)
    with pytest.raises(GraphError, match=r"Action\(part=0, stage=0\) is listed twice"):
        apply_schedule(j, stage_of, [[Action(0, 0)] * 2, [Action(0, 1)]])
    with pytest.raises(GraphError, match=r"Action\(part=0, stage=1\) is missing"):
        apply_schedule(j, stage_of, [[Action(0, 0)]])
