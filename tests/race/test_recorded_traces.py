"""Recorded programs after published races: verdicts, stacks, tensors and mends, without PyTorch."""

import tracemalloc
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.errors import UsageError
from ggsched.sanitize import check_trace
from ggsched.trace.export import read_trace, trace_to_lines
from ggsched.trace.schema import FORMAT, Access, Alloc, Free, Record, Sync, Trace, Wait, Work
from ggsched_race import report
from ggsched_race.report import check_program
from ggsched_race.sarif import to_sarif
from ggsched_race.streamed import follow_lines
from tests.sanitize.test_traces_against_brute_force import traces

TRACES = sorted((Path(__file__).parent.parent / "data" / "races").glob("*.jsonl"))
BROKEN = [path for path in TRACES if path.stem.endswith("-broken")]


def report_of(path, **options):
    return check_program(path.read_bytes(), path.name, **options)


def test_there_are_traces_of_eighteen_programs_and_more():
    assert len(BROKEN) >= 18
    assert {p.stem.replace("-broken", "-mended") for p in BROKEN} <= {p.stem for p in TRACES}


@pytest.mark.parametrize("path", TRACES, ids=lambda p: p.stem)
def test_verdict_is_that_of_the_name(path):
    report = report_of(path)
    assert report.is_clean == (path not in BROKEN), report.to_text()


@pytest.mark.parametrize("path", BROKEN, ids=lambda p: p.stem)
def test_finding_names_both_calls_the_tensor_and_a_mend(path):
    program = path.stem.removesuffix("-broken")
    for finding in report_of(path).findings:
        assert len(finding.sides) == (2 if finding.kind == "race" else 1)
        for side in finding.sides:
            assert any(frame.function == program for frame in side.stack)
            assert all(frame.file.startswith("tests/race/") for frame in side.stack)
        assert "made at tests/race/programs.py" in finding.tensor
        assert finding.mend


def with_mend(trace: Trace, first: int, second: int) -> Trace:
    """Return a trace with an event behind one record and a wait in front of another."""
    entries = list(trace.entries)
    source, target = entries[first].actor, entries[second].actor
    event = 10**6
    wait = Wait(target, event, 0) if trace.actors[target].kind == "stream" else Sync(0, event=event)
    entries[second:second] = [wait]
    entries[first + 1 : first + 1] = [Record(source, event, 0)]
    return msgspec.structs.replace(trace, entries=tuple(entries))


@pytest.mark.parametrize("path", BROKEN, ids=lambda p: p.stem)
def test_event_and_wait_where_the_mend_says_order_the_two_accesses(path):
    trace = read_trace(path.read_bytes())
    races = [f for f in check_trace(trace).findings if f.kind == "race"]
    for race in races:
        first, second = race.earlier.command, race.later.command
        mended = check_trace(with_mend(trace, first, second))
        pairs = {(f.earlier.command, f.later.command) for f in mended.findings if f.earlier}
        assert (first, second + 2) not in pairs


def test_a_mended_program_races_without_any_one_of_its_waits():
    """The first one apart, which comes before all work."""
    path = next(p for p in TRACES if p.stem == "sglang_26380-mended")
    trace = read_trace(path.read_bytes())
    waits = [i for i, e in enumerate(trace.entries) if isinstance(e, Wait)]
    assert waits
    for i in waits[1:]:
        kept = tuple(e for k, e in enumerate(trace.entries) if k != i)
        assert not check_trace(msgspec.structs.replace(trace, entries=kept)).is_clean


def test_rows_are_named_and_the_same_calls_are_one_finding():
    (path,) = (p for p in BROKEN if p.stem == "vllm_47282-broken")
    (finding,) = report_of(path).findings
    assert "cache[5:6]" in finding.what
    assert finding.mend.startswith("load.wait_stream(torch.cuda.default_stream())")
    (path,) = (p for p in BROKEN if p.stem == "vllm_24527-broken")
    (finding,) = report_of(path).findings
    assert finding.times == 2
    assert "positions[0:8]" in finding.what
    assert "synchronize() of the event recorded at" in finding.mend


def test_reuse_of_a_block_is_mended_by_record_stream():
    (path,) = (p for p in BROKEN if p.stem == "vllm_ascend_13394-broken")
    (finding,) = report_of(path).findings
    assert "was freed" in finding.what
    assert finding.mend.startswith("noise.record_stream(torch.cuda.default_stream())")


def test_findings_are_left_out_by_patterns_of_frames():
    (path,) = (p for p in BROKEN if p.stem == "vllm_24527-broken")
    report = report_of(path, suppressions=["*programs.py:* in vllm_24527"])
    assert report.is_clean
    assert report.suppressed == 1
    assert not report_of(path, suppressions=["*programs.py:* in other"]).is_clean


def test_sarif_names_places_and_keeps_its_fingerprint_when_lines_move():
    (path,) = (p for p in BROKEN if p.stem == "sglang_26380-broken")
    log = to_sarif(report_of(path))
    (run,) = log["runs"]
    (result,) = run["results"]
    (place,) = result["locations"]
    assert place["physicalLocation"]["artifactLocation"] == {"uri": "tests/race/programs.py"}
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == "race"
    assert len(result["relatedLocations"]) == 1
    data = path.read_bytes().replace(b'programs.py",', b'programs.py",1')
    moved = to_sarif(check_program(data))["runs"][0]["results"][0]
    assert moved["partialFingerprints"] == result["partialFingerprints"]
    assert moved["locations"] != result["locations"]


def test_advice_says_where_a_needless_wait_is_and_what_it_costs():
    lines = (Path(TRACES[0].parent) / "vllm_32799-right.jsonl").read_bytes()
    wait = b'{"type":"sync","actor":0,"at":0,"stream":1,"start_s":1.0,"end_s":1.25}\n'
    report = check_program(lines + wait, advice=True)
    assert report.is_clean
    (advice,) = (a for a in report.advice if "wait of the host" in a.what)
    assert advice.seconds == pytest.approx(0.25)
    assert "tests/race/programs.py" in advice.what


def test_work_of_every_trace_is_by_streams_that_are_named():
    for path in TRACES:
        trace = read_trace(path.read_bytes())
        used = {e.actor for e in trace.entries if isinstance(e, Work)}
        assert all(trace.actors[i].name for i in used)


@pytest.mark.parametrize("path", TRACES, ids=lambda p: p.stem)
def test_report_is_the_same_without_a_copy_of_the_records(path, monkeypatch):
    """Races are looked for while the trace is read; of the whole of it they are the same."""
    followed = report_of(path)
    monkeypatch.setattr(report, "follow_lines", lambda data, file: None)
    assert report_of(path) == followed


def test_check_keeps_no_records_and_finds_the_same_at_the_end_of_many():
    """A record of 12 accesses takes a kilobyte as objects, and eight bytes as it is."""
    actors = [{"id": 0, "name": "host", "kind": "host"}]
    actors += [{"id": i, "name": f"s{i}", "kind": "stream"} for i in (1, 2)]
    header = {"format": FORMAT, "name": "many", "actors": actors, "events": "latest", "sites": []}
    memories = [
        {"type": "alloc", "actor": 0, "memory": i, "name": f"m{i}", "nbytes": 1 << 16,
         "is_defined": True, "place": "cuda"} for i in range(24)
    ]  # fmt: skip
    reads = [[i, 0, 1 << 16] for i in range(11)]
    work = {"type": "work", "actor": 1, "by": 0, "label": "add", "reads": reads}
    records = [{**work, "writes": [[11 + i % 12, 0, 1 << 16]]} for i in range(4000)]
    racing = {**work, "actor": 2, "reads": [], "writes": [[3, 0, 64]]}
    data = msgspec.json.Encoder().encode_lines([header, *memories, *records, racing])
    tracemalloc.start()
    try:
        (finding,) = check_program(data).findings
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert finding.what.startswith("write after read: nothing orders the write of bytes 0:64 of m3")
    assert peak < 400 * 4000


@pytest.mark.parametrize("field", ['"at":"x"', '"views":3', '"issued_s":"x"', '"reads":[[0]]'])
def test_a_field_of_the_wrong_type_is_an_error_in_records_and_in_notes(field):
    lines = TRACES[0].read_bytes().splitlines()
    work = b'{"type":"work","actor":0,"label":"add",' + field.encode() + b"}"
    with pytest.raises(UsageError, match="not a trace"):
        check_program(b"\n".join([*lines, work]))


# --- traces in lines, which are not kept ----------------------------------------------------------


FIRST_NUMBERS = (0, -2, 1 << 53, (1 << 63) - 1, 1 << 63)


def simple(trace, first):
    """Return a trace of memory without addresses and frees, numbered from there on."""

    def numbered(accesses):
        return tuple(Access(a.memory + first, a.start, a.end) for a in accesses)

    entries = []
    for entry in trace.entries:
        if isinstance(entry, Alloc):
            changes = {"memory": entry.memory + first, "space": "", "address": 0}
            entry = msgspec.structs.replace(entry, **changes)
        elif isinstance(entry, Work):
            changes = {"reads": numbered(entry.reads), "writes": numbered(entry.writes)}
            entry = msgspec.structs.replace(entry, **changes)
        if not isinstance(entry, Free):
            entries.append(entry)
    return msgspec.structs.replace(trace, entries=tuple(entries))


@pytest.mark.parametrize("forget_above", [(0, 0), (512, 2)])
@given(trace=st.builds(simple, traces(), st.sampled_from(FIRST_NUMBERS)))
def test_races_of_lines_are_those_of_the_whole(forget_above, trace):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ggsched.sanitize.races.FORGET_ABOVE", forget_above)
        followed = follow_lines(trace_to_lines(trace), "t")
        assert followed is None or bool(followed.races) != check_trace(trace).is_clean
