"""A program that is checked while it runs: the same verdicts, in memory of what is in use."""

import os
import signal
import subprocess
import sys
from functools import partial

import msgspec
import pytest

from ggsched.files.reading import open_regular
from ggsched.sanitize import check_trace
from ggsched.trace.export import read_trace
from ggsched_race.live import LiveCheck, follow
from ggsched_race.live_races import LiveRaces
from tests.meta.repository import ROOT
from tests.race.random_programs import recorded, variants

DATA = sorted((ROOT / "tests" / "data" / "races").glob("*.jsonl"))


def live_races(trace):
    """Return numbers of records that race, by records that are added one by one."""
    races, found = LiveRaces(), []
    for actor in trace.actors:
        races.add_actor(actor)
    for entry in trace.entries:
        found += [(clash.earlier, clash.later) for clash in races.add(entry)]
    return sorted(set(found))


def known_races(trace):
    findings = [f for f in check_trace(trace).findings if f.kind == "race"]
    return sorted({(f.earlier.command, f.later.command) for f in findings})


@pytest.mark.parametrize("file", DATA, ids=lambda f: f.stem)
def test_races_of_a_recorded_trace_are_those_of_the_whole(file):
    trace = read_trace(file.read_bytes())
    assert live_races(trace) == known_races(trace)


@pytest.mark.parametrize("forgets", [False, True])
def test_verdict_on_random_programs_is_that_of_the_whole(forgets, monkeypatch):
    if forgets:
        monkeypatch.setattr("ggsched.sanitize.races.FORGET_ABOVE", (0, 0))
    for seed in range(200):
        for program in variants(seed):
            trace = read_trace(recorded(program))
            assert bool(live_races(trace)) == bool(known_races(trace)), (seed, program)


def test_actors_that_come_late_know_nothing_of_each_other():
    """Also where their number passes the width of a clock."""
    from ggsched.trace.schema import Access, Actor, Alloc, Work

    races = LiveRaces()
    races.add_actor(Actor(0, "host", "host"))
    races.add(Alloc(0, 0, "x", 64, is_defined=True))
    found = []
    for number in range(1, 40):
        races.add_actor(Actor(number, f"s{number}", "stream"))
        found += races.add(Work(number, "write", 0, writes=(Access(0, 0, 64),)))
    assert [(c.earlier, c.later) for c in found] == [(k, k + 1) for k in range(1, 39)]


# --- journals -------------------------------------------------------------------------------------


def journal_of(trace):
    """Return a trace as the journal that it was made of, as far as that matters."""
    header, *records = trace.splitlines(keepends=True)
    head = msgspec.json.decode(header)
    lines = [{"name": head["name"]}, *({"new_actor": actor} for actor in head["actors"])]
    lines += [{"site": k, "frames": frames} for k, frames in enumerate(head["sites"])]
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines) + b"".join(records)


@pytest.fixture
def written(tmp_path):
    """Return a file that can be written and read at once, and a check of it."""
    path = tmp_path / "journal"
    with path.open("wb", buffering=0) as out, open_regular(path) as file:
        yield out, file


def test_check_stops_at_the_first_finding_wherever_the_journal_is_cut(written):
    out, file = written
    data = journal_of((ROOT / "tests/data/races/megatron_3140-broken.jsonl").read_bytes())
    check = LiveCheck(file)
    for k in range(0, len(data), 97):
        out.write(data[k : k + 97])
        check.read()
    assert "nothing orders" in check.finding.what
    assert [len(side.stack) > 0 for side in check.finding.sides] == [True, True]
    assert not check.report().is_clean


def test_findings_that_are_suppressed_do_not_stop_it(written):
    out, file = written
    out.write(journal_of((ROOT / "tests/data/races/megatron_3140-broken.jsonl").read_bytes()))
    check = LiveCheck(file, ["*programs.py:* in megatron_3140"])
    check.read()
    assert check.finding is None
    assert check.report().is_clean
    assert "suppressed" in check.report().to_text()


def test_memory_that_is_out_of_use_is_forgotten(written):
    torch = pytest.importorskip("torch", reason="PyTorch is in the extra 'torch'")
    from ggsched_race.watch import recorder_into

    out, file = written
    options = {"rows": True, "simulate": True, "threads": False}
    with recorder_into(out, "steps", **options):
        side, w = torch.cuda.Stream(), torch.ones(64, device="cuda")
        for step in range(120):
            host = torch.full((64,), float(step)).pin_memory()
            with torch.cuda.stream(side):
                x = host.to("cuda", non_blocking=True)
            torch.cuda.current_stream().wait_stream(side)
            x.record_stream(torch.cuda.current_stream())
            (x * w).sum().item()
            side.synchronize()
    check = LiveCheck(file)
    check.read()
    assert check.finding is None, check.finding
    assert check.races.records > 1000
    assert check.races.spaces < 30
    assert check.races.events < 30


def test_program_is_ended_where_its_journal_cannot_be_read(tmp_path):
    journal = tmp_path / "journal"
    journal.write_bytes(b"{nonsense\n")
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    default = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # whatever the caller ignores
    with subprocess.Popen(command, preexec_fn=default) as program:
        with pytest.raises(msgspec.DecodeError):
            follow(program, journal, ())
        assert program.poll() is not None


ENDLESS = """
import torch

side, x = torch.cuda.Stream(), torch.ones(8, device="cuda")
while True:
    with torch.cuda.stream(side):
        x.mul_(2)
    x.add_(1)
"""


def test_program_that_never_ends_is_ended_at_its_first_race(tmp_path):
    pytest.importorskip("torch", reason="PyTorch is in the extra 'torch'")
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-m", "ggsched", "race", "--simulate", "--live", str(script)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 finding" in done.stdout
    assert "--live stops at the first race" in done.stdout
