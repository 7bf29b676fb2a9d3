"""Bytes of views, blocks of allocators, host memory, stacks and journals: without PyTorch."""

import gc
import io
import pickle
from itertools import pairwise, product
from random import Random

import numpy as np
import pytest

from ggsched.errors import UsageError
from ggsched.sanitize import check_trace
from ggsched.sanitize.races import MAX_RACES
from ggsched.trace.export import read_trace
from ggsched_race import call_sites
from ggsched_race.blocks import Blocks, CachingAllocator
from ggsched_race.byte_runs import MAX_RUNS, chosen_runs, indexed_starts, strided_runs
from ggsched_race.call_sites import CallSites, Frame, assigned_name
from ggsched_race.host_memory import HostMemory, TracedArray, array_runs
from ggsched_race.html_page import to_html
from ggsched_race.patches import Patches
from ggsched_race.program import _ended_by
from ggsched_race.recording import HOST, Recording, RowChooser, trace_of_journal
from ggsched_race.report import RaceReport, check_program
from ggsched_race.sarif import to_sarif
from ggsched_race.trace_notes import Note
from ggsched_race.watch import RecordedAlready, _under_way, watch

# --- bytes ----------------------------------------------------------------------------------------


def elements(starts, sizes, strides):
    return {
        start + sum(i * s for i, s in zip(index, strides, strict=True))
        for start in starts
        for index in product(*map(range, sizes))
    }


def bytes_in(runs):
    return [b for start, end in runs for b in range(start, end)]


@pytest.mark.parametrize("seed", range(60))
def test_runs_are_the_bytes_of_all_elements(seed):
    random = Random(seed)
    rank, itemsize = random.randint(0, 4), random.choice((1, 2, 8))
    sizes = [random.randint(0 if seed % 7 == 0 else 1, 4) for _ in range(rank)]
    strides = [random.choice((0, 1, 2, 3, 4, 8, 12)) for _ in range(rank)]
    starts = np.array([random.randrange(40) for _ in range(random.randint(1, 4))])
    found = chosen_runs(starts, sizes, strides, itemsize)
    due = {e * itemsize + b for e in elements(starts, sizes, strides) for b in range(itemsize)}
    assert found.is_exact
    assert bytes_in(found.runs) == sorted(due)
    assert all(a[1] < b[0] for a, b in pairwise(found.runs))


def test_runs_above_the_limit_are_one_and_not_exact():
    found = strided_runs((MAX_RUNS + 1, 1), (2, 1), 0, 4)
    assert found == ([(0, (2 * MAX_RUNS + 1) * 4)], False)


def test_rows_of_two_indices_are_those_of_each_combination():
    starts = indexed_starts(5, [(np.array([[0], [2]]), 10), (np.array([1, 3]), 1)])
    assert sorted(starts.reshape(-1).tolist()) == [6, 8, 26, 28]


@pytest.mark.parametrize(
    ("start", "end", "text"),
    [
        (0, 128, "table"), (32, 64, "table[2:4]"), (36, 44, "table[2, 1:3]"),
        (12, 24, "elements 3:6 of table"),
    ],
)  # fmt: skip
def test_bytes_are_named_as_rows_and_elements(start, end, text):
    assert Note(name="table", nbytes=128, text="(8, 4) float32").part(start, end) == text


def test_bytes_of_memory_that_is_first_seen_by_one_element_are_named_by_number():
    assert Note(name="table", nbytes=128, text="() float32").part(4, 8) == "bytes 4:8 of table"


# --- blocks ---------------------------------------------------------------------------------------


class Memories:
    """Numbers for memory objects; names say of what they are."""

    def __init__(self):
        self.names = []

    def __call__(self, block, tensor, is_shadow):
        self.names.append(f"{block.address}{' shadow' if is_shadow else ''}")
        return len(self.names) - 1


A, B, C = 1, 2, 3
"""Streams."""


def given(first_address, second_address, *, uses, recorded=(), by=A, nbytes=512, late=()):
    """Free a block that streams have used, give one, and return what its first use takes."""
    memories = Memories()
    blocks = Blocks(memories)
    blocks.allocated(first_address, A)
    old = blocks.at(first_address, 512)
    for stream in uses:
        blocks.touch(old, stream)
    old.recorded.update(recorded)
    blocks.freed(first_address)
    blocks.allocated(second_address, A)
    new = blocks.at(second_address, nbytes)
    _, takes = blocks.touch(new, by)
    assert blocks.touch(new, by)[1] == []
    return [(memories.names[m], start, end) for m, start, end in takes]


def test_block_of_one_stream_is_given_again_without_more():
    assert given(0, 0, uses=[A]) == []


def test_first_use_by_another_stream_takes_what_the_old_one_did():
    assert given(0, 0, uses=[A], by=B) == [("0", 0, 512)]


def test_use_of_another_stream_is_taken_unless_it_is_recorded():
    assert given(0, 0, uses=[A, B]) == [("0", 0, 512)]
    assert given(0, 0, uses=[A, B], recorded=[B]) == []
    assert given(0, 0, uses=[A, B, C], recorded=[B]) == [("0 shadow", 0, 512)]


def test_part_of_a_block_is_taken_by_its_bytes():
    assert given(0, 256, uses=[A, B], nbytes=512) == [("0", 256, 512)]


def test_block_elsewhere_of_the_same_pool_is_taken_as_possible():
    assert given(0, 4096, uses=[A, B], nbytes=100) == [("0 shadow", 0, 100)]
    assert given(0, 4096, uses=[A, B], nbytes=1024) == []
    assert given(0, 4096, uses=[A]) == []
    assert given(0, 4096, uses=[A, B], recorded=[B]) == []


def test_block_that_is_freed_after_an_allocation_is_not_taken_by_it():
    memories = Memories()
    blocks = Blocks(memories)
    for address in (0, 512):
        blocks.allocated(address, A)
    for stream in (A, B):
        blocks.touch(blocks.at(0, 512), stream)
    blocks.freed(0)
    assert blocks.touch(blocks.at(512, 512), A)[1] == []


@pytest.mark.parametrize("seed", range(10))
def test_blocks_in_use_never_overlap_and_streams_have_their_own(seed):
    random, allocator = Random(seed), CachingAllocator()
    used, freed_of = {}, {}
    for _ in range(300):
        if used and random.random() < 0.5:
            address = random.choice(list(used))
            _, stream = used.pop(address)
            allocator.free(address)
            freed_of[address] = stream
        else:
            nbytes, stream = random.choice((1, 600, 4096, 1 << 20, 3 << 20)), random.choice((A, B))
            address = allocator.allocate(nbytes, stream)
            assert freed_of.get(address, stream) == stream
            used[address] = nbytes, stream
        spans = sorted((a, a + n) for a, (n, _) in used.items())
        assert all(x[1] <= y[0] for x, y in pairwise(spans))


def test_the_block_that_was_freed_last_is_given_again():
    allocator = CachingAllocator()
    first = allocator.allocate(1000, A)
    allocator.free(first)
    assert allocator.allocate(700, A) == first
    assert allocator.allocate(700, B) != first
    assert allocator.allocate(700, A, pool="graph") != first


# --- host memory ----------------------------------------------------------------------------------


def traced(array):
    calls = []

    def accessed(name, reads, writes):
        calls.append((name, [array_runs(a) for a in reads], [array_runs(a) for a in writes]))

    view = array.view(TracedArray)
    view.accessed = accessed
    return view, calls


def test_accesses_through_arrays_and_their_views_are_reported():
    base = np.zeros((4, 4), np.int32)
    start = base.ctypes.data
    array, calls = traced(base)
    row = array[1:]
    assert calls == []  # a view reads nothing
    row[0] = 7
    assert calls.pop() == ("numpy setitem", [], [(start + 16, [(0, 16)])])
    array[:, 1] = 3
    assert calls.pop()[2] == [(start + 4, [(0, 4), (16, 20), (32, 36), (48, 52)])]
    array[2, 3] = 1
    assert calls.pop()[2] == [(start + 44, [(0, 4)])]
    assert int(array[1, 0]) == 7
    assert calls.pop()[1] == [(start + 16, [(0, 4)])]
    array += 1
    assert [len(x) for x in calls.pop()[1:]] == [1, 1]
    np.copyto(array, np.ones((4, 4), np.int32))
    assert calls.pop() == ("numpy copyto", [], [(start, [(0, 64)])])
    row.fill(0)
    assert calls.pop()[2] == [(start + 16, [(0, 48)])]
    total = (array + 1).sum()
    assert calls.pop()[0] == "numpy add"
    assert total == 4 * 2 + 12
    assert calls == []  # a result has memory of its own
    for read in (np.ndarray.tolist, TracedArray.tolist, list, np.asarray, pickle.dumps, repr):
        read(array)
    assert {name for name, *_ in calls} >= {"numpy tolist", "numpy pickle", "numpy repr"}
    assert type(pickle.loads(pickle.dumps(array))) is np.ndarray


def test_content_of_queued_sources_is_compared_and_writes_that_are_known_are_left_out():
    data = np.zeros(64, np.uint8)
    host = HostMemory()
    host.add(data.ctypes.data, 64, 5)
    host.queued([(5, 0, 16), (5, 32, 48)], A)
    assert host.changed() == []
    data[33] = 1
    assert host.changed() == [(5, 32, 48)]
    assert host.changed() == []
    host.written([(5, 0, 4), (9, 0, 4)])
    data[1] = 1
    assert host.changed() == []
    host.waited([A])
    data[34] = 1
    assert host.changed() == []
    assert host.bytes_at(data.ctypes.data + 8, [(0, 4)]) == [(5, 8, 12)]
    host.remove(5)
    assert host.is_empty
    assert host.find(data.ctypes.data) is None


# --- stacks and journals --------------------------------------------------------------------------


def test_a_stack_has_one_number_and_a_file_below_the_folder_its_path_from_there():
    added = {}
    sites = CallSites(lambda number, stack, place: added.update({number: stack}))

    def call():
        return sites.here()

    numbers = [call() for _ in range(3)]
    other = call()
    assert len(set(numbers)) == 1
    assert other != numbers[0]
    stack = added[other]
    assert stack[0].function.endswith("call")
    assert stack[0].file == "tests/race/test_parts.py"
    assert not any(frame.is_library for frame in stack)


def test_equal_code_of_several_files_has_several_stacks():
    """Also where what it calls is the same, and after some of it is gone."""
    added = {}
    sites = CallSites(lambda number, stack, place: added.update({number: stack}))

    def call():
        return sites.here()

    for name in ("a.py", "b.py", "c.py"):
        for _ in range(2):
            exec(compile("call()", name, "exec"), {"call": call})
            gc.collect()
    assert [stack[1].file for stack in added.values()] == ["a.py", "b.py", "c.py"]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("x = zeros(3)", "x"),
        ("    self.x = zeros(3).cuda()  # a; b", "self.x"),
        ("a[0] = b = zeros(';')", "a[0]"),
        ("x: Tensor = zeros(3);", "x"),
        ("x = zeros(\n    3,\n)", "x"),
        ("a = zeros(); b = zeros(); s = Stream()", ""),
        ("a = zeros(); b = zeros(\n)", ""),
        ("s1, s2 = Stream(), Stream()", ""),
        ("pair = Stream(), Stream()", ""),
        ("streams = [Stream() for _ in range(2)]", ""),
        ("streams = [\n    Stream(),\n    Stream(),\n]", ""),
        ("pipe = Pipe(Stream(), Stream())", ""),
        ("for x in (zeros(1), zeros(2)): pass", ""),
        ("x += zeros(3)", ""),
        ("zeros(3)", ""),
        ("x == zeros(3)", ""),
        ("x = zeros(", ""),
    ],
)
def test_a_line_names_what_it_makes_if_that_is_one(source, name, tmp_path):
    path = tmp_path / "made.py"
    path.write_text(source + "\n", encoding="utf-8")
    assert assigned_name((Frame(str(path), 1, "<module>"),)) == name


def test_a_temporary_within_a_line_has_no_name(tmp_path):
    """By the place of the call in the line, also where the statement has several lines."""
    path = tmp_path / "made.py"
    lines = ["x = inner(3) + 1", "y = outer(inner(4))", "z = outer(", "    inner(5)", ")"]
    path.write_text("\n".join(["if True:", *(f"    {line}" for line in lines), ""]), "utf-8")
    named = {}

    def added(number, stack, place):
        named[number] = assigned_name(stack[:1], place)

    sites = CallSites(added)
    made = {"inner": [], "outer": []}

    def making(what):
        def make(value):
            made[what].append(named[sites.here()])
            return value

        make.__code__ = make.__code__.replace(co_filename=call_sites._OWN)
        return make

    scope = {what: making(what) for what in made}
    exec(compile(path.read_text("utf-8"), str(path), "exec"), scope)
    assert made == {"inner": ["", "", ""], "outer": ["y", "z"]}


class Recorded:
    """A recording of a program of calls, and its findings."""

    def __init__(self):
        self.out = io.BytesIO()
        self.recording = Recording(self.out, "calls")
        self.default = self.recording.stream((0, 0))
        self.x = self.recording.memory(64, "(16,) float32", -1)

    def write(self, stream, memory=None, **more):
        span = (self.x if memory is None else memory, 0, 64)
        self.recording.work(stream, "write", (), [span], -1, **more)

    @property
    def findings(self):
        return check_program(trace_of_journal(self.out.getvalue())).findings


@pytest.mark.parametrize("is_blocking", [False, True])
def test_blocking_streams_follow_the_legacy_default_stream_and_others_do_not(is_blocking):
    calls = Recorded()
    other = calls.recording.stream((0, 16), is_blocking=is_blocking)
    for stream in (calls.default, other, calls.default, other):
        calls.write(stream)
    assert (calls.findings == ()) == is_blocking


def graph_calls():
    calls = Recorded()
    side = calls.recording.stream((0, 16))
    calls.recording.begin_capture("g", side)
    calls.write(side)
    calls.recording.end_capture("g")
    return calls, side


def test_a_captured_graph_does_nothing_until_it_is_replayed():
    calls, _ = graph_calls()
    calls.write(calls.default)
    assert calls.findings == ()
    calls.recording.replay("g", calls.recording.stream((0, 32)), -1)
    assert len(calls.findings) == 1


def test_replays_of_one_graph_follow_each_other_on_any_streams():
    calls, side = graph_calls()
    for stream in (side, calls.recording.stream((0, 32)), side):
        calls.recording.replay("g", stream, -1)
    assert calls.findings == ()


def test_a_branch_of_a_graph_is_ordered_by_the_events_of_the_capture_only():
    for joins in (False, True):
        calls = Recorded()
        origin, branch = (calls.recording.stream((0, n)) for n in (16, 32))
        calls.recording.begin_capture("g", origin)
        calls.recording.record("fork", origin, -1)
        calls.recording.wait("fork", branch, -1)
        calls.write(branch)
        calls.recording.record("join", branch, -1)
        if joins:
            calls.recording.wait("join", origin, -1)
        calls.write(origin)
        calls.recording.wait("join", origin, -1)
        calls.recording.end_capture("g")
        for _ in range(2):
            calls.recording.replay("g", calls.default, -1)
        assert (calls.findings == ()) == joins
        assert not calls.recording.is_capturing(branch)


def test_a_replay_touches_the_rows_that_ids_choose_then():
    calls = Recorded()
    rows = [(0, 4)]
    chooser = RowChooser(frozenset(), frozenset({calls.x}), lambda: rows)
    side = calls.recording.stream((0, 16))
    calls.recording.begin_capture("g", side)
    calls.write(side, chooser=chooser)
    calls.recording.end_capture("g")
    rows[:] = [(60, 64)]
    calls.recording.replay("g", side, -1)
    calls.recording.work(calls.default, "read", [(calls.x, 0, 60)], (), -1)
    assert calls.findings == ()
    calls.recording.work(calls.default, "read", [(calls.x, 59, 61)], (), -1)
    assert len(calls.findings) == 1


def test_a_graph_that_uses_memory_which_is_gone_is_found():
    calls, side = graph_calls()
    calls.recording.memory_died(calls.x)
    calls.recording.replay("g", side, -1)
    assert [f.kind for f in calls.findings] == ["freed"]


def test_a_report_of_a_failed_program_says_what_was_judged():
    out = io.BytesIO()
    recording = Recording(out, "p.py")

    def said(failure):
        report = check_program(trace_of_journal(out.getvalue()), failure=failure)
        assert report.verdict in to_html(report)
        return report.to_text()

    assert said("") == "p.py: nothing was recorded\n"
    ended = "until the program ended with exit code 1"
    assert said("exit code 1") == f"p.py: nothing was recorded {ended}\n"
    stream = recording.stream((0, 16))
    for _ in range(2):
        recording.work(stream, "write", (), (), -1)
    assert said("exit code 1") == f"p.py: 2 records {ended}: clean\n"
    assert said("") == "p.py: 2 records: clean\n"


@pytest.mark.parametrize(("pairs", "is_cut_off"), [(MAX_RACES - 1, False), (MAX_RACES, True)])
def test_a_report_says_where_the_search_stopped(pairs, is_cut_off):
    calls = Recorded()
    side = calls.recording.stream((0, 16))
    calls.write(side)
    for _ in range(pairs):  # each races with the first
        calls.recording.work(calls.default, "read", [(calls.x, 0, 64)], (), -1)
    report = check_program(trace_of_journal(calls.out.getvalue()))
    stopped = f"at least 1 finding until the search stopped at {MAX_RACES} racing pairs"
    assert report.is_cut_off == is_cut_off
    assert report.verdict.endswith(stopped) == is_cut_off
    times = f"race {'at least ' * is_cut_off}{pairs} times"
    assert times in report.to_text()
    assert times in to_html(report)


def test_a_second_recording_is_refused_while_one_is_under_way(capsys):
    with (
        _under_way.lock,
        pytest.raises(RecordedAlready, match="is recorded already") as raised,
        watch("part", simulate=True),
    ):
        pytest.fail("a second recording has begun")
    assert _ended_by(raised.value, has_begun=True) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_journal_that_is_cut_off_is_a_shorter_trace():
    calls = Recorded()
    calls.write(calls.default)
    journal = calls.out.getvalue()
    whole = read_trace(trace_of_journal(journal))
    for cut in range(len(journal)):
        trace = read_trace(trace_of_journal(journal[:cut])) if cut else None
        assert trace is None or trace.entries == whole.entries[: len(trace.entries)]
    assert check_trace(whole).is_clean
    with pytest.raises(UsageError, match="journal:1"):
        trace_of_journal(b"{nonsense\n" + journal)


def test_a_file_that_cannot_be_written_ends_the_record_only():
    class Full(io.BytesIO):
        def write(self, data):
            if self.tell() > 900:
                raise OSError(28, "No space left on device")
            return super().write(data)

    recording = Recording(Full(), "full")
    stream = recording.stream((0, 16))
    for _ in range(50):
        recording.work(stream, "write", (), (), -1)
    assert recording.failure == "No space left on device"


def test_work_of_the_host_follows_what_it_has_waited_for():
    calls = Recorded()
    calls.write(calls.default)
    calls.write(HOST)
    assert len(calls.findings) == 1
    calls = Recorded()
    calls.write(calls.default)
    calls.recording.sync(-1, streams=[calls.default])
    calls.write(HOST)
    assert calls.findings == ()


def test_sarif_says_that_there_may_be_more():
    report = RaceReport(
        "x", 9, is_cut_off=True, notices=("nothing of y is seen",), failure="exit code 3"
    )
    (run,) = to_sarif(report)["runs"]
    (invocation,) = run["invocations"]
    texts = [n["message"]["text"] for n in invocation["toolExecutionNotifications"]]
    assert len(texts) == 3
    assert "note: nothing of y is seen" in to_html(report)
    assert f"stopped at {MAX_RACES}" in " ".join(texts)
    assert "invocations" not in to_sarif(RaceReport("x", 9))["runs"][0]


def test_trace_that_cannot_be_written_is_refused_before_the_block(tmp_path):
    begun = []
    with (
        pytest.raises(UsageError, match="cannot write the trace"),
        watch(simulate=True, trace=tmp_path / "nowhere" / "x.jsonl"),
    ):
        begun.append(None)
    assert begun == []


def test_all_patches_are_put_back_where_leaving_fails():
    class Owner:
        own = 1

    class Fails:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            raise KeyError("made by another thread")

    class Fixed(type):
        def __setattr__(cls, name, value):
            raise TypeError("cannot set")

    def replaced():
        with Patches() as patches:
            replace(patches)

    def replace(patches):
        patches.set(Owner, "own", 2)
        patches.set(Owner, "new", 2)
        patches.enter(Fails())
        with pytest.raises(TypeError, match="cannot set"):
            patches.set(Fixed("Fixed", (), {}), "x", 1)
        assert (Owner.own, Owner.new) == (2, 2)

    with pytest.raises(KeyError, match="another thread"):
        replaced()
    assert Owner.own == 1
    assert not hasattr(Owner, "new")


def test_no_finalizer_of_the_program_runs_while_something_is_recorded():
    """It could wait for a lock of a thread that waits to record."""
    recording, ended = Recording(io.BytesIO(), "finalizers"), []

    class Cycle:
        def __init__(self):
            self.itself = self

        def __del__(self):
            ended.append(self)

    before = gc.get_threshold()
    gc.set_threshold(5)
    try:
        with recording.lock, recording.lock:
            Cycle()
            kept = [[] for _ in range(1000)]
            inside = len(ended)
        kept += [[] for _ in range(1000)]
    finally:
        gc.set_threshold(*before)
    assert (inside, len(ended)) == (0, 1)
    assert gc.isenabled()
