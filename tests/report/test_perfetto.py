"""Files for Perfetto, loaded and queried in Perfetto's own trace processor."""

import pytest

from ggsched.ids import show
from ggsched.trace.times import timeline_of
from ggsched_commands.perfetto import trace_to_perfetto
from tests.report.engine import loaded
from tests.trace.test_times import RUNS, traced_run, two_sim

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def both():
    plan, trace = traced_run(two_sim())
    with loaded(trace_to_perfetto(trace)) as engine:
        yield plan, timeline_of(trace), engine


def test_it_is_loaded_without_complaint(both):
    _, _, engine = both
    errors = engine.query("select name, value from stats where value > 0 and severity != 'info'")
    assert errors == []


def test_a_track_for_each_stream_and_host(both):
    _, timeline, engine = both
    tracks = engine.query(
        "select process.name as process, thread.name as thread from thread_track "
        "join thread using (utid) join process using (upid)"
    )
    wanted = {(track.device or "host", track.name) for track in timeline.tracks}
    assert set(tracks) == wanted | {("host", "runs")}


def test_slices_are_the_spans(both):
    _, timeline, engine = both
    rows = engine.query(
        "select name, ts, dur, extract_arg(arg_set_id, 'args.run') as run, "
        "extract_arg(arg_set_id, 'args.command') as command "
        "from slice where category in ('launch', 'copy')"
    )
    spans = [s for s in timeline.spans if s.kind in ("launch", "copy")]
    assert len(rows) == len(spans) > 0
    first = min(ts for _, ts, *_ in rows)
    begin = min(s.start_s for s in spans)
    slices = {(run, command): slice_ for *slice_, run, command in rows}
    for span in spans:
        name, ts, dur = slices.pop((span.run, show("command", span.command)))
        assert name == span.label
        assert ts - first == pytest.approx(1e9 * (span.start_s - begin), abs=1.5)
        assert dur == pytest.approx(1e9 * (span.end_s - span.start_s), abs=2)


def test_nodes_lie_in_their_launch(both):
    _, _, engine = both
    rows = engine.query(
        "select child.name as node, parent.name as launch from slice child "
        "join slice parent on child.parent_id = parent.id where child.category = 'node'"
    )
    assert rows
    assert all(launch.startswith("launch ") for _, launch in rows)


def test_flows_lead_from_work_to_waits(both):
    _, _, engine = both
    rows = engine.query(
        "select a.category as src, coalesce(p.category, b.category) as dst from flow "
        "join slice a on flow.slice_out = a.id join slice b on flow.slice_in = b.id "
        "left join slice p on b.parent_id = p.id"
    )
    assert {dst for _, dst in rows} == {"wait", "sync", "launch"}
    assert {src for src, _ in rows} <= {"launch", "copy", "upload", "download"}


def test_the_reason_of_each_wait_is_in_its_args(both):
    plan, _, engine = both
    rows = engine.query(
        "select extract_arg(arg_set_id, 'args.reason') as reason from slice "
        "where category = 'wait' and extract_arg(arg_set_id, 'args.run') is not null"
    )
    waits = sum(type(c).__name__ == "Wait" for c in plan.commands)
    assert len(rows) == RUNS * waits > 0
    assert all(reason[:3] in ("RAW", "WAR", "WAW") for (reason,) in rows)


def test_counters_of_arenas(both):
    plan, _, engine = both
    rows = engine.query(
        "select t.name as name, max(value) as most from counter "
        "join process_counter_track t on counter.track_id = t.id group by t.name"
    )
    most = {name: value for name, value in rows if name.startswith("live in compute")}
    assert len(most) == sum(a.kind == "compute" for a in plan.memory.arenas)
    for name, value in most.items():
        (arena,) = [a for a in plan.memory.arenas if f" a{a.id} " in f"{name} "]
        assert 0 < value <= arena.nbytes
    assert any(name.startswith("allocated") for name, _ in rows)
