"""LCH-7: operands that are declared constant."""

from collections.abc import Sequence
from dataclasses import replace

from ggsched.backend.program import Operand
from ggsched.backend.protocols import Buffer, Program, Stream
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import COUNT, NBYTES, TestContext, vector


def _constant(buffer: Buffer, offset: int = 0, count: int = COUNT) -> Operand:
    return replace(vector(buffer, offset, count), is_constant=True)


def _program(w: TestContext, q: Stream, *works: tuple[Sequence[Operand], Operand]) -> Program:
    """Compile the exact op for each (operands, result)."""
    return w.compile([w.node(i, *work) for i, work in enumerate(works)], q)


def _launch_while_held(w: TestContext, q: Stream, *programs: Program) -> None:
    hold = w.hold(q)
    for program in programs:
        w.launch(q, program)
    w.pause()  # for a device that reads too much too early
    hold.release()


@case("LCH-7", "Beside a constant, what earlier launches write is seen as they leave it.", "launch")
def lch7_behind_held_work(w: TestContext) -> None:
    q = w.stream()
    c, source, x, y, z = w.buffers(5)
    constant, new = w.numbers(), w.numbers()
    w.put(q, c, constant)
    w.put(q, source, new)
    w.put(q, x, w.numbers())
    produce = w.compute(q, [(source, 0)], (x, 0))
    alone, both = ((_constant(c),), vector(y)), ((vector(x), _constant(c)), vector(z))
    program = _program(w, q, alone, both)
    _launch_while_held(w, q, produce, program)
    w.equal(w.get(q, y), w.result(constant), "the result of a constant, behind held work")
    expected = w.result(w.result(new), constant)
    w.equal(w.get(q, z), expected, "the result of what held work writes, and of a constant")


@case("LCH-7", "Beside a constant, what another stream writes is seen behind its event.",
      "launch", "events", "two streams")  # fmt: skip
def lch7_behind_an_event(w: TestContext) -> None:
    q, r = w.stream(), w.stream()
    c, source, x, y = w.buffers(4)
    constant, new = w.numbers(), w.numbers()
    w.put(q, c, constant)
    w.put(q, source, new)
    w.put(q, x, w.numbers())
    produce = w.compute(r, [(source, 0)], (x, 0))
    program = _program(w, q, ((vector(x), _constant(c)), vector(y)))
    hold = w.hold(r)
    w.launch(r, produce)
    event = w.record(r)
    w.wait(q, event)
    w.launch(q, program)
    w.pause()
    hold.release()
    expected = w.result(w.result(new), constant)
    w.equal(w.get(q, y), expected, "the result of what another stream writes, and of a constant")


@case("LCH-7", "Other bytes of a constant's buffer are not constants.", "launch")
def lch7_beside_in_one_buffer(w: TestContext) -> None:
    q = w.stream()
    half = COUNT // 2
    source, both, y = w.buffer(), w.buffer(), w.buffer()
    constant, new = w.numbers(half), w.numbers(half)
    w.put(q, both, constant, NBYTES // 2)
    w.put(q, both, w.numbers(half))
    w.put(q, source, new)
    produce = w.compute(q, [(source, 0)], (both, 0), half)
    operands = vector(both, 0, half), _constant(both, NBYTES // 2, half)
    program = _program(w, q, (operands, vector(y, 0, half)))
    for _ in range(2):
        _launch_while_held(w, q, produce, program)
        expected = w.result(w.result(new), constant)
        w.equal(w.get(q, y, 0, NBYTES // 2), expected, "the result of both halves of a buffer")
        new = w.numbers(half)
        w.put(q, source, new)


@case("LCH-7", "What is rewritten while the device is idle is seen by the next launch.", "launch")
def lch7_rewritten_while_idle(w: TestContext) -> None:
    q = w.stream()
    c, x, y, z = w.buffers(4)
    w.put(q, c, w.numbers())
    alone, both = ((_constant(c),), vector(y)), ((vector(x), _constant(c)), vector(z))
    program = _program(w, q, alone, both)
    for _ in range(3):
        constant, numbers = w.numbers(), w.numbers()
        w.put(q, c, constant)
        w.put(q, x, numbers)
        w.order(q)
        for _ in range(2):
            w.launch(q, program)
        w.equal(w.get(q, y), w.result(constant), "the result of a constant that was rewritten")
        w.equal(w.get(q, z), w.result(numbers, constant), "the result of it and of others")


@case("LCH-7", "Each program has its own constants, also of the same buffer.", "launch")
def lch7_shared_by_programs(w: TestContext) -> None:
    streams = [w.stream() for _ in range(min(2, w.device.facts.max_streams))]
    c, x, outs = w.buffer(), w.buffer(), w.buffers(4)
    constants, numbers = w.numbers(), w.numbers()
    w.put(streams[0], c, constants)
    w.put(streams[0], x, numbers)
    part = COUNT // 4
    ways = [
        [_constant(c, 0, part)],
        [_constant(c, NBYTES // 4, part)],
        [vector(x, 0, part), _constant(c, 0, part)],
        [vector(c, NBYTES // 2, part)],
    ]
    programs = [
        (q, _program(w, q, (operands, vector(out, 0, part))))
        for operands, out, q in zip(ways, outs, [*streams, *streams] * 2, strict=False)
    ]
    first, second, third, other = (constants[i * part : (i + 1) * part] for i in range(4))
    wanted = [(first,), (second,), (numbers[:part], first), (third,)]
    for again in range(2):
        for q, program in programs[again:]:
            w.launch(q, program)
        for (q, _), out, operands in zip(programs, outs, wanted, strict=True):
            w.equal(w.get(q, out, 0, NBYTES // 4), w.result(*operands), "one of four programs")
        w.close(programs[0][1])  # others have the same constant
    w.equal(w.get(streams[0], c, 3 * NBYTES // 4), other, "bytes of the buffer that nobody named")


@case("LCH-7", "Bytes of a program that was closed are not constants any more.", "launch")
def lch7_no_longer_constant(w: TestContext) -> None:
    q = w.stream()
    c, source, y = w.buffers(3)
    constant, new = w.numbers(), w.numbers()
    w.put(q, c, constant)
    w.put(q, source, new)
    before = _program(w, q, ((_constant(c),), vector(y)))
    w.launch(q, before)
    w.equal(w.get(q, y), w.result(constant), "the result of a constant")
    w.close(before)
    produce = w.compute(q, [(source, 0)], (c, 0))
    after = _program(w, q, ((vector(c),), vector(y)))
    _launch_while_held(w, q, produce, after)
    w.equal(w.get(q, y), w.result(w.result(new)), "the result of what was a constant before")


@case("LCH-7", "A replay has the constants of its time.", "launch", "capture")
def lch7_rewritten_between_replays(w: TestContext) -> None:
    q = w.stream()
    c, y = w.buffers(2)
    w.put(q, c, w.numbers())
    program = _program(w, q, ((_constant(c),), vector(y)))
    graph = w.captured(q, lambda: w.launch(q, program))
    for _ in range(3):
        constant = w.numbers()
        w.put(q, c, constant)
        w.order(q)
        w.replay(q, graph)
        w.equal(w.get(q, y), w.result(constant), "replayed with a constant that was rewritten")
    w.close(graph)
