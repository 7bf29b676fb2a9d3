"""CAP: a run of commands that is captured once and replayed by one call."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ggsched.backend.capture import Capture, DeviceGraph
from ggsched.backend.protocols import Buffer, Stream
from ggsched.errors import UsageError
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import NBYTES, TestContext
from ggsched_testing.conformance.faults import LABEL, compiled_lookup, fails_by_name


def captured_by_way_of(
    w: TestContext, streams: tuple[Stream, Stream], x: Buffer, y: Buffer, z: Buffer
) -> Capture:
    """Capture that one stream copies x to y, and another one y to z behind it."""
    a, b = streams
    capture = w.capture(a, b)
    w.copy(a, x, 0, y, 0, NBYTES)
    w.wait(b, w.record(a))
    w.copy(b, y, 0, z, 0, NBYTES)
    return capture


def replayed_when_released(
    w: TestContext, q: Stream, graph: DeviceGraph, x: Buffer, z: Buffer, what: str
) -> None:
    """Require that a replay on a held stream brings from x to z what was uploaded before it."""
    data = w.bytes()
    hold = w.hold(q)
    w.upload(q, data, x)
    w.replay(q, graph)
    seen = w.download(q, z)
    w.sync_held(hold, q)
    w.equal(seen, data, what)


# --- CAP-1 ------------------------------------------------------------------------------------


@case("CAP-1", "A graph that is replayed does what its commands did, on the same regions.",
      "capture", "launch")  # fmt: skip
def cap1_replay_equals_enqueueing(w: TestContext) -> None:
    q, (x, y, z) = w.stream(), w.buffers(3)
    program = w.compute(q, [(x, 0)], (y, 0))
    capture = w.capture(q)
    w.launch(q, program)
    w.order(q)
    w.copy(q, y, 0, z, 0, NBYTES)
    graph = w.end(capture)
    for _ in range(3):
        numbers = w.numbers()
        w.put(q, x, numbers)
        w.replay(q, graph)
        w.equal(w.get(q, z), w.result(numbers), "made by a replay from what is there now")


@case("CAP-1", "A replay keeps its place among commands, and is held with its stream.", "capture")
def cap1_replay_keeps_its_place(w: TestContext) -> None:
    q, (x, y) = w.stream(), w.buffers(2)
    w.put(q, x, w.bytes())
    graph = w.captured(q, lambda: w.copy(q, x, 0, y, 0, NBYTES))
    first, second = w.bytes(), w.bytes()
    hold = w.hold(q)
    w.upload(q, first, x)
    w.replay(q, graph)
    seen = w.download(q, y)
    w.upload(q, second, x)
    w.replay(q, graph)
    again = w.download(q, y)
    w.sync_held(hold, q)
    w.equal(seen, first, "downloaded behind the first replay")
    w.equal(again, second, "downloaded behind the second replay")


@case("CAP-1", "All streams of a capture fork from the first and are joined to it.", "capture",
      "events", "two streams")  # fmt: skip
def cap1_streams_fork_and_join(w: TestContext) -> None:
    a, b = w.stream(), w.stream()
    x, y, z = w.buffers(3)
    w.put(a, x, w.bytes())
    graph = w.end(captured_by_way_of(w, (a, b), x, y, z))
    for _ in range(3):
        replayed_when_released(w, a, graph, x, z, "made by the second stream of a graph")


@case("CAP-1", "A capture begun on a held stream has nothing of what came before.", "capture",
      "latch")  # fmt: skip
def cap1_begun_while_held(w: TestContext) -> None:
    q, (x, y) = w.stream(), w.buffers(2)
    before, first, second = w.bytes(), w.bytes(), w.bytes()
    w.put(q, y, before)
    hold = w.hold(q)
    w.upload(q, first, x)
    capture = w.capture(q)
    w.copy(q, x, 0, y, 0, NBYTES)
    hold.release()
    for _ in range(20):
        w.pause()
    graph = w.end(capture)
    w.equal(w.get(q, x), first, "uploaded before the capture")
    w.equal(w.get(q, y), before, "written by a capture only")
    w.upload(q, second, x)
    w.replay(q, graph)
    w.equal(w.get(q, y), second, "copied by the replay")


@case("CAP-1", "A graph is replayed on its first stream only, and not after close.", "capture")
def cap1_graph_of_another_stream(w: TestContext) -> None:
    q, (x, y) = w.stream(), w.buffers(2)
    data = w.bytes()
    w.put(q, x, data)
    graph = w.captured(q, lambda: w.copy(q, x, 0, y, 0, NBYTES))
    if w.device.facts.max_streams > 1:
        w.refused(UsageError, w.replay, w.stream(), graph)
    w.replay(q, graph)
    w.close(graph, graph)
    w.equal(w.get(q, y), data, "made by a graph that was closed behind its replay")
    w.refused(UsageError, w.replay, q, graph)


@case("CAP-1", "An id out of range in a replay fails the stream, as it does without.", "capture")
def cap1_fault_in_a_replay(w: TestContext) -> None:
    if "get_rows:f32" not in w.device.facts.ops:
        return
    q = w.stream()
    ids, _, program = compiled_lookup(w, q, np.zeros(16, np.float32), 0)
    graph = w.captured(q, lambda: w.launch(q, program))
    w.replay(q, graph)
    w.sync(q)
    good = w.record(q) if w.device.facts.has_events else None
    w.put(q, ids, np.array([1000], np.int32).view(np.uint8))
    w.replay(q, graph)
    fails_by_name(w, LABEL, w.sync, q)
    if good is not None:
        w.sync(good)


# --- CAP-2 ------------------------------------------------------------------------------------


def _illegal(w: TestContext, q: Stream, x: Buffer) -> list[Callable[[], Any]]:
    """Return calls that a captured stream has to refuse."""
    calls: list[Callable[[], Any]] = [
        lambda: w.sync(q),
        lambda: q.is_done,
        lambda: w.upload(q, w.bytes(8), x, NBYTES - 4),
        lambda: w.copy(q, x, 0, x, 8, 16),
        lambda: w.capture(q),
    ]
    if w.device.facts.has_events and w.device.facts.max_streams > 1:
        outside = w.record(w.stream())
        calls.append(lambda: w.wait(q, outside))
        calls.append(lambda: w.wait(q, w.event()))
    return calls


@case("CAP-2", "A call that may not be captured raises, and the capture goes on.", "capture")
def cap2_refused_during_capture(w: TestContext) -> None:
    q, (x, y, z) = w.stream(), w.buffers(3)
    data = w.bytes()
    w.put(q, x, data)
    calls = _illegal(w, q, x)
    capture = w.capture(q)
    w.copy(q, x, 0, y, 0, NBYTES)
    for call in calls:
        w.refused(UsageError, call)
    w.copy(q, y, 0, z, 0, NBYTES)
    graph = w.end(capture)
    w.refused(UsageError, w.end, capture)
    w.replay(q, graph)
    w.equal(w.get(q, z), data, "made by a graph whose capture saw refused calls")


@case("CAP-2", "Nothing runs while commands are captured.", "capture")
def cap2_nothing_runs(w: TestContext) -> None:
    q, (x, y) = w.stream(), w.buffers(2)
    old, new = w.bytes(), w.bytes()
    w.put(q, x, new)
    w.put(q, y, old)
    target = np.zeros(NBYTES, np.uint8)
    capture = w.capture(q)
    w.copy(q, x, 0, y, 0, NBYTES)
    w.download_to(q, y, 0, target)
    w.pause()
    graph = w.end(capture)
    w.sync(q)
    w.require(not target.any(), "a captured download ran before it was replayed")
    w.equal(w.get(q, y), old, "in the target of a captured copy before any replay")
    w.replay(q, graph)
    w.sync(q)
    w.equal(target, new, "downloaded by the replay")


@case("CAP-2", "A capture that is given up leaves its streams as they were.", "capture")
def cap2_given_up(w: TestContext) -> None:
    q, (x, y) = w.stream(), w.buffers(2)
    old, data = w.bytes(), w.bytes()
    w.put(q, x, data)
    w.put(q, y, old)
    capture = w.capture(q)
    w.copy(q, x, 0, y, 0, NBYTES)
    capture.abort()
    capture.abort()
    w.equal(w.get(q, y), old, "after a capture that was given up")
    w.copy(q, x, 0, y, 0, NBYTES)
    w.equal(w.get(q, y), data, "copied after a capture that was given up")


@case("CAP-2", "An event that was recorded in a capture is of no use outside.", "capture",
      "events", "two streams")  # fmt: skip
def cap2_event_of_a_capture(w: TestContext) -> None:
    a, b = w.stream(), w.stream()
    x, y = w.buffers(2)
    data = w.bytes()
    w.put(a, x, data)
    capture = w.capture(a)
    w.copy(a, x, 0, y, 0, NBYTES)
    event = w.record(a)
    w.refused(UsageError, w.wait, b, event)
    graph = w.end(capture)
    w.refused(UsageError, w.wait, b, event)
    w.refused(UsageError, w.sync, event)
    w.refused(UsageError, w.record, b, event)
    w.replay(a, graph)
    w.wait(b, w.record(a))
    w.equal(w.get(b, y), data, "read behind an event that was recorded behind the replay")


# --- CAP-3 ------------------------------------------------------------------------------------


@case("CAP-3", "Host memory of a captured upload is read when the graph is replayed.", "capture")
def cap3_host_memory_at_replay(w: TestContext) -> None:
    for pinned in (False, True):
        q, x = w.stream(), w.buffer()
        source, target = _host(w, pinned), _host(w, pinned)
        capture = w.capture(q)
        w.upload(q, source, x)
        w.download_to(q, x, 0, target)
        graph = w.end(capture)
        for _ in range(3):
            data = w.bytes()
            w.log(f"the host rewrites {w.name(source)}")
            source[:] = data
            w.replay(q, graph)
            w.sync(q)
            w.equal(target, data, "what the source held at the time of the replay")


def _host(w: TestContext, pinned: bool) -> Any:
    if pinned:
        return np.frombuffer(w.device.allocate_host(NBYTES), np.uint8)
    return w.bytes()
