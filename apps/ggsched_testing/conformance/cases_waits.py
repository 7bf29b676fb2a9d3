"""EVT-2, EVT-4: what a wait does, between two streams, two devices, two backends."""

from collections.abc import Callable

import numpy as np

from ggsched.backend.protocols import Buffer, Device, Stream
from ggsched.errors import UsageError
from ggsched_testing.conformance.call_trace import Bytes
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import NBYTES, TestContext
from ggsched_testing.conformance.latch import HostEvent

# --- EVT-2 ------------------------------------------------------------------------------------


def _after_wait(
    w: TestContext,
    before: Callable[[Stream, Buffer, Buffer], Bytes],
    after: Callable[[Stream, Buffer, Buffer], None],
) -> None:
    """Let a stream do ``before`` while it is held, and another one ``after`` behind a wait.

    ``before`` fills its second buffer from its first and returns what it then holds; ``after``
    moves that on. Both buffers hold something else at first.
    """
    a, b = w.stream(), w.stream()
    x, y, z = w.buffers(3)
    for buffer in (x, y, z):
        w.put(a, buffer, w.numbers())
    hold = w.hold(a)
    expected = before(a, x, y)
    event = w.record(a)
    w.wait(b, event)
    after(b, y, z)
    w.sync_held(hold, b, event)
    w.equal(w.get(b, z), expected, "made behind the wait")


def _by_upload(w: TestContext) -> Callable[[Stream, Buffer, Buffer], Bytes]:
    def before(q: Stream, x: Buffer, y: Buffer) -> Bytes:
        data = w.numbers()
        w.upload(q, data, y)
        return data.view("u1")

    return before


def _by_copy(w: TestContext) -> Callable[[Stream, Buffer, Buffer], None]:
    return lambda q, x, y: w.copy(q, x, 0, y, 0, NBYTES)


@case("EVT-2", "A wait holds copies, behind uploads.", "events", "two streams")
def evt2_holds_copies(w: TestContext) -> None:
    _after_wait(w, _by_upload(w), _by_copy(w))


@case("EVT-2", "A wait for an event covers copies before the record.", "events", "two streams")
def evt2_covers_copies(w: TestContext) -> None:
    def before(q: Stream, x: Buffer, y: Buffer) -> Bytes:
        data = w.numbers()
        w.upload(q, data, x)
        w.copy(q, x, 0, y, 0, NBYTES)
        return data.view("u1")

    _after_wait(w, before, _by_copy(w))


@case("EVT-2", "A wait covers launches.", "events", "two streams", "launch")
def evt2_covers_launches(w: TestContext) -> None:
    a, b = w.stream(), w.stream()
    x, y, z = w.buffers(3)
    numbers = w.numbers()
    for buffer in (x, y, z):
        w.put(a, buffer, numbers)
    program = w.compute(a, [(x, 0)], (y, 0))
    hold = w.hold(a)
    w.launch(a, program)
    w.wait(b, w.record(a))
    w.copy(b, y, 0, z, 0, NBYTES)
    w.sync_held(hold, b)
    w.equal(w.get(b, z), w.result(numbers), "copied behind a launch")


@case("EVT-2", "A wait holds launches.", "events", "two streams", "launch")
def evt2_holds_launches(w: TestContext) -> None:
    a, b = w.stream(), w.stream()
    x, y = w.buffers(2)
    w.put(a, x, w.numbers())
    numbers = w.numbers()
    program = w.compute(b, [(x, 0)], (y, 0))
    hold = w.hold(a)
    w.upload(a, numbers, x)
    w.wait(b, w.record(a))
    w.launch(b, program)
    w.release_held(hold, b)
    w.equal(w.get(b, y), w.result(numbers), "launched behind an upload")


@case("EVT-2", "A wait holds uploads: they do not overtake readers.", "events", "two streams")
def evt2_holds_uploads(w: TestContext) -> None:
    a, b = w.stream(), w.stream()
    x = w.buffer()
    old, new = w.bytes(), w.bytes()
    w.put(a, x, old)
    hold = w.hold(a)
    seen = w.download(a, x)
    w.wait(b, w.record(a))
    w.upload(b, new, x)
    w.sync_held(hold, b)
    w.sync(a)
    w.equal(seen, old, "downloaded before the upload that waits")
    w.equal(w.get(b, x), new, "uploaded behind the wait")


@case("EVT-2", "A wait holds downloads.", "events", "two streams")
def evt2_holds_downloads(w: TestContext) -> None:
    a, b = w.stream(), w.stream()
    x, data, hold = w.uploading(a)
    w.wait(b, w.record(a))
    seen = w.download(b, x)
    w.sync_held(hold, b)
    w.equal(seen, data, "downloaded behind the wait")


@case("EVT-2", "Waits pass on what the other stream waited for.", "events", "three streams")
def evt2_passes_on(w: TestContext) -> None:
    a, b, c = w.stream(), w.stream(), w.stream()
    x, data, hold = w.uploading(a)
    w.wait(b, w.record(a))
    w.wait(c, w.record(b))
    seen = w.download(c, x)
    w.sync_held(hold, c, b)
    w.equal(seen, data, "downloaded behind two waits")


@case("EVT-2", "Of several events waited for, each one counts.", "events", "three streams")
def evt2_several_events(w: TestContext) -> None:
    a, b, c = w.stream(), w.stream(), w.stream()
    x, y = w.buffers(2)
    w.put(a, x, w.bytes())
    first, second = w.bytes(), w.bytes()
    hold = w.hold(a)
    w.upload(a, first, x)
    w.upload(b, second, y)
    for event in (w.record(a), w.record(b)):
        w.wait(c, event)
    seen = w.download(c, x)
    also = w.download(c, y)
    w.sync_held(hold, c)
    w.equal(seen, first, "downloaded behind the first of two events")
    w.equal(also, second, "downloaded behind the second of two events")


@case("EVT-2", "One event can be waited for by several streams.", "events", "three streams")
def evt2_several_waiters(w: TestContext) -> None:
    a, b, c = w.stream(), w.stream(), w.stream()
    x, data, hold = w.uploading(a)
    event = w.record(a)
    w.wait(b, event)
    w.wait(c, event)
    seen = [w.download(b, x), w.download(c, x)]
    w.release_held(hold, b, c)
    for q, target in zip((b, c), seen, strict=True):
        w.sync(q)
        w.equal(target, data, "downloaded by one of two that wait")


@case("EVT-2", "What was enqueued before the wait is not held.", "events", "latch", "two streams")
def evt2_holds_nothing_earlier(w: TestContext) -> None:
    a, b = w.stream(), w.stream()
    x, y = w.buffers(2)
    data = w.bytes()
    hold = w.hold(a)
    w.upload(a, w.bytes(), x)
    event = w.record(a)
    w.upload(b, data, y)
    seen = w.download(b, y)
    early = w.record(b)
    w.wait(b, event)
    w.sync(early)
    w.equal(seen, data, "downloaded before the wait")
    w.release_held(hold, event)
    w.sync(b)


@case("EVT-2", "A wait for an event that is done holds nothing.", "events", "two streams")
def evt2_done_event(w: TestContext) -> None:
    a, b = w.stream(), w.stream()
    x = w.buffer()
    data = w.bytes()
    w.upload(a, data, x)
    event = w.record(a)
    w.sync(event)
    w.wait(b, event)
    w.equal(w.get(b, x), data, "downloaded behind an event that was done")


@case("EVT-2", "A stream may wait for its own event; it puts every queue in order.", "events")
def evt2_own_event(w: TestContext) -> None:
    q, y = w.stream(), w.buffer()
    x, data, hold = w.uploading(q)
    w.wait(q, w.record(q))
    w.copy(q, x, 0, y, 0, NBYTES)
    hold.release()
    w.equal(w.get(q, y), data, "copied behind the stream's own event")


# --- EVT-4 ------------------------------------------------------------------------------------


@case("EVT-4", "A second device's event holds the stream.", "peer wait")
def evt4_other_device(w: TestContext) -> None:
    a, b = w.stream(w.other), w.stream(w.device)
    theirs, mine = w.buffer(NBYTES, w.other), w.buffer()
    data = w.bytes()
    w.put(a, theirs, data)
    w.put(b, mine, w.bytes())
    hold = w.hold(a)
    through = w.download(a, theirs)
    w.wait(b, w.record(a))
    # A device that takes snapshots would read the host memory at once.
    w.upload(b, data if w.device.facts.snapshots_uploads else through, mine)
    w.sync_held(hold, b)
    w.equal(w.get(b, mine), data, "uploaded behind the other device's download")


@case("EVT-4", "A second device's event is refused where the wait path is 'host'.", "no peer wait")
def evt4_other_device_refused(w: TestContext) -> None:
    if not w.other.facts.has_events:
        return
    a, b = w.stream(w.other), w.stream(w.device)
    event = w.record(a)
    w.refused(UsageError, w.wait, b, event)
    w.sync(event)
    w.works(b, "after a call that was refused")


@case("EVT-4", "An event of another backend holds the stream.", "foreign wait")
def evt4_other_backend(w: TestContext) -> None:
    q, x = w.stream(), w.buffer()
    data = w.bytes()
    w.put(q, x, w.bytes())
    event = _held_event(w)
    w.wait(q, event)
    w.upload(q, data, x)
    seen = w.download(q, x)
    target = np.full_like(seen, 0xA5)
    if w.device.facts.is_async:
        w.not_done(q)
        w.equal(seen, target, "a target of a download behind an event that is not done")
    event.release()
    w.sync(q)
    w.equal(seen, data, "downloaded behind another backend's event")


@case("EVT-4", "Waiting for another backend does not block the caller.", "foreign wait")
def evt4_never_blocks_the_caller(w: TestContext) -> None:
    q = w.stream()
    event = _held_event(w)
    w.wait(q, event)
    w.log("the event of another backend is released")
    event.release()
    w.sync(q)


@case("EVT-4", "Whoever waits for an event of another backend does not close it.", "foreign wait")
def evt4_foreign_event_left_open(w: TestContext) -> None:
    q = w.stream()
    event = _held_event(w)
    w.wait(q, event)
    event.release()
    w.sync(q)
    w.close(q)
    w.require(not event.is_closed, "a stream has closed another backend's event")


@case("EVT-4", "An event of another backend that is done holds nothing.", "foreign wait")
def evt4_foreign_event_done(w: TestContext) -> None:
    q = w.stream()
    event = _held_event(w)
    event.release()
    w.wait(q, event)
    w.works(q, "after a call that was refused")


@case("EVT-4", "Another backend's event is refused where the path is 'host'.", "no foreign wait")
def evt4_other_backend_refused(w: TestContext) -> None:
    q = w.stream()
    event = _held_event(w)
    w.refused(UsageError, w.wait, q, event)
    event.release()
    w.refused(UsageError, w.wait, q, event)
    w.works(q, "after a call that was refused")


@case("EVT-4", "An event is recorded on its own device only.", "events")
def evt4_record_of_a_foreign_event(w: TestContext) -> None:
    q = w.stream()
    foreign: Device = w.foreign()
    event = foreign.create_event()
    w.refused(UsageError, w.record, q, event)
    w.require(not event.is_recorded, "a record that was refused has recorded the event")
    w.works(q, "after a call that was refused")


def _held_event(w: TestContext) -> HostEvent:
    w.log("e = an event of another backend, which is not done")
    return HostEvent()
