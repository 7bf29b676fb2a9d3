"""Random graphs must be legal, varied, tame, repeatable and small once shrunk."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from ggsched.ir.dtype import F32
from ggsched.ir.fusion import PATTERNS
from ggsched.ir.graph import verify_graph
from ggsched.ir.ops import OPS
from ggsched.ir.tensor import Role
from ggsched_testing.generators.graph_gen_chains import CHAINS
from ggsched_testing.generators.strategies import ATOL, RTOL, graphs, seeds, values_for
from ggsched_testing.oracle.interpreter import run_oracle

quick = settings(
    max_examples=300,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@given(drawn=graphs(), seed=seeds())
def test_graphs_are_tame(drawn, seed):
    """Rounding each step to f32 changes little, in several runs with states kept."""
    verify_graph(drawn.graph)
    values = values_for(drawn, seed)
    exact, rounded = {}, {}
    for _ in range(3):
        expected = run_oracle(drawn.graph, values, states=exact)
        actual = run_oracle(drawn.graph, values, states=rounded, compute=np.float32)
        for tid, array in expected.items():
            if array.dtype == np.int32:
                np.testing.assert_array_equal(actual[tid], array)
            else:
                assert np.isfinite(array).all(), "poison, or a number out of bounds"
                # A wide margin: backends accumulate in other orders and approximate exp.
                np.testing.assert_allclose(actual[tid], array, atol=ATOL / 4, rtol=RTOL / 4)


@given(drawn=graphs(max_nodes=4), seed=seeds())
def test_values_are_repeatable(drawn, seed):
    first, second = values_for(drawn, seed), values_for(drawn, seed)
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])


def test_everything_is_drawn():
    seen = Counter()

    @settings(
        max_examples=400,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn=graphs())
    def collect(drawn):
        graph = drawn.graph
        written = {graph.tensors[n.output].storage for n in graph.nodes}
        for n in graph.nodes:
            seen[n.op] += 1
            result = graph.tensors[n.output]
            operands = [graph.tensors[t] for t in n.inputs]
            seen["in place"] += bool(n.params.get("inplace"))
            seen["through a state"] += result.role is Role.STATE
            seen["through an input"] += result.role is Role.INPUT
            seen["through a strided window"] += not result.is_contiguous
            seen["quantised operand"] += any(t.dtype.is_quantized for t in operands)
            seen["strided operand"] += any(not t.is_contiguous for t in operands)
            seen["view of a written state"] += any(
                t.is_view and t.role is Role.STATE and t.storage in written for t in operands
            )
            seen["ids from a node"] += any(
                t.dtype.name == "i32" and t.role is Role.TEMP for t in operands
            )
        seen["several outputs"] += len(graph.outputs) > 1
        readers = Counter(t for n in graph.nodes for t in n.inputs)
        seen["fan-out"] += any(count > 1 for count in readers.values())

    collect()
    kinds = ["in place", "through a state", "through an input", "through a strided window"]
    kinds += ["quantised operand", "strided operand", "view of a written state"]
    kinds += ["ids from a node", "several outputs", "fan-out"]
    assert {k: seen[k] for k in [*OPS, *kinds] if seen[k] < 5} == {}


@pytest.mark.parametrize("op", ["set_rows", "mul_mat_id", "concat"])
def test_shrinks_to_the_node_that_matters(op):
    some = graphs(max_nodes=6)
    drawn = find(some, lambda d: any(n.op == op for n in d.graph.nodes), settings=quick)
    # Often one node; a local minimum of the shrinker may keep the maker of an operand.
    assert len(drawn.graph.nodes) <= 2
    assert all(t.size <= 32 for t in drawn.graph.tensors)


def test_shrinks_to_two_writers_of_one_storage():
    def twice(drawn):
        results = [drawn.graph.tensors[n.output] for n in drawn.graph.nodes]
        return Counter(t.storage for t in results).most_common(1)[0][1] > 1

    drawn = find(graphs(max_nodes=6), twice, settings=quick)
    assert len(drawn.graph.nodes) <= 3


@given(drawn=graphs(ops=["add", "cpy"], views=False, write_inputs=False, weight_dtypes=[F32]))
def test_choices_are_kept(drawn):
    graph = drawn.graph
    assert {n.op for n in graph.nodes} <= {"add", "cpy", "cont", "silu"}
    assert all(t.dtype.name in ("f32", "f16", "i32") for t in graph.tensors)
    assert all(graph.tensors[n.output].role is not Role.INPUT for n in graph.nodes)


@given(data=st.data())
def test_distinct_ids_are_distinct(data):
    drawn = data.draw(graphs(ops=["set_rows"]))
    values = values_for(drawn, 0)
    for name, rule in drawn.rules.items():
        if rule.kind == "ids" and rule.distinct:
            ids = values[name].ravel().tolist()
            assert len(set(ids)) == len(ids)
            assert set(ids) <= set(range(rule.bound))


def test_a_chain_is_drawn_for_every_pattern():
    """The conformance kit tries the fusion groups of a device by the chains that are drawn."""
    assert set(CHAINS) == set(PATTERNS)
