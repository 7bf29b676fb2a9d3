"""What stands behind a wait for an event of another backend: kept, then enqueued or dropped."""

import gc
import threading
import weakref

import pytest

from ggsched.backend.queued.backlog import SLICE_S, Backlog
from ggsched.backend.queued.error_state import ErrorState
from ggsched.backend.queued.events import LatePoint, QueuePoint
from ggsched.backend.queued.polling import Polling
from ggsched.errors import DeviceFault, SyncTimeout
from tests.backends.device_settings import TIMEOUT_S, Latch

POLLING = Polling(spin_s=0.0, share=1.0)
NEVER_S = 1e9


class Point(QueuePoint):
    """A point that is done from the start."""

    polling = POLLING

    def __init__(self):
        super().__init__((), "q:0 stream 0")

    def is_done(self):
        return True

    def failure(self):
        return None


class Keeping:
    """A backlog, and what has been enqueued and dropped."""

    def __init__(self, name="q:0 stream 0"):
        self.faults = ErrorState()
        self.backlog = Backlog(name, self.faults)
        self.enqueued, self.dropped = [], []

    def add(self, name):
        self.backlog.add(name, lambda: self.enqueued.append(name), self.dropped.append)

    def drain(self):
        self.backlog.drain(POLLING, TIMEOUT_S)


@pytest.fixture
def keeping():
    made = Keeping()
    yield made
    made.backlog.cancel()


def test_commands_follow_in_order_when_the_event_is_done(keeping):
    first, second = Latch(), Latch()
    keeping.backlog.wait(first, NEVER_S)
    keeping.add("a")
    keeping.backlog.wait(second, NEVER_S)
    keeping.add("b")
    assert keeping.backlog.is_pending
    second.open()
    with pytest.raises(SyncTimeout, match="q:0 stream 0"):
        keeping.backlog.drain(POLLING, 0.0)
    assert keeping.enqueued == []
    first.open()
    keeping.drain()
    assert (keeping.enqueued, keeping.dropped) == (["a", "b"], [])
    assert not keeping.backlog.is_pending, "with nothing pending a command is enqueued at once"


@pytest.mark.parametrize("how", ["fails", "is late", "is cancelled"])
def test_commands_behind_a_wait_that_is_given_up_are_dropped(keeping, how):
    latch, point = Latch(), LatePoint("q:0 stream 0")
    keeping.backlog.wait(latch, 0.0 if how == "is late" else NEVER_S)
    keeping.add("a")
    keeping.backlog.add("record", lambda: point.issue(Point()), point.drop)
    if how == "fails":
        latch.open(DeviceFault("it broke"))
    elif how == "is cancelled":
        keeping.backlog.cancel()
    keeping.drain()
    latch.open()
    why = {"fails": "it broke", "is late": "SyncTimeout", "is cancelled": "closed before"}[how]
    assert keeping.enqueued == []
    for fault in (keeping.faults.known(), *keeping.dropped):
        assert "q:0 stream 0: wait for an event failed" in str(fault)
        assert why in str(fault)
    assert len(keeping.dropped) == 1
    assert point.is_done()
    with pytest.raises(DeviceFault, match=why):
        point.require(TIMEOUT_S)


def test_a_command_that_fails_drops_those_behind_it(keeping):
    latch = Latch()
    keeping.backlog.wait(latch, NEVER_S)
    keeping.backlog.add("upload", lambda: 1 / 0)
    keeping.add("b")
    latch.open()
    keeping.drain()
    assert keeping.enqueued == []
    fault = keeping.faults.known()
    assert "upload failed: ZeroDivisionError" in str(fault)
    assert isinstance(fault.__cause__, ZeroDivisionError)


def test_what_is_waited_for_may_stand_in_another_backlog(keeping):
    for error in (None, DeviceFault("it broke")):
        other, latch, point = Keeping("q:0 stream 1"), Latch(), LatePoint("q:0 stream 1")
        third = Keeping("q:0 stream 2")
        other.backlog.wait(latch, NEVER_S)
        other.backlog.add("record", lambda point=point: point.issue(Point()), point.drop)
        third.backlog.wait_for_point(point)
        third.add("a")
        assert not point.is_done()
        latch.open(error)
        third.drain()
        if error is None:
            assert third.enqueued == ["a"]
            point.require(TIMEOUT_S)
        else:
            assert third.enqueued == []
            assert "stream 1: wait for an event failed" in str(third.faults.known())
        for each in (other, third):
            each.backlog.cancel()


@pytest.mark.parametrize("error", [None, DeviceFault("it broke")])
def test_finishing_comes_behind_all_and_ends_the_thread(keeping, error):
    latch, ended = Latch(), []
    keeping.backlog.wait(latch, NEVER_S)
    keeping.add("a")
    keeping.backlog.finish(lambda: ended.append(list(keeping.enqueued)))
    keeping.backlog.add_always("close", lambda: ended.append("after"))
    assert ended == []
    thread = keeping.backlog._thread
    latch.open(error)
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    assert ended == [["a"] if error is None else [], "after"]
    keeping.backlog.add_always("close", lambda: ended.append("at once"))
    assert ended[-1] == "at once"


def test_a_paused_backlog_hands_over_nothing(keeping):
    latch = Latch()
    keeping.backlog.wait(latch, NEVER_S)
    keeping.add("a")
    keeping.backlog.pause()
    latch.open()
    with pytest.raises(SyncTimeout):
        keeping.backlog.drain(POLLING, 0.01)
    assert keeping.enqueued == []
    keeping.backlog.resume()
    keeping.drain()
    assert keeping.enqueued == ["a"]


def test_a_paused_backlog_can_be_cancelled(keeping):
    latch = Latch()
    latch.open()
    keeping.backlog.pause()
    keeping.backlog.wait(latch, NEVER_S)
    keeping.add("a")
    keeping.backlog.cancel()
    assert keeping.enqueued == []
    assert "closed before" in str(keeping.faults.known())


def test_nothing_of_a_command_is_kept_once_it_is_enqueued(keeping):
    class Source:
        pass

    latch, source = Latch(), Source()
    seen = weakref.ref(source)
    keeping.backlog.wait(latch, NEVER_S)
    keeping.backlog.add("upload", lambda source=source: None)
    del source
    assert seen() is not None
    latch.open()
    keeping.drain()
    gc.collect()
    assert seen() is None


def test_events_may_be_made_without_a_wait(keeping):
    keeping.backlog.finish(lambda: keeping.enqueued.append("end"))
    assert keeping.enqueued == ["end"]
    assert not [t for t in threading.enumerate() if t.name.startswith("ggsched q:0")]


def test_a_wait_goes_on_while_the_other_stream_progresses(keeping):
    """Its timeout counts from the last progress, once its turn has come."""

    class Working(Latch):
        steps = 0

        def __progress__(self):
            self.steps += 1
            if self.steps == 8:
                self.open()
            return self.steps

    event = Working()
    before = keeping.backlog.progress()()
    keeping.backlog.wait(event, SLICE_S)  # 8 slices are more than the timeout
    keeping.add("a")
    keeping.drain()
    assert keeping.enqueued == ["a"]
    assert keeping.backlog.progress()()[1] > before[1] + 3
