"""STR, EVT: many commands, streams, events and waits, and work that takes a while."""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import numpy as np

from ggsched.backend.protocols import Event, Stream
from ggsched.errors import DeviceFault
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import NBYTES, TestContext
from ggsched_testing.conformance.faults import compiled_lookup, fails_by_name, make_fail, recorded
from ggsched_testing.conformance.latch import HostEvent
from ggsched_testing.conformance.long_work import Enqueuing, long_launch, seen_by

DEEP: Final = 2500
"""Commands on one stream before anybody waits."""

HELD: Final = 256
"""Commands that a held stream takes without blocking (STR-2)."""

EVENTS: Final = 300

# --- deep queues ------------------------------------------------------------------------------


@case("STR-1", "Thousands of commands in flight take effect in their order.")
def str1_deep_queue(w: TestContext) -> None:
    q = w.stream()
    x, model = w.buffer(), np.zeros(NBYTES, np.uint8)
    w.put(q, x, model)
    data = w.rng.integers(1, 256, (DEEP, 4), dtype=np.uint8)
    places = w.rng.integers(0, NBYTES // 4, DEEP) * 4
    for place, word in zip(places, data, strict=True):
        model[place : place + 4] = word
    queue = Enqueuing(w, q)
    queue.each(
        DEEP,
        "upload four random bytes to a random place",
        lambda i: w.upload(q, data[i], x, int(places[i])),
    )
    queue.release()
    w.sync(q)
    w.equal(w.get(q, x), model, f"after {DEEP} uploads")


@case("STR-2", "A held stream takes hundreds of commands, and thousands as it goes on.")
def str2_deep_queue(w: TestContext) -> None:
    q = w.stream()
    x, y, data = w.buffer(), w.buffer(), w.bytes()
    w.put(q, x, data)
    queue = Enqueuing(w, q)
    copy = lambda i: w.copy(q, x, 4 * (i % 64), y, 4 * (i % 64), 4)  # noqa: E731
    was_held = queue.is_held
    queue.each(HELD, "copy four bytes", copy)
    w.require(queue.is_held == was_held, f"a held stream blocks before it has {HELD} commands")
    queue.each(DEEP, "copy four bytes", copy)
    queue.release()
    w.equal(w.get(q, y), data, f"after {HELD + DEEP} copies")


@case("STR-2", "A held stream takes hundreds of transfers of ordinary host memory.")
def str2_transfers_of_a_held_stream(w: TestContext) -> None:
    q = w.stream()
    x, data = w.buffer(), w.rng.integers(0, 256, (HELD // 2, 4), dtype=np.uint8)
    w.put(q, x, np.zeros(NBYTES, np.uint8))
    seen = np.zeros((HELD // 2, 4), np.uint8)
    queue = Enqueuing(w, q)
    was_held = queue.is_held

    def there_and_back(i: int) -> None:
        w.upload(q, data[i], x, 4 * (i % 64))
        w.download_to(q, x, 4 * (i % 64), seen[i])

    queue.each(HELD // 2, "upload four bytes, and download them", there_and_back)
    w.require(queue.is_still_held() == was_held, f"a held stream blocks before {HELD} transfers")
    queue.release()
    w.sync(q)
    w.equal(seen, data, f"downloaded behind {HELD // 2} uploads")


@case("STR-5", "sync covers thousands of commands.")
def str5_deep_queue(w: TestContext) -> None:
    q = w.stream()
    n = 1 << 18
    x, y, data = w.buffer(n), w.buffer(n), w.bytes(n)
    w.put(q, x, data)
    seen = np.zeros(n, np.uint8)
    queue = Enqueuing(w, q)
    queue.each(DEEP, "copy four bytes", lambda i: w.copy(q, x, 0, y, 0, 4))
    # These take milliseconds, which is longer than the host needs to call sync and to look.
    queue.each(DEEP, "copy all bytes", lambda i: w.copy(q, x, 0, y, 0, n))
    w.download_to(q, y, 0, seen)
    queue.release()
    w.sync(q)
    w.equal(seen, data, f"downloaded behind {DEEP} copies")


@case("STR-4", "Each of many streams goes on while others are held.", "latch", "two streams")
def str4_many_streams(w: TestContext) -> None:
    count = min(w.device.facts.max_streams, 20)
    streams = [w.stream() for _ in range(count)]
    x, data = w.buffer(4 * count), w.bytes(4)
    held = {0, *map(int, w.rng.integers(0, count - 1, 2))} - {count - 1}
    for i in held:
        w.hold(streams[i])
        w.upload(streams[i], data, x, 4 * i)
    for i in set(range(count)) - held:
        w.put(streams[i], x, data, 4 * i)
    w.not_done(*(streams[i] for i in held))
    w.release()
    for i in held:
        w.sync(streams[i])


# --- many events and waits --------------------------------------------------------------------


@case("EVT-1", "Of hundreds of events on a held stream, none is done.", "events", "latch")
def evt1_many_events(w: TestContext) -> None:
    q, x = w.stream(), w.buffer()
    queue = Enqueuing(w, q)
    w.upload(q, w.bytes(), x)
    events: list[Event] = []
    queue.each(EVENTS, "record an event", lambda i: events.append(w.record(q)))
    if queue.is_still_held():
        w.not_done(*events[:: EVENTS // 10], *events[-3:], *events[250:260])
    queue.release()
    w.sync(events[-1])
    for event in events:
        w.require(event.is_done, f"{w.name(event)} is not done")


@case("EVT-5", "Hundreds of later events leave a done event done.", "events", "latch")
def evt5_many_later_events(w: TestContext) -> None:
    q, x = w.stream(), w.buffer()
    early: list[Event] = []
    for _ in range(8):
        w.upload(q, w.bytes(), x)
        early.append(w.record(q))
    w.sync(q)
    queue = Enqueuing(w, q)
    w.upload(q, w.bytes(), x)
    later: list[Event] = []
    queue.each(EVENTS, "record an event", lambda i: later.append(w.record(q)))
    for event in early:
        w.require(event.is_done, f"{w.name(event)} was done and is not any more")
        w.sync(event, 0.0)
    queue.release()
    w.sync(q)


@case("EVT-2", "Of many waits each one holds, the last one too.", "events", "latch",
      "three streams")  # fmt: skip
def evt2_many_waits(w: TestContext) -> None:
    for count, place in ((12, 11), (24, int(w.rng.integers(8, 24))), (120, 119)):
        a, b, q = w.stream(), w.stream(), w.stream()
        x, y = w.buffers(2)
        w.put(a, x, w.bytes())
        w.put(a, y, w.bytes())
        data = w.bytes()
        first, second = w.hold(a), w.hold(b)
        w.upload(b, data, x)
        decisive = w.record(b)
        w.upload(a, w.bytes(4), y)
        others = [w.record(a) for _ in range(count - 1)]
        lines = len(w.program)
        for event in (*others[:place], decisive, *others[place:]):
            w.wait(q, event)
        del w.program[lines:]
        w.log(f"{w.name(q)} waits for {count} events, {w.name(decisive)} at place {place}")
        w.copy(q, x, 0, y, 0, NBYTES)
        end = w.record(q)
        first.release()
        w.sync(a)
        w.still_held(second, end, q)
        second.release()
        w.sync(q)
        w.equal(w.get(q, y), data, f"copied behind {count} waits")
        w.close(a, b, q)


@case("EVT-4", "Many events of other backends hold a stream at a time.", "foreign wait", "async")
def evt4_many_foreign_events(w: TestContext) -> None:
    q, x, before, data = w.stream(), w.buffer(), w.bytes(), w.bytes()
    w.put(q, x, before)
    events = [HostEvent() for _ in range(12)]
    w.log("12 events of another backend, which are not done")
    for event in events:
        w.wait(q, event)
    w.upload(q, data, x)
    order = [int(i) for i in w.rng.permutation(len(events) - 1)]
    if w.rng.integers(2):
        order.append(len(events) - 1)
    else:
        order.insert(0, len(events) - 1)
    for i in order[:-1]:
        events[i].release()
    w.not_done(q)
    w.log("the last one is let go")
    events[order[-1]].release()
    w.sync(q)
    w.equal(w.get(q, x), data, "uploaded behind many events")
    events = [HostEvent() for _ in range(6)]
    for event in events:
        w.wait(q, event)
    for event in events[:-1]:
        event.release()
    w.not_done(q)
    events[-1].release()
    w.sync(q)


# --- failures far behind ----------------------------------------------------------------------


@case("EVT-6", "An event far behind a failure has failed.", "events", "fault")
def evt6_far_behind_a_failure(w: TestContext) -> None:
    q, x = w.stream(), w.buffer()
    if w.device.facts.copy_order != "host":  # the fault comes when all is enqueued
        w.hold(q)
    label = make_fail(w, q)
    with suppress(DeviceFault):
        for _ in range(60):
            w.upload(q, w.bytes(4), x)
    event = recorded(w, q)
    w.release()
    fails_by_name(w, label, w.sync, event)


@case("EVT-6", "Work behind an event does not hide that what is before it failed.", "events",
      "fault", "three streams")  # fmt: skip
def evt6_hidden_by_more_work(w: TestContext) -> None:
    may_hold = w.device.facts.copy_order != "host"
    for is_held in (False, False, may_hold):
        q = w.stream()
        later = _harmless(w, q)
        hold = w.hold(q) if is_held else None
        make_fail(w, q)
        event = recorded(w, q)
        with suppress(DeviceFault):
            for _ in range(4):
                later()
        if hold is not None:
            hold.release()
        w.refused(DeviceFault, w.sync, event)


def _harmless(w: TestContext, stream: Stream) -> Callable[[], None]:
    """Return what enqueues a command; one that might have failed as well, if there is one."""
    if "get_rows:f32" not in w.device.facts.ops:
        out = w.buffer(16)
        return lambda: w.upload(stream, w.bytes(16), out)
    _, _, program = compiled_lookup(w, stream, np.zeros(16, np.float32), 0)
    return lambda: w.launch(stream, program)


@case("EVT-6", "A failure travels along a chain of streams.", "events", "fault", "three streams")
def evt6_failure_travels_far(w: TestContext) -> None:
    count = min(5, w.device.facts.max_streams)
    streams = [w.stream() for _ in range(count)]
    make_fail(w, streams[0])
    last = recorded(w, streams[0])
    for q in streams[1:]:
        with suppress(DeviceFault):
            w.wait(q, last)
        last = recorded(w, q)
    w.refused(DeviceFault, w.sync, last)
    for q in streams[1:]:
        w.refused(DeviceFault, w.sync, q)


@case("EVT-6", "Of several events waited for, each one's failure counts.", "events", "fault",
      "three streams")  # fmt: skip
def evt6_each_failure_counts(w: TestContext) -> None:
    for place in range(3):
        good, bad, q = w.stream(), w.stream(), w.stream()
        x = w.buffer()
        hold = w.hold(good)
        w.upload(good, w.bytes(), x)
        events = [w.record(good), w.record(good)]
        make_fail(w, bad)
        events.insert(place, recorded(w, bad))
        for event in events:
            with suppress(DeviceFault):
                w.wait(q, event)
        hold.release()
        w.refused(DeviceFault, w.sync, q)
        w.close(good, bad, q)


# --- work that takes a while ------------------------------------------------------------------

LOOKS: Final = 4
"""How often a long launch is looked at: whoever looks may be late as well."""


def _after_long_launches(
    w: TestContext, until: Callable[[Stream, Stream], None], what: str
) -> None:
    """Require that another stream sees the result of a long launch after ``until``."""
    q, other = w.stream(), w.stream()
    long = long_launch(w, q)
    for _ in range(LOOKS):
        w.put(q, long.result, np.zeros_like(long.expected))
        w.order(q)
        w.launch(q, long.program)
        until(q, other)
        w.equal(seen_by(w, other, long.result), long.expected, what)
        w.sync(q)


@case("STR-5", "sync waits for the end of a long launch.", "launch", "two streams")
def str5_long_launch(w: TestContext) -> None:
    _after_long_launches(w, lambda q, other: w.sync(q), "seen by another stream after sync")


@case("STR-3", "is_done is true when a long launch has ended.", "launch", "two streams")
def str3_long_launch(w: TestContext) -> None:
    def until_done(q: Stream, other: Stream) -> None:
        w.until(lambda: q.is_done, f"{w.name(q)} is not done")

    _after_long_launches(w, until_done, "seen by another stream when done")


@case("EVT-1", "An event is done when a long launch has ended.", "events", "launch", "two streams")
def evt1_long_launch(w: TestContext) -> None:
    def until_done(q: Stream, other: Stream) -> None:
        w.sync(w.record(q))

    _after_long_launches(w, until_done, "seen by another stream when done")


@case("EVT-2", "A wait holds until a long launch has ended.", "events", "launch", "two streams")
def evt2_long_launch(w: TestContext) -> None:
    def until_done(q: Stream, other: Stream) -> None:
        w.wait(other, w.record(q))

    _after_long_launches(w, until_done, "seen behind a wait")


# --- events that are closed -------------------------------------------------------------------


@case("EVT-5", "Closing an event lets no other stream go.", "events", "latch", "two streams")
def evt5_closed_while_others_wait(w: TestContext) -> None:
    a, b = w.stream(), w.stream()
    y = w.buffer()
    x, data, hold = w.uploading(a)
    event = w.record(a)
    w.wait(b, event)
    w.copy(b, x, 0, y, 0, NBYTES)
    w.close(event)
    w.sync_held(hold, b)
    w.equal(w.get(b, y), data, "copied behind an event that was closed")
