"""COL-1, COL-2, COL-3: launches that read what other devices hold."""

from ggsched.backend.protocols import Buffer, Stream
from ggsched.errors import UsageError
from ggsched.testing.conformance.case import case
from ggsched.testing.conformance.context import COUNT, NBYTES, TestContext


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
    w.still_held(hold, q)
    hold.release()
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
    w.still_held(hold, q)
    hold.release()
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
    capture = w.capture(q)
    w.launch(q, program)
    graph = w.end(capture)
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
    w.still_held(hold, q, theirs)
    hold.release()
    w.sync(theirs)
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


@case(
    "COL-3", "An event behind the launch is not done before it.", "peer reads", "launch",
    "events", "latch",
)  # fmt: skip
def col3_event_covers_the_launch(w: TestContext) -> None:
    q, theirs, x, y = _pair(w)
    numbers = w.numbers()
    w.put(theirs, x, numbers)
    program = w.compute(q, [(x, 0)], (y, 0))
    hold = w.hold(q)
    w.launch(q, program)
    event = w.record(q)
    w.still_held(hold, q, event)
    hold.release()
    w.sync(event)
    w.put(theirs, x, w.numbers())
    w.equal(w.get(q, y), w.result(numbers), "overwritten when the event was done")
