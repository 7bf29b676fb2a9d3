"""``GGSCHED_DEBUG``: each level logs what the one below logs, and more."""

import pytest

from ggsched.config import Settings
from ggsched.report.debug_output import log_machine, log_plan, plan_lines, recorder_for
from ggsched.scheduler import Scheduler
from ggsched.trace.recorder import Recorder
from ggsched_testing.sim import SimConfig, SimWorld
from tests.run.graphs import X, chain


def written(level, capsys, recorder=None):
    graph, pins = chain(1)
    devices = SimWorld([SimConfig(), SimConfig()]).open_all()
    capsys.readouterr()
    with Scheduler(devices, settings=Settings(debug=level), recorder=recorder) as scheduler:
        scheduler.run(graph, {"x": X}, pins)
    out, err = capsys.readouterr()
    assert out == ""
    return err


MARKS = {
    1: ("device sim:0: gpu", "ggsched: devices", "ggsched: memory", "compute"),
    2: ("ggsched: splits", "s0 sim:0", "pin"),
    3: ("ggsched: commands", "wait e0  RAW", "host sync e"),
    4: ("sim:0 q0  launch n0", "host  has waited for", "sim:1 q0  wait e"),
}


def test_nothing_is_told_unless_it_is_asked_for(capsys):
    assert written(0, capsys) == ""


@pytest.mark.parametrize("level", MARKS)
def test_each_level_adds_something(level, capsys):
    text = written(level, capsys)
    for known, marks in MARKS.items():
        for mark in marks:
            assert (mark in text) == (known <= level), (known, mark)
    assert all(line.startswith("ggsched: ") for line in text.splitlines())


def test_the_last_level_records_as_well(capsys):
    recorder = Recorder()
    assert "launch n0" in written(4, capsys, recorder)
    assert any("n0" in getattr(e, "label", "") for e in recorder.trace("t").entries)


def test_no_recorder_below_the_last_level():
    assert recorder_for(3, None) is None
    assert recorder_for(4, None) is not None


def test_lines_go_where_they_are_wanted():
    lines = []
    graph, pins = chain(1)
    devices = SimWorld([SimConfig(), SimConfig()]).open_all()
    with Scheduler(devices, settings=Settings()) as scheduler:
        plan = scheduler.plan(graph, pins)
        log_machine(scheduler.topology, 1, lines.append)
        log_plan(plan, 3, lines.append)
    assert lines[2:] == plan_lines(plan, 3)
    assert len(plan_lines(plan, 1)) < len(plan_lines(plan, 2)) < len(plan_lines(plan, 3))
