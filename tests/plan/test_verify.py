"""Every invariant of every artifact, by breaking it."""

import msgspec
import pytest

from ggsched.errors import PlanError
from ggsched.plan.command import (
    Copy,
    Download,
    HostSync,
    Launch,
    Record,
    Upload,
    Wait,
)
from ggsched.plan.effects import Hazard
from ggsched.plan.memory import Life, Region
from ggsched.plan.placement import PlacementChoice
from ggsched.plan.splits import HOST
from ggsched.plan.streams import StreamSpec
from ggsched.plan.verify import (
    verify_memory,
    verify_placement,
    verify_splits,
    verify_streams,
)
from ggsched.sanitize import check_plan
from ggsched.topology import Topology
from ggsched_testing.plan_builder import PlanWriter, fake_device
from tests.plan.examples import CPU, GPU, example, machine

E = example()
replace = msgspec.structs.replace


def put(items, i, **fields):
    """Return a tuple with fields of one item changed."""
    out = list(items)
    item = out[i]
    out[i] = item._replace(**fields) if hasattr(item, "_replace") else replace(item, **fields)
    return tuple(out)


def test_sound_artifacts_pass():
    verify_placement(E.graph, E.topology, E.placement)
    verify_splits(E.graph, E.topology, E.placement, E.splits)
    verify_streams(E.topology, E.splits, E.streams)
    verify_memory(E.graph, E.topology, E.splits, E.memory, E.lives)
    assert check_plan(E.plan).is_clean


# --- placement -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (replace(E.placement, choices=E.placement.choices[1:]), "3 choices for 4 nodes"),
        (
            replace(E.placement, choices=(PlacementChoice(7, "pin"), *E.placement.choices[1:])),
            "n0 mul_mat 'blk.0.up': placed on d7",
        ),
        (replace(E.placement, homes={}), "writes a storage from gpu:0"),
        (
            replace(E.placement, choices=put(E.placement.choices, 2, device=GPU)),
            "n2 cpy 'blk.0.keep': writes a storage from gpu:0: the home of t2 is 1",
        ),
        (
            replace(E.placement, homes={**E.placement.homes, 99: 0}),
            "t99: home of a tensor",
        ),
        (replace(E.placement, homes={**E.placement.homes, 1: 5}), "its home is d5"),
    ],
)
def test_placement(broken, message):
    with pytest.raises(PlanError) as info:
        verify_placement(E.graph, E.topology, broken)
    assert message in info.value.one_line()


def test_placement_on_a_device_that_cannot():
    devices = (E.topology.devices[0], fake_device("cpu:0", ops=frozenset()))
    with pytest.raises(
        PlanError, match="n2 cpy 'blk.0.keep': placed on cpu:0: it does not support"
    ):
        verify_placement(E.graph, Topology(devices), E.placement)


# --- splits ------------------------------------------------------------------------------------


def value_id(kind, device=HOST, bound=""):
    return next(
        v.id for v in E.splits.values if (v.kind, v.device, v.bound) == (kind, device, bound)
    )


KV = value_id("home", CPU, "kv")
WEIGHT = value_id("home", GPU, "w")
REPLICA = value_id("replica", CPU)
INPUT = value_id("input")
OUTPUT = value_id("output")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("splits", E.splits.splits[:2], "the splits end at n3 of 4"),
        ("splits", E.splits.splits[1:], "s0: id 1, nodes [2, 3)"),
        ("splits", put(E.splits.splits, 1, device=GPU), "s1: on d0: n2 is placed on 1"),
        ("splits", put(E.splits.splits, 2, end=9), "s2: ends at n9, beyond the graph"),
        ("values", put(E.splits.values, 1, id=5), "v1: id 5"),
        ("values", put(E.splits.values, KV, end=129), "bytes [0, 129) of t2"),
        ("values", put(E.splits.values, KV, bound=""), "bound to '' instead of 'kv'"),
        ("values", put(E.splits.values, KV, device=7), "on d7, no device"),
        ("values", put(E.splits.values, KV, device=GPU), "a storage has one home"),
        ("values", put(E.splits.values, REPLICA, device=GPU), "a replica beside the home"),
        ("values", put(E.splits.values, INPUT, device=GPU), "input on d0, bound to ''"),
        ("values", put(E.splits.values, INPUT, end=64), "input slot of input 'x'"),
        (
            "values",
            put(E.splits.values, OUTPUT, bound="kv"),
            "host memory, bound to 'kv'",
        ),
        ("transfers", put(E.splits.transfers, 0, id=3), "transfer 0: id 3"),
        ("transfers", put(E.splits.transfers, 0, src=99), "from value 99"),
        ("transfers", put(E.splits.transfers, 0, before=9), "before s9: out of order"),
        ("transfers", put(E.splits.transfers, 1, before=0, src=KV), "is not within"),
        ("transfers", put(E.splits.transfers, 0, by=CPU), "executed on d1"),
        ("transfers", put(E.splits.transfers, 0, by=HOST), "executed in host memory"),
        ("transfers", put(E.splits.transfers, 1, by=CPU), "a copy by d1: there is no such path"),
        ("transfers", put(E.splits.transfers, 1, src=REPLICA, dst=REPLICA), "from value"),
        ("transfers", E.splits.transfers[:1], "not filled"),
        ("bindings", E.splits.bindings[:3], "3 bindings for 4 nodes"),
        ("bindings", ((0, 1), *E.splits.bindings[1:]), "2 values bound"),
        ("bindings", ((0, 1, 99), *E.splits.bindings[1:]), "bound to v99"),
        ("bindings", ((INPUT, 1, 2), *E.splits.bindings[1:]), "does not hold t1"),
    ],
)
def test_splits(field, value, message):
    with pytest.raises(PlanError) as info:
        verify_splits(E.graph, E.topology, E.placement, replace(E.splits, **{field: value}))
    assert message in info.value.one_line()


def test_binding_on_another_device():
    bindings = list(E.splits.bindings)
    x_on_gpu = bindings[0][1]
    bindings[0] = (bindings[0][0], INPUT, bindings[0][2])
    assert E.splits.values[x_on_gpu].device == GPU
    with pytest.raises(PlanError, match="lies in host memory"):
        verify_splits(E.graph, E.topology, E.placement, replace(E.splits, bindings=tuple(bindings)))


def test_copy_without_a_path():
    with pytest.raises(PlanError, match="there is no such path"):
        verify_splits(E.graph, machine(paths=False), E.placement, E.splits)


# --- streams -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("streams", (StreamSpec(1, 0), StreamSpec(1, 1)), "q0: has the id 1"),
        ("streams", (StreamSpec(0, 0), StreamSpec(1, 9)), "q1: on d9, no device"),
        ("streams", (StreamSpec(0, 0), StreamSpec(1, 0)), "q1 of another device"),
        ("streams", tuple(StreamSpec(i, 0) for i in range(9)), "gpu:0: 9 streams of 8"),
        ("of_node", (0, 1), "2 streams for 4 nodes"),
        ("of_node", (0, 0, 0, 0), "on q0 of another device"),
        ("of_node", (0, 4, 0, 0), "on q4, which does not exist"),
        ("of_transfer", (), "0 streams for"),
    ],
)
def test_streams(field, value, message):
    with pytest.raises(PlanError) as info:
        verify_streams(E.topology, E.splits, replace(E.streams, **{field: value}))
    assert message in info.value.one_line()


# --- memory ------------------------------------------------------------------------------------

COMPUTE = next(a.id for a in E.memory.arenas if a.kind == "compute" and a.device == GPU)
HERE = [v.id for v in E.splits.values if E.memory.regions[v.id].arena == COMPUTE]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("arenas", put(E.memory.arenas, 0, id=4), "a0: has the id 4"),
        ("arenas", put(E.memory.arenas, 0, alignment=3), "aligned to 3"),
        ("arenas", put(E.memory.arenas, 0, alignment=4), "aligned to 4: gpu:0 aligns to 16"),
        ("arenas", put(E.memory.arenas, 0, name=""), "weight arena named ''"),
        ("arenas", put(E.memory.arenas, 0, name="v"), "does not fill an arena of its own"),
        ("arenas", put(E.memory.arenas, COMPUTE, device=9), "on device 9"),
        ("arenas", put(E.memory.arenas, COMPUTE, device=CPU), "in compute"),
        ("arenas", put(E.memory.arenas, COMPUTE, nbytes=0), "it has 0"),
        ("regions", E.memory.regions[1:], "values"),
        ("regions", put(E.memory.regions, HERE[0], nbytes=8), "8 bytes instead of"),
        ("regions", put(E.memory.regions, HERE[0], arena=99), "in arena 99"),
        ("regions", put(E.memory.regions, HERE[0], offset=-16), "bytes [-16"),
        ("regions", put(E.memory.regions, HERE[0], offset=8), "not aligned"),
        ("regions", put(E.memory.regions, WEIGHT, arena=COMPUTE), "does not fill an arena"),
        ("overwrites", {HERE[0]: 99}, "overwrites 99"),
        ("overwrites", {HERE[0]: WEIGHT}, "whose bytes it does not lie in"),
        ("lower_bound", {0: 16}, "lower bound of 16"),
        ("lower_bound", {COMPUTE: 1 << 40}, "lower bound"),
        ("hinted_bound", {COMPUTE: 1 << 40}, "bound with hints"),
        ("hinted_bound", {COMPUTE: 0}, "bound with hints"),
    ],
)
def test_memory(field, value, message):
    broken = replace(E.memory, **{field: value})
    with pytest.raises(PlanError) as info:
        verify_memory(E.graph, E.topology, E.splits, broken, E.lives)
    assert message in info.value.one_line()


def test_two_values_alive_on_the_same_bytes():
    first, second = (HERE[0], HERE[1])
    regions = put(E.memory.regions, second, offset=E.memory.regions[first].offset)
    lives = list(E.lives)
    lives[first], lives[second] = Life(0, 5), Life(3, 8)
    memory = replace(E.memory, regions=regions, overwrites={})
    with pytest.raises(PlanError, match="shares bytes with"):
        verify_memory(E.graph, E.topology, E.splits, memory, lives)


def test_takeover_needs_the_old_value_to_be_dead():
    taken = next(iter(E.memory.overwrites.items()))
    lives = list(E.lives)
    lives[taken[1]] = Life(0, 99)
    with pytest.raises(PlanError, match=f"overwrites v{taken[1]}, which lives until 99"):
        verify_memory(E.graph, E.topology, E.splits, E.memory, lives)


def test_takeover_that_is_not_noted():
    memory = replace(E.memory, overwrites={})
    with pytest.raises(PlanError, match="shares bytes with"):
        verify_memory(E.graph, E.topology, E.splits, memory, E.lives)


def test_life_that_ends_before_it_begins():
    lives = list(E.lives)
    lives[HERE[0]] = Life(5, 1)
    with pytest.raises(PlanError, match="dies before it is born"):
        verify_memory(E.graph, E.topology, E.splits, E.memory, lives)


# --- commands -----------------------------------------------------------------------------------


def first(kind):
    return next(c.id for c in E.plan.commands if isinstance(c, kind))


def command(kind, **fields):
    i = first(kind)
    return replace(E.plan, commands=put(E.plan.commands, i, **fields))


LAUNCH = E.plan.commands[first(Launch)]
WAIT = E.plan.commands[first(Wait)]


def without(plan, i):
    commands = [c for c in plan.commands if c.id != i]
    return replace(plan, commands=tuple(replace(c, id=k) for k, c in enumerate(commands)))


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (command(Upload, id=9), "c0 calls itself 9"),
        (command(Upload, stream=9), "c0 is on unknown stream 9"),
        (command(Upload, stream=1), "c0 of transfer 0 is on q1 instead of q0"),
        (command(Upload, transfer=2), "no command carries out transfer 0"),
        (command(Upload, src=Region(0, 0, 8)), "c0 reads a0[0:8] instead of v2 at"),
        (command(Copy, dst=Region(0, 0, 8)), "fills a0[0:8] instead of v5 at"),
        (command(Launch, split=2), "as of s2 instead of s0"),
        (command(Launch, stream=1), "on q1 instead of q0"),
        (command(Launch, steps=LAUNCH.steps[1:]), "no command runs n0"),
        (command(Launch, reads=()), "without declaring it"),
        (command(Launch, writes=()), "without declaring it"),
        (
            command(Launch, steps=put(LAUNCH.steps, 0, modes="rw")),
            "runs n0 with a wrong number of operands",
        ),
        (
            command(
                Launch, steps=put(LAUNCH.steps, 0, operands=(Region(0, 0, 9999),) * 3, modes="rrw")
            ),
            "n0 lies at a0[0:9999], outside",
        ),
        (command(Record, event=-1), "names an event below zero"),
        (command(Wait, event=77), "waits for event 77, which is not recorded before"),
        (command(Wait, stream=0), "does not hold back"),
        (command(Wait, hazard=Hazard("RAW", 0, 0, 0, 1, 2)), "which is not a hazard"),
        (command(Wait, hazard=Hazard("RAW", 0, 0, 4, 99, 2)), "which is not a hazard"),
        (
            command(Wait, hazard=WAIT.hazard._replace(arena=55)),
            "do not touch the bytes in that way",
        ),
        (
            command(Wait, hazard=WAIT.hazard._replace(kind="WAW")),
            "do not touch the bytes in that way",
        ),
        (
            command(Wait, hazard=WAIT.hazard._replace(later=-1)),
            "do not touch the bytes in that way",
        ),
        (without(E.plan, first(Upload)), "no command carries out transfer 0"),
        (without(E.plan, first(Launch)), "no command runs n0"),
        (without(E.plan, first(Record)), "which is not recorded before"),
    ],
)
def test_commands(plan, message):
    assert_found(plan, message)


def assert_found(plan, message):
    findings = check_plan(plan).findings
    assert any(message in f.what for f in findings), findings


def test_last_transfer_and_last_split_must_appear():
    i = max(c.id for c in E.plan.commands if isinstance(c, Download))
    assert_found(replace(E.plan, commands=E.plan.commands[:i]), "no command carries out transfer")
    i = max(c.id for c in E.plan.commands if isinstance(c, Launch))
    assert_found(replace(E.plan, commands=E.plan.commands[:i]), "no command runs n")


def test_event_recorded_twice():
    record = E.plan.commands[first(Record)]
    last = len(E.plan.commands)
    again = (*E.plan.commands, replace(record, id=last))
    assert_found(replace(E.plan, commands=again), f"c{last} records event {record.event} again")


def test_wait_enqueued_after_what_it_holds_back():
    commands = list(E.plan.commands)
    wait = commands.pop(WAIT.id)
    later = wait.hazard.later - 1
    commands.insert(wait.hazard.later, wait)
    moved = tuple(replace(c, id=i) for i, c in enumerate(commands))
    moved = put(moved, later + 1, hazard=wait.hazard._replace(later=later))
    assert_found(replace(E.plan, commands=moved), "does not stand between")


def test_events_and_barriers_of_devices_without_any():
    devices = tuple(fake_device(d.name, has_events=False) for d in E.plan.devices)
    assert_found(replace(E.plan, devices=devices), ", which has none")
    w = PlanWriter(fake_device(copy_order="stream"))
    w.barrier(w.stream())
    assert_found(w.plan(), "is a barrier on fake:0, which has none")


def test_host_sync_names_the_stream_of_its_event():
    i = next(c.id for c in E.plan.commands if isinstance(c, HostSync) and c.event is not None)
    other = 1 - E.plan.commands[i].stream
    assert_found(
        replace(E.plan, commands=put(E.plan.commands, i, stream=other)), "waits for an event of"
    )


@pytest.mark.parametrize(
    "facts",
    [
        {"copy_order": "barrier"},
        {"copy_order": "host"},
        {"has_events": False},
        {"has_events": False, "copy_order": "host", "paths": False},
        {"snapshots_uploads": True, "paths": False},
        {"alignment": 256},
    ],
)
def test_plans_of_other_machines_pass(facts):
    assert check_plan(example(**facts).plan).is_clean
