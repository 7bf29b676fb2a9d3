"""COL-1 to COL-4: launches that read what other devices hold, and graphs of several devices."""

from typing import Any

from ggsched.backend.capture import DeviceGraph
from ggsched.backend.protocols import Buffer, Stream
from ggsched.errors import UsageError
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import COUNT, NBYTES, TestContext


def _pair(w: TestContext) -> tuple[Stream, Stream, Buffer, Buffer]:
    """Return a stream of each device, a buffer of the other one to read, and one for results."""
    q, theirs = w.stream(), w.stream(w.other)
    x, y = w.buffer(NBYTES, w.other), w.buffer()
    return q, theirs, x, y


# --- COL-1 ------------------------------------------------------------------------------------


@case("COL-1", "A launch reads a buffer of another device.", "peer reads", "launch")
def col1_reads_a_peer(w: TestContext) -> None:
    q, theirs, x, y = _pair(w)
    numbers = w.numbers()
    w.put(theirs, x, numbers)
    w.launch(q, w.compute(q, [(x, 0)], (y, 0)))
    w.equal(w.get(q, y), w.result(numbers), "computed from the other device's buffer")
    w.equal(w.get(theirs, x), numbers.view("u1"), "the other device's buffer afterwards")


@case("COL-1", "Operands of both devices meet, at any offset.", "peer reads", "launch")
def col1_at_an_offset(w: TestContext) -> None:
    q, theirs = w.stream(), w.stream(w.other)
    offset = 4 * max(16, w.device.facts.alignment)
    far, near, y = w.buffer(offset + NBYTES, w.other), w.buffer(), w.buffer()
    both, mine = w.numbers(offset // 4 + COUNT), w.numbers()
    w.put(theirs, far, both)
    w.put(q, near, mine)
    w.launch(q, w.compute(q, [(far, offset), (near, 0)], (y, 0)))
    wanted = w.result(both[offset // 4 :], mine)
    w.equal(w.get(q, y), wanted, "from an offset of the other's buffer")


@case("COL-1", "Results in a buffer of another device are refused.", "pair", "launch")
def col1_writes_no_peer(w: TestContext) -> None:
    q, mine, theirs = w.stream(), w.buffer(), w.buffer(NBYTES, w.other)
    w.refused(UsageError, w.compute, q, [(mine, 0)], (theirs, 0))


@case("COL-1", "Without the declaration operands of another device are refused.", "pair", "launch",
      "undeclared reads")  # fmt: skip
def col1_undeclared(w: TestContext) -> None:
    q, mine, theirs = w.stream(), w.buffer(), w.buffer(NBYTES, w.other)
    w.refused(UsageError, w.compute, q, [(theirs, 0)], (mine, 0))


# --- COL-2 ------------------------------------------------------------------------------------


@case("COL-2", "A launch reads what was written before the event that it waits for.",
      "peer reads", "launch", "peer wait", "latch")  # fmt: skip
def col2_behind_an_event(w: TestContext) -> None:
    q, theirs, x, y = _pair(w)
    w.put(theirs, x, w.numbers())
    program = w.compute(q, [(x, 0)], (y, 0))
    hold = w.hold(theirs)
    numbers = w.numbers()
    w.upload(theirs, numbers, x)
    event = w.record(theirs)
    w.wait(q, event)
    w.launch(q, program)
    w.release_held(hold, q)
    w.equal(w.get(q, y), w.result(numbers), "behind the event of the other device")


@case("COL-2", "A launch that is held reads when its turn comes.", "peer reads", "launch", "latch")
def col2_behind_own_work(w: TestContext) -> None:
    q, theirs, x, y = _pair(w)
    w.put(theirs, x, w.numbers())
    program = w.compute(q, [(x, 0)], (y, 0))
    hold = w.hold(q)
    w.launch(q, program)
    numbers = w.numbers()
    w.put(theirs, x, numbers)
    w.release_held(hold, q)
    w.equal(w.get(q, y), w.result(numbers), "written while the launch was held")


@case("COL-2", "Each launch reads anew.", "peer reads", "launch")
def col2_reads_anew(w: TestContext) -> None:
    q, theirs, x, y = _pair(w)
    program = w.compute(q, [(x, 0)], (y, 0))
    for _ in range(3):
        numbers = w.numbers()
        w.put(theirs, x, numbers)
        w.launch(q, program)
        w.equal(w.get(q, y), w.result(numbers), "the same program, other bytes")


@case("COL-2", "So does each replay of a graph.", "peer reads", "launch", "capture")
def col2_replays_read_anew(w: TestContext) -> None:
    q, theirs, x, y = _pair(w)
    w.put(theirs, x, w.numbers())
    program = w.compute(q, [(x, 0)], (y, 0))
    graph = w.captured(q, lambda: w.launch(q, program))
    for _ in range(3):
        numbers = w.numbers()
        w.put(theirs, x, numbers)
        w.replay(q, graph)
        w.equal(w.get(q, y), w.result(numbers), "replayed after the other's bytes changed")


# --- COL-3 ------------------------------------------------------------------------------------


@case("COL-3", "An event behind the launch lets the other device write again.",
      "peer reads", "launch", "peer wait", "latch")  # fmt: skip
def col3_free_behind_an_event(w: TestContext) -> None:
    q, theirs, x, y = _pair(w)
    numbers = w.numbers()
    w.put(theirs, x, numbers)
    program = w.compute(q, [(x, 0)], (y, 0))
    hold = w.hold(q)
    w.launch(q, program)
    event = w.record(q)
    w.wait(theirs, event)
    w.upload(theirs, w.numbers(), x)
    w.sync_held(hold, theirs, q)
    w.equal(w.get(q, y), w.result(numbers), "read before the other device wrote again")


@case("COL-3", "The host may let it be overwritten once the launch is complete.",
      "peer reads", "launch")  # fmt: skip
def col3_free_behind_the_host(w: TestContext) -> None:
    q, theirs, x, y = _pair(w)
    program = w.compute(q, [(x, 0)], (y, 0))
    for _ in range(3):
        numbers = w.numbers()
        w.put(theirs, x, numbers)
        w.launch(q, program)
        w.sync(q)
        w.put(theirs, x, w.numbers())
        w.equal(w.get(q, y), w.result(numbers), "overwritten when the launch was complete")


@case("COL-3", "An event behind the launch is not done before it.", "peer reads", "launch",
      "events", "latch")  # fmt: skip
def col3_event_covers_the_launch(w: TestContext) -> None:
    q, theirs, x, y = _pair(w)
    numbers = w.numbers()
    w.put(theirs, x, numbers)
    program = w.compute(q, [(x, 0)], (y, 0))
    hold = w.hold(q)
    w.launch(q, program)
    event = w.record(q)
    w.sync_held(hold, event, q)
    w.put(theirs, x, w.numbers())
    w.equal(w.get(q, y), w.result(numbers), "overwritten when the event was done")


# --- COL-4 ------------------------------------------------------------------------------------


def _captured_there_and_back(
    w: TestContext, a: Stream, b: Stream, x: Buffer, z: Buffer
) -> DeviceGraph:
    """Return a graph in which each device computes from what the other one has computed last."""
    there, back = w.buffer(), w.buffer(NBYTES, w.other)
    first = w.compute(a, [(x, 0)], (there, 0))
    second = w.compute(b, [(there, 0)], (back, 0))
    third = w.compute(a, [(back, 0)], (z, 0))
    capture = w.capture(a, b)
    w.launch(a, first)
    w.wait(b, w.record(a))
    w.launch(b, second)
    w.wait(a, w.record(b))
    w.launch(a, third)
    return w.end(capture)


@case("COL-4", "A graph has commands of both devices, in the order of the events between them.",
      "peer reads", "launch", "capture", "events")  # fmt: skip
def col4_graph_of_two_devices(w: TestContext) -> None:
    a, b = w.stream(), w.stream(w.other)
    x, z = w.buffers(2)
    graph = _captured_there_and_back(w, a, b, x, z)
    for _ in range(3):
        numbers = w.numbers()
        w.put(a, x, numbers)
        w.replay(a, graph)
        wanted = w.result(w.result(w.result(numbers)))
        w.equal(w.get(a, z), wanted, "computed by both devices in turn, by a replay")


@case("COL-4", "Its replay is held with the first stream, and is over when all of it is.",
      "peer reads", "launch", "capture", "events", "latch")  # fmt: skip
def col4_replay_keeps_its_place(w: TestContext) -> None:
    a, b = w.stream(), w.stream(w.other)
    x, z = w.buffers(2)
    w.put(a, x, w.numbers())
    graph = _captured_there_and_back(w, a, b, x, z)
    numbers = w.numbers()
    hold = w.hold(a)
    w.upload(a, numbers, x)
    w.replay(a, graph)
    seen = w.download(a, z)
    event = w.record(a)
    w.sync_held(hold, event, a)
    wanted = w.result(w.result(w.result(numbers)))
    w.equal(seen, wanted, "downloaded behind a replay on two devices")


@case("COL-4", "The other device's stream is free again behind the capture.",
      "peer reads", "launch", "capture", "events")  # fmt: skip
def col4_streams_are_free(w: TestContext) -> None:
    a, b = w.stream(), w.stream(w.other)
    x, z = w.buffers(2)
    graph = _captured_there_and_back(w, a, b, x, z)
    numbers, others, far = w.numbers(), w.numbers(), w.buffer(NBYTES, w.other)
    w.put(a, x, numbers)
    w.put(b, far, others)
    w.equal(w.get(b, far), others.view("u1"), "on the second device's stream, outside of the graph")
    w.replay(a, graph)
    w.close(b)
    w.equal(w.get(a, z), w.result(w.result(w.result(numbers))), "replayed as a stream was closed")


@case("COL-4", "A capture begins with a stream of the device itself.", "peer reads", "capture")
def col4_first_stream_is_its_own(w: TestContext) -> None:
    a, b = w.stream(), w.stream(w.other)
    device: Any = w.device
    w.refused(UsageError, device.begin_capture, [b, a])
    graph = w.end(w.capture(a, b))
    w.close(graph)


@case("COL-4", "Without the declaration streams of other devices are refused.", "pair", "capture",
      "undeclared reads")  # fmt: skip
def col4_undeclared(w: TestContext) -> None:
    a, b = w.stream(), w.stream(w.other)
    w.refused(UsageError, w.capture, a, b)
