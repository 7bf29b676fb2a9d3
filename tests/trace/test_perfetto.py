"""The form for Perfetto: what its documentation requires, and that it says what the trace says."""

import json
from collections import defaultdict
from itertools import combinations

import pytest

from ggsched.errors import UsageError
from ggsched.sanitize import check_trace
from ggsched.trace.arrows import arrows
from ggsched.trace.export import is_trace, read_trace, trace_to_lines
from ggsched.trace.live import blocks, live_bytes, value_labels
from ggsched.trace.rows import rows
from ggsched.trace.times import timeline_of
from ggsched_commands.perfetto import timeline_events, trace_to_perfetto
from tests.trace.test_times import MACHINES, RUNS, traced_run
from tests.trace.timelines import copy, launch, timeline

NEEDED = {
    "X": {"name", "cat", "ts", "dur", "pid", "tid"},
    "i": {"name", "cat", "ts", "pid", "tid", "s"},
    "s": {"name", "cat", "ts", "pid", "tid", "id"},
    "f": {"name", "cat", "ts", "pid", "tid", "id", "bp"},
    "C": {"name", "ts", "pid", "args"},
    "M": {"name", "pid", "args"},
}


@pytest.fixture(params=MACHINES)
def traced_plan(request):
    return traced_run(MACHINES[request.param]())


def events_of(trace):
    return json.loads(trace_to_perfetto(trace))["traceEvents"]


def test_every_event_has_what_its_sort_needs(traced_plan):
    for event in events_of(traced_plan[1]):
        assert NEEDED[event["ph"]] <= event.keys(), event
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0


def test_slices_of_one_track_lie_in_each_other_or_apart(traced_plan):
    tracks = defaultdict(list)
    for event in events_of(traced_plan[1]):
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], -event["dur"]))
    for slices in tracks.values():
        open_ends = []
        for start, minus in sorted(slices):
            while open_ends and open_ends[-1] <= start + 1e-3:
                open_ends.pop()
            assert not open_ends or start - minus <= open_ends[-1] + 2e-3
            open_ends.append(start - minus)


def test_each_flow_begins_and_ends_inside_a_slice(traced_plan):
    events = events_of(traced_plan[1])
    slices = [e for e in events if e["ph"] == "X"]
    ends = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            ends[event["id"]].append(event)
            assert any(
                (s["pid"], s["tid"]) == (event["pid"], event["tid"])
                and s["ts"] <= event["ts"] <= s["ts"] + s["dur"]
                for s in slices
            ), event
    assert ends
    for pair in ends.values():
        assert [e["ph"] for e in pair] == ["s", "f"]


def test_waits_tell_their_reason(traced_plan):
    noted = [e for e in events_of(traced_plan[1]) if e.get("cat") in ("wait", "sync")]
    reasons = {e["args"]["reason"] for e in noted if "reason" in e.get("args", {})}
    assert any(r.startswith(("RAW", "WAR", "WAW")) for r in reasons)


def test_counters_never_exceed_the_arena(traced_plan):
    plan, trace = traced_plan
    found = list(live_bytes(blocks(timeline_of(trace))))
    assert {arena for _, arena, _, _ in found} == {
        a.id for a in plan.memory.arenas if a.kind not in ("weight", "state")
    }
    for _, arena, _, nbytes in found:
        assert 0 <= nbytes <= plan.memory.arenas[arena].nbytes
    for arena in {arena for _, arena, _, _ in found}:
        assert [n for _, a, _, n in found if a == arena][-1] == 0


def test_blocks_that_share_bytes_follow_each_other():
    """Within a run on simulated devices no two values hold the same bytes at once."""
    plan, trace = traced_run(MACHINES["sim"](), 1)
    found = blocks(timeline_of(trace))
    for one, two in combinations(found, 2):
        is_apart = one.offset + one.nbytes <= two.offset or two.offset + two.nbytes <= one.offset
        if one.arena == two.arena and not is_apart:
            # A result that takes over an operand's bytes does so while its node runs.
            shared = min(one.end_s, two.end_s) - max(one.start_s, two.start_s)
            is_taken_over = plan.memory.overwrites.get(max(one.value, two.value)) is not None
            assert shared <= (7.1e-6 if is_taken_over else 1e-12), (one, two)
    assert set(value_labels(plan)) == {v.id for v in plan.splits.values}


def test_one_file_is_both(traced_plan):
    _, trace = traced_plan
    data = trace_to_perfetto(trace)
    assert is_trace(data)
    assert read_trace(data) == trace
    assert read_trace(trace_to_lines(trace)) == trace
    pretty = json.dumps(json.loads(data), indent=1).encode()
    assert is_trace(pretty)
    assert read_trace(pretty) == trace
    assert check_trace(read_trace(data)).is_clean


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"type":"record"', b'"type":"rekord"'), (b"ggsched-trace/3", b"ggsched-trace/9")],
)
def test_what_is_wrong_with_it_is_reported(old, new):
    data = trace_to_perfetto(traced_run(MACHINES["sim"](), 1)[1])
    with pytest.raises(UsageError) as caught:
        read_trace(data.replace(old, new), "t.json")
    assert caught.value.where == "t.json:1"


def test_arrows_lead_from_the_work_of_an_event_to_who_waits(traced_plan):
    _, trace = traced_plan
    made = timeline_of(trace)
    found = arrows(made)
    for arrow in found:
        src, dst = made.spans[arrow.src], made.spans[arrow.dst]
        assert src.kind in ("launch", "copy", "upload", "download")
        assert src.id < dst.id
        if arrow.kind == "wait":
            assert src.end_s <= dst.end_s + 2e-5
    waits = [s for s in made.spans if s.kind == "wait" and s.run >= 0]
    assert {a.dst for a in found if a.kind == "wait"} >= {s.id for s in waits}
    assert len(made.runs) == RUNS


def test_spans_that_cross_get_rows():
    crossing = timeline(launch(1, 0, 4), copy(1, 2, 6), launch(1, 4, 5), copy(1, 6, 7))
    assert rows(crossing.spans) == {0: 0, 1: 1, 2: 0, 3: 0}
    tids = {e["tid"] for e in timeline_events(crossing) if e["ph"] == "X"}
    assert len(tids) == 2
