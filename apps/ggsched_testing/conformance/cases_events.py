"""EVT-1, EVT-3, EVT-5, EVT-6: what an event is. What a wait does is in ``cases_waits``."""

from contextlib import suppress

from ggsched.backend.protocols import Event, Stream
from ggsched.errors import DeviceFault, SyncTimeout, UsageError
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import NBYTES, TestContext
from ggsched_testing.conformance.faults import make_fail, recorded
from ggsched_testing.conformance.latch import HostEvent, can_wait_for_host_events

# --- EVT-1 ------------------------------------------------------------------------------------


@case("EVT-1", "A fresh event is neither recorded nor done.", "events")
def evt1_fresh_event(w: TestContext) -> None:
    event = w.event()
    w.require(not event.is_recorded, "a fresh event is recorded")
    w.require(not event.is_done, "a fresh event is done")
    q = w.stream()
    w.record(q, event)
    w.require(event.is_recorded, "a recorded event says that it is not")


@case("EVT-1", "An event covers the very last command before it.", "events", "latch")
def evt1_covers_the_last_command(w: TestContext) -> None:
    q = w.stream()
    x, data = w.buffer(), w.bytes()
    w.upload(q, data, x)
    hold = w.hold(q)
    event = w.record(q)
    w.still_held(hold, event)
    later = w.record(q)
    w.sync_held(hold, later)
    w.require(event.is_done, "an event is not done, and one that was recorded later is")


@case("EVT-1", "An event covers uploads, copies and downloads before it.", "events")
def evt1_covers_copies(w: TestContext) -> None:
    q, y = w.stream(), w.buffer()
    x, data, hold = w.uploading(q)
    w.copy(q, x, 0, y, 0, NBYTES)
    seen = w.download(q, y)
    event = w.record(q)
    w.sync_held(hold, event)
    w.equal(seen, data, "downloaded before the record")


@case("EVT-1", "An event covers launches before it.", "events", "launch", "two streams")
def evt1_covers_launches(w: TestContext) -> None:
    q, reader = w.stream(), w.stream()
    _, y, numbers, program = w.computation(q)
    hold = w.hold(q)
    w.launch(q, program)
    event = w.record(q)
    w.sync_held(hold, event)
    w.equal(w.get(reader, y), w.result(numbers), "launched before the record")


@case("EVT-1", "An event covers every queue of the device at once.", "events", "launch")
def evt1_covers_every_queue(w: TestContext) -> None:
    q, (x, y, z) = w.stream(), w.buffers(3)
    numbers, data = w.numbers(), w.bytes()
    w.put(q, x, numbers)
    program = w.compute(q, [(x, 0)], (y, 0))
    hold = w.hold(q)
    seen = w.download(q, x)
    w.upload(q, data, z)
    w.launch(q, program)
    first = w.record(q)
    w.sync_held(hold, first)
    w.equal(seen, numbers, "downloaded before the record")
    w.equal(w.get(q, z), data, "uploaded before the record")
    w.equal(w.get(q, y), w.result(numbers), "launched before the record")


@case("EVT-1", "It stands for nothing that comes after the record.", "events", "latch")
def evt1_covers_nothing_later(w: TestContext) -> None:
    q, x = w.stream(), w.buffer()
    data = w.bytes()
    w.upload(q, data, x)
    event = w.record(q)
    hold = w.hold(q)
    later = w.download(q, x)
    w.sync(event)
    w.require(event.is_done, "is_done is false after sync of the event")
    w.sync_held(hold, q)
    w.equal(later, data, "downloaded after the record")


@case("EVT-1", "Two events of one stream stand for two prefixes.", "events", "latch")
def evt1_two_prefixes(w: TestContext) -> None:
    q, (x, y) = w.stream(), w.buffers(2)
    w.upload(q, w.bytes(), x)
    early = w.record(q)
    hold = w.hold(q)
    w.upload(q, w.bytes(), y)
    late = w.record(q)
    w.sync(early)
    w.sync_held(hold, late)
    w.require(early.is_done and late.is_done, "is_done is false after sync of both events")


@case("EVT-1", "On a stream without commands an event is done at once, or soon.", "events")
def evt1_of_nothing(w: TestContext) -> None:
    event = w.record(w.stream())
    w.until(lambda: event.is_done, "an event that stands for nothing is not done")
    w.sync(event, 0.0)


# --- EVT-3 ------------------------------------------------------------------------------------


@case("EVT-3", "A stream refuses to wait for an event that was not recorded.", "events")
def evt3_wait_before_record(w: TestContext) -> None:
    q, x = w.stream(), w.buffer()
    event, data = w.event(), w.bytes()
    w.refused(UsageError, w.wait, q, event)
    w.require(not event.is_recorded, "a wait that was refused has recorded the event")
    w.put(q, x, data)
    w.equal(w.get(q, x), data, "after a wait that was refused")
    w.record(q, event)
    w.wait(q, event)
    w.sync(q)


@case("EVT-3", "The host's sync of an event that was not recorded raises as well.", "events")
def evt3_sync_before_record(w: TestContext) -> None:
    event = w.event()
    w.refused(UsageError, w.sync, event)
    w.refused(UsageError, w.sync, event, 0.0)


@case("EVT-3", "Recording twice raises, and the event stays what it was.", "events", "latch")
def evt3_record_twice(w: TestContext) -> None:
    q = w.stream()
    event = w.record(q)
    hold = w.hold(q)
    w.upload(q, w.bytes(), w.buffer())
    w.refused(UsageError, w.record, q, event)
    w.sync(event)
    w.sync_held(hold, q)


@case("EVT-3", "Recording a second time is refused on another stream too.", "events", "two streams")
def evt3_record_twice_elsewhere(w: TestContext) -> None:
    a, b = w.stream(), w.stream()
    event = w.record(a)
    w.refused(UsageError, w.record, b, event)
    w.refused(UsageError, w.record, a, event)
    w.sync(a)
    w.refused(UsageError, w.record, a, event)
    w.sync(event)


# --- EVT-5 ------------------------------------------------------------------------------------


@case("EVT-5", "A done event stays done, whatever is enqueued later.", "events")
def evt5_stays_done(w: TestContext) -> None:
    q, x = w.stream(), w.buffer()
    w.upload(q, w.bytes(), x)
    event = w.record(q)
    w.sync(event)
    hold = w.hold(q)
    for _ in range(8):
        w.upload(q, w.bytes(), x)
        w.require(event.is_done, "an event was done and is not any more")
    w.sync(event, 0.0)
    hold.release()
    w.sync(q)
    w.require(event.is_done, "an event was done and is not any more")


@case("EVT-5", "sync of an event makes its prefix visible to the host.", "events")
def evt5_sync_makes_visible(w: TestContext) -> None:
    q, x = w.stream(), w.buffer()
    for _ in range(8):
        data = w.bytes()
        w.upload(q, data, x)
        seen = w.download(q, x)
        event = w.record(q)
        w.upload(q, w.bytes(), x)
        w.sync(event)
        w.equal(seen, data, "downloaded before the record")


@case("EVT-5", "is_done is as good as sync: what it covers is visible.", "events")
def evt5_done_is_visible(w: TestContext) -> None:
    q, x = w.stream(), w.buffer()
    data = w.bytes()
    w.upload(q, data, x)
    seen = w.download(q, x)
    event = w.record(q)
    w.until(lambda: event.is_done, f"{w.name(event)} is not done")
    w.equal(seen, data, "downloaded before the record")


@case("EVT-5", "A timeout of an event's sync changes nothing.", "events", "latch")
def evt5_timeout(w: TestContext) -> None:
    q = w.stream()
    x, data, hold = w.uploading(q)
    seen = w.download(q, x)
    event = w.record(q)
    for limit in (0.0, 0.002):
        w.refused(SyncTimeout, w.sync, event, limit)
    w.sync_held(hold, event, q)
    w.equal(seen, data, "downloaded across a timeout")


@case("EVT-5", "Closing an event that is not done is legal and stops nobody.", "events", "latch")
def evt5_closed_before_done(w: TestContext) -> None:
    a = w.stream()
    x, data, hold = w.uploading(a)
    event = w.record(a)
    w.wait(a, event)
    w.close(event)
    seen = w.download(a, x)
    w.sync_held(hold, a)
    w.equal(seen, data, "downloaded behind an event that was closed")


# --- EVT-6 ------------------------------------------------------------------------------------


@case("EVT-6", "An event behind a command that failed is done, and failed.", "events", "fault")
def evt6_failed_event(w: TestContext) -> None:
    q = w.stream()
    make_fail(w, q)
    event = recorded(w, q)
    w.refused(DeviceFault, w.sync, event)
    w.until(lambda: event.is_done, "a failed event is not done")
    w.refused(DeviceFault, w.sync, event)


@case("EVT-6", "record on a stream that is known to have failed still records.", "events", "fault")
def evt6_record_on_poisoned(w: TestContext) -> None:
    q = w.stream()
    make_fail(w, q)
    w.refused(DeviceFault, w.sync, q)
    event = w.event()
    w.refused(DeviceFault, w.record, q, event)
    w.require(event.is_recorded, "record on a stream with a fault did not record the event")
    w.until(lambda: event.is_done, "an event of a stream that has failed is not done")
    w.refused(DeviceFault, w.sync, event)


@case("EVT-6", "A stream that waits for a failed event fails.", "events", "fault", "two streams")
def evt6_waiter_fails(w: TestContext) -> None:
    a, b = w.stream(), w.stream()
    x, _ = w.filled(b)
    make_fail(w, a)
    event = recorded(w, a)
    w.refused(DeviceFault, _wait_and_sync, w, b, event)
    w.refused(DeviceFault, w.sync, b)
    w.refused(DeviceFault, w.upload, b, w.bytes(), x)


@case("EVT-6", "An event recorded before the failure is good.", "events", "fault", "two streams")
def evt6_earlier_event_is_good(w: TestContext) -> None:
    a, b = w.stream(), w.stream()
    x = w.buffer()
    data = w.bytes()
    w.upload(a, data, x)
    good = w.record(a)
    make_fail(w, a)
    w.refused(DeviceFault, w.sync, a)
    w.sync(good)
    w.wait(b, good)
    w.equal(w.get(b, x), data, "uploaded before the failure")


@case("EVT-6", "The failure of another backend's event reaches the stream.", "foreign wait")
def evt6_foreign_failure(w: TestContext) -> None:
    q = w.stream()
    event = HostEvent()
    w.log("e = an event of another backend, which has failed")
    event.release(DeviceFault("made to fail", where="elsewhere"))
    w.refused(DeviceFault, _wait_and_sync, w, q, event)


@case(
    "EVT-6",
    "The failure of another backend's event travels with events that are recorded behind it.",
    "foreign wait",
    "two streams",
)
def evt6_foreign_failure_travels(w: TestContext) -> None:
    for is_early in (True, False) if can_wait_for_host_events(w.device) else (True,):
        a, b = w.stream(), w.stream()
        event, failure = HostEvent(), DeviceFault("made to fail", where="elsewhere")
        w.log(f"e = an event of another backend, which {'has failed' if is_early else 'will fail'}")
        if is_early:
            event.release(failure)
        with suppress(DeviceFault):
            w.wait(a, event)
        behind = recorded(w, a)
        with suppress(DeviceFault):
            w.wait(b, behind)
        event.release(failure)
        w.refused(DeviceFault, w.sync, behind)
        w.refused(DeviceFault, w.sync, b)
        w.refused(DeviceFault, w.sync, a)


def _wait_and_sync(w: TestContext, q: Stream, event: Event) -> None:
    """Wait; whether the wait or the sync raises depends on how far the work has come."""
    w.wait(q, event)
    w.sync(q)
