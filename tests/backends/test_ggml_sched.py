"""Traces of llama.cpp's scheduler: one that is kept, and those of an installed llama-cpp-python."""

from pathlib import Path

import msgspec
import pytest

from benchmarks.llama_cpp.recorded_sched import PLACEMENTS, judge, mended, record
from ggsched.sanitize import check_trace
from ggsched.trace.export import read_trace
from ggsched.trace.schema import Sync, Work

DATA = Path(__file__).parent.parent / "data"


def assert_copies_overtake(trace):
    """The stream that copies into an input does not wait for the use of it four runs before."""
    report, _ = judge(trace)
    assert {f.kind for f in report.findings} == {"race"}
    for finding in report.findings:
        assert "WAR" in finding.what
        assert finding.what.endswith(" copy")
    report, (splits, waits, needless, _, _) = judge(mended(trace))
    assert report.is_clean
    assert splits >= 30
    assert waits > needless > waits * 0.85


def test_copies_of_a_pipeline_overtake_the_use_of_their_target():
    assert_copies_overtake(read_trace((DATA / "ggml_sched.jsonl").read_bytes()))


def test_waits_of_the_host_are_what_keeps_the_rest_in_order():
    trace = mended(read_trace((DATA / "ggml_sched.jsonl").read_bytes()))
    entries = tuple(e for e in trace.entries if not isinstance(e, Sync))
    assert len(check_trace(msgspec.structs.replace(trace, entries=entries)).findings) > 20


@pytest.mark.parametrize("placement", PLACEMENTS, ids=lambda p: p.name)
def test_what_an_installed_library_enqueues(placement):
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    trace, first = record(DATA / "oracle" / "llama-tiny-f32.gguf", placement)
    assert any(isinstance(e, Work) and e.label == "logits" for e in trace.entries[first:])
    if "pipelined" in placement.name:
        assert_copies_overtake(trace)
    else:
        report, (_, waits, needless, _, _) = judge(trace, first)
        assert report.is_clean
        assert waits > needless > waits * 0.85
