"""What plug-ins over a library with queues are built on, with a queue that the test moves."""

import pytest

from ggsched.backend.base import BaseDevice, host_facts
from ggsched.backend.queued import polling
from ggsched.backend.queued.error_state import MANY, ErrorState, KnownStatus
from ggsched.backend.queued.events import PointEvent, QueuePoint
from ggsched.backend.queued.polling import Polling
from ggsched.errors import DeviceFault, SyncTimeout, UsageError
from tests.support.errors import refused

FAULT = DeviceFault("n7 add failed", where="q:0 stream 0", why="it broke")


class Clock:
    """Time that passes by sleeping, also for no time, and a little by looking and giving way."""

    LOOK_S = 1e-6
    OVERSLEPT_S = 5e-5

    def __init__(self):
        self.now_s, self.naps = 0.0, []

    def give_way(self):
        self.now_s += self.LOOK_S

    def monotonic(self):
        self.now_s += self.LOOK_S
        return self.now_s

    def sleep(self, seconds):
        self.naps.append(seconds)
        self.now_s += seconds + self.OVERSLEPT_S


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(polling, "time", made)
    monkeypatch.setattr(polling, "give_way", made.give_way)
    return made


class Point(QueuePoint):
    polling = Polling(spin_s=0.0, share=1.0)

    def __init__(self, statuses=(), *, ended=True, error=None):
        super().__init__(statuses, "q:0 stream 0")
        self.ended, self.error = ended, error

    def is_done(self):
        return self.ended

    def failure(self):
        return self.error


class Later:
    """A status that the test decides."""

    def __init__(self):
        self.is_settled, self.found = False, None

    def fault(self):
        return self.found


@pytest.fixture
def event():
    return PointEvent(BaseDevice(host_facts("q", []), {}))


# --- polling ----------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [1 / 4, 1 / 64])
@pytest.mark.parametrize("took_s", [1e-4, 3e-3, 0.2])
def test_the_end_is_seen_in_time(clock, share, took_s):
    waiting = Polling(spin_s=1e-3, share=share)
    assert waiting.wait_until(lambda: clock.now_s >= took_s, 10.0)
    late_s = clock.now_s - took_s
    if took_s <= waiting.spin_s:
        assert not clock.naps, "it only gave way"
        assert late_s <= 3 * Clock.LOOK_S
    else:
        assert late_s <= max(polling.SHORTEST_S, share * took_s) + Clock.OVERSLEPT_S + Clock.LOOK_S
        assert max(clock.naps) <= polling.LONGEST_S


def test_a_wait_ends_with_its_timeout(clock):
    assert not Polling(1e-3, 1 / 4).wait_until(lambda: False, 0.05)
    assert 0.05 <= clock.now_s <= 0.05 + polling.LONGEST_S + Clock.OVERSLEPT_S
    assert not Polling(1e-3, 1 / 4).wait_until(lambda: False, 0.0)


def test_what_ends_with_the_timeout_is_seen(clock):
    answers = iter([False, True])
    assert Polling(1e-3, 1 / 4).wait_until(lambda: next(answers), 0.0)


def test_what_is_done_takes_no_time(clock):
    assert Polling(1e-3, 1 / 4).wait_until(lambda: True, 0.0)
    assert clock.now_s == 0.0


# --- faults -----------------------------------------------------------------------------------


def test_the_first_fault_stays_and_is_raised_afresh():
    faults = ErrorState()
    faults.require_none()
    faults.poison(None)
    faults.poison(FAULT)
    faults.poison(DeviceFault("another"))
    seen = []
    for _ in range(2):
        with pytest.raises(DeviceFault, match="n7 add failed") as raised:
            faults.require_none()
        seen.append(raised.value)
    assert seen[0] is not seen[1]
    assert (seen[0].where, seen[0].why) == (FAULT.where, FAULT.why)
    (passed_on,) = faults.statuses()
    assert str(passed_on.fault()) == str(FAULT)


def test_a_status_counts_when_it_is_given():
    faults, status = ErrorState(), Later()
    faults.add([status])
    assert faults.known() is None
    assert faults.statuses() == [status]
    status.is_settled, status.found = True, FAULT
    assert faults.known() is FAULT
    status.found = None
    faults.all_is_well()
    assert faults.known() is FAULT, "a stream stays poisoned"
    assert [str(v.fault()) for v in faults.statuses()] == [str(FAULT)]


def test_statuses_that_ended_well_do_not_pile_up():
    faults, statuses = ErrorState(), [Later() for _ in range(3 * MANY)]
    bad = Later()
    bad.is_settled, bad.found = True, FAULT
    faults.add([bad])
    for status in statuses:
        faults.add([status])
        assert status in faults.statuses()
        status.is_settled = True
    assert len(faults) <= MANY + 1
    assert faults.known() is FAULT
    faults.all_is_well()
    assert len(faults) == 0


# --- events -----------------------------------------------------------------------------------


def test_an_event_is_a_point(event):
    assert (event.is_recorded, event.is_done) == (False, False)
    with pytest.raises(UsageError, match="never end"):
        event.sync(1.0)
    point = Point(ended=False)
    event.mark(point)
    assert (event.is_recorded, event.is_done) == (True, False)
    with pytest.raises(SyncTimeout, match=r"q:0 stream 0: not complete after 0\.001 s"):
        event.sync(0.001)
    wait = event.waiter(0.001)
    event.close()
    event.close()
    for use in (lambda: event.is_recorded, lambda: event.is_done, lambda: event.sync(1.0)):
        with pytest.raises(UsageError, match="closed"):
            use()
    with pytest.raises(SyncTimeout):
        wait()
    point.ended = True
    wait()


@pytest.mark.parametrize("how", ["library", "status"])
def test_whoever_waits_learns_of_a_fault(event, how):
    point = Point(error=FAULT) if how == "library" else Point([Later(), KnownStatus(FAULT)])
    event.mark(point)
    assert event.is_done
    with pytest.raises(DeviceFault, match="n7 add failed"):
        event.sync(1.0)


def test_an_event_of_a_capture_is_for_the_capture_only(event):
    capture = object()
    event.mark(Point(), capture)
    assert event.is_recorded
    assert event.recorded.is_done()
    for use in (lambda: event.is_done, lambda: event.sync(1.0), lambda: event.waiter(1.0)):
        with refused("CAP-2"):
            use()
    event.close()
    with pytest.raises(UsageError, match="closed"):
        event.sync(1.0)


def test_reports_are_objects_of_their_own_with_one_cause():
    errors = ErrorState()
    errors.poison(FAULT)
    reports = []
    for _ in range(3):
        with pytest.raises(DeviceFault, match="n7 add failed") as raised:
            errors.require_none()
        reports.append(raised.value)
    assert len({id(r) for r in (*reports, FAULT)}) == 4
    assert all(r.__cause__ is FAULT for r in reports)
