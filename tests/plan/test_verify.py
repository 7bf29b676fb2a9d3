"""Every invariant of every artifact, by breaking it."""

import dataclasses

import msgspec
import pytest

from ggsched.passes.pipeline import make_schedule, plan_commands
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
from ggsched.plan.memory import Region
from ggsched.plan.placement import PlacementChoice
from ggsched.plan.splits import HOST
from ggsched.plan.streams import StreamSpec
from ggsched.sanitize import check_plan
from ggsched_testing.plan_builder import PlanWriter, fake_device
from tests.plan.examples import CPU, GPU, PINS, example, machine

E = example()
replace = msgspec.structs.replace


def put(items, i, **fields):
    """Return a tuple with fields of one item changed."""
    out = list(items)
    item = out[i]
    out[i] = item._replace(**fields) if hasattr(item, "_replace") else replace(item, **fields)
    return tuple(out)


def assert_found(plan, message=""):
    """The checker finds what is named, or nothing if nothing is named."""
    findings = check_plan(plan, graph=E.graph).findings
    assert any(message in f.what for f in findings) if message else not findings, findings


def test_sound_artifacts_pass():
    assert_found(E.plan)


# --- placement -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (replace(E.placement, choices=E.placement.choices[1:]), "plan: 3 choices instead of 4"),
        (
            replace(E.placement, choices=(PlacementChoice(7, "pin"), *E.placement.choices[1:])),
            "n0: on device 7",
        ),
        (replace(E.placement, homes={}), "the device of v0, a home, is 0 instead of None"),
        (
            replace(E.placement, choices=put(E.placement.choices, 2, device=GPU)),
            "the device of n2 of s1 is 0 instead of 1",
        ),
        (
            replace(E.placement, homes={**E.placement.homes, 99: 0}),
            "what has a home is tensor 99 instead of a root tensor",
        ),
        (replace(E.placement, homes={**E.placement.homes, 1: 5}), "home of tensor 1: on device 5"),
    ],
)
def test_placement(broken, message):
    assert_found(replace(E.plan, placement=broken), message)


def test_placement_on_a_device_that_cannot():
    devices = (E.plan.devices[0], dataclasses.replace(E.plan.devices[1], ops=frozenset()))
    assert_found(replace(E.plan, devices=devices), "the device of n2 is cpu:0")


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
        ("splits", E.splits.splits[:2], "transfer 4: before split 3 of 2"),
        ("splits", E.splits.splits[1:], "split 1: has the id 2"),
        ("splits", put(E.splits.splits, 1, device=GPU), "the device of n2 of s1 is 1 instead of 0"),
        ("splits", put(E.splits.splits, 2, end=9), "s2: nodes [3, 9) of 4"),
        ("values", put(E.splits.values, 1, id=5), "value 1: has the id 5"),
        (
            "values",
            put(E.splits.values, KV, end=129),
            "the place of v6 is a1[0:128] instead of 129 bytes aligned to 16",
        ),
        ("values", put(E.splits.values, KV, bound=""), "the name of v6 is '' instead of 'kv'"),
        ("values", put(E.splits.values, KV, device=7), "v6: on device 7"),
        (
            "values",
            put(E.splits.values, KV, device=GPU),
            "the device of v6, a home, is 0 instead of 1",
        ),
        (
            "values",
            put(E.splits.values, REPLICA, device=GPU),
            "the device of v5, a replica, is 0 instead of another device",
        ),
        (
            "values",
            put(E.splits.values, INPUT, device=GPU),
            "the kind of v2 on device 0 is input instead of home or replica",
        ),
        (
            "values",
            put(E.splits.values, INPUT, end=64),
            "the place of v2 is a2[0:128] instead of 64 bytes aligned to 64",
        ),
        (
            "values",
            put(E.splits.values, OUTPUT, bound="kv"),
            "v9 of 'kv' is output memory instead of a home",
        ),
        ("transfers", put(E.splits.transfers, 0, id=3), "transfer 0: has the id 3"),
        ("transfers", put(E.splits.transfers, 0, src=99), "from value 99"),
        ("transfers", put(E.splits.transfers, 0, before=9), "transfer 0: before split 9 of 3"),
        (
            "transfers",
            put(E.splits.transfers, 1, before=0, src=KV),
            "c2 fills v5 from v6, which does not hold it",
        ),
        (
            "transfers",
            put(E.splits.transfers, 0, by=CPU),
            "the stream's device of transfer 0 is 0 instead of 1",
        ),
        (
            "transfers",
            put(E.splits.transfers, 0, by=HOST),
            "the stream's device of transfer 0 is 0 instead of -1",
        ),
        (
            "transfers",
            put(E.splits.transfers, 1, by=CPU),
            "the stream's device of transfer 1 is 0 instead of 1",
        ),
        (
            "transfers",
            put(E.splits.transfers, 1, src=REPLICA, dst=REPLICA),
            "c2 reads a4[128:256] instead of v5 at a5[0:128]",
        ),
        ("transfers", E.splits.transfers[:1], "plan: 5 streams of transfers instead of 1"),
        ("bindings", E.splits.bindings[:3], "plan: 3 bindings instead of 4"),
        (
            "bindings",
            ((0, 1), *E.splits.bindings[1:]),
            "c1 runs n0 with a wrong number of operands",
        ),
        ("bindings", ((0, 1, 99), *E.splits.bindings[1:]), "n0: bound to values (0, 1, 99)"),
        ("bindings", ((INPUT, 1, 2), *E.splits.bindings[1:]), "c1 n0 takes v2, which is not of t1"),
    ],
)
def test_splits(field, value, message):
    assert_found(replace(E.plan, splits=replace(E.splits, **{field: value})), message)


def test_binding_on_another_device():
    bindings = list(E.splits.bindings)
    x_on_gpu = bindings[0][1]
    bindings[0] = (bindings[0][0], INPUT, bindings[0][2])
    assert E.splits.values[x_on_gpu].device == GPU
    broken = replace(E.plan, splits=replace(E.splits, bindings=tuple(bindings)))
    assert_found(broken, f"as v{INPUT}, which is not there")


def test_copy_without_a_path():
    findings = check_plan(E.plan, topology=machine(paths=False)).findings
    assert [f.what for f in findings if "there is no such path" in f.what]


# --- streams -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("streams", (StreamSpec(1, 0), StreamSpec(1, 1)), "stream 0: has the id 1"),
        ("streams", (StreamSpec(0, 0), StreamSpec(1, 9)), "q1: on device 9"),
        (
            "streams",
            (StreamSpec(0, 0), StreamSpec(1, 0)),
            "the device of n2 of s1 is 0 instead of 1",
        ),
        (
            "streams",
            tuple(StreamSpec(i, 0) for i in range(9)),
            "the number of streams of gpu:0 is 9 instead of 8",
        ),
        ("of_node", (0, 1), "plan: 2 streams of nodes instead of 4"),
        ("of_node", (0, 0, 0, 0), "c5 runs n2 on q1 instead of q0"),
        ("of_node", (0, 4, 0, 0), "plan: uses stream 4"),
        ("of_transfer", (), "plan: 0 streams of transfers instead of 5"),
    ],
)
def test_streams(field, value, message):
    assert_found(replace(E.plan, streams=replace(E.streams, **{field: value})), message)


# --- memory ------------------------------------------------------------------------------------

COMPUTE = next(a.id for a in E.memory.arenas if a.kind == "compute" and a.device == GPU)
HERE = [v.id for v in E.splits.values if E.memory.regions[v.id].arena == COMPUTE]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("arenas", put(E.memory.arenas, 0, id=4), "arena 0: has the id 4"),
        (
            "arenas",
            put(E.memory.arenas, 0, alignment=3),
            "the alignment of a0 on gpu:0 is 3 instead of 16",
        ),
        (
            "arenas",
            put(E.memory.arenas, 0, alignment=4),
            "the alignment of a0 on gpu:0 is 4 instead of 16",
        ),
        (
            "arenas",
            put(E.memory.arenas, 0, name=""),
            "the name of a0, which holds v0, is '' instead of 'w'",
        ),
        (
            "arenas",
            put(E.memory.arenas, 0, name="v"),
            "the name of a0, which holds v0, is 'v' instead of 'w'",
        ),
        ("arenas", put(E.memory.arenas, COMPUTE, device=9), "on device 9"),
        (
            "arenas",
            put(E.memory.arenas, COMPUTE, device=CPU),
            "c1 on gpu:0 uses a4, which is not in its memory",
        ),
        (
            "arenas",
            put(E.memory.arenas, COMPUTE, nbytes=0),
            "v1 lies at a4[0:128], outside the arena's 0 bytes",
        ),
        ("regions", E.memory.regions[1:], "plan: 10 regions instead of 11"),
        (
            "regions",
            put(E.memory.regions, HERE[0], nbytes=8),
            "the place of v1 is a4[0:8] instead of 128 bytes aligned to 16",
        ),
        ("regions", put(E.memory.regions, HERE[0], arena=99), "in arena 99"),
        (
            "regions",
            put(E.memory.regions, HERE[0], offset=-16),
            "v1 lies at a4[-16:112], outside the arena's 256 bytes",
        ),
        (
            "regions",
            put(E.memory.regions, HERE[0], offset=8),
            "c1 n0 uses a4[0:128] as v1, which is not there",
        ),
        (
            "regions",
            put(E.memory.regions, WEIGHT, arena=COMPUTE),
            "c1 n0 uses a0[0:256] as v0, which is not there",
        ),
        ("overwrites", {HERE[0]: 99}, "overwrites 99"),
        (
            "overwrites",
            {HERE[0]: WEIGHT},
            "the place of v1 is a4[0:128] instead of within v0 at a0[0:256]",
        ),
        ("lower_bound", {0: 16}, "the bound of a0 is 16 instead of at most 0"),
        (
            "lower_bound",
            {COMPUTE: 1 << 40},
            "the bound of a4 is 1099511627776 instead of at most 256",
        ),
        ("hinted_bound", {COMPUTE: 1 << 40}, "bound with hints"),
        ("hinted_bound", {COMPUTE: 0}, "bound with hints"),
    ],
)
def test_memory(field, value, message):
    assert_found(replace(E.plan, memory=replace(E.memory, **{field: value})), message)


def in_memory(memory):
    """The plan of the example in other memory, whose commands follow it."""
    return plan_commands(make_schedule(E.graph, E.topology, PINS), memory)


def test_two_values_alive_on_the_same_bytes():
    assert_found(in_memory(E.memory))
    offset = E.memory.regions[HERE[0]].offset
    found = 0
    for other in HERE[1:]:
        if E.lives[other].birth > E.lives[HERE[0]].death or other in E.memory.overwrites:
            continue
        regions = put(E.memory.regions, other, offset=offset)
        assert_found(in_memory(replace(E.memory, regions=regions, overwrites={})), "c")
        found += 1
    assert found


def test_takeover_that_is_not_noted():
    taken = next(iter(E.memory.overwrites.values()))
    assert_found(in_memory(replace(E.memory, overwrites={})), f"instead of apart from v{taken}")


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
