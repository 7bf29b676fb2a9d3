"""Devices that share layers, when one of them fails, hangs, is lost or slow; and in every order.

A sum over devices is copies, events and additions of each of them. A device that fails in the
middle lets all others end with an error, within the timeout; after ``reset`` all is well again.
"""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from ggsched.config import Settings
from ggsched.errors import DeviceFault, GgschedError, SyncTimeout, UsageError
from ggsched.ir.join import join_graphs
from ggsched.passes import Constraints
from ggsched.passes.memory.rings import Slots
from ggsched.sanitize import check_plan
from ggsched.scheduler import Scheduler
from ggsched.topology.model import CopyPath, Topology
from ggsched_shard import rewrite
from ggsched_testing.explore import explore
from ggsched_testing.explore.plans import PlanProgram
from ggsched_testing.oracle.interpreter import run_oracle
from ggsched_testing.plan_mutants import ALL_MUTATIONS
from ggsched_testing.sim import InjectedFaults, SimConfig, SimWorld
from ggsched_testing.sim.costs import Costs
from tests.run.shared_layers import inputs, placement, shared
from tests.support.verified_plans import verified_plan

COUNT = 3
SETTINGS = Settings(timeout_s=5)
GRAPH, NEW, WEIGHTS, PARTS = shared(COUNT)
_, IN_PLACE, _, _ = shared(COUNT, peers=True)
"""The same, where sums, and what stands between them, are one launch."""


def expected(runs, graph=GRAPH, weights=WEIGHTS):
    states = {}
    return [
        next(iter(run_oracle(graph, {**inputs(r), **weights}, states=states).values()))
        for r in range(runs)
    ]


WANTED = Constraints(reads_peers=True)


def world(peers=False, *, configs=None, faults=None):
    configs = configs or [SimConfig(reads_peers=peers)] * COUNT
    return SimWorld(configs, faults=faults or InjectedFaults())


def opened(w, timeout_s=5.0):
    return Scheduler(
        w.open_all(), weights=PARTS, settings=Settings(timeout_s=timeout_s),
        placement=placement(COUNT),
    )  # fmt: skip


def new_graph(peers):
    return IN_PLACE if peers else NEW


def assert_right(scheduler, graph=NEW, wanted=None):
    for run, array in enumerate(wanted or expected(2)):
        (got,) = scheduler.run(graph, inputs(run), WANTED).values()
        np.testing.assert_allclose(got, array, rtol=1e-5, atol=1e-6)


def commands_of_a_run(peers):
    w = world(peers)
    with opened(w) as scheduler:
        scheduler.run(new_graph(peers), inputs(0), WANTED)
        first = w.enqueued
        scheduler.run(new_graph(peers), inputs(1), WANTED)
        return [(peers, number) for number in range(first, w.enqueued)]


COMMANDS = commands_of_a_run(False) + commands_of_a_run(True)


def run_on(scheduler, peers):
    for run in range(1, 4):
        scheduler.run(new_graph(peers), inputs(run), WANTED)


FAULTS = ("refuse", "fail", "lose")


@pytest.mark.parametrize(
    ("peers", "number", "kind"),
    [
        pytest.param(peers, n, kind, marks=() if n % len(FAULTS) == i else pytest.mark.slow)
        for peers, n in COMMANDS
        for i, kind in enumerate(FAULTS)
    ],
)
def test_a_fault_at_every_command(peers, number, kind):
    w = world(peers)
    scheduler = opened(w)
    scheduler.run(new_graph(peers), inputs(0), WANTED)
    w.faults = InjectedFaults(**{kind: frozenset({number})})
    with pytest.raises((DeviceFault, UsageError)) as info:
        run_on(scheduler, peers)
    assert f"c{number} " in str(info.value) or "is lost" in str(info.value)
    w.faults = InjectedFaults()
    scheduler.reset(w.open_all() if kind == "lose" else None)
    assert_right(scheduler, new_graph(peers))
    scheduler.close()


@pytest.mark.parametrize(("peers", "number"), COMMANDS[::4])
def test_a_participant_that_hangs_is_an_error_for_all(peers, number):
    w = world(peers)
    scheduler = opened(w, timeout_s=0.05)
    scheduler.run(new_graph(peers), inputs(0), WANTED)
    w.faults = InjectedFaults(hang=frozenset({number}))
    with pytest.raises(GgschedError) as info:
        run_on(scheduler, peers)
    assert isinstance(info.value, SyncTimeout | DeviceFault)
    w.faults = InjectedFaults()
    scheduler.reset(w.open_all())
    assert_right(scheduler, new_graph(peers))
    scheduler.close()


@pytest.mark.parametrize("peers", [False, True])
@pytest.mark.parametrize("slow", range(COUNT))
def test_a_participant_that_is_a_hundred_times_slower(slow, peers):
    lame = Costs(launch_s=5e-4, node_s=2e-4, transfer_s=1e-3, memory_bytes_per_s=1e9)
    configs = [
        SimConfig(costs=lame if i == slow else None, reads_peers=peers) for i in range(COUNT)
    ]
    with opened(world(configs=configs)) as scheduler:
        assert_right(scheduler, new_graph(peers))


def test_devices_without_a_path_to_each_other():
    """Summands go over the host."""
    configs = [SimConfig(copies=frozenset(), waits="host")] * COUNT
    with opened(world(configs=configs)) as scheduler:
        plan = scheduler.plan(NEW)
        assert not any(type(c).__name__ == "Copy" for c in plan.commands)
        assert_right(scheduler)


@pytest.mark.parametrize("copy_order", ["stream", "barrier", "host"])
@pytest.mark.parametrize("has_events", [True, False])
@pytest.mark.parametrize("peers", [False, True])
def test_other_kinds_of_devices(copy_order, has_events, peers):
    how = {"copy_order": copy_order, "has_events": has_events, "reads_peers": peers}
    configs = [SimConfig(**how)] * COUNT
    with opened(world(configs=configs)) as scheduler:
        assert_right(scheduler, new_graph(peers))


def test_sums_of_many_rows_are_added_up_in_parts(monkeypatch):
    """Each device adds up some rows and hands them out: other plans, the same bits."""
    with opened(world()) as scheduler:
        (direct,) = scheduler.run(NEW, inputs(0), WANTED).values()
        sent = scheduler.plan(NEW)
    monkeypatch.setattr(rewrite, "SCATTERED_NBYTES", 0)
    _, new, _, _ = shared(COUNT)
    assert any(n.op == "concat" for n in new.nodes)
    with opened(world()) as scheduler:
        plan = scheduler.plan(new)
        assert check_plan(plan).is_clean
        (scattered,) = scheduler.run(new, inputs(0)).values()
        scheduler.clear_states()
        assert_right(scheduler, new)
    np.testing.assert_array_equal(scattered, direct)
    # Of each exchange p (p - 1) sums become twice as many parts of 1 / p.
    assert copied(plan) < copied(sent)


def copied(plan):
    """Return the bytes that go from device to device, the input apart."""
    nbytes = [c.effects.traffic.nbytes for c in plan.commands if type(c).__name__ == "Copy"]
    return sum(nbytes)


# --- every order, and broken plans ----------------------------------------------------------


def machine(peers=False, count=2):
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    facts = tuple(SimConfig(reads_peers=peers).facts(i) for i in range(count))
    return Topology(
        facts, {(a, b): CopyPath(a, b, a) for a, b in pairs}, dict.fromkeys(pairs, "native")
    )


def small(peers):
    _, new, _, parts = shared(2, layers=1, peers=peers)
    plan = verified_plan(new, machine(peers), WANTED, placement=placement(2))
    return new, parts, plan


def program_of(new, parts, plan, peers):
    values = [{**inputs(r), **parts} for r in range(2)]
    return PlanProgram(new, plan, values, topology=machine(peers))


@pytest.mark.parametrize("peers", [False, True])
def test_every_order_computes_the_same(peers):
    new, parts, plan = small(peers)
    assert check_plan(plan).is_clean
    program = program_of(new, parts, plan, peers)
    found = explore(program, limit=4000)
    assert found.is_deterministic, found.to_text()
    assert found.is_complete
    assert found.outcomes[0].observation == program.expected()


def two_at_once(peers):
    """Return two micro-batches as one graph, each on a stream of its own of both devices."""
    _, new, _, parts = shared(2, layers=1, peers=peers)
    joined = join_graphs([new, new])
    wanted = WANTED.with_slots(Slots(2, joined.firsts, lanes=2))
    graph = joined.graph
    plan = verified_plan(graph, machine(peers), wanted, placement=placement(2))
    given = [
        {joined.input_name(k, n): a for k in range(2) for n, a in inputs(2 * r + k).items()}
        for r in range(2)
    ]
    return graph, plan, [{**values, **parts} for values in given]


@pytest.mark.parametrize("peers", [False, True])
def test_two_micro_batches_at_once_compute_the_same_in_every_order(peers):
    graph, plan, values = two_at_once(peers)
    assert len(plan.streams.streams) == 4
    assert check_plan(plan, graph=graph).is_clean
    program = PlanProgram(graph, plan, values, topology=machine(peers))
    found = explore(program, limit=400, shrinks=False)
    assert found.is_deterministic, found.to_text()
    assert found.is_complete
    assert found.outcomes[0].observation == program.expected()


@pytest.mark.parametrize("peers", [False, True])
def test_a_wait_less_between_two_micro_batches_is_found(peers):
    """What one leaves in the cache is read and written by the other."""
    _, plan, _ = two_at_once(peers)
    mutants = [
        mutant for name in ("drop_waits", "drop_events") for mutant in ALL_MUTATIONS[name](plan)
    ]
    assert mutants
    for what, mutant in mutants:
        assert not check_plan(mutant).is_clean, what


@pytest.mark.parametrize("peers", [False, True])
def test_a_sum_without_one_of_its_waits_is_found(peers):
    """Summands that are read early, and summands that are overwritten before all have them."""
    _, _, plan = small(peers)
    kinds = set()
    for name in ("drop_waits", "drop_host_syncs", "drop_events"):
        for what, mutant in ALL_MUTATIONS[name](plan):
            report = check_plan(mutant)
            kinds |= {f.kind for f in report.findings}
            assert not report.is_clean, what
    assert "race" in kinds


@pytest.mark.parametrize("peers", [False, True])
@pytest.mark.parametrize("name", sorted(ALL_MUTATIONS))
def test_broken_plans_are_found_or_shown_to_be_harmless(name, peers):
    new, parts, plan = small(peers)
    for what, mutant in list(ALL_MUTATIONS[name](plan))[:12]:
        if not check_plan(mutant).is_clean:
            continue
        program = program_of(new, parts, mutant, peers)
        found = explore(program, limit=400, stop_at=2, shrinks=False)
        assert found.is_deterministic, what
        assert found.outcomes[0].observation == program.expected(), what


# --- reading peers --------------------------------------------------------------------------


def test_what_is_read_where_it_lies_is_not_copied():
    """Summands are read once by each device: no copy of them, and no memory for it."""
    with opened(world(peers=False)) as scheduler:
        copying = scheduler.plan(NEW, WANTED)
    with opened(world(peers=True)) as scheduler:
        reading = scheduler.plan(IN_PLACE, WANTED)
        unasked = scheduler.plan(NEW)
    assert copied(reading) == 0 < copied(copying) == copied(unasked)
    values = reading.splits.values
    far = {
        (reading.nodes[n].op, values[v].device)
        for n, bound in enumerate(reading.splits.bindings)
        for v in bound
        if values[v].device != reading.placement.choices[n].device
    }
    assert {op for op, _ in far} == {"add"}


def test_a_plan_that_writes_to_a_peer_is_found():
    """Devices read each other, and nothing more (COL-1)."""
    _, _, plan = small(peers=True)
    arenas = plan.memory.arenas
    found = 0
    for c in plan.commands:
        for k, step in enumerate(getattr(c, "steps", ())):
            theirs = [
                r
                for r in step.operands[:-1]
                if arenas[r.arena].device != arenas[step.operands[-1].arena].device
            ]
            if not theirs:
                continue
            operands = (*step.operands[:-1], theirs[0])
            steps = (*c.steps[:k], step._replace(operands=operands), *c.steps[k + 1 :])
            broken = msgspec.structs.replace(c, steps=steps, writes=(theirs[0],))
            commands = [broken if d is c else d for d in plan.commands]
            mutant = msgspec.structs.replace(plan, commands=tuple(commands))
            kinds = {f.what for f in check_plan(mutant).findings if f.kind == "region"}
            assert any("not in its memory" in what for what in kinds)
            found += 1
    assert found


def test_a_plan_for_peers_is_refused_on_devices_that_are_none():
    """The facts of the devices decide, in the plan and at the device."""
    _, _, plan = small(peers=True)
    bare = tuple(replace(facts, reads_peers=False) for facts in plan.devices)
    findings = check_plan(msgspec.structs.replace(plan, devices=bare)).findings
    assert {f.kind for f in findings} == {"region"}
