"""ERR-2, ERR-3: what stands behind a failure, and behind a wait that is closed."""

import threading
from contextlib import suppress
from time import monotonic

import numpy as np

from ggsched.backend.protocols import Device, Stream
from ggsched.errors import DeviceFault, GgschedError
from ggsched_testing.conformance.call_trace import Bytes
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import COUNT, NBYTES, TestContext
from ggsched_testing.conformance.exact import exact_op
from ggsched_testing.conformance.faults import fails_by_name, make_fail
from ggsched_testing.conformance.latch import HostEvent, can_wait_for_host_events
from ggsched_testing.conformance.rules import BrokenRule

_UNTOUCHED = 0xA5

# --- ERR-2 ------------------------------------------------------------------------------------


@case("ERR-2", "Nothing behind a failed wait for another backend's event takes effect.",
      "foreign wait")  # fmt: skip
def err2_nothing_behind_a_failed_wait(w: TestContext) -> None:
    _behind_a_failed_wait(w, is_early=True)
    if can_wait_for_host_events(w.device):
        _behind_a_failed_wait(w, is_early=False)


def _behind_a_failed_wait(w: TestContext, *, is_early: bool) -> None:
    q, event = w.stream(), _foreign_event(w)
    x, y, z, f = w.buffers(4)
    contents = [w.numbers() for _ in range(4)]
    for buffer, numbers in zip((x, y, z, f), contents, strict=True):
        w.put(q, buffer, numbers)
    program = w.compute(q, [(x, 0)], (z, 0)) if exact_op(w.device.facts) else None
    seen = _target()
    if is_early:
        _fail(w, event)
    with suppress(DeviceFault):
        w.wait(q, event)
        w.upload(q, w.numbers(), x)
        w.copy(q, x, 0, y, 0, NBYTES)
        w.fill(q, f, 0, NBYTES, b"\x11")
        if program is not None:
            w.launch(q, program)
        w.download_to(q, x, 0, seen)
    _fail(w, event)
    w.refused(DeviceFault, w.sync, q)
    w.until(lambda: q.is_done, "a stream is not done, of which a wait has failed")
    w.close(q)
    _is_untouched(w, seen)
    fresh = w.stream()
    for buffer, numbers in zip((x, y, z, f), contents, strict=True):
        w.equal(w.get(fresh, buffer), numbers, "a buffer written behind a failed wait only")
    w.close(fresh)


@case("ERR-2", "Nor does what another stream does behind an event that is recorded there.",
      "foreign wait", "async", "two streams")  # fmt: skip
def err2_nothing_behind_its_events(w: TestContext) -> None:
    a, b, event = w.stream(), w.stream(), _foreign_event(w)
    x, numbers = w.buffer(), w.numbers()
    w.put(b, x, numbers)
    seen = _target()
    w.wait(a, event)
    behind = w.record(a)
    w.wait(b, behind)
    w.close(behind)
    w.upload(b, w.numbers(), x)
    w.download_to(b, x, 0, seen)
    w.not_done(a, b)
    _fail(w, event)
    for q in (a, b):
        w.refused(DeviceFault, w.sync, q)
    w.until(lambda: b.is_done, "a stream is not done, of which a wait has failed")
    _is_untouched(w, seen)
    w.close(a)
    w.equal(w.get(w.stream(), x), numbers, "a buffer written behind a failed wait only")


@case("ERR-2", "What follows a failed command writes nothing but its own results.", "fault")
def err2_what_follows_stays_in_place(w: TestContext) -> None:
    q, (x, y, z) = w.stream(), w.buffers(3, 3 * NBYTES)
    contents = [w.numbers(3 * COUNT) for _ in range(3)]
    for buffer, numbers in zip((x, y, z), contents, strict=True):
        w.put(q, buffer, numbers)
    launches = exact_op(w.device.facts) is not None
    program = w.compute(q, [(x, NBYTES)], (z, NBYTES)) if launches else None
    label = make_fail(w, q)
    with suppress(DeviceFault):
        w.upload(q, w.numbers(), x, NBYTES)
        w.copy(q, x, NBYTES, y, NBYTES, NBYTES)
        if program is not None:
            w.launch(q, program)
    fails_by_name(w, label, w.sync, q)
    w.until(lambda: q.is_done, "a stream with a fault is not done")
    w.close(q)
    fresh = w.stream()
    for buffer, numbers in zip((x, y, z), contents, strict=True):
        got, before = w.get(fresh, buffer), numbers.view(np.uint8)
        for part in (slice(0, NBYTES), slice(2 * NBYTES, 3 * NBYTES)):
            w.equal(got[part], before[part], "beside what is written behind a failed command")


# --- ERR-3 ------------------------------------------------------------------------------------


@case(
    "ERR-3",
    "A stream may be closed while it waits; what is behind the wait runs when the event is done.",
    "foreign wait",
    "async",
    "two streams",
)
def err3_closed_while_it_waits(w: TestContext) -> None:
    q, other, event = w.stream(), w.stream(), _foreign_event(w)
    x, y = w.buffers(2)
    before, data = w.bytes(), w.bytes()
    for buffer in (x, y):
        w.put(other, buffer, before)
    seen = _target()
    w.wait(q, event)
    w.upload(q, data, x)
    w.copy(q, x, 0, y, 0, NBYTES)
    w.download_to(q, x, 0, seen)
    behind = w.record(q)
    closing = Closing(w, q)
    try:
        closing.has_ended()
        w.not_done(behind)
        for buffer in (x, y):
            w.equal(w.get(other, buffer), before, "written behind a wait that is not over")
        _is_untouched(w, seen)
    finally:
        w.log("the event of another backend is released")
        event.release()
    closing.finish()
    w.sync(behind)
    for got in (seen, w.get(other, x), w.get(other, y)):
        w.equal(got, data, "of commands whose stream was closed before they ran")


@case(
    "ERR-3",
    "A device may be closed while a stream waits; what is behind the wait never runs too early.",
    "foreign wait",
    "async",
)
def err3_device_closed_while_it_waits(w: TestContext) -> None:
    q, event = w.stream(), _foreign_event(w)
    x, data, seen = w.buffer(), w.bytes(), _target()
    w.put(q, x, data)
    w.wait(q, event)
    w.download_to(q, x, 0, seen)
    behind = w.record(q)
    closing = Closing(w, w.device)
    try:
        is_closed = closing.has_ended()
        _is_untouched(w, seen)
        if is_closed:  # it has given up
            w.refused(GgschedError, behind.sync, 0.0)
    finally:
        w.log("the event of another backend is released")
        event.release()
    closing.finish()
    deadline = monotonic() + w.harness.grace_s
    while is_closed and monotonic() < deadline:
        _is_untouched(w, seen)
        w.pause()
    if not is_closed and seen[0] != _UNTOUCHED:
        w.equal(seen, data, "downloaded by a stream whose device was being closed")


class Closing:
    """A thread that closes something, since ``close`` may wait for what is enqueued."""

    def __init__(self, w: TestContext, thing: Device | Stream) -> None:
        self._w = w
        self._error: BaseException | None = None
        w.log(f"{w.name(thing)}.close(), on another thread")

        def work() -> None:
            try:
                thing.close()
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=work, name="ggsched kit closes", daemon=True)
        self._thread.start()

    def has_ended(self) -> bool:
        """Whether it returns without the event; some that do look for that now and then only."""
        self._thread.join(20 * self._w.harness.grace_s)
        return not self._thread.is_alive()

    def finish(self) -> None:
        """Insist that it returns now."""
        self._thread.join(self._w.timeout_s)
        self._w.require(not self._thread.is_alive(), "close does not return")
        if self._error is not None:
            raise BrokenRule(f"close raises {self._error}") from self._error


def _foreign_event(w: TestContext) -> HostEvent:
    w.log("e = an event of another backend, which is not done")
    return HostEvent()


def _fail(w: TestContext, event: HostEvent) -> None:
    w.log("the event of another backend fails")
    event.release(DeviceFault("made to fail", where="elsewhere"))


def _target() -> Bytes:
    return np.full(NBYTES, _UNTOUCHED, np.uint8)


def _is_untouched(w: TestContext, seen: Bytes) -> None:
    w.equal(seen, _target(), "a target of a download that must not have run")
