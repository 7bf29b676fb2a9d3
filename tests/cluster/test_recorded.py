"""What several machines recorded, on one time line by one clock, with the bytes over each link."""

import json
from collections import Counter
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from ggsched import Scheduler
from ggsched.cli.main import main
from ggsched.config import Settings
from ggsched.plan.parts import Send
from ggsched.report.html import page
from ggsched.run.release import close_all
from ggsched.trace.recorder import Recorder
from ggsched.trace.utilization import account
from ggsched_cluster.pings import ClockOffset
from ggsched_cluster.recorded import merged
from ggsched_cluster.remote_devices import open_group
from ggsched_commands.perfetto import timeline_to_perfetto
from tests.cluster.test_sessions import homes, model
from tests.cluster.workers import Members

RUNS = 3


@pytest.fixture(scope="module")
def session():
    """What was recorded of runs over two machines, the parts, and what was recorded there."""
    graph, weights, inputs = model(5)
    devices = open_group(Members("a", "b").start, backends=("cpu",), timeout_s=20)
    recorder = Recorder()
    try:
        settings = Settings(timeout_s=20)
        with Scheduler(devices, weights=weights, settings=settings, recorder=recorder) as scheduler:
            for _ in range(RUNS):
                scheduler.run(graph, inputs, homes(5, 2))
            (run,) = scheduler._executors.values()
            store = scheduler._store
            raw = store.driver.recorded()
            args = (store._runs, store._plans)
    finally:
        close_all(devices)
    return recorder.elsewhere(), run, raw, args


def test_every_command_is_there_once_in_each_run(session):
    found, run, *_ = session
    timeline = found.timeline
    count = Counter((s.run, s.command) for s in timeline.spans if s.command >= 0)
    assert count == {(r, c.id): 1 for r in range(RUNS) for c in run.plan.commands}
    devices = {t.device for t in timeline.tracks if t.device}
    assert {d.rsplit("/", 1)[0] for d in devices} == {"threads://a", "threads://b"}
    for s in timeline.spans:
        if s.kind == "launch":
            device = timeline.tracks[s.track].device
            stream = run.plan.streams.streams[run.plan.commands[s.command].stream]
            assert run.plan.devices[stream.device].name == device


def test_bytes_over_each_link_are_those_of_the_plan(session):
    found, run, *_ = session
    sent = Counter()
    for part in run.parts:
        for c in part.commands:
            if isinstance(c, Send):
                names = [f"threads://{'ab'[m]}" for m in (part.machine, c.machine)]
                sent[tuple(names)] += RUNS * c.src.nbytes
    assert {(u.src, u.dst): u.nbytes for u in found.links} == sent
    assert sum(u.messages for u in found.links) == RUNS * sum(
        isinstance(c, Send) for part in run.parts for c in part.commands
    )
    assert all(u.median_s > 0 for u in found.links)


def test_messages_do_not_arrive_before_they_are_sent(session):
    found, *_ = session
    spans = found.timeline.spans
    sends = {(s.run, s.label.split()[1]): s for s in spans if s.label.startswith("send #")}
    receives = [s for s in spans if s.label.startswith("receive #")]
    assert len(sends) == len(receives) > 0
    error = sum(c.error_s for _, c in found.clocks)
    for s in receives:
        assert s.end_s >= sends[s.run, s.label.split()[1]].start_s - error
    assert all(a.issued_s <= b.issued_s for a, b in pairwise(spans))


def test_clocks_that_are_apart_are_put_right(session):
    """The record of a machine whose clock is an hour ahead, and that offset."""
    _, _, raw, args = session
    late = msgspec.structs.replace(
        raw[1],
        origin_s=raw[1].origin_s + 3600,
        messages=tuple(
            msgspec.structs.replace(t, start_s=t.start_s + 3600, end_s=t.end_s + 3600)
            for t in raw[1].messages
        ),
    )
    names = ["threads://a", "threads://b"]
    zero = ClockOffset(0.0, 0.0)
    same = merged("runs", raw, names, [zero, zero], *args)
    moved = merged("runs", {0: raw[0], 1: late}, names, [zero, ClockOffset(3600.0, 1e-5)], *args)
    for a, b in zip(same.timeline.spans, moved.timeline.spans, strict=True):
        assert (a.label, a.command, a.track) == (b.label, b.command, b.track)
        np.testing.assert_allclose(a.start_s, b.start_s, atol=1e-6)
    assert "threads://b +3600 s ± 10 µs" in moved.timeline.name


def test_what_is_made_of_it(session):
    found, *_ = session
    for name, timeline in found.by_machine():
        used = account(timeline)
        assert {d.device for d in used.devices} == {f"{name}/cpu:0"}
        assert used.devices[0].busy_s > 0
    assert "threads://a" in page(found.timeline)
    events = json.loads(timeline_to_perfetto(found.timeline))["traceEvents"]
    assert any(e["name"].startswith("send #") for e in events)
    text = found.to_text()
    assert "clocks, as far as they were ahead of this machine's (subtracted):" in text
    assert "threads://a -> threads://b" in text


def test_a_trace_to_be_checked_is_refused_at_once(tmp_path, capsys):
    path = str(tmp_path / "t.jsonl")
    assert main(["run", "m.gguf", "-p", "x", "--trace", path, "--devices", "ray://red"]) == 2
    assert "cannot be written as one trace" in capsys.readouterr().err
