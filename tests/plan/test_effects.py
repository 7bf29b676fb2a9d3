"""What commands declare is what they touch."""

from typing import get_args

import pytest

from ggsched.plan.command import (
    Barrier,
    Command,
    Copy,
    CopyRows,
    Download,
    Fill,
    HostSync,
    Launch,
    Record,
    Upload,
    Wait,
)
from ggsched.plan.effects import Effects, Hazard, Step, Traffic
from ggsched.plan.memory import Region

A, B, IDS, CACHE = Region(0, 0, 64), Region(1, 64, 64), Region(2, 0, 16), Region(3, 0, 32)
HAZARD = Hazard("RAW", 0, 0, 64, 0, 2)
STEPS = (Step(0, (A, B), "rw"), Step(1, (B, A), "-p"))

COMMANDS = (
    Upload(0, 1, A, B, 5),
    Download(0, 1, A, B, 5),
    Copy(0, 1, A, B, 5),
    CopyRows(0, 1, A, B, IDS, 16, True, CACHE, 5),
    Fill(0, 1, B, b"\0", 5),
    Launch(0, 1, 0, STEPS, (A,), (A, B)),
    Record(0, 1, 7),
    Wait(0, 1, 7, HAZARD),
    Barrier(0, 1, HAZARD),
    HostSync(0, 1, 7, HAZARD),
)


def test_every_command_is_here():
    assert {type(c) for c in COMMANDS} == set(get_args(Command))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: type(c).__name__)
def test_declared_bytes_are_those_of_the_steps(command):
    e = command.effects
    pairs = [(r, m) for step in e.steps for r, m in zip(step.operands, step.modes, strict=True)]
    assert {r for r, m in pairs if m == "r"} == set(e.reads)
    assert {r for r, m in pairs if m in "wp"} == set(e.writes)
    assert e.streams == (1,)
    assert (e.engine is None) == (not e.steps)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: type(c).__name__)
def test_what_waits_names_its_hazard_and_does_no_work(command):
    e = command.effects
    waits = bool(e.waits or e.is_barrier or e.blocks_host)
    assert waits == (e.hazard is not None)
    assert not (waits and e.engine)


def test_transfers():
    upload, download, copy, rows = (c.effects for c in COMMANDS[:4])
    assert upload == Effects(
        (1,),
        "copy",
        (Step(-1, (A, B), "rw"),),
        (A,),
        (B,),
        reads_at_enqueue=True,
        transfer=5,
        traffic=Traffic(0, 1, 64),
    )
    assert not download.reads_at_enqueue
    assert download == copy
    assert rows.host_reads == (IDS,)
    assert rows.is_partial
    assert rows.writes == (CACHE, B)
    assert rows.traffic == Traffic(0, 1, 64, 16, 4, through_host=True)
    bare = CopyRows(0, 1, A, B, IDS, 16, False, None, 5).effects
    assert bare.writes == (B,)


def test_a_launch_hands_on_its_own_steps():
    e = COMMANDS[5].effects
    assert e.steps is STEPS
    assert e.traffic is None


def test_synchronisation():
    record, wait, barrier, sync = (c.effects for c in COMMANDS[6:])
    assert record.records == (7,)
    assert wait.waits == sync.waits == (7,)
    assert barrier.is_barrier
    assert [e.blocks_host for e in (record, wait, barrier, sync)] == [False, False, False, True]
    assert HostSync(0, 1, None, HAZARD).effects.waits == ()
