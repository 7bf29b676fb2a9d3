"""The report says what is wrong, where, and how to repair it."""

import msgspec
import pytest

from ggsched.errors import RaceFound
from ggsched.sanitize import Report, check_plan
from ggsched_testing.plan_builder import PlanWriter, fake_device

N = 16


def racy(*, record=False, **facts):
    w = PlanWriter(fake_device("gpu:0", **facts), fake_device("gpu:1", **facts))
    q, r = w.stream(0), w.stream(1)
    a = w.value(w.arena("compute", 0, N), 0, N)
    b = w.value(w.arena("compute", 1, N), 0, N, of=a)
    w.launch(q, w.node("w", a))
    if record:
        w.record(q)
    w.transfer(r, a, b)
    w.sync(r)
    w.sync(q)
    return w.plan("two devices")


def test_text_of_a_race():
    assert check_plan(racy()).to_text() == (
        "two devices: 4 commands, 3 runs: 1 finding\n"
        "1 race: RAW on a0[0:16]: nothing orders c0 before c1\n"
        "  c0 q0 gpu:0  run 0  launch s0, n0 op 'node 0' writes\n"
        "  c1 q1 gpu:1  run 0  copy of v0 reads\n"
        "  fix: record an event on q0 and let q1 wait for it after c0 and before c1\n"
    )


def test_text_of_a_clean_plan():
    assert check_plan(PlanWriter().plan("empty")).to_text() == "empty: 0 commands, 3 runs: clean\n"


def test_fix_uses_an_event_that_is_there():
    assert check_plan(racy(record=True)).findings[0].fix == "let q1 wait for e0 before c2"


def test_fix_without_events_is_the_host():
    fix = check_plan(racy(has_events=False)).findings[0].fix
    assert fix == "let the host wait for q0 after c0 and before c1"


def test_fix_inside_one_stream_is_a_barrier():
    w = PlanWriter(fake_device(copy_order="barrier"))
    q = w.stream()
    x = w.host_input("x", N)
    arena = w.arena("compute", 0, 2 * N)
    a, y = w.value(arena, 0, N, of=x), w.value(arena, N, N)
    w.transfer(q, x, a)
    w.launch(q, w.node("rw", a, y))
    w.sync(q)
    assert check_plan(w.plan()).findings[0].fix == "put a barrier on q0 after c0 and before c1"


def test_fix_for_the_host_and_for_the_next_run():
    w = PlanWriter(fake_device())
    q = w.stream()
    x = w.host_input("x", N)
    w.transfer(q, x, w.value(w.arena("compute", 0, N), 0, N, of=x))
    (finding,) = check_plan(w.plan()).findings
    assert (
        finding.what == "WAR on a0[0:16]: nothing orders c0 before the host's write of a later run"
    )
    assert finding.later.to_text() == "host  run 1  'x' writes"
    assert finding.fix == "let the host wait for q0 after c0 and before the run ends"


def test_every_line_fits_80_columns():
    w = PlanWriter(fake_device("a-device-with-quite-a-long-name:0"), fake_device("another:1"))
    q, r = w.stream(0), w.stream(1)
    a = w.value(w.arena("compute", 0, N), 0, N)
    b = w.value(w.arena("compute", 1, N), 0, N, of=a)
    w.launch(q, w.node("w", a))
    w.transfer(r, a, b)
    text = check_plan(w.plan()).to_text()
    assert max(len(line) for line in text.splitlines()) <= 80


def test_json_and_back():
    report = check_plan(racy())
    assert msgspec.json.decode(report.to_json(), type=Report) == report


def test_raise_if_findings():
    with pytest.raises(RaceFound, match="RAW on a0") as info:
        check_plan(racy()).raise_if_findings()
    assert info.value.where == "two devices"
    assert info.value.hint.startswith("record an event on q0")
    check_plan(PlanWriter().plan()).raise_if_findings()


def test_a_pair_is_reported_once_and_many_are_capped():
    w = PlanWriter(fake_device())
    streams = [w.stream() for _ in range(8)]
    a = w.fixed("state", 0, "kv", N)
    for _ in range(100):
        for q in streams:
            w.launch(q, w.node("p", a))
    report = check_plan(w.plan())
    pairs = [(f.hazard, f.earlier.command, f.later.command) for f in report.findings]
    assert len(pairs) == len(set(pairs)) == 200
