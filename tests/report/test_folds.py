"""Which gaps of a timeline the page folds, on which run it opens, and what its summary says."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.report.data import page_data
from ggsched.report.folds import LONG, find_folds, opening_run, timed_runs
from ggsched.report.summary import limit_text, places_data
from ggsched.trace.timeline import NodeSpan, TimedRun
from ggsched.trace.utilization import account
from tests.report.plans import pipeline_trace, runs_of
from tests.trace.timelines import launch, timeline


@pytest.fixture(scope="module")
def pipeline():
    return pipeline_trace(3, 4)


def test_planning_and_compiling_in_front_of_runs_are_folded_and_named():
    made = runs_of((0, 12.0, 12.003), (1, 12.5, 12.503), (1, 12.504, 12.507), before=[(0.0, 0.001)])
    folds, width = find_folds(made)
    assert [(f.start_s, f.end_s) for f in folds] == [(0.001, 12.0), (12.003, 12.5)]
    assert "plan 0 is made" in folds[0].label
    assert "plan 1 is made" in folds[1].label
    assert 0 < width < 0.003


def test_a_launch_that_compiles_is_folded_between_its_nodes():
    made = runs_of((0, 0.0, 5.0), (0, 5.001, 5.004))
    nodes = (NodeSpan("n0 a", 0.0, 0.001), NodeSpan("n1 b", 2.4, 2.5))
    long = msgspec.structs.replace(made.spans[0], end_s=2.5, nodes=nodes)
    made = msgspec.structs.replace(made, spans=(long, *made.spans[1:]))
    folds, _ = find_folds(made)
    assert [(f.start_s, f.end_s) for f in folds] == [(0.001, 2.4), (2.5, 5.0)]
    assert {f.label for f in folds} == {"run 0: kernels are compiled"}


@pytest.mark.parametrize("change", [{"clock": "simulated"}, {"is_expected": True}, {"runs": ()}])
def test_gaps_that_are_a_result_are_not_folded(change):
    made = runs_of((0, 0.0, 0.001), (0, 9.0, 9.001))
    assert len(find_folds(made)[0]) == 1
    assert find_folds(msgspec.structs.replace(made, **change)) == ([], 0.0)


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.floats(0, 30), st.floats(0.001, 2)), min_size=1, max_size=12
    )
)
def test_folds_are_long_disjoint_and_hide_no_work(drawn):
    at, bounds = 0.0, []
    for plan, gap, length in drawn:
        bounds.append((plan, at + gap, at + gap + length))
        at = bounds[-1][2]
    made = runs_of(*bounds)
    folds, width = find_folds(made)
    fastest = min(end - start for _, start, end in bounds)
    for fold in folds:
        assert fold.end_s - fold.start_s > max(LONG * fastest, 2 * width)
        assert fold.label
        assert all(s.end_s <= fold.start_s or s.start_s >= fold.end_s for s in made.spans)
    for a, b in pairwise(folds):
        assert a.end_s <= b.start_s


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0.001, 5)), max_size=9))
def test_the_page_opens_on_the_fastest_run_of_the_last_plan(drawn):
    runs = [TimedRun(plan, 10.0 * i, 10.0 * i + length) for i, (plan, length) in enumerate(drawn)]
    opened = opening_run(runs)
    if not runs:
        assert opened == -1
        return
    same = [r.end_s - r.start_s for r in runs if r.plan == runs[-1].plan]
    assert runs[opened].plan == runs[-1].plan
    assert runs[opened].end_s - runs[opened].start_s == min(same)


def test_the_summary_is_that_of_the_opened_run(pipeline):
    made = runs_of((0, 0.0, 12.0), (0, 12.0, 12.004), (0, 12.004, 12.007))
    data = page_data(msgspec.structs.replace(made, plans=(pipeline.plans[0].plan,)))
    assert data["opening"]["run"] == 2
    assert data["opening"]["account"]["window_s"] == pytest.approx(0.003)
    assert data["account"]["runs"] == 3


def test_places_say_what_runs_where(pipeline):
    plan = pipeline.plans[0].plan
    places = places_data(plan)
    assert [p["device"] for p in places] == [d.name for d in plan.devices]
    assert sum(p["nodes"] for p in places) == len(plan.nodes)
    assert all(p["resident"] > 0 for p in places)


@pytest.mark.parametrize(
    ("busy", "text"),
    [
        (8, "gpu:0 computes 80% of the time: its speed limits the run."),
        (2, "gpu:0 computes only 20% of the time: it is done 8 s before the run ends."),
    ],
)
def test_the_limit_names_the_device_and_its_share(busy, text):
    assert limit_text(account(timeline(launch(1, 0, busy), runs=[(0.0, 10.0)]))) == text


def test_a_run_without_outputs_lasts_as_long_as_its_work(pipeline):
    plan = msgspec.structs.replace(pipeline.plans[0].plan, outputs=())
    made = timeline(launch(1, 0.0, 3.0), runs=[(0.0, 1.0)])
    made = msgspec.structs.replace(made, plans=(plan,))
    assert timed_runs(made) == [TimedRun(0, 0.0, 3.0)]
