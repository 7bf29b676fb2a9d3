"""Captured plans behind each other: no race in what is recorded; mutants show that it matters."""

from dataclasses import replace

import pytest
from hypothesis import settings

from ggsched.run import capture, executor
from ggsched.run.capture_plan import CapturePlan, plan_capture
from ggsched.run.executor import Executor
from ggsched.run.graph_order import GraphOrder
from ggsched.run.run_order import RunOrder
from tests.properties.captured_runs import Case

EXAMPLES = 40
"""Cases of the search; each mutant is found within them."""

RELEASE = GraphOrder.release


def first_race(count):
    """Return the text of the first report with findings among some cases, or None."""
    for seed in range(count):
        report = Case(seed).run()
        if not report.is_clean:
            return f"case {seed}: {report.to_text()}"
    return None


def test_captured_plans_in_a_row_have_no_race():
    assert first_race(max(EXAMPLES, settings.default.max_examples)) is None


def test_cases_are_what_the_search_is_for():
    """Graphs of several streams and segments are replayed, and plans follow each other."""
    replays = follows = segments = lanes = 0
    for seed in range(12):
        case = Case(seed)
        case.run()
        reports = [e.captured.report for e in case.executors]
        replays += sum(report.replays for report in reports)
        segments = max(segments, *(len(report.plan.segments) for report in reports))
        lanes += sum(" in graphs of " in actor.name for actor in case.trace.actors)
        follows += sum(e.state_streams is not None for e in case.executors)
    assert replays > 50
    assert segments >= 3
    assert lanes >= 3
    assert follows > 12


def first_stream_of_states(plan):
    """Return for each state one stream that touches it, though others may."""
    streams, arenas = plan.streams.streams, plan.memory.arenas
    within = [sum(s.device == t.device for t in streams[:q]) for q, s in enumerate(streams)]
    found = {}
    for c in plan.commands:
        for region in (*c.effects.reads, *c.effects.writes):
            if arenas[region.arena].kind == "state":
                at = streams[c.stream].device, within[c.stream]
                found.setdefault(arenas[region.arena].name, at)
    return found


def untied(plan, able, **options):
    found = plan_capture(plan, able, **options)
    return CapturePlan(tuple(replace(s, tied=()) for s in found.segments), found.obstacles)


def take_over(order, origin, others):
    for stream in others:
        order._keepers[id(stream)] = origin


MUTANTS = {
    "plans always follow": (RunOrder, "_follows", lambda o, streams: o.last is not None),
    "plans with states always follow": (
        RunOrder, "_follows", lambda o, streams: o.last is not None and streams is not None,
    ),
    "one of the streams of a state counts": (executor, "state_streams", first_stream_of_states),
    "graphs never hand over": (GraphOrder, "release", lambda order, streams: None),
    "graphs hand over one stream": (GraphOrder, "release", lambda o, s: RELEASE(o, s[-1:])),
    "graphs hand over to graphs only": (Executor, "follow", lambda executor: None),
    "graphs always go on": (GraphOrder, "gather", take_over),
    "keepers outlive a drain": (GraphOrder, "drained", lambda order: None),
    "streams with commands outside are not tied": (capture, "plan_capture", untied),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_mutants_of_the_order_of_runs_are_found(mutant, monkeypatch):
    monkeypatch.setattr(*mutant)
    assert "race" in (first_race(EXAMPLES) or "")
