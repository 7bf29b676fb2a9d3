"""Plans whose commands do not compute their graph: each kind of mutant is found."""

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from ggsched.ir.builder import GraphBuilder
from ggsched.passes import Constraints, make_plan
from ggsched.sanitize import check_plan
from ggsched.topology import Topology
from ggsched_testing.generators.strategies import graphs
from ggsched_testing.generators.topologies import ALL_OPS, constraints, topologies
from ggsched_testing.plan_builder import fake_device
from ggsched_testing.plan_mutants_graph import GRAPH_MUTATIONS

EACH = 12
"""Most mutants of each operator that are taken from one plan."""


@st.composite
def planned(draw):
    drawn = draw(graphs(max_nodes=8, min_nodes=2))
    topology = draw(topologies(max_devices=2))
    plan = make_plan(drawn.graph, topology, draw(constraints(drawn.graph, topology)))
    return drawn.graph, plan


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(made=planned())
def test_plans_compute_their_graph(made):
    graph, plan = made
    assert check_plan(plan, graph=graph).is_clean, check_plan(plan, graph=graph).to_text()


@pytest.mark.parametrize("name", GRAPH_MUTATIONS)
@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=settings().max_examples // 4)
@given(made=planned())
def test_mutants_are_found(name, made):
    graph, plan = made
    mutants = list(GRAPH_MUTATIONS[name](plan))
    for what, mutant in mutants[:: 1 + len(mutants) // EACH]:
        assert not check_plan(mutant, graph=graph).is_clean, what
    event(f"{name}: {bool(mutants)}")


def small():
    """Two inputs, two outputs, a view, and results that take over operands."""
    g = GraphBuilder("small")
    x, y, w = g.input("x", (4, 8)), g.input("y", (4, 8)), g.weight("w", (8, 8))
    h = g.silu(g.mul_mat(w, x))
    z = g.add(h, g.mul(y, h))
    graph = g.build(g.add(z, z), g.silu(z))
    device = fake_device("gpu:0", ops=ALL_OPS, copy_order="stream")
    return graph, make_plan(graph, Topology((device,)), Constraints())


NEEDS_VIEWS = {"shift_views"}


@pytest.mark.parametrize("name", sorted(set(GRAPH_MUTATIONS) - NEEDS_VIEWS - {"move_steps"}))
def test_each_kind_has_mutants(name):
    graph, plan = small()
    assert check_plan(plan, graph=graph).is_clean
    mutants = list(GRAPH_MUTATIONS[name](plan))
    assert mutants
    for what, mutant in mutants:
        assert not check_plan(mutant, graph=graph).is_clean, what


@pytest.mark.parametrize(
    "name",
    [
        "drop_launches",
        "double_launches",
        "drop_steps",
        "double_steps",
        "misalign_values",
        "exchange_inputs",
        "add_barriers",
        "move_arenas",
    ],
)
def test_found_without_the_graph(name):
    _, plan = small()
    for what, mutant in GRAPH_MUTATIONS[name](plan):
        assert not check_plan(mutant).is_clean, what


def test_another_graph_is_named():
    _, plan = small()
    g = GraphBuilder("other")
    other = g.build(g.silu(g.input("x", (4, 8))))
    (finding,) = check_plan(plan, graph=other).findings
    assert finding.kind == "graph"
    assert plan.graph in finding.what
