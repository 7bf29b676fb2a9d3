"""Copies of rows: what the checker says where ids, rows, waits or caches are wrong."""

import msgspec
import pytest

from ggsched.backend.probe import probe
from ggsched.passes.place import Constraints
from ggsched.plan.command import Copy, CopyRows, HostSync, Launch
from ggsched.plan.splits import Rows
from ggsched.sanitize import check_plan
from ggsched_offload.offload import ExpertPolicy
from ggsched_testing.explore import PlanProgram
from ggsched_testing.generators.expert_graphs import (
    INPUT,
    expert_graph,
    expert_homes,
    expert_values,
)
from ggsched_testing.plan_mutants import drop_events, drop_host_syncs, drop_waits, with_commands
from ggsched_testing.schedule_policy import RandomPolicy
from ggsched_testing.sim.config import SimConfig
from ggsched_testing.sim.world import SimWorld
from tests.support.verified_plans import verified_plan

GRAPH = expert_graph(2, biases=True)
TOPOLOGY = probe(SimWorld([SimConfig(), SimConfig(is_host=True, kind="cpu")]).open_all())


def planned(policy=None, graph=GRAPH, topology=TOPOLOGY):
    homes = expert_homes(graph, here=1, there=0)
    constraints = Constraints(homes, offload=policy or ExpertPolicy("on"))
    return verified_plan(graph, topology, constraints)


def with_command(plan, number, **changes):
    commands = list(plan.commands)
    commands[number] = msgspec.structs.replace(commands[number], **changes)
    return msgspec.structs.replace(plan, commands=tuple(commands))


def with_transfer(plan, number, **changes):
    transfers = list(plan.splits.transfers)
    transfers[number] = msgspec.structs.replace(transfers[number], **changes)
    splits = msgspec.structs.replace(plan.splits, transfers=tuple(transfers))
    return msgspec.structs.replace(plan, splits=splits)


def copies(plan):
    return [c for c in plan.commands if isinstance(c, CopyRows)]


def kinds(plan):
    return {f.kind for f in check_plan(plan).findings}


@pytest.mark.parametrize("ring", [1, 2, 3])
@pytest.mark.parametrize("cache", [0, 20000])
def test_plans_are_clean(ring, cache):
    for tokens in (1, 4, 64):
        graph = expert_graph(4, tokens=tokens, biases=True)
        plan = planned(ExpertPolicy("on", ring, cache), graph)
        assert check_plan(plan).is_clean
        assert check_plan(plan, advice=True).advice == ()


@pytest.mark.parametrize("policy", [ExpertPolicy("on"), ExpertPolicy("on", cache_nbytes=20000)])
@pytest.mark.parametrize("drop", [drop_waits, drop_events, drop_host_syncs])
def test_every_synchronisation_is_needed(policy, drop):
    mutants = list(drop(planned(policy)))
    assert mutants
    for what, mutant in mutants:
        assert not check_plan(mutant).is_clean, what


def test_ids_that_nobody_waited_for_are_a_race():
    plan = planned()
    sync = next(c for c in plan.commands if isinstance(c, HostSync) and c.hazard.later >= 0)
    mutant = with_commands(plan, [c for c in plan.commands if c is not sync])
    races = [f for f in check_plan(mutant).findings if f.kind == "race"]
    assert any(f.later and "the host reads the ids" in f.later.action for f in races)


def test_the_host_would_see_it():
    """The simulator agrees: without that wait some order gives other results."""
    plan = planned()
    sync = next(c for c in plan.commands if isinstance(c, HostSync) and c.hazard.later >= 0)
    mutant = with_commands(plan, [c for c in plan.commands if c is not sync])
    values = [expert_values(GRAPH, 0), expert_values(GRAPH, 0)]
    values[1][INPUT] = -values[0][INPUT]
    sound = PlanProgram(GRAPH, plan, values, topology=TOPOLOGY)
    expected = sound.expected()
    assert all(sound(RandomPolicy(seed)) == expected for seed in range(10))
    broken = PlanProgram(GRAPH, mutant, values, topology=TOPOLOGY)
    assert any(broken(RandomPolicy(seed)) != expected for seed in range(10))


def test_rows_by_the_ids_of_another_layer():
    plan = planned()
    first, *_, last = copies(plan)
    ids = plan.splits.transfers[first.transfer].rows.ids
    rows = msgspec.structs.replace(plan.splits.transfers[last.transfer].rows, ids=ids)
    mutant = with_transfer(plan, last.transfer, rows=rows)
    mutant = with_command(mutant, last.id, ids=plan.memory.regions[ids])
    found = check_plan(mutant).findings
    assert any(f.kind == "undefined" and "by other ids" in f.what for f in found)


def test_ids_in_another_place():
    plan = planned()
    c = copies(plan)[0]
    other = c.ids._replace(offset=c.ids.offset + 4, nbytes=c.ids.nbytes - 4)
    assert "region" in kinds(with_command(plan, c.id, ids=other))
    assert "region" in kinds(with_command(plan, c.id, ids=c.dst))


def test_rows_of_another_length():
    plan = planned()
    c = copies(plan)[0]
    assert "region" in kinds(with_command(plan, c.id, row_nbytes=c.row_nbytes // 2))
    assert "region" in kinds(with_command(plan, c.id, row_nbytes=0))


def test_rows_of_what_is_needed_as_a_whole():
    plan = planned(ExpertPolicy("on", ring=2), expert_graph(2, tokens=64))
    whole = next(
        c
        for c in plan.commands
        if isinstance(c, Copy)
        and plan.splits.values[plan.splits.transfers[c.transfer].dst].ring >= 0
    )
    ids = plan.memory.regions[plan.inputs[0].value]
    fake = CopyRows(
        whole.id, whole.stream, whole.src, whole.dst, ids, 4, False, None, whole.transfer
    )
    commands = [fake if c is whole else c for c in plan.commands]
    found = check_plan(msgspec.structs.replace(plan, commands=tuple(commands))).findings
    assert any("of which all is needed" in f.what for f in found)


def test_whoever_takes_no_rows_reads_bytes_that_are_not_there():
    plan = planned()
    taker = next(
        s.node
        for c in plan.commands
        if isinstance(c, Launch)
        for s in c.steps
        if plan.nodes[s.node].op == "mul_mat_id"
    )
    nodes = list(plan.nodes)
    nodes[taker] = msgspec.structs.replace(nodes[taker], op="mul_mat")
    found = check_plan(msgspec.structs.replace(plan, nodes=tuple(nodes))).findings
    assert any("of which only rows were copied" in f.what for f in found)


def test_ids_that_are_written_after_the_host_has_read_them():
    """The node that makes the ids is listed once more, between the copy and who takes rows."""
    plan = planned()
    made = copies(plan)[0].id
    storage = plan.splits.values[plan.splits.transfers[copies(plan)[0].transfer].rows.ids].storage
    maker = next(
        s
        for c in plan.commands
        if isinstance(c, Launch)
        for s in c.steps
        if plan.splits.values[plan.splits.bindings[s.node][-1]].storage == storage
    )
    after = next(c for c in plan.commands if isinstance(c, Launch) and c.id > made)
    mutant = with_command(plan, after.id, steps=(maker, *after.steps))
    found = check_plan(mutant).findings
    assert any("by ids that were written since" in f.what for f in found)


def test_a_cache_is_of_its_weight_and_holds_no_values():
    plan = planned(ExpertPolicy("on", cache_nbytes=20000))
    first, *_, last = copies(plan)
    assert first.cache
    assert last.cache
    assert "region" in kinds(with_command(plan, first.id, cache=last.cache))
    regions = list(plan.memory.regions)
    moved = plan.splits.transfers[first.transfer].dst
    regions[moved] = first.cache
    memory = msgspec.structs.replace(plan.memory, regions=tuple(regions))
    found = check_plan(msgspec.structs.replace(plan, memory=memory)).findings
    assert any(f.relation == "arena_kinds" and "is cache instead of" in f.what for f in found)


def test_unknown_ids_are_named():
    plan = planned()
    t = copies(plan)[0].transfer
    mutant = with_transfer(plan, t, rows=Rows(10**6, 4))
    assert kinds(mutant) == {"id"}
