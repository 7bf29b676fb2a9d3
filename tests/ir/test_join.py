"""Joined graphs do what their parts do one after another."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.errors import GraphError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.graph import verify_graph
from ggsched.ir.join import join_graphs
from ggsched.ir.tensor import Role
from ggsched_testing.generators.strategies import graphs, seeds, values_for
from ggsched_testing.oracle.interpreter import run_oracle


def step(name="step", size=4):
    """A state that grows by the input, a weight, and a result that is not always wanted."""
    g = GraphBuilder(name)
    x, w, s = g.input("x", (size,)), g.weight("w", (size,)), g.state("s", (size,))
    grown = g.op("cpy", g.add(x, s, name="grow"), s)
    return g.build(g.mul(grown, w, name="weigh"))


def test_states_go_from_part_to_part():
    parts = [step(), step(), step()]
    joined = join_graphs(parts)
    xs = [np.full(4, 10.0**k, np.float32) for k in range(3)]
    w = np.arange(4, dtype=np.float32)
    got = run_oracle(joined.graph, {"w": w, **{f"x@{k}": x for k, x in enumerate(xs)}}, states={})
    for k in range(3):
        out = got[joined.outputs[k, parts[k].outputs[0]]]
        np.testing.assert_array_equal(out, sum(xs[: k + 1]) * w)


def test_what_nobody_wants_is_left_out():
    parts = [step(), step()]
    joined = join_graphs(parts, keep=[(), parts[1].outputs])
    assert [n.name for n in joined.graph.nodes].count("weigh@0") == 0
    assert len(joined.graph.nodes) == 5
    assert list(joined.outputs) == [(1, parts[1].outputs[0])]
    assert [t.name for t in joined.graph.roots(Role.INPUT)] == ["x@0", "x@1"]


def test_tensors_of_one_meaning_lie_at_one_distance():
    parts = [step(), step()]
    joined = join_graphs(parts, keep=[(), parts[1].outputs])
    first, second = joined.firsts
    for a, b in zip(
        joined.graph.tensors[first:second], joined.graph.tensors[second:], strict=False
    ):
        assert (a.dtype, a.shape, a.role) == (b.dtype, b.shape, b.role)


def test_names_of_inputs_may_meet():
    """The first part's x would be called as an input of another one's."""
    parts = [step(), step()]
    g = GraphBuilder("other")
    w = g.weight("x@0", (4,))
    parts.append(g.build(g.mul(w, w)))
    with pytest.raises(GraphError, match="names of their own"):
        join_graphs(parts)


def test_refusals():
    with pytest.raises(GraphError, match="nothing to join"):
        join_graphs([])
    with pytest.raises(GraphError, match="the parts share it by name"):
        join_graphs([step(), step(size=8)])


@given(drawn=graphs(max_nodes=10, write_inputs=False), count=st.integers(1, 3), seed=seeds())
def test_like_one_after_another(drawn, count, seed):
    graph = drawn.graph
    joined = join_graphs([graph] * count)
    verify_graph(joined.graph)  # joining looks at each part once only
    runs = [values_for(drawn, seed + k) for k in range(count)]
    inputs = {t.name for t in graph.roots(Role.INPUT)}
    values = {n: v for n, v in runs[0].items() if n not in inputs}
    states, together = {}, dict(values)
    expected = []
    for k, run in enumerate(runs):
        expected.append(run_oracle(graph, {**run, **values}, states=states))
        together.update({joined.input_name(k, n): run[n] for n in inputs})
    wanted = {t.name for t in joined.graph.roots(Role.INPUT)} | values.keys()
    got = run_oracle(joined.graph, {n: v for n, v in together.items() if n in wanted}, states={})
    for k, outputs in enumerate(expected):
        for tid, array in outputs.items():
            if graph.tensors[tid].role is not Role.STATE:  # the last part's is left there
                np.testing.assert_array_equal(got[joined.outputs[k, tid]], array)
