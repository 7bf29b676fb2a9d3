"""What the checker says about traces, one defect at a time."""

import pytest

from ggsched.sanitize import check_trace
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
    Wait,
    Work,
)
from tests.sanitize.traces import A, B, H, alloc, reads, touch, trace, writes


def kinds(*entries, **more):
    return [f.kind for f in check_trace(trace(*entries, **more)).findings]


def only(*entries, **more):
    (finding,) = check_trace(trace(*entries, **more)).findings
    return finding


class TestRaces:
    def test_two_streams(self):
        found = only(alloc(0), writes(A, 0), reads(B, 0))
        assert (found.kind, found.hazard, found.arena, found.start, found.end) == (
            ("race", "RAW", 0, 0, 64)
        )
        assert found.what == "RAW on m0[0:64]: nothing orders #1 A write before #2 B read"
        assert found.fix == "record an event on A and let B wait for it after #1 and before #2"
        assert found.earlier
        assert found.earlier.to_text() == "#1 A gpu:0  write writes"
        assert found.later
        assert (found.later.command, found.later.mode) == (2, "read")

    def test_report(self):
        text = check_trace(trace(alloc(0), writes(A, 0), reads(B, 0))).to_text()
        assert text == (
            "hand: 3 records: 1 finding\n"
            "1 race: RAW on m0[0:64]: nothing orders #1 A write before #2 B read\n"
            "  #1 A gpu:0  write writes\n"
            "  #2 B gpu:1  read reads\n"
            "  fix: record an event on A and let B wait for it after #1 and before #2\n"
        )

    def test_an_event_between_them(self):
        assert not kinds(alloc(0), writes(A, 0), Record(A, 0, H), Wait(B, 0, H), reads(B, 0))

    def test_fix_names_an_event_that_is_there(self):
        found = only(alloc(0), writes(A, 0), Record(A, 7, H), reads(B, 0))
        assert found.fix == "let B wait for e7 before #3"

    @pytest.mark.parametrize("sync", [Sync(H, stream=A), Sync(H, event=0), Sync(H)])
    def test_the_host_waits(self, sync):
        entries = alloc(0), writes(A, 0), Record(A, 0, H), sync, reads(H, 0)
        assert not kinds(*entries)
        assert kinds(*entries[:3], entries[4]) == ["race"]
        assert not kinds(*entries[:4], reads(B, 0))

    def test_fix_for_the_host(self):
        found = only(alloc(0), reads(A, 0), writes(H, 0))
        assert (found.hazard, found.fix) == ("WAR", "let H wait for A after #1 and before #2")

    def test_work_of_no_known_thread_follows_nobody(self):
        assert kinds(alloc(0), writes(H, 0), reads(A, 0, by=-1)) == ["race"]

    def test_two_threads(self):
        actors = [Actor(0, "H", "host"), Actor(1, "H2", "host"), Actor(2, "q", "stream", "d")]
        filled = alloc(0), writes(1, 0, by=1)
        assert kinds(*filled, reads(2, 0, by=0), actors=actors) == ["race"]
        assert not kinds(*filled, reads(2, 0, by=1), actors=actors)
        order = Record(1, 0), Sync(0, event=0)
        assert not kinds(*filled, *order, reads(2, 0, by=0), actors=actors)

    def test_copies_and_launches_apart(self):
        for order, joint in (("barrier", Barrier(A, H)), ("host", Sync(H, stream=A))):
            actors = [Actor(0, "H", "host"), Actor(1, "A", "stream", "gpu:0", order)]
            pair = alloc(0), writes(A, 0, is_copy=True), reads(A, 0)
            assert kinds(*pair, actors=actors) == ["race"]
            assert not kinds(pair[0], pair[1], joint, pair[2], actors=actors)
            assert order in only(*pair, actors=actors).fix

    def test_a_barrier_where_there_is_none(self):
        actors = [Actor(0, "H", "host"), Actor(1, "A", "stream", "gpu:0", "host")]
        pair = alloc(0), writes(A, 0, is_copy=True), Barrier(A, H), reads(A, 0)
        assert kinds(*pair, actors=actors) == ["race"]

    def test_an_event_covers_both_lanes(self):
        actors = [
            Actor(0, "H", "host"),
            Actor(1, "A", "stream", "gpu:0", "host"),
            Actor(2, "B", "stream", "gpu:1", "host"),
        ]
        order = Record(A, 0, H), Wait(B, 0, H)
        both = alloc(0), alloc(1), writes(A, 0, is_copy=True), writes(A, 1)
        assert not kinds(*both, *order, reads(B, 0), reads(B, 1, is_copy=True), actors=actors)

    def test_only_common_bytes_count(self):
        left = Work(A, "left", H, writes=(touch(0, 0, 32),))
        right = Work(B, "right", H, writes=(touch(0, 32, 64),))
        both = Work(B, "both", H, writes=(touch(0, 31, 64),))
        nothing = Work(B, "nothing", H, writes=(touch(0, 8, 8),))
        assert not kinds(alloc(0), left, right, nothing)
        found = only(alloc(0), left, both)
        assert (found.start, found.end) == (31, 32)

    def test_there_is_an_end_to_it(self):
        many = [w for _ in range(30) for w in (writes(A, 0), writes(B, 0))]
        assert 1 <= len(kinds(alloc(0), *many)) <= 200


class TestLifetimes:
    def test_freed_under_work(self):
        found = only(alloc(0), reads(A, 0), Free(H, 0))
        assert (found.kind, found.hazard, found.later.action) == ("race", "WAR", "free")

    def test_freed_after_work(self):
        assert not kinds(alloc(0), reads(A, 0), Sync(H, stream=A), Free(H, 0))

    def test_used_after_it_was_freed(self):
        found = only(alloc(0), Free(H, 0), reads(A, 0))
        assert (found.kind, found.what) == ("freed", "#2 read uses m0, which #1 has freed")

    def test_used_before_it_is_there(self):
        assert kinds(reads(A, 0), alloc(0)) == ["freed"]

    def test_freed_twice(self):
        assert kinds(alloc(0), Free(H, 0), Free(H, 0)) == ["freed"]

    def test_a_stream_frees_in_its_order(self):
        assert not kinds(alloc(0), reads(A, 0), Free(A, 0, H))
        assert kinds(alloc(0), reads(B, 0), Free(A, 0, H)) == ["race"]

    def test_an_address_in_other_hands(self):
        first, second = alloc(0, space="gpu:0"), alloc(1, space="gpu:0", address=32)
        used = first, reads(A, 0)
        assert kinds(*used, Free(A, 0, H), second, writes(A, 1)) == []
        assert kinds(*used, Sync(H, stream=A), Free(H, 0), second, writes(B, 1)) == []
        found = check_trace(trace(*used, Free(H, 0), second, writes(B, 1))).findings
        assert found[0].later.action == "free"

    def test_freeing_forgets_nothing(self):
        """The memory is freed in the order of one stream and used at once on another."""
        entries = alloc(0, space="gpu:0"), reads(A, 0), Free(A, 0, H), alloc(1, space="gpu:0")
        assert kinds(*entries, writes(A, 1)) == []
        order = Record(A, 0, H), Wait(B, 0, H)
        assert kinds(*entries[:3], *order, alloc(1, space="gpu:0"), writes(B, 1)) == []
        stream_ordered = Alloc(B, 1, "m1", 64, "gpu:0", is_defined=True)
        assert kinds(*entries[:3], stream_ordered, writes(B, 1)) == []  # the allocator orders it
        assert kinds(*entries[:2], alloc(1, space="gpu:0"), writes(B, 1)) == ["race"]

    def test_other_spaces_are_other_bytes(self):
        entries = alloc(0, space="gpu:0"), alloc(1, space="gpu:1"), writes(A, 0), writes(B, 1)
        assert not kinds(*entries)


class TestContents:
    def test_undefined(self):
        fresh = alloc(0, is_defined=False)
        found = only(fresh, Work(A, "half", H, writes=(touch(0, 0, 32),)), reads(A, 0))
        assert (found.kind, found.start, found.end) == ("undefined", 32, 64)
        assert not kinds(fresh, writes(A, 0), reads(A, 0))
        assert not kinds(alloc(0), reads(A, 0))

    def test_wrong(self):
        put = Work(A, "put", H, writes=(touch(0, tag="v1"),))
        over = Work(A, "over", H, writes=(touch(0, 8, 16, "v2"),))
        get = Work(A, "get", H, (touch(0, tag="v1"),))
        assert not kinds(alloc(0), put, get)
        found = only(alloc(0), put, over, get)
        assert (found.kind, found.start, found.end) == ("content", 8, 16)
        assert found.what == "#3 get needs 'v1' in m0[8:16], but finds 'v2' of #2"
        assert only(alloc(0), get).what.endswith("which nothing has written")
        assert only(alloc(0), writes(A, 0), get).what.endswith("but finds what #1 has written")

    def test_after_a_race_contents_mean_nothing(self):
        get = Work(B, "get", H, (touch(0, tag="v1"),))
        assert kinds(alloc(0), writes(A, 0), get) == ["race"]


class TestEvents:
    def test_recorded_twice(self):
        assert kinds(Record(A, 0, H), Record(A, 0, H)) == ["event"]
        assert not kinds(Record(A, 0, H), Record(A, 0, H), events="latest")

    @pytest.mark.parametrize("wait", [Wait(B, 0, H), Sync(H, event=0)])
    def test_waited_for_before_the_record(self, wait):
        assert kinds(wait, Record(A, 0, H))[0] == "event"
        assert kinds(wait) == ["event", "progress"]
        assert not kinds(wait, events="latest")


class TestProgress:
    def stuck(self, *entries):
        return [f.what for f in check_trace(trace(*entries)).findings if f.kind == "progress"]

    def test_never_recorded(self):
        assert self.stuck(Wait(B, 7, H)) == ["#0 B waits for e7, which is never recorded"]

    def test_two_streams_wait_for_each_other(self):
        cross = Wait(A, 1, H), Record(A, 0, H), Wait(B, 0, H), Record(B, 1, H)
        assert self.stuck(*cross) == ["#0 A and #2 B wait for each other"]

    def test_a_stream_waits_for_itself(self):
        assert self.stuck(Wait(A, 0, H), Record(A, 0, H)) == ["#0 A waits for what comes after it"]

    def test_the_host_waits_for_what_it_has_not_enqueued(self):
        assert self.stuck(Sync(H, event=0), Record(A, 0, H))

    def test_three_streams(self):
        actors = [Actor(0, "H", "host")] + [Actor(i, f"q{i}", "stream", "d") for i in (1, 2, 3)]
        ring = [e for i in (1, 2, 3) for e in (Wait(i, i, H), Record(i, i % 3 + 1, H))]
        found = check_trace(trace(*ring, actors=actors)).findings
        (what,) = [f.what for f in found if f.kind == "progress"]
        assert what.count(" and ") == 2

    def test_late_is_not_never(self):
        """Early, but another stream gets there by itself."""
        assert not self.stuck(Wait(B, 0, H), Record(A, 0, H))

    def test_each_cycle_once(self):
        first = Wait(A, 0, H), Record(A, 0, H)
        second = Wait(B, 1, H), Record(B, 1, H)
        assert len(self.stuck(*first, *second, reads(A), reads(B))) == 2


class TestCapture:
    def test_allocation_and_freeing(self):
        begin, end = CaptureBegin(A, H), CaptureEnd(A, H)
        assert kinds(begin, alloc(0), end) == ["capture"]
        assert not kinds(begin, alloc(0, is_unsafe=False), end)
        assert kinds(alloc(0), begin, Free(H, 0), end) == ["capture"]

    def test_waits(self):
        inside = Sync(H, stream=A), Sync(H), Sync(H, stream=B)
        found = check_trace(trace(CaptureBegin(A, H), *inside, CaptureEnd(A, H))).findings
        assert [f.command for f in found] == [1, 2]
        assert found[0].what == "#1 H waits for A, which collects during the capture of A"

    def test_begin_and_end(self):
        assert kinds(CaptureEnd(A, H)) == ["capture"]
        assert kinds(CaptureBegin(A, H), CaptureBegin(A, H), CaptureEnd(A, H)) == ["capture"]


class TestShape:
    @pytest.mark.parametrize(
        ("entry", "kind"),
        [
            (Barrier(9), "id"),
            (Barrier(A, 9), "id"),
            (Barrier(A, B), "id"),
            (Sync(H, stream=9), "id"),
            (CaptureBegin(H), "id"),
            (Free(H, 9), "id"),
            (Work(A, "x", H, (Access(9, 0, 1),)), "region"),
            (Work(A, "x", H, (touch(0, 0, 65),)), "region"),
            (Work(A, "x", H, (touch(0, 9, 8),)), "region"),
            (alloc(0), "id"),
        ],
    )
    def test_what_is_not_there(self, entry, kind):
        assert kinds(alloc(0), entry) == [kind]

    def test_actors_are_numbered(self):
        assert kinds(actors=[Actor(1, "A", "stream")]) == ["id"]
