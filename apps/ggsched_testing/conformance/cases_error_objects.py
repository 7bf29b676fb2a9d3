"""ERR-1, ERR-2: what refused calls leave behind, and the error objects that faults raise."""

from contextlib import suppress
from typing import Any

import numpy as np

from ggsched.backend.program import BoundNode, Operand
from ggsched.backend.protocols import Event, Stream
from ggsched.errors import DeviceFault, UsageError
from ggsched.ir.dtype import F32, I32
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import NBYTES, TestContext
from ggsched_testing.conformance.faults import make_fail
from ggsched_testing.conformance.latch import HostEvent, can_wait_for_host_events
from ggsched_testing.conformance.rules import BrokenRule

# --- ERR-1 ------------------------------------------------------------------------------------


@case("ERR-1", "A refused wait does not hold the stream later.", "events", "latch", "two streams")
def err1_refused_wait(w: TestContext) -> None:
    a, b = w.stream(), w.stream()
    x, data = w.buffer(), w.bytes()
    event = w.event()
    w.refused(UsageError, w.wait, b, event)
    hold = w.hold(a)
    w.upload(a, data, w.buffer())
    w.record(a, event)
    w.put(b, x, data)
    w.equal(w.get(b, x), data, "on a stream whose wait was refused")
    w.sync_held(hold, a, event)


@case("ERR-1", "A launch that is refused on one stream runs on its own.", "launch", "two streams")
def err1_refused_launch(w: TestContext) -> None:
    a, b = w.stream(), w.stream()
    x, y, numbers = w.buffer(), w.buffer(), w.numbers()
    w.put(a, x, numbers)
    program = w.compute(a, [(x, 0)], (y, 0))
    for _ in range(2):
        w.refused(UsageError, w.launch, b, program)
        w.put(a, y, w.bytes())
        w.order(a)
        w.launch(a, program)
        w.equal(w.get(a, y), w.result(numbers), "launched after it was refused elsewhere")
    w.require(b.is_done, "a stream is not done, all of whose calls were refused")


@case("ERR-1", "An event that another device refuses to record stays fresh.", "events", "pair")
def err1_refused_record(w: TestContext) -> None:
    if not w.other.facts.has_events:
        return
    q, theirs = w.stream(), w.stream(w.other)
    event = w.event(w.other)
    w.refused(UsageError, w.record, q, event)
    w.require(not event.is_recorded, "an event is recorded whose record was refused")
    w.record(theirs, event)
    w.sync(event)


# --- ERR-2 ------------------------------------------------------------------------------------


@case("ERR-2", "Each report of a fault is an object of its own; all have the first cause.", "fault")
def err2_error_objects(w: TestContext) -> None:
    q, x = w.stream(), w.buffer()
    make_fail(w, q)
    w.refused(DeviceFault, w.sync, q)  # from here on the stream knows
    reports: list[DeviceFault] = [w.refused(DeviceFault, w.sync, q) for _ in range(3)]
    reports.append(w.refused(DeviceFault, w.upload, q, w.bytes(), x))
    if w.device.facts.has_events:
        event = w.event()
        w.refused(DeviceFault, w.record, q, event)
        w.refused(DeviceFault, w.sync, event)
        two = [w.refused(DeviceFault, w.sync, event) for _ in range(2)]
        w.require(two[0] is not two[1], "an event raises one error object twice")
    first = reports[0].__cause__
    for i, report in enumerate(reports):
        w.require(all(report is not r for r in reports[:i]), "one error object is raised twice")
        w.require(report.__cause__ is not None, "a fault has no cause (__cause__)")
        w.require(report.__cause__ is first, "two reports of a fault have two causes")
        w.require(report.what == reports[0].what, "two reports of a fault name two things")


@case("ERR-2", "Of two commands that fail the first is named.", "op get_rows")
def err2_first_failure(w: TestContext) -> None:
    if w.harness.fault is not None or "get_rows:f32" not in w.device.facts.ops:
        return
    q = w.stream()
    table, ids, out = w.buffer(64), w.buffer(4), w.buffer(16)
    w.put(q, ids, np.array([99], np.int32).view(np.uint8))
    w.put(q, table, np.zeros(16, np.float32))
    w.order(q)
    labels = ["n3 get_rows 'first'", "n4 get_rows 'second'"]
    programs = []
    for label in labels:
        operands = (
            Operand(table, 0, 64, F32, (4, 4), (16, 4)),
            Operand(ids, 0, 4, I32, (1,), (4,)),
        )
        result = Operand(out, 0, 16, F32, (1, 4), (16, 4))
        programs.append(w.compile([BoundNode(3, "get_rows", operands, result, {}, label)], q))
    hold = w.hold(q)
    with suppress(DeviceFault):
        for program in programs:
            w.launch(q, program)
    hold.release()
    for _ in range(2):
        text = w.refused(DeviceFault, w.sync, q).one_line()
        w.require(labels[0] in text, f"the error does not name {labels[0]}: {text}")


@case("ERR-2", "Behind a failed wait hundreds of commands of every kind are dropped.",
      "foreign wait", "async", "two streams")  # fmt: skip
def err2_every_lane_behind_a_failed_wait(w: TestContext) -> None:
    if not can_wait_for_host_events(w.device):
        return
    q, other = w.stream(), w.stream()
    x, y, before = w.buffer(), w.buffer(), w.bytes()
    for buffer in (x, y):
        w.put(other, buffer, before)
    graph = _graph(w, q, x, y)
    seen = [np.full(NBYTES, 0xA5, np.uint8) for _ in range(8)]
    event = HostEvent()
    w.wait(q, event)
    lines = len(w.program)
    kinds = [int(k) for k in w.rng.integers(0, 5, 160)]
    for i, kind in enumerate(kinds):
        _enqueue(w, q, (x, y), seen[i % len(seen)], kind, graph)
    w.program[lines:] = [f"{len(kinds)} commands of every kind"]
    behind = w.record(q)
    _wait_anyway(w, other, behind)
    w.log("the event of another backend fails")
    event.release(DeviceFault("made to fail", where="elsewhere"))
    w.refused(DeviceFault, w.sync, q)
    w.until(lambda: q.is_done, "a stream is not done, of which a wait has failed")
    fresh = w.stream()
    for buffer in (x, y):
        w.equal(w.get(fresh, buffer), before, "a buffer written behind a failed wait only")
    for target in seen:
        w.equal(target, np.full(NBYTES, 0xA5, np.uint8), "a target behind a failed wait")


def _graph(w: TestContext, q: Stream, x: Any, y: Any) -> Any:
    if not hasattr(w.device, "begin_capture"):
        return None
    capture = w.capture(q)
    w.fill(q, x, 0, NBYTES, b"\x33")
    w.copy(q, x, 0, y, 0, NBYTES)
    return w.end(capture)


def _enqueue(w: TestContext, q: Stream, both: Any, target: Any, kind: int, graph: Any) -> None:
    x, y = both
    match kind:
        case 0:
            w.upload(q, w.bytes(), x)
        case 1:
            w.copy(q, x, 0, y, 0, NBYTES)
        case 2:
            w.fill(q, y, 0, NBYTES, b"\x22")
        case 3 if graph is not None:
            w.replay(q, graph)
        case _:
            w.download_to(q, y, 0, target)


def _wait_anyway(w: TestContext, q: Stream, event: Event) -> None:
    try:
        w.wait(q, event)
    except DeviceFault as error:
        raise BrokenRule("a wait fails before what it waits for") from error
