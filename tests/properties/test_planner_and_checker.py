"""Whatever the planner makes, on whatever machine, the checker must find in order.

And whatever is broken in a plan, the checker must notice. Only synchronisation may be left out
unnoticed, and only where the closure of happens-before agrees that nothing needed it.
"""

import msgspec
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from ggsched.passes import make_plan
from ggsched.plan.codec import plan_from_json, plan_to_json
from ggsched.plan.stats import plan_stats
from ggsched.plan.text import plan_text
from ggsched.sanitize import check_plan
from ggsched_testing.generators.strategies import graphs
from ggsched_testing.generators.topologies import constraints, topologies
from ggsched_testing.plan_mutants import ALL_MUTATIONS, with_commands
from tests.sanitize.brute import racing_pairs
from tests.support.verified_plans import verified_plan

SYNC_MUTATIONS = (
    "drop_waits",
    "drop_host_syncs",
    "drop_barriers",
    "drop_events",
    "record_earlier",
    "wait_later",
    "wait_for_older_event",
)


@st.composite
def plans(draw, min_devices=1):
    drawn = draw(graphs())
    topology = draw(topologies(min_devices=min_devices, events=draw(st.sampled_from((None, True)))))
    wanted = draw(constraints(drawn.graph, topology, clears=True))
    return verified_plan(drawn.graph, topology, wanted)


@given(plan=plans())
def test_plans_are_clean(plan):
    report = check_plan(plan)
    assert report.is_clean, f"{report.to_text()}\n{plan_text(plan, verbose=True)}"


@given(drawn=graphs(), topology=topologies(), data=st.data())
def test_planning_is_a_function(drawn, topology, data):
    wanted = data.draw(constraints(drawn.graph, topology, clears=True))
    first, second = (make_plan(drawn.graph, topology, wanted) for _ in range(2))
    assert msgspec.structs.replace(second, planning_s=first.planning_s) == first
    other = msgspec.structs.replace(second, planning_s=first.planning_s)
    assert plan_to_json(other) == plan_to_json(first)


@given(plan=plans())
def test_json_and_back(plan):
    again = plan_from_json(plan_to_json(plan))
    assert again == plan
    assert check_plan(again).is_clean


@given(plan=plans(), verbose=st.booleans())
def test_text_and_numbers(plan, verbose):
    text = plan_text(plan, verbose=verbose)
    assert max(len(line) for line in text.splitlines()) <= 80
    stats = plan_stats(plan)
    assert sum(stats.commands.values()) == len(plan.commands)
    assert stats.waste >= 1.0


@pytest.mark.parametrize("name", ALL_MUTATIONS)
@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=settings().max_examples // 2)
@given(plan=plans(min_devices=2))
def test_mutants_are_noticed(name, plan):
    for what, mutant in ALL_MUTATIONS[name](plan):
        if check_plan(mutant).is_clean:
            needless = name in SYNC_MUTATIONS and not racing_pairs(mutant)
            assert needless, f"{what} goes unnoticed in\n{plan_text(plan, verbose=True)}"
            event(f"{name}: needless")
        else:
            event(f"{name}: noticed")


@given(plan=plans(min_devices=2))
def test_renumbering_alone_changes_nothing(plan):
    again = with_commands(plan, plan.commands)
    assert again == plan
    assert check_plan(again).is_clean
