"""Several streams per device: right, clean, no wait too many and none for memory's sake."""

import itertools
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import ggsched_opencl
from ggsched.passes.options import PlanOptions, StreamPolicy
from ggsched.plan.command import Barrier, Copy, Download, HostSync, Launch, Record, Upload, Wait
from ggsched.plan.text import plan_text
from ggsched.sanitize import check_plan
from ggsched_testing.explore import PlanProgram
from ggsched_testing.generators.strategies import graphs, seeds, values_for
from ggsched_testing.generators.topologies import constraints, topologies
from ggsched_testing.plan_mutants import (
    drop_barriers,
    drop_events,
    drop_host_syncs,
    drop_waits,
    wait_later,
    with_commands,
)
from ggsched_testing.schedule_policy import RandomPolicy
from tests.properties.test_end_to_end import run_and_compare
from tests.support.verified_plans import verified_plan

DROPS = (drop_waits, drop_barriers, drop_events, drop_host_syncs)
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


@st.composite
def machines(draw, max_devices=4):
    """Draw a machine with several streams; most of its devices have events."""
    events = draw(st.sampled_from((True, True, True, None)))
    return draw(topologies(max_devices=max_devices, events=events, max_streams=8))


@st.composite
def planned(draw, max_nodes=40, min_nodes=1, max_devices=4, alignment=1):
    """Draw (graph with its rules, topology, plan) with streams wherever nodes are independent."""
    drawn = draw(graphs(max_nodes=max_nodes, min_nodes=min_nodes))
    topology = draw(machines(max_devices))
    facts = [replace(d, alignment=max(d.alignment, alignment)) for d in topology.devices]
    topology = replace(topology, devices=tuple(facts))
    wanted = draw(constraints(drawn.graph, topology, pin_all=draw(st.booleans())))
    policy = StreamPolicy(draw(st.integers(1, 8)), True, has_copy_stream=draw(st.booleans()))
    options = PlanOptions(policy)
    plan = verified_plan(drawn.graph, topology, wanted, options)
    devices = len({s.device for s in plan.streams.streams})
    event(f"extra streams: {min(3, len(plan.streams.streams) - devices)}")
    return drawn, topology, plan


@given(made=planned())
def test_no_race_and_no_wait_for_memory(made):
    assert_sound(made[2])


def assert_sound(plan):
    """No finding in three runs in a row, and inside a run no wait that no data needs."""
    report = check_plan(plan)
    assert report.is_clean, f"{report.to_text()}\n{plan_text(plan, verbose=True)}"
    for c in plan.commands:
        if isinstance(c, Wait | Barrier | HostSync) and not c.hazard.next_run:
            ends = (c.hazard.earlier, c.hazard.later)
            if c.hazard.kind != "RAW" and min(ends) >= 0:
                earlier = set().union(*(_touched(plan, e) for e in _waited_for(plan, c)))
                later = _touched(plan, plan.commands[c.hazard.later])
                assert earlier & later, f"c{c.id} is for memory's sake alone\n{plan_text(plan)}"


def _waited_for(plan, sync):
    """The commands for which a synchronisation may be needed.

    One event is needed for the command that it was recorded after. A barrier, or the host's wait
    for a stream, is needed for any since the one before: it names the last of them.
    """
    if isinstance(sync, Wait) or (isinstance(sync, HostSync) and sync.event is not None):
        return [plan.commands[sync.hazard.earlier]]
    stream = [c for c in plan.commands[: sync.id] if c.stream == sync.stream]
    same = [c for c in stream if isinstance(c, Barrier | HostSync) and type(c) is type(sync)]
    return [c for c in stream if not same or c.id > same[-1].id]


def _touched(plan, command):
    """The values that a command reads or writes."""
    match command:
        case Launch():
            bound = (plan.splits.bindings[s.node] for s in command.steps)
            return set(itertools.chain.from_iterable(bound))
        case Upload() | Download() | Copy():
            t = plan.splits.transfers[command.transfer]
            return {t.src, t.dst}
    return set()


@settings(suppress_health_check=SLOW)
@given(made=planned(max_nodes=200, min_nodes=60), seed=seeds())
def test_large_graphs(made, seed):
    """Up to 200 nodes: sound, and some of the waits, drawn by the seed, are all needed."""
    plan = made[2]
    assert_sound(plan)
    syncs = [c for c in plan.commands if isinstance(c, Wait | Barrier | HostSync)]
    for gone in Random(seed).sample(syncs, min(4, len(syncs))):
        mutant = with_commands(plan, [c for c in plan.commands if c is not gone])
        assert not check_plan(mutant).is_clean, f"nobody missed c{gone.id}\n{plan_text(plan)}"


@given(made=planned(max_nodes=16))
def test_every_wait_is_needed(made):
    _, _, plan = made
    for drop in DROPS:
        for what, mutant in drop(plan):
            assert not check_plan(mutant).is_clean, f"{what}: nobody missed it\n{plan_text(plan)}"


@given(made=planned(max_nodes=16))
def test_waits_sit_as_late_as_they_may(made):
    _, _, plan = made
    for what, mutant in wait_later(plan):
        assert not check_plan(mutant).is_clean, f"{what}: nobody missed it\n{plan_text(plan)}"


@given(made=planned())
def test_one_event_serves_all_its_waiters(made):
    _, _, plan = made
    records = [c for c in plan.commands if isinstance(c, Record)]
    for a, b in itertools.pairwise(sorted(records, key=lambda c: (c.stream, c.id))):
        between = plan.commands[a.id + 1 : b.id]
        assert a.stream != b.stream or any(c.stream == a.stream for c in between), plan_text(plan)
    waited = [c.event for c in plan.commands if isinstance(c, Wait | HostSync)]
    assert {c.event for c in records} == {e for e in waited if e is not None}


@settings(suppress_health_check=SLOW, max_examples=settings().max_examples // 4)
@given(made=planned(max_nodes=200, min_nodes=60), seed=seeds())
def test_results_of_large_graphs_on_cpu(made, seed):
    drawn, topology, plan = made
    run_and_compare(drawn, topology, plan, seed)


@given(made=planned(max_nodes=24), seed=seeds())
def test_results_on_cpu(made, seed):
    drawn, topology, plan = made
    run_and_compare(drawn, topology, plan, seed)


@pytest.mark.opencl
@settings(max_examples=settings().max_examples // 4)
@given(made=planned(max_nodes=12, max_devices=1, alignment=16), seed=seeds())
def test_results_on_opencl(made, seed):
    drawn, topology, plan = made
    run_and_compare(drawn, topology, plan, seed, ggsched_opencl.open_backend)


@given(made=planned(max_nodes=16), seed=seeds())
def test_results_under_hostile_schedules(made, seed):
    drawn, topology, plan = made
    values = [values_for(drawn, seed + run) for run in range(3)]
    weights = {t.name for t in drawn.graph.tensors if t.role.value == "weight"}
    for later in values[1:]:
        later.update({n: values[0][n] for n in weights})
    program = PlanProgram(drawn.graph, plan, values, topology=topology)
    expected = program.expected()
    for trial in range(3):
        assert program(RandomPolicy(seed + trial)) == expected


@given(made=planned(max_nodes=24), limit=st.integers(1, 8))
def test_the_gate_never_predicts_a_loss(made, limit):
    drawn, topology, _ = made
    options = PlanOptions(StreamPolicy(limit))
    plan = verified_plan(drawn.graph, topology, options=options)
    for gain in plan.streams.gains:
        assert gain.is_taken <= (gain.concurrent_s < gain.sequential_s)
