import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.errors import UsageError
from ggsched.trace.export import is_trace, trace_from_lines, trace_to_lines, write_trace
from ggsched.trace.schema import (
    Access,
    Actor,
    Alloc,
    Barrier,
    CaptureBegin,
    CaptureEnd,
    Free,
    Record,
    Sync,
    Trace,
    Wait,
    Work,
)

TRACE = Trace(
    "all records",
    (Actor(0, "host", "host"), Actor(1, "q0", "stream", "gpu:0", "barrier")),
    (
        Alloc(0, 0, "a", 64, "host", 1 << 47, is_defined=True, is_unsafe=False),
        CaptureBegin(1, 0),
        Work(1, "copy", 0, (Access(0, 0, 8, "v1"),), (Access(0, 8, 16),), is_copy=True),
        Work(1, "n0", 0, writes=(Access(0, 0, 64),), is_partial=True, start_s=0.5, end_s=0.75),
        Barrier(1, 0),
        CaptureEnd(1, 0),
        Record(1, 3, 0),
        Wait(1, 3, 0),
        Sync(0, event=3),
        Sync(0, stream=1),
        Sync(0),
        Free(0, 0),
    ),
    dropped=2,
)
LINES = trace_to_lines(TRACE)


def refused(data):
    with pytest.raises(UsageError) as caught:
        trace_from_lines(data, "t.jsonl")
    assert caught.value.exit_code == 2
    return caught.value


def test_there_and_back():
    assert trace_from_lines(LINES) == TRACE
    assert trace_to_lines(trace_from_lines(LINES)) == LINES


def test_one_line_each():
    lines = LINES.decode().splitlines()
    assert len(lines) == 1 + len(TRACE.entries)
    assert lines[0].startswith('{"format":"ggsched-trace/3","name":"all records"')
    assert lines[3] == (
        '{"type":"work","actor":1,"label":"copy","by":0,"reads":[[0,0,8,"v1"]],'
        '"writes":[[0,8,16,""]],"is_copy":true}'
    )


def test_a_beginning_is_a_trace():
    some = b"\n".join(LINES.split(b"\n")[:4])
    assert trace_from_lines(some).entries == TRACE.entries[:3]


def test_empty_lines_and_windows_ends_are_legal():
    assert trace_from_lines(b"\n" + LINES.replace(b"\n", b"\r\n\n")) == TRACE


def test_tags_may_be_left_out():
    data = LINES.replace(b'[0,8,16,""]', b"[0,8,16]")
    assert trace_from_lines(data) == TRACE


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (b"ggsched-trace/3", b"ggsched-trace/1", 1),
        (b'"name":"all records",', b"", 1),
        (b'"type":"barrier"', b'"type":"fence"', 6),
        (b'"actor":1,"event":3', b'"actor":"q0","event":3', 8),
        (b'[0,0,8,"v1"]', b"[0,0]", 4),
        (b'{"type":"free"', b'{"type":"free"' + b"{" * 3, 13),
    ],
)
def test_refusals_name_the_line(old, new, line):
    assert LINES.count(old) >= 1
    error = refused(LINES.replace(old, new, 1))
    assert error.where == f"t.jsonl:{line}"


@pytest.mark.parametrize("data", [b"", b"\n \n"])
def test_empty(data):
    assert refused(data).what == "the file is empty"


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes(data):
    for prefix in (b"", LINES[:300]):
        is_trace(prefix + data)
        with contextlib.suppress(UsageError):
            assert trace_from_lines(prefix + data).actors is not None


def test_is_trace():
    assert is_trace(LINES)
    assert is_trace(b"\n" + LINES.replace(b"trace/1", b"trace/9"))
    assert not is_trace(b'{"format": "ggsched-plan/3"}')
    assert not is_trace(b"litmus X race")
    assert not is_trace(b"\xff\xfe")
    assert not is_trace(b"")


def test_write(tmp_path):
    write_trace(TRACE, tmp_path / "t.jsonl")
    assert (tmp_path / "t.jsonl").read_bytes() == LINES
    with pytest.raises(UsageError, match="cannot write the trace"):
        write_trace(TRACE, tmp_path / "none" / "t.jsonl")


def test_records_are_data():
    assert msgspec.structs.replace(TRACE, dropped=0) != TRACE
    with pytest.raises(AttributeError):
        TRACE.name = "other"
