"""Artifacts that do not agree: each relation is found by its name, and valid plans are clean."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from ggsched.ir import GraphBuilder
from ggsched.ir.fusion import PATTERNS
from ggsched.passes import Constraints, make_plan
from ggsched.passes.options import PlanOptions, StreamPolicy
from ggsched.plan.effects import Hazard
from ggsched.sanitize import check_plan
from ggsched.sanitize.relations import GRAPH_RELATIONS, RELATIONS
from ggsched.topology import Topology
from ggsched_testing.generators.strategies import graphs
from ggsched_testing.generators.topologies import ALL_OPS, constraints, topologies
from ggsched_testing.plan_builder import NO_HAZARD, PlanWriter, fake_device
from ggsched_testing.plan_mutants_relations import RELATION_MUTATIONS
from tests.sanitize.test_rows import GRAPH as EXPERTS
from tests.sanitize.test_rows import TOPOLOGY as ROWS_ON
from tests.sanitize.test_rows import planned as planned_rows
from tests.support.verified_plans import verified_plan

EACH = 10
"""Most mutants of each relation that are taken from one plan."""

SOME = settings(max_examples=max(5, settings().max_examples // 4))


@st.composite
def planned(draw):
    """Draw a graph and its plan, with groups, several streams and fills."""
    graph = draw(graphs(max_nodes=12, min_nodes=2, chains=True)).graph
    topology = draw(topologies(max_devices=3, fusions=draw(st.booleans())))
    wanted = draw(constraints(graph, topology, clears=True, pin_all=draw(st.booleans())))
    limit = draw(st.sampled_from((1, 3)))
    options = PlanOptions(StreamPolicy(limit, is_forced=limit > 1))
    return graph, verified_plan(graph, topology, wanted, options)


def broken(plan, graph):
    return {f.relation for f in check_plan(plan, graph=graph).findings if f.kind == "relation"}


def sampled(name, plan):
    mutants = list(RELATION_MUTATIONS[name](plan))
    return mutants[:: 1 + len(mutants) // EACH]


def test_every_relation_has_mutants():
    assert set(RELATION_MUTATIONS) == {*RELATIONS, *GRAPH_RELATIONS}


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(made=planned())
def test_valid_plans_are_clean(made):
    graph, plan = made
    report = check_plan(plan, graph=graph)
    assert report.is_clean, report.to_text()


@pytest.mark.parametrize("name", RELATION_MUTATIONS)
@settings(SOME, suppress_health_check=[HealthCheck.too_slow])
@given(made=planned())
def test_mutants_are_found_by_name(name, made):
    graph, plan = made
    for what, mutant in sampled(name, plan):
        assert name in broken(mutant, graph), what
        event(f"{name}: found")


@cache
def fixed():
    """Plans with groups, streams, fills and copies on two devices, and with rows of experts."""
    g = GraphBuilder("relations")
    x, w, v = g.input("x", (4, 8)), g.weight("w", (8, 8)), g.weight("v", (8, 8))
    kept, past = g.state("kept", (4, 8)), g.state("past", (4, 8))
    first = g.add(g.mul_mat(w, x), x)
    other = g.add(g.mul_mat(v, x), x)
    far = g.silu(g.mul(first, g.op("cpy", other, kept)))
    graph = g.build(g.add(far, g.op("cpy", far, past)), g.mul_mat(w, far), other)
    devices = tuple(
        fake_device(f"gpu:{i}", ops=ALL_OPS, fusions=frozenset(PATTERNS)) for i in range(2)
    )
    far_nodes = {n.id: 1 for n in graph.nodes if n.op in ("silu",)}
    wanted = Constraints(pins=far_nodes, clears=frozenset({"kept"}))
    options = PlanOptions(StreamPolicy(3, is_forced=True))
    g = GraphBuilder("adjacent")
    x, w = g.input("x", (4, 8)), g.weight("w", (8, 8))
    apart = g.build(g.mul_mat(w, x), g.add(x, x))
    return [
        (graph, make_plan(graph, Topology(devices), wanted, options)),
        (apart, make_plan(apart, Topology(devices[:1]), Constraints())),
        (EXPERTS, planned_rows()),
        (EXPERTS, planned_rows(topology=replace(ROWS_ON, copy_paths={}))),
    ]


@pytest.mark.parametrize("name", RELATION_MUTATIONS)
def test_every_relation_is_broken_and_found(name):
    found = 0
    for graph, plan in fixed():
        assert check_plan(plan, graph=graph).is_clean
        for what, mutant in sampled(name, plan):
            assert name in broken(mutant, graph), what
            found += 1
    assert found


def test_streams_are_gone_through_once_however_many_groups_there_are():
    class Counted(tuple):
        looks = 0

        def __iter__(self):
            self.looks += 1
            return super().__iter__()

    _, plan = fixed()[0]
    streams = msgspec.structs.replace(plan.streams, of_node=Counted(plan.streams.of_node))
    many = msgspec.structs.replace(plan, streams=streams, fusions=plan.fusions * 9)
    assert list(RELATIONS["group_order"](many))
    assert streams.of_node.looks == 1


def test_the_page_lists_every_relation():
    page = (Path(__file__).parents[2] / "docs/reference/plan-format.md").read_text(encoding="utf-8")
    section = page.partition("\n## What must agree\n")[2]
    rows = re.findall(r"^\| `(\w+)` \| .* \| *(yes)? *\|$", section, re.M)
    assert rows == [
        *((name, "") for name in RELATIONS),
        *((name, "yes") for name in GRAPH_RELATIONS),
    ]


def test_waits_for_the_next_run_do_not_hold_back_the_host():
    """They are enqueued when it begins: outputs are read before, whatever the wait says."""
    w = PlanWriter(fake_device())
    q, x = w.stream(), w.host_input("x", 16)
    there = w.value(w.arena("compute", 0, 32), 0, 16, of=x)
    first = w.transfer(q, x, there)
    out = w.host_output("y", 16, of=x)
    w.transfer(q, there, out)
    upload = w.plan().commands[first]
    region = upload.src
    overwritten = Hazard("WAR", region.arena, region.offset, region.end, first, -1, True)
    w.sync(q, None, overwritten)
    plan = w.plan()
    assert {f.kind for f in check_plan(plan).findings} == {"race"}
    now = msgspec.structs.replace(plan.commands[-1], hazard=NO_HAZARD)
    kept = msgspec.structs.replace(plan, commands=(*plan.commands[:-1], now))
    assert check_plan(kept).is_clean
