"""Groups that run as one: right, clean, adjacent, and of use on the models' graphs."""

from dataclasses import replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import ggsched_opencl
from ggsched.passes.options import PlanOptions, StreamPolicy
from ggsched.plan.command import Launch
from ggsched.plan.text import plan_text
from ggsched.sanitize import check_plan
from ggsched_testing.explore import PlanProgram
from ggsched_testing.generators.strategies import graphs, seeds, values_for
from ggsched_testing.generators.topologies import constraints, topologies
from ggsched_testing.plan_mutants_fusion import GROUP_MUTATIONS
from ggsched_testing.schedule_policy import RandomPolicy
from tests.passes.rows import naming_rows
from tests.properties.test_end_to_end import run_and_compare
from tests.support.verified_plans import verified_plan


@st.composite
def planned(draw, max_nodes=16, max_devices=3, alignment=1):
    """Draw (graph with its rules, topology, plan) of devices that fuse whatever they may."""
    drawn = draw(graphs(max_nodes=max_nodes, chains=True))
    topology = draw(topologies(max_devices=max_devices, max_streams=4, fusions=True))
    facts = [replace(d, alignment=max(d.alignment, alignment)) for d in topology.devices]
    topology = replace(topology, devices=tuple(facts))
    wanted = draw(constraints(drawn.graph, topology))
    limit = draw(st.sampled_from((1, 1, 2, 4)))
    policy = StreamPolicy(limit, is_forced=limit > 1)
    options = PlanOptions(policy)
    if draw(st.booleans()):
        _, topology = draw(naming_rows(drawn.graph, topology, wanted, options))
    plan = verified_plan(drawn.graph, topology, wanted, options)
    for name in {f.pattern for f in plan.fusions}:
        event(f"fused {name}")
    event(f"groups: {min(3, len(plan.fusions))}")
    spans = [max(f.nodes) - min(f.nodes) + 1 for f in plan.fusions]
    event(f"moved: {any(n > len(f.nodes) for n, f in zip(spans, plan.fusions, strict=True))}")
    return drawn, topology, plan


@given(made=planned(max_nodes=30))
def test_plans_are_clean_and_no_group_is_cut(made):
    _, _, plan = made
    report = check_plan(plan)
    assert report.is_clean, f"{report.to_text()}\n{plan_text(plan, verbose=True)}"
    launched = [[s.node for s in c.steps] for c in plan.commands if isinstance(c, Launch)]
    for f in plan.fusions:
        (nodes,) = (nodes for nodes in launched if f.nodes[0] in nodes)
        at = nodes.index(f.nodes[0])
        assert tuple(nodes[at : at + len(f.nodes)]) == f.nodes


@given(made=planned(), seed=seeds())
def test_results_on_cpu(made, seed):
    drawn, topology, plan = made
    run_and_compare(drawn, topology, plan, seed)


@pytest.mark.opencl
@settings(max_examples=max(20, settings().max_examples // 2))
@given(made=planned(max_nodes=10, max_devices=1, alignment=16), seed=seeds())
def test_results_on_opencl(made, seed):
    drawn, topology, plan = made
    run_and_compare(drawn, topology, plan, seed, ggsched_opencl.open_backend)


@given(made=planned(max_nodes=12), seed=seeds())
def test_results_under_hostile_schedules(made, seed):
    drawn, topology, plan = made
    values = [values_for(drawn, seed + run) for run in range(2)]
    weights = {t.name for t in drawn.graph.tensors if t.role.value == "weight"}
    values[1].update({n: values[0][n] for n in weights})
    program = PlanProgram(drawn.graph, plan, values, topology=topology)
    expected = program.expected()
    for trial in range(3):
        assert program(RandomPolicy(seed + trial)) == expected


@given(made=planned(max_nodes=12))
def test_broken_groups_are_found(made):
    _, _, plan = made
    for name, operator in GROUP_MUTATIONS.items():
        for what, mutant in operator(plan):
            event(name)
            assert not check_plan(mutant).is_clean, f"{what}: nobody noticed\n{plan_text(plan)}"


@given(made=planned(max_nodes=12), seed=seeds())
def test_without_fusion_nothing_is_grouped(made, seed):
    drawn, topology, _ = made
    plan = verified_plan(drawn.graph, topology, options=PlanOptions(fuse=False))
    assert not plan.fusions
    check_plan(plan).raise_if_findings()
    run_and_compare(drawn, topology, plan, seed)
