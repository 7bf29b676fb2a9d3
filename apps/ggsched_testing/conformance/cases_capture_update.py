"""CAP-4: a graph takes over what another capture wrote down, or says why it does not.

A device may refuse any update, so each case goes on with whichever graph has the new commands.
"""

from typing import Any

import numpy as np

from ggsched.backend.capture import Capture, DeviceGraph
from ggsched.backend.protocols import Buffer, Stream
from ggsched.errors import UsageError
from ggsched_testing.conformance.call_trace import Bytes
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.cases_capture import captured_by_way_of, replayed_when_released
from ggsched_testing.conformance.context import NBYTES, TestContext
from ggsched_testing.conformance.faults import LABEL, fails_by_name, lookup


def _captured_copy(w: TestContext, q: Stream, src: Buffer, dst: Buffer) -> Capture:
    capture = w.capture(q)
    w.copy(q, src, 0, dst, 0, NBYTES)
    return capture


def _offered(w: TestContext, capture: Any, graph: DeviceGraph) -> str:
    """Offer a capture to a graph; return why that was refused, if it was."""
    line = f"{w.name(capture)}.end_into({w.name(graph)})"
    why: str = w.call_trace.run(line, lambda: capture.end_into(graph))
    if why:
        w.log(f"    refused: {why}")
    return why


def _renewed(w: TestContext, capture: Capture, graph: DeviceGraph) -> DeviceGraph:
    """Return the graph that has what was captured: the old one, or a new one in its place."""
    if not _offered(w, capture, graph):
        return graph
    made = w.end(capture)
    w.close(graph)
    return made


@case("CAP-4", "An updated graph uses other buffers, and those that it had are left alone.",
      "update")  # fmt: skip
def cap4_other_buffers(w: TestContext) -> None:
    q = w.stream()
    x, y, z, v = w.buffers(4)
    old, new, mark = w.bytes(), w.bytes(), w.bytes()
    w.put(q, x, old)
    w.put(q, z, new)
    graph = w.end(_captured_copy(w, q, x, y))
    w.replay(q, graph)
    w.equal(w.get(q, y), old, "made by a replay before the update")
    w.put(q, y, mark)
    graph = _renewed(w, _captured_copy(w, q, z, v), graph)
    w.replay(q, graph)
    w.equal(w.get(q, v), new, "made in another buffer by a replay behind the update")
    w.equal(w.get(q, y), mark, "in the buffer that the graph had before the update")
    w.close(x, y)
    new = w.bytes()
    w.put(q, z, new)
    w.replay(q, graph)
    w.equal(w.get(q, v), new, "made when the buffers from before the update were closed")


@case("CAP-4", "What a graph used may be closed before the update.", "update")
def cap4_closed_before(w: TestContext) -> None:
    q, (x, y) = w.stream(), w.buffers(2)
    w.put(q, x, w.bytes())
    graph = w.end(_captured_copy(w, q, x, y))
    w.replay(q, graph)
    w.sync(q)
    w.close(x, y)
    z, v = w.buffers(2)
    data = w.bytes()
    w.put(q, z, data)
    graph = _renewed(w, _captured_copy(w, q, z, v), graph)
    w.replay(q, graph)
    w.equal(w.get(q, v), data, "made in buffers that were allocated when the old ones were closed")


@case("CAP-4", "An updated graph runs other programs.", "update", "launch")
def cap4_other_programs(w: TestContext) -> None:
    q = w.stream()
    x, y, z, v = w.buffers(4)
    first, second = w.compute(q, [(x, 0)], (y, 0)), w.compute(q, [(z, 0)], (v, 0))
    graph = w.captured(q, lambda: w.launch(q, first))
    mark = w.bytes()
    w.put(q, y, mark)
    w.order(q)
    capture = w.capture(q)
    w.launch(q, second)
    graph = _renewed(w, capture, graph)
    w.close(first, x)
    for _ in range(2):
        numbers = w.numbers()
        w.put(q, z, numbers)
        w.order(q)
        w.replay(q, graph)
        w.equal(w.get(q, v), w.result(numbers), "made by the program of the update")
    w.equal(w.get(q, y), mark, "where the program from before the update writes")


@case("CAP-4", "An updated graph reads and writes other host memory, at each replay.", "update")
def cap4_other_host_memory(w: TestContext) -> None:
    q, x = w.stream(), w.buffer()
    source, target, graph = w.bytes(), np.zeros(NBYTES, np.uint8), None
    for _ in range(3):
        before = target
        source, target = w.bytes(), np.zeros(NBYTES, np.uint8)
        capture = w.capture(q)
        w.upload(q, source, x)
        w.download_to(q, x, 0, target)
        graph = w.end(capture) if graph is None else _renewed(w, capture, graph)
        seen = before.copy()
        for _ in range(2):
            source[:] = w.bytes()
            w.log(f"the host rewrites {w.name(source)}")
            w.replay(q, graph)
            w.sync(q)
            w.equal(target, source, "what the new source held at the time of the replay")
        w.equal(before, seen, "in the target from before the update")


@case("CAP-4", "Replays that are enqueued run what the graph was, with what it kept.", "update")
def cap4_enqueued_replays(w: TestContext) -> None:
    q, (x, y, z) = w.stream(), w.buffers(3)
    data = w.bytes()
    first, later = data.copy(), w.bytes()
    target = np.zeros(NBYTES, np.uint8)
    w.put(q, x, w.bytes())
    w.put(q, z, w.bytes())
    capture = w.capture(q)
    w.upload(q, first, x)
    w.copy(q, x, 0, y, 0, NBYTES)
    w.download_to(q, y, 0, target)
    graph = w.end(capture)
    hold = w.hold(q)
    w.replay(q, graph)
    capture = w.capture(q)
    w.upload(q, later, z)
    w.copy(q, z, 0, y, 0, NBYTES)
    again = w.download(q, y)
    graph = _renewed(w, capture, graph)
    w.forget(first)
    del first
    seen = w.download(q, y)
    w.replay(q, graph)
    w.sync_held(hold, q)
    w.equal(seen, data, "downloaded behind the replay from before the update")
    w.equal(target, data, "downloaded by the replay from before the update")
    w.equal(again, later, "downloaded by the replay from behind the update")


@case("CAP-4", "Other commands update a graph, or are refused and change nothing.", "update")
def cap4_other_commands(w: TestContext) -> None:
    q, (x, y, z) = w.stream(), w.buffers(3)
    data, host = w.bytes(), w.bytes()
    w.put(q, x, data)
    graph = w.end(_captured_copy(w, q, x, y))
    capture = w.capture(q)
    w.copy(q, x, 0, z, 0, NBYTES)
    w.upload(q, host, y)
    w.copy(q, y, 0, x, 0, NBYTES)
    if _offered(w, capture, graph):
        mark = w.bytes()
        w.put(q, y, mark)
        w.equal(w.get(q, y), mark, "uploaded when an update was refused")
        w.replay(q, graph)
        w.equal(w.get(q, y), data, "made by a graph whose update was refused")
        made = w.end(capture)
        w.refused(UsageError, w.end, capture)
        w.replay(q, graph)
        w.replay(q, made)
    else:
        w.refused(UsageError, w.end, capture)
        w.replay(q, graph)
    _equal_all(w, q, ((z, data), (y, host), (x, host)))


def _equal_all(w: TestContext, q: Stream, expected: tuple[tuple[Buffer, Bytes], ...]) -> None:
    for buffer, data in expected:
        w.equal(w.get(q, buffer), data, f"in {w.name(buffer)}, by what was captured last")


@case("CAP-4", "Streams are as before once a capture was offered, or was given up.", "update")
def cap4_streams_are_free(w: TestContext) -> None:
    q, (x, y, z) = w.stream(), w.buffers(3)
    old, data = w.bytes(), w.bytes()
    w.put(q, x, old)
    w.put(q, z, data)
    graph = w.end(_captured_copy(w, q, x, y))
    given_up: Any = _captured_copy(w, q, z, y)
    given_up.abort()
    w.replay(q, graph)
    w.equal(w.get(q, y), old, "made by a graph when a capture for it was given up")
    capture = _captured_copy(w, q, z, y)
    why = _offered(w, capture, graph)
    w.put(q, y, data)
    w.sync(q)
    w.require(q.is_done, "a stream is not done after its sync, behind a capture that was offered")
    w.close(w.end(_captured_copy(w, q, x, z)))
    if why:
        capture.abort()
        capture.abort()
        w.refused(UsageError, w.end, capture)
    w.put(q, y, w.bytes())
    w.replay(q, graph)
    w.equal(w.get(q, y), old if why else data, "made by the graph that a capture was offered to")


@case("CAP-4", "A graph that is closed, or of another stream, is not a graph to update.", "update")
def cap4_other_graphs(w: TestContext) -> None:
    q, (x, y, z) = w.stream(), w.buffers(3)
    data = w.bytes()
    w.put(q, x, data)
    closed = w.end(_captured_copy(w, q, x, z))
    w.close(closed)
    graphs = [closed]
    if w.device.facts.max_streams > 1:
        p = w.stream()
        graphs.append(w.end(_captured_copy(w, p, x, z)))
    capture = w.capture(q)
    for graph in graphs:
        w.refused(UsageError, _offered, w, capture, graph)
    w.copy(q, x, 0, y, 0, NBYTES)
    made = w.end(capture)
    w.refused(UsageError, _offered, w, capture, made)
    w.replay(q, made)
    w.equal(w.get(q, y), data, "made by a capture that was offered to graphs of others")
    w.refused(UsageError, w.replay, q, closed)


@case("CAP-4", "Streams fork and join in an updated graph.", "update", "events", "two streams")
def cap4_streams_fork_and_join(w: TestContext) -> None:
    a, b = w.stream(), w.stream()
    graph = None
    for _ in range(3):
        x, y, z = w.buffers(3)
        capture = captured_by_way_of(w, (a, b), x, y, z)
        graph = w.end(capture) if graph is None else _renewed(w, capture, graph)
        replayed_when_released(w, a, graph, x, z, "made by the second stream of an updated graph")


@case("CAP-4", "An id out of range in an updated graph fails the stream.", "update")
def cap4_fault_behind_an_update(w: TestContext) -> None:
    if "get_rows:f32" not in w.device.facts.ops:
        return
    q = w.stream()
    table, graph = w.buffer(64), None
    w.put(q, table, np.zeros(16, np.float32))
    for row in (0, 1, 1000):
        ids, out = w.buffer(4), w.buffer(16)
        w.put(q, ids, np.array([row], np.int32).view(np.uint8))
        program = w.compile([lookup(table, ids, out)], q)
        capture = w.capture(q)
        w.launch(q, program)
        graph = w.end(capture) if graph is None else _renewed(w, capture, graph)
        w.replay(q, graph)
        if row < 4:
            w.sync(q)
    fails_by_name(w, LABEL, w.sync, q)
