"""ERR: refusals, faults, cleanup."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from ggsched.backend.protocols import Event, Stream
from ggsched.errors import DeviceFault, GgschedError, UsageError
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import NBYTES, TestContext
from ggsched_testing.conformance.faults import compiled_lookup, fails_by_name, make_fail
from ggsched_testing.conformance.rules import BrokenRule

# --- ERR-1 ------------------------------------------------------------------------------------


def _refusals(w: TestContext, q: Stream) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield calls that have to be refused, each with the word that its error has to contain."""
    x = w.buffer()
    yield "upload", lambda: w.upload(q, w.bytes(8), x, NBYTES - 4)
    yield "download", lambda: w.download(q, x, NBYTES - 4, 8)
    yield "copy", lambda: w.copy(q, x, 0, x, 8, 16)
    yield "copy", lambda: w.copy(q, x, 0, x, NBYTES - 8, 16)
    yield "upload", lambda: q.upload(memoryview(bytes(16))[::2], x, 0)
    yield "download", lambda: q.download(x, 0, memoryview(bytes(16)))
    if w.device.facts.max_streams > 1:
        foreign = w.compile([], w.stream())
        yield "launch", lambda: w.launch(q, foreign)
    if w.device.facts.has_events:
        event, recorded = w.event(), w.record(q)
        yield "wait", lambda: w.wait(q, event)
        yield "record", lambda: w.record(q, recorded)


@case("ERR-1", "What is refused raises at once and names the command.")
def err1_refusals_name_the_command(w: TestContext) -> None:
    q = w.stream()
    for word, call in _refusals(w, q):
        error = w.refused(UsageError, call)
        text = error.one_line()
        w.require(word in text, f"the error does not name the {word}: {text}")


@case("ERR-1", "After a refusal the stream is as before.")
def err1_stream_as_before(w: TestContext) -> None:
    q = w.stream()
    y, data = w.filled(q)
    for _, call in _refusals(w, q):
        w.refused(UsageError, call)
        w.equal(w.get(q, y), data, "after a call that was refused")
    w.sync(q)
    w.require(q.is_done, "a stream is not done, all of whose calls were refused")


@case("ERR-1", "A refusal among commands that are held leaves those alone.", "latch")
def err1_refusal_among_commands(w: TestContext) -> None:
    q, y = w.stream(), w.buffer()
    x, data, hold = w.uploading(q)
    w.refused(UsageError, w.copy, q, x, 0, y, 1, NBYTES)
    w.copy(q, x, 0, y, 0, NBYTES)
    w.release_held(hold, q)
    w.equal(w.get(q, y), data, "copied after a call that was refused")


@case("ERR-1", "A node that cannot be compiled is named, and nothing stays behind.", "launch")
def err1_compile_names_the_node(w: TestContext) -> None:
    q, (x, y) = w.stream(), w.buffers(2)
    numbers = w.numbers()
    w.put(q, x, numbers)
    error = w.refused(UsageError, w.compute, q, [(x, NBYTES)], (y, 0))
    w.require("n0" in error.one_line(), f"the error does not name the node: {error.one_line()}")
    w.launch(q, w.compute(q, [(x, 0)], (y, 0)))
    w.equal(w.get(q, y), w.result(numbers), "launched after a program that was refused")


# --- ERR-2 ------------------------------------------------------------------------------------


@case("ERR-2", "A failed command poisons its stream; every later call names it.", "fault")
def err2_poisoned(w: TestContext) -> None:
    q, (x, y) = w.stream(), w.buffers(2)
    label = make_fail(w, q)
    fails_by_name(w, label, w.sync, q)
    calls: list[Callable[[], Any]] = [
        lambda: w.sync(q),
        lambda: w.upload(q, w.bytes(), x),
        lambda: w.download(q, x),
        lambda: w.copy(q, x, 0, y, 0, 16),
        lambda: w.sync(q, 0.0),
    ]
    if w.device.facts.has_events:
        calls.append(lambda: w.record(q))
    for call in calls:
        fails_by_name(w, label, call)


@case("ERR-2", "A launch on a poisoned stream names the first failure too.", "fault", "launch")
def err2_launch_on_poisoned(w: TestContext) -> None:
    q, (x, y) = w.stream(), w.buffers(2)
    program = w.compute(q, [(x, 0)], (y, 0))
    label = make_fail(w, q)
    fails_by_name(w, label, w.sync, q)
    fails_by_name(w, label, w.launch, q, program)


@case("ERR-2", "What follows a failed command on its stream comes to an end.", "fault")
def err2_what_follows_ends(w: TestContext) -> None:
    q, (x, y) = w.stream(), w.buffers(2)
    label = make_fail(w, q)
    with suppress(DeviceFault):
        for _ in range(8):
            w.upload(q, w.bytes(), x)
            w.copy(q, x, 0, y, 0, NBYTES)
    fails_by_name(w, label, w.sync, q)
    w.until(lambda: q.is_done, "a stream with a fault is not done")


@case("ERR-2", "Other streams go on.", "fault", "two streams")
def err2_other_streams_go_on(w: TestContext) -> None:
    q, other = w.stream(), w.stream()
    label = make_fail(w, q)
    fails_by_name(w, label, w.sync, q)
    w.works(other, "on another stream after a fault")


@case("ERR-2", "Launches of other streams that look rows up go on, too.", "fault", "op get_rows")
def err2_other_lookups_go_on(w: TestContext) -> None:
    if w.device.facts.max_streams < 2 or "get_rows:f32" not in w.device.facts.ops:
        return
    q, other = w.stream(), w.stream()
    rows = w.numbers(16)
    _, out, program = compiled_lookup(w, other, rows, 2)
    make_fail(w, q)
    w.refused(DeviceFault, w.sync, q)
    w.launch(other, program)
    w.equal(w.get(other, out), rows[8:12], "looked up on another stream after a fault")


@case("ERR-2", "Another device goes on.", "fault", "pair")
def err2_other_devices_go_on(w: TestContext) -> None:
    q, other = w.stream(), w.stream(w.other)
    make_fail(w, q)
    w.refused(DeviceFault, w.sync, q)
    w.works(other, "on another device after a fault")


@case("ERR-2", "The device goes on: memory and a new stream are there.", "fault")
def err2_device_goes_on(w: TestContext) -> None:
    q = w.stream()
    make_fail(w, q)
    w.refused(DeviceFault, w.sync, q)
    w.close(q)
    w.works(w.stream(), "on a new stream after a fault")


# --- ERR-3 ------------------------------------------------------------------------------------


@case("ERR-3", "Everything can be closed twice, in any order.")
def err3_twice(w: TestContext) -> None:
    for order in (1, -1):
        q, x = w.stream(), w.buffer()
        things: list[Any] = [q, x, w.compile([], q)]
        if w.device.facts.has_events:
            things.append(w.record(q))
        w.upload(q, w.bytes(), x)
        w.sync(q)
        w.close(*things[::order])
        w.close(*things)


@case("ERR-3", "After close of a stream every call on it raises.")
def err3_closed_stream(w: TestContext) -> None:
    q, x, y = w.stream(), w.buffer(), w.buffer()
    program = w.compile([], q)
    data = w.bytes()
    w.put(q, x, data)
    w.close(q)
    calls: list[Callable[[], Any]] = [
        lambda: w.upload(q, w.bytes(), x),
        lambda: w.download(q, x),
        lambda: w.copy(q, x, 0, y, 0, 16),
        lambda: w.launch(q, program),
        lambda: w.sync(q),
        lambda: q.is_done,
    ]
    if w.device.facts.has_events:
        calls.append(lambda: w.record(q))
    _all_refused(w, calls)
    w.equal(w.get(w.stream(), x), data, "after calls on a closed stream")


@case("ERR-3", "A closed buffer is refused by every command.")
def err3_closed_buffer(w: TestContext) -> None:
    q, x, y = w.stream(), w.buffer(), w.buffer()
    w.close(x)
    _all_refused(
        w,
        [
            lambda: w.upload(q, w.bytes(), x),
            lambda: w.download(q, x),
            lambda: w.copy(q, x, 0, y, 0, 16),
            lambda: w.copy(q, y, 0, x, 0, 16),
            x.host_view,
        ],
    )


@case("ERR-3", "A closed program is refused.", "launch")
def err3_closed_program(w: TestContext) -> None:
    q, x, y = w.stream(), w.buffer(), w.buffer()
    program = w.compute(q, [(x, 0)], (y, 0))
    w.close(program)
    _all_refused(w, [lambda: w.launch(q, program)])


@case("ERR-3", "A closed event is refused.", "events")
def err3_closed_event(w: TestContext) -> None:
    q = w.stream()
    fresh, event = w.event(), w.record(q)
    w.sync(q)
    for e in (fresh, event):
        w.close(e)
        _all_refused(w, _uses(w, q, e))


def _uses(w: TestContext, q: Stream, event: Event) -> list[Callable[[], Any]]:
    return [
        lambda: w.wait(q, event),
        lambda: w.record(q, event),
        lambda: w.sync(event),
        lambda: event.is_done,
        lambda: event.is_recorded,
    ]


@case("ERR-3", "Close of a device releases what it made; then every call on it raises.")
def err3_closed_device(w: TestContext) -> None:
    device, q, x = w.device, w.stream(), w.buffer()
    w.upload(q, w.bytes(), x)
    w.close(device, device)
    calls: list[Callable[[], Any]] = [
        lambda: device.allocate(16),
        device.create_stream,
        lambda: device.allocate_host(16),
        lambda: device.compile([], q),
        lambda: q.upload(memoryview(bytes(4)), x, 0),
        lambda: q.sync(1.0),
    ]
    if device.facts.has_events:
        calls.append(device.create_event)
    _all_refused(w, calls)
    w.close(x, q)


@case("ERR-3", "A stream may be closed while its commands run; they run to their end.", "events")
def err3_closed_with_work(w: TestContext) -> None:
    q, x, data = w.stream(), w.buffer(1 << 20), w.bytes(1 << 20)
    w.upload(q, data, x)
    event = w.record(q)
    w.close(q)
    w.sync(event)
    w.equal(w.get(w.stream(), x), data, "uploaded by a stream that was closed then")


@case("ERR-3", "A device may be closed while its commands run.")
def err3_device_closed_with_work(w: TestContext) -> None:
    q, x, y = w.stream(), w.buffer(1 << 20), w.buffer(1 << 20)
    for _ in range(4):
        w.upload(q, w.bytes(1 << 20), x)
        w.copy(q, x, 0, y, 0, 1 << 20)
    w.close(w.device)


@case("ERR-3", "Close works after a fault.", "fault")
def err3_after_a_fault(w: TestContext) -> None:
    q, x = w.stream(), w.buffer()
    make_fail(w, q)
    w.refused(DeviceFault, w.sync, q)
    w.close(q, x, w.device, q, x, w.device)


@case("ERR-3", "A stream that fails and is closed at once does not disturb the device.", "fault")
def err3_fault_nobody_waits_for(w: TestContext) -> None:
    q = w.stream()
    make_fail(w, q)
    w.close(q)
    w.works(w.stream(), "after a stream was closed with a fault")


def _all_refused(w: TestContext, calls: list[Callable[[], Any]]) -> None:
    for i, call in enumerate(calls):
        try:
            call()
        except UsageError:
            continue
        except GgschedError as error:
            raise BrokenRule(
                f"call {i + 1} of {len(calls)} after close raises {type(error).__name__} "
                f"instead of UsageError: {error}"
            ) from error
        raise BrokenRule(f"call {i + 1} of {len(calls)} after close is accepted")
