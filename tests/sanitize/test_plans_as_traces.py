"""A plan and its trace: two checkers that share no walk come to one verdict."""

import re

import pytest
from hypothesis import HealthCheck, event, given, settings

from ggsched.sanitize import check_plan, check_trace
from ggsched.trace.export import trace_from_lines, trace_to_lines
from ggsched.trace.schema import Work
from ggsched.trace.unroll import unroll
from ggsched_testing.plan_mutants import ALL_MUTATIONS
from tests.properties.test_planner_and_checker import plans
from tests.sanitize.test_litmus import LITMUS

SAME = {"reuse": "content", "stale": "content"}
"""What a trace, which knows no values, calls it."""


def kinds_of_plan(plan):
    return {SAME.get(f.kind, f.kind) for f in check_plan(plan).findings}


def kinds_of_trace(plan):
    return {f.kind for f in check_trace(unroll(plan, 2).trace).findings}


def is_held_twice(plan):
    """Return the kind of a finding for which the same bytes are there as another value.

    Two copies of one storage lie in the same place, and nothing has written it between them, which
    the trace would show. The checker of plans calls it reuse all the same.
    """
    found = [f for f in check_plan(plan).findings if SAME.get(f.kind, f.kind) == "content"]
    values = plan.splits.values
    for finding in found:
        names = re.findall(r"\bv(\d+)", finding.what) if finding.kind == "reuse" else []
        if len({(values[int(v)].kind, values[int(v)].storage) for v in names}) != 1:
            return set()
    return {"content"} if found else set()


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans())
def test_plans_are_clean_as_traces(plan):
    unrolled = unroll(plan, 3)
    report = check_trace(unrolled.trace)
    assert report.is_clean, report.to_text()
    assert len(unrolled.origins) == len(unrolled.trace.entries)
    assert {o for o in unrolled.origins if o >= 0} == {c.id for c in plan.commands}
    assert trace_from_lines(trace_to_lines(unrolled.trace)) == unrolled.trace


@pytest.mark.parametrize("name", ALL_MUTATIONS)
@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=settings().max_examples // 4)
@given(plan=plans(min_devices=2))
def test_mutants(name, plan):
    for what, mutant in ALL_MUTATIONS[name](plan):
        by_plan, by_trace = kinds_of_plan(mutant), kinds_of_trace(mutant)
        assert not by_trace or by_plan, what
        # What is wrong with the plan may do no harm; the checker of traces sees harm only.
        harmless = by_plan - is_held_twice(mutant) <= {"region", "hazard", "launch", "relation"}
        assert by_trace or "disorder" in by_plan or harmless, (what, by_plan)
        if "race" in by_plan | by_trace:
            assert {"race"} <= by_plan & by_trace, what
        elif name == "alias_values":
            assert by_plan - {"hazard", "region", "relation"} == by_trace, what
        event(f"{name}: {sorted(by_trace)}")


@pytest.mark.parametrize("write", LITMUS, ids=lambda f: f.__name__)
def test_built_plans(write):
    broken = check_trace(unroll(write(fixed=False), 3).trace)
    assert {f.kind for f in broken.findings} == {"race"}
    assert LITMUS[write] in {f.hazard for f in broken.findings}
    fixed = check_trace(unroll(write(fixed=True), 3).trace)
    assert fixed.is_clean, fixed.to_text()


@given(plan=plans(min_devices=2))
def test_each_node_and_transfer_is_in_it(plan):
    labels = [e.label for e in unroll(plan, 1).trace.entries if isinstance(e, Work)]
    nodes = [label.split()[1] for label in labels if label.split()[1].startswith("n")]
    assert len(nodes) == len(plan.nodes)
