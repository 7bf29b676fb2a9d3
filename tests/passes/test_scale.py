"""Plans over many machines: sizes and work grow with devices x micro-batches. Nothing is timed."""

import sys
from functools import cache

import pytest

from ggsched.passes import make_plan
from ggsched.passes.pipeline import make_schedule
from ggsched.plan.parts import Send
from ggsched.sanitize import check_plan
from ggsched_cluster.check_parts import check_parts
from ggsched_cluster.machines import cut_by_machine
from ggsched_testing.generators.clusters import one_machine, several_machines, staged_model

GROUP = 2


@cache
def problem(stages, batches):
    """Return graph, topology and constraints, and the machine of each device."""
    joined, wanted = staged_model(stages, GROUP).micro_batches(batches)
    machines = several_machines(one_machine(GROUP), stages)
    return (joined.graph, machines.topology, wanted), machines.machine_of


@cache
def made(stages, batches):
    arguments, machine_of = problem(stages, batches)
    plan = make_plan(*arguments)
    return plan, cut_by_machine(plan, machine_of)


def sizes(stages, batches):
    plan, parts = made(stages, batches)
    messages = sum(isinstance(c, Send) for part in parts for c in part.commands)
    return len(plan.commands), messages, len(plan.memory.arenas), len(plan.streams.streams)


def calls(function, *arguments):
    """Return how many functions were called, those of C included."""
    count = 0

    def see(frame, what, argument):
        nonlocal count
        count += what != "return"

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        function(*arguments)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("steps", [((4, 3), (6, 3), (8, 3)), ((3, 4), (3, 6), (3, 8))])
def test_plans_grow_by_the_same_with_each_machine_and_each_micro_batch(steps):
    one, two, three = (sizes(*step) for step in steps)
    assert [b - a for a, b in zip(one, two, strict=True)] == [
        b - a for a, b in zip(two, three, strict=True)
    ]


def test_plans_and_parts_of_many_machines_are_clean():
    plan, parts = made(8, 3)
    assert len(parts) == 8
    assert check_plan(plan).is_clean
    assert check_parts(plan, parts, problem(8, 3)[1]).is_clean


@pytest.mark.parametrize("stages", [2, 16])
def test_a_lane_knows_more_than_the_host_of_its_own_machine_only(stages):
    """So that a clock has entries for the devices of a machine, however many machines there are."""
    arguments, machine_of = problem(stages, 2)
    schedule = make_schedule(*arguments)
    device_of = [s.device for s in schedule.streams.streams]
    for clock in schedule.data_sync.clocks():
        if clock.lane == schedule.order.lanes.host:
            continue
        lanes = [lane for lane in clock.beyond if clock.host.at(clock.version, lane) < clock.item]
        own = machine_of[device_of[clock.lane]]
        assert {machine_of[device_of[lane]] for lane in lanes} <= {own}
        assert len(clock.beyond) <= 2 * GROUP


@pytest.mark.parametrize("what", ["shard", "plan", "cut", "check", "check parts"])
def test_work_for_each_command_does_not_grow(what):
    """Sixteen machines take as many calls for each command as two (within a tenth)."""
    found = []
    for stages in (2, 16):
        arguments, machine_of = problem(stages, 2)
        plan, parts = made(stages, 2)
        count = {
            "shard": lambda s=stages: calls(staged_model, s, GROUP),
            "plan": lambda a=arguments: calls(make_plan, *a),
            "cut": lambda p=plan, m=machine_of: calls(cut_by_machine, p, m),
            "check": lambda p=plan: calls(check_plan, p),
            "check parts": lambda p=plan, q=parts, m=machine_of: calls(check_parts, p, q, m),
        }[what]()
        found.append(count / len(plan.commands))
    assert found[1] <= 1.1 * found[0]
