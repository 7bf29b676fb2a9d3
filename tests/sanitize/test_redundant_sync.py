"""Advice: what is not wrong and needed by nobody."""

from hypothesis import HealthCheck, event, given, settings

from ggsched.sanitize import check_plan, check_trace
from ggsched.sanitize.from_trace import from_trace
from ggsched.sanitize.redundant_sync import find_redundant
from ggsched.trace.schema import Actor, Barrier, Free, Record, Sync, Wait, Work
from ggsched_testing.plan_builder import PlanWriter, fake_device
from ggsched_testing.plan_mutants import with_commands
from tests.properties.test_planner_and_checker import plans
from tests.sanitize.traces import A, B, H, alloc, reads, touch, trace, writes

N = 16


def waits(*entries, **more):
    return redundant(trace(*entries, **more)).waits


def redundant(found, scratch=()):
    stream = from_trace(found)
    for memory in scratch:
        stream.memories[memory] = stream.memories[memory]._replace(is_scratch=True)
    return find_redundant(stream)


class TestWaits:
    def test_needed(self):
        assert waits(alloc(0), writes(A, 0), Record(A, 0, H), Wait(B, 0, H), reads(B, 0)) == []

    def test_nothing_in_common(self):
        entries = alloc(0), alloc(1), writes(A, 0), Record(A, 0, H), Wait(B, 0, H), writes(B, 1)
        assert waits(*entries) == [4]

    def test_second_wait_for_the_same(self):
        entries = alloc(0), writes(A, 0), Record(A, 0, H), Wait(B, 0, H), Wait(B, 0, H)
        assert waits(*entries, reads(B, 0)) == [3]

    def test_implied_by_another_way(self):
        entries = alloc(0), writes(A, 0), Record(A, 0, H), Sync(H, event=0), Wait(B, 0, H)
        assert waits(*entries, reads(B, 0)) == [3]  # the host's wait costs more
        assert waits(*entries, reads(H, 0), reads(B, 0)) == [4]

    def test_freeing_counts(self):
        assert waits(alloc(0), writes(A, 0), Sync(H, stream=A), Free(H, 0)) == []

    def test_barrier(self):
        actors = [Actor(0, "H", "host"), Actor(1, "A", "stream", "gpu:0", "barrier")]
        start = alloc(0), alloc(1), writes(A, 0, is_copy=True), Barrier(A, H)
        assert waits(*start, reads(A, 0), actors=actors) == []
        assert waits(*start, reads(A, 1), actors=actors) == [3]

    def test_memory_that_is_given_on(self):
        first, second = alloc(0, space="s"), alloc(1, space="s")
        entries = first, writes(A, 0), Sync(H, stream=A), Free(H, 0), second, writes(B, 1)
        assert waits(*entries) == []


class TestRest:
    def test_event_that_nobody_waits_for(self):
        assert redundant(trace(Record(A, 0, H), Record(A, 1, H), Wait(B, 1, H))).records == [0]

    def test_copies(self):
        copy = writes(A, 0, is_copy=True)
        assert redundant(trace(alloc(0), copy, reads(A, 0))).copies == []
        assert redundant(trace(alloc(0), copy)).copies == []  # somebody may read it later
        assert redundant(trace(alloc(0), copy), scratch=[0]).copies == [1]
        assert redundant(trace(alloc(0), copy, writes(A, 0), reads(A, 0))).copies == [1]
        assert redundant(trace(alloc(0), copy, Free(A, 0, H))).copies == [1]

    def test_one_byte_is_enough(self):
        copy = writes(A, 0, is_copy=True)
        over = Work(A, "over", H, writes=(touch(0, 1, 64),))
        assert redundant(trace(alloc(0), copy, over, reads(A, 0))).copies == []

    def test_a_partial_write_leaves_the_rest(self):
        copy = writes(A, 0, is_copy=True)
        part = writes(A, 0, is_partial=True)
        assert redundant(trace(alloc(0), copy, part, reads(A, 0))).copies == []

    def test_advice_of_a_report(self):
        entries = alloc(0), writes(A, 0), Sync(H, stream=A), reads(A, 0)
        assert check_trace(trace(*entries)).advice == ()
        report = check_trace(trace(*entries), advice=True)
        assert report.is_clean
        assert report.to_text() == (
            "hand: 4 records: clean\nwaste: nobody needs #2, the wait of H\n  fix: leave it out\n"
        )

    def test_no_advice_where_something_is_wrong(self):
        report = check_trace(trace(alloc(0), writes(A, 0), reads(B, 0)), advice=True)
        assert report.findings
        assert not report.advice


class TestPlans:
    def writer(self):
        w = PlanWriter(fake_device("gpu:0"), fake_device("gpu:1"))
        self.q, self.r = w.stream(0), w.stream(1)
        self.a = w.value(w.arena("compute", 0, N), 0, N)
        self.b = w.value(w.arena("compute", 1, 2 * N), 0, N, of=self.a)
        self.c = w.value(1, N, N)
        w.launch(self.q, w.node("w", self.a))
        w.order(self.q, self.r)
        w.transfer(self.r, self.a, self.b)
        return w

    def finish(self, w, *, waits=False):
        out = w.host_output("c", N, of=self.c)
        w.launch(self.r, w.node("rw", self.b, self.c))
        if waits:
            w.order(self.q, self.r)
        w.transfer(self.r, self.c, out)
        w.sync(self.r)
        return w.plan()

    def test_nothing_to_leave_out(self):
        report = check_plan(self.finish(self.writer()), advice=True)
        assert report.is_clean
        assert report.advice == ()

    def test_wait_and_its_event(self):
        plan = self.finish(self.writer(), waits=True)
        assert check_plan(plan).advice == ()
        (advice,) = check_plan(plan, advice=True).advice
        assert advice.what == "nobody needs c6, the wait for e1"

    def test_a_wait_between_runs_is_needed(self):
        w = PlanWriter(fake_device())
        q, x = w.stream(), w.host_input("x", N)
        d = w.value(w.arena("compute", 0, N), 0, N, of=x)
        w.transfer(q, x, d)
        w.launch(q, w.node("r", d))
        w.sync(q)
        assert check_plan(w.plan(), advice=True).advice == ()

    def test_copy(self):
        w = self.writer()
        x = w.host_input("x", N)
        w.transfer(self.r, x, w.value(w.arena("compute", 1, N), 0, N, of=x))
        (advice,) = check_plan(self.finish(w), advice=True).advice
        assert advice.what == "nobody reads what c4, the upload to v4, copies"


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans())
def test_planned_waits_are_needed(plan):
    advice = check_plan(plan, advice=True).advice
    needless = [a for a in advice if a.what.startswith("nobody needs")]
    assert not needless, [a.what for a in needless]
    event(f"waste: {bool(advice)}")


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans(min_devices=2))
def test_advice_can_be_taken(plan):
    """Without what the advice names nothing is wrong that was not wrong before."""
    report = check_plan(plan, advice=True)
    gone = {a.command for a in report.advice if a.what.startswith("nobody needs")}
    kept = [c for c in plan.commands if c.id not in gone]
    assert check_plan(with_commands(plan, kept)).is_clean


def test_stuck_plan():
    w = PlanWriter(fake_device("gpu:0"), fake_device("gpu:1"))
    q, r = w.stream(0), w.stream(1)
    w.wait(q, 1)
    w.record(q)
    w.wait(r, 0)
    w.record(r)
    found = {f.kind: f for f in check_plan(w.plan()).findings}
    assert set(found) == {"event", "progress"}
    assert found["progress"].what == "c0 q0 and c2 q1 wait for each other"
