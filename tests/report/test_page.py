"""The page without a browser: its data are complete, and it asks nothing of any network."""

import json
import re

import msgspec
import pytest

from ggsched.errors import UsageError
from ggsched.plan.command import Record
from ggsched.report.data import page_data
from ggsched.report.html import SCRIPTS, page, write_page
from ggsched.report.splits import layers_text, split_edges
from ggsched.report.text import account_text
from ggsched.trace.times import timeline_of
from ggsched.trace.utilization import account
from tests.report.plans import batches_through_stages, expected_of, gpus, pipeline_trace
from tests.trace.test_times import MACHINES, traced_run
from tests.trace.timelines import launch, timeline

OUTSIDE = re.compile(
    r"""\b(?:src|href|action)\s*=\s*["']|\burl\(|@import|\bfetch\(|XMLHttpRequest|WebSocket|importScripts"""
)


def data_of(text):
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    return json.loads(found)


@pytest.fixture(params=MACHINES)
def traced_plan(request):
    return traced_run(MACHINES[request.param]())


@pytest.fixture(scope="module")
def pipeline():
    return pipeline_trace(4, 6)


def test_every_span_is_in_the_data(traced_plan):
    plan, trace = traced_plan
    made = timeline_of(trace)
    data = data_of(page(made, trace.plans))
    spans, texts = data["spans"], data["texts"]
    assert {len(column) for column in spans.values()} == {len(made.spans)}
    for i, span in enumerate(made.spans):
        assert texts[spans["label"][i]] == span.label
        assert texts[spans["reason"][i]] == span.reason
        assert spans["start"][i] == pytest.approx(1e6 * span.start_s, abs=1e-3)
        assert spans["end"][i] == pytest.approx(1e6 * span.end_s, abs=1e-3)
        assert (spans["track"][i], spans["command"][i]) == (span.track, span.command)
        assert spans["row"][i] < data["tracks"][span.track]["rows"]
    commands = {(spans["run"][i], c) for i, c in enumerate(spans["command"]) if c >= 0}
    assert commands == {(run, c.id) for run in range(len(made.runs)) for c in plan.commands}


def test_waits_have_their_reason_and_their_arrow(traced_plan):
    plan, trace = traced_plan
    data = page_data(timeline_of(trace))
    targets = {dst for _, _, dst in data["arrows"]}
    for i, kind in enumerate(data["spans"]["kind"]):
        if kind == "wait" and data["spans"]["run"][i] >= 0:
            assert data["texts"][data["spans"]["reason"][i]][:3] in ("RAW", "WAR", "WAW")
            assert i in targets
    assert any(isinstance(c, Record) for c in plan.commands) == bool(targets)


def test_expected_beside_measured(traced_plan):
    plan, trace = traced_plan
    (expected,) = page_data(timeline_of(trace), trace.plans)["expected"]
    work = [c.id for c in plan.commands if hasattr(c, "transfer") or hasattr(c, "steps")]
    assert expected["command"] == work
    assert all(a <= b for a, b in zip(expected["start"], expected["end"], strict=True))
    assert "guess" in expected["rates"]


def test_memory_blocks_lie_in_their_arena(pipeline):
    data = page_data(timeline_of(pipeline))
    blocks = data["blocks"]
    sizes = {a["id"]: a["bytes"] for a in data["plans"][0]["arenas"]}
    assert blocks["start"] == sorted(blocks["start"])
    for arena, offset, nbytes in zip(
        blocks["arena"], blocks["offset"], blocks["bytes"], strict=True
    ):
        assert 0 <= offset < offset + nbytes <= sizes[arena]
    for key, points in data["live"].items():
        assert max(n for _, n in points) <= sizes[int(key.partition(".")[2])]


def test_edges_between_splits(pipeline):
    plan = pipeline.plans[0].plan
    edges = split_edges(plan)
    # Each micro-batch goes from stage to stage, and nothing else flows.
    assert len(edges) == 6 * 3
    for src, dst, nbytes, copied in edges:
        assert src < dst
        assert copied
        assert nbytes == 8 * 64 * 4
        assert plan.splits.splits[dst].device == plan.splits.splits[src].device + 1


def test_a_plan_before_anything_has_run():
    graph, constraints = batches_through_stages(4, 5)
    made, traced = expected_of(graph, constraints, gpus(4))
    data = page_data(made)
    assert data["isExpected"]
    work = {e.command: e for e in traced.expected}
    spans = [s for s in made.spans if s.command in work]
    assert len(spans) == len(work)
    begin = {s.command: s.start_s for s in spans}
    for command, expected in work.items():
        assert begin[command] == pytest.approx(expected.start_s, abs=2e-4)
    for span in spans:
        known = work[span.command]
        assert span.end_s - span.start_s == pytest.approx(known.end_s - known.start_s, abs=1e-8)
    assert 0 < data["account"]["bubble"] < 1


def test_the_page_asks_no_network(pipeline):
    text = page(timeline_of(pipeline), pipeline.plans)
    scripts = re.sub(r'<script type="application/json".*?</script>', "", text, flags=re.S)
    assert "http" not in scripts.replace("http-equiv", "")
    assert not OUTSIDE.search(scripts), OUTSIDE.search(scripts)
    assert "default-src 'none'" in text
    assert not re.search(r"<(?:link|img|iframe|object|embed)\b", scripts)


def test_texts_of_the_trace_cannot_become_markup():
    evil = "</script><img src=x onerror=alert(1)>@@data@@"
    made = msgspec.structs.replace(timeline(launch(1, 0, 1)), name=evil)
    made = msgspec.structs.replace(
        made, spans=tuple(msgspec.structs.replace(s, label=evil) for s in made.spans)
    )
    text = page(made)
    assert "<img" not in text
    assert data_of(text)["texts"][0] == evil
    assert data_of(text)["title"] == evil


def test_scripts_are_all_there_and_make_no_markup_of_texts():
    text = page(timeline(launch(1, 0, 1)))
    for name in SCRIPTS:
        assert name.endswith(".js")
    assert "@@" not in text
    assert "innerHTML" not in text
    assert "eval(" not in text


def test_a_page_that_cannot_be_written(tmp_path):
    with pytest.raises(UsageError, match="cannot write the page"):
        write_page(str(tmp_path / "no" / "page.html"), timeline(launch(1, 0, 1)))


def test_the_account_as_text_fits_80_columns(pipeline):
    text = account_text(account(timeline_of(pipeline)))
    assert max(map(len, text.splitlines())) <= 80
    for word in ("busy", "copies", "devices", "host", "sim:0", "sim:0->sim:1", "idle"):
        assert word in text


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (["blk.0.attn", "blk.1.ffn", "blk.2.x", "blk.7.x"], "layers 0-2, 7"),
        (["blk.3.attn", "output"], "layer 3"),
        (["output", ""], ""),
    ],
)
def test_layers_of_a_split(labels, text):
    assert layers_text(labels) == text


def test_layers_that_devices_share_are_named_as_parts():
    assert layers_text(["blk.0.a", "blk.1.a", "blk.2.norm"], ["blk.2.attn", "blk.3.attn"]) == (
        "layers 0-1, part of layer 2"
    )
    assert layers_text(["blk.2.attn", "blk.3.attn"], ["blk.2.norm", "blk.3.ffn"]) == (
        "part of layers 2-3"
    )


def test_planning_is_on_the_host_s_track(pipeline):
    """Before the first run of each plan, as long as the plan says."""
    (run,), (traced,) = pipeline.runs, pipeline.plans
    later = msgspec.structs.replace(run, start_s=0.5, end_s=run.end_s + 0.5)
    plan = msgspec.structs.replace(traced.plan, planning_s=0.125)
    traced = msgspec.structs.replace(traced, plan=plan)
    trace = msgspec.structs.replace(pipeline, clock="host", runs=(later,), plans=(traced,))
    (made,) = [s for s in timeline_of(trace).spans if "is made" in s.label]
    assert (made.kind, made.track, made.is_estimated) == ("host", run.actor, True)
    assert (made.start_s, made.end_s) == (0.375, 0.5)
    assert "125 ms" in made.label
    assert not any("is made" in s.label for s in timeline_of(pipeline).spans)
