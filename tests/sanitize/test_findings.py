"""Findings about ids, regions and events, by planted defects; without them the plan is clean."""

import msgspec
import pytest

from ggsched.plan.memory import Region
from ggsched.plan.streams import Streams, StreamSpec
from ggsched.sanitize import check_plan
from ggsched_testing.plan_builder import PlanWriter, fake_device

N = 16


def writer(**facts):
    w = PlanWriter(fake_device("gpu:0", **facts), fake_device("gpu:1", **facts))
    return w, w.stream(0), w.stream(1)


def kinds(plan):
    return [f.kind for f in check_plan(plan).findings]


def only(plan):
    findings = check_plan(plan).findings
    assert len(findings) == 1, check_plan(plan).to_text()
    return findings[0]


def pipeline(w, q):
    """An input through one launch to an output, in order."""
    arena = w.arena("compute", 0, 4 * N)
    x = w.host_input("x", N)
    a, y = w.value(arena, 0, N, of=x), w.value(arena, N, N)
    out = w.host_output("y", N, of=y)
    w.transfer(q, x, a)
    w.launch(q, w.node("rw", a, y))
    w.transfer(q, y, out)
    w.sync(q)
    return w.plan()


def changed(plan, command, **fields):
    commands = list(plan.commands)
    commands[command] = msgspec.structs.replace(commands[command], **fields)
    return msgspec.structs.replace(plan, commands=tuple(commands))


@pytest.fixture
def plan():
    w, q, _ = writer()
    return pipeline(w, q)


def test_nothing_is_found_in_order(plan):
    assert kinds(plan) == []


def test_empty_plan_is_clean():
    assert kinds(PlanWriter().plan()) == []


# --- ids and regions -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "fields"),
    [(0, {"id": 7}), (1, {"stream": 9}), (1, {"stream": -1}), (0, {"transfer": 5})],
)
def test_unknown_ids(plan, command, fields):
    assert "id" in kinds(changed(plan, command, **fields))


def test_unknown_value_of_an_input(plan):
    slot = msgspec.structs.replace(plan.inputs[0], value=99)
    assert kinds(msgspec.structs.replace(plan, inputs=(slot,))) == ["id"]


def test_unknown_node(plan):
    step = plan.commands[1].steps[0]._replace(node=4)
    assert kinds(changed(plan, 1, steps=(step,))) == ["id"]


def test_wrong_number_of_operands(plan):
    step = plan.commands[1].steps[0]._replace(modes="rrw")
    assert kinds(changed(plan, 1, steps=(step,))) == ["id"]


def test_unknown_device(plan):
    streams = Streams((StreamSpec(0, 5), StreamSpec(1, 1)), (0,), (0, 0))
    assert kinds(msgspec.structs.replace(plan, streams=streams)) == ["id"]


def test_unknown_binding(plan):
    splits = msgspec.structs.replace(plan.splits, bindings=((0, 77),))
    assert kinds(msgspec.structs.replace(plan, splits=splits)) == ["id"]


@pytest.mark.parametrize(
    "region", [Region(1, 3 * N, 2 * N), Region(1, -1, N), Region(1, 0, -1), Region(55, 0, N)]
)
def test_region_outside_its_arena(plan, region):
    assert set(kinds(changed(plan, 0, dst=region))) == {"region"}
    step = plan.commands[1].steps[0]
    step = step._replace(operands=(region, step.operands[1]))
    assert kinds(changed(plan, 1, steps=(step,))) == ["region"]


def test_copy_onto_itself():
    w, q, _ = writer()
    arena = w.arena("compute", 0, 4 * N)
    a = w.value(arena, 0, N)
    b = w.value(arena, N // 2, N, of=a)
    w.launch(q, w.node("w", a))
    w.transfer(q, a, b)
    first, second = check_plan(w.plan()).findings
    assert "onto themselves" in first.what
    assert second.relation == "value_homes"  # a replica beside its home


def test_transfer_that_fills_a_part(plan):
    src, dst = plan.commands[0].src, plan.commands[0].dst
    half = changed(plan, 0, src=src._replace(nbytes=8), dst=dst._replace(nbytes=8))
    assert kinds(half) == ["region", "region", "undefined"]  # both ends are too short


def test_transfer_of_the_wrong_bytes():
    w, q, _ = writer()
    x = w.host_input("x", 2 * N)
    arena = w.arena("compute", 0, 4 * N)
    second = w.value(arena, 0, N, of=x, start=N)
    w.transfer(q, x, second)
    w.sync(q)
    plan = w.plan()
    assert kinds(plan) == []
    wrong = changed(plan, 0, src=plan.commands[0].src._replace(offset=0))
    assert "reads a0[0:16] instead of v0 at a0[16:32]" in only(wrong).what


def test_transfer_that_fills_elsewhere(plan):
    moved = changed(plan, 0, dst=plan.commands[0].dst._replace(offset=2 * N))
    assert "fills a0[32:48] instead of v1 at a0[0:16]" in check_plan(moved).findings[0].what


def test_transfer_of_different_lengths(plan):
    longer = changed(plan, 0, src=plan.commands[0].src._replace(nbytes=8))
    assert "reads a1[0:8] instead of v0 at a1[0:16]" in check_plan(longer).findings[0].what


def test_transfer_of_another_storage(plan):
    transfers = (msgspec.structs.replace(plan.splits.transfers[0], dst=2),)
    splits = msgspec.structs.replace(plan.splits, transfers=transfers + plan.splits.transfers[1:])
    finding = check_plan(msgspec.structs.replace(plan, splits=splits)).findings[0]
    assert finding.what == "c0 fills v2 from v0, which does not hold it"


def test_transfer_by_a_bystander(plan):
    finding = check_plan(changed(plan, 0, stream=1)).findings[0]
    assert (finding.kind, finding.command) == ("region", 0)
    assert finding.what == "c0 (CPY-1) runs on gpu:1 instead of gpu:0"


def test_launch_on_memory_of_another_device(plan):
    assert "region" in kinds(changed(plan, 1, stream=1))


def test_operand_outside_its_value(plan):
    step = plan.commands[1].steps[0]
    step = step._replace(operands=(Region(0, 2 * N, N), step.operands[1]))
    assert "region" in kinds(changed(plan, 1, steps=(step,)))


@pytest.mark.parametrize("which", ["reads", "writes"])
def test_launch_that_declares_too_little(plan, which):
    assert kinds(changed(plan, 1, **{which: ()})) == ["declared"]


def test_launch_may_declare_more(plan):
    more = (Region(plan.commands[1].reads[0].arena, 0, 4 * N),)
    assert kinds(changed(plan, 1, reads=more)) == []


# --- events -------------------------------------------------------------------------------------


def test_wait_before_record():
    w, q, r = writer()
    w.wait(q, 0)
    w.record(r)
    assert only(w.plan()).what == "c0 waits for event 0, which is not recorded before"


def test_host_sync_of_unrecorded_event():
    w, q, _ = writer()
    w.sync(q, 3)
    assert kinds(w.plan()) == ["event", "progress"]


def test_event_recorded_twice():
    w, q, _ = writer()
    w.record(q)
    w.record(q)
    assert "records event 0 again" in only(changed(w.plan(), 1, event=0)).what


def test_second_record_does_not_count():
    """Whoever trusts the second record of an event gets a finding, and one for the race."""
    w, q, r = writer()
    shared = w.arena("compute", 0, N)
    a, b = w.value(shared, 0, N), w.value(shared, 0, N)
    w.record(q)
    w.launch(q, w.node("w", a))
    w.record(q)
    w.wait(r, 0)
    w.launch(r, w.node("w", b))
    assert set(kinds(changed(w.plan(), 2, event=0))) >= {"event", "race"}


def test_events_of_a_device_without_any():
    w, q, r = writer(has_events=False)
    w.record(q)
    w.wait(r, 0)
    assert kinds(w.plan()) == ["event", "event"]


def test_barrier_of_a_device_without_any():
    w, q, _ = writer(copy_order="host")
    w.barrier(q)
    assert only(w.plan()).kind == "event"
