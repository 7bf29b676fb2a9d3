"""LCH-1, LCH-2, LCH-4, LCH-5: launches, whatever they compute."""

from collections.abc import Iterator

import numpy as np

from ggsched.backend.program import BoundNode, Operand
from ggsched.backend.protocols import Buffer
from ggsched.errors import UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F32
from ggsched.ir.graph import Graph
from ggsched.ir.ops import OPS
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import COUNT, NBYTES, TestContext
from ggsched_testing.conformance.draws import declared_types, graphs_with, is_declared
from ggsched_testing.conformance.oprun import prepare, run
from ggsched_testing.generators.values import DrawnGraph, values_for

# --- LCH-1 ------------------------------------------------------------------------------------


@case("LCH-1", "A launch writes its result and not a byte beside it.", "launch")
def lch1_nothing_beside_the_result(w: TestContext) -> None:
    q, (x, y) = w.stream(), w.buffers(2)
    numbers, around = w.numbers(), w.bytes()
    w.put(q, x, numbers)
    for offset, count in ((0, 1), (4, 3), (64, 17), (128, 32)):
        w.put(q, y, around)
        w.order(q)
        w.launch(q, w.compute(q, [(x, 0)], (y, offset), count))
        expected = around.copy()
        expected[offset : offset + 4 * count] = w.result(numbers[:count]).view(np.uint8)
        w.equal(w.get(q, y), expected, f"{count} numbers at {offset}, and what is around them")


@case("LCH-1", "A strided result leaves what lies between its rows alone.", "launch")
def lch1_strided_result(w: TestContext) -> None:
    q, (x, y) = w.stream(), w.buffers(2)
    numbers, around = w.numbers(16), w.bytes()
    w.put(q, x, numbers)
    w.put(q, y, around)
    w.order(q)
    w.launch(q, w.compile([_strided(w, x, y)], q))
    expected = around.copy()
    rows = expected[32:].view(np.float32).reshape(-1, 8)
    rows[:4, :4] = w.result(numbers).reshape(4, 4)
    w.equal(w.get(q, y), expected, "rows of a strided result, and what lies between them")


def _strided(w: TestContext, x: Buffer, y: Buffer) -> BoundNode:
    source = Operand(x, 0, 64, F32, (4, 4), (16, 4))
    return w.node(0, [source], Operand(y, 32, 3 * 32 + 16, F32, (4, 4), (32, 4)))


@case("LCH-1", "Every op that is declared writes its result only, and all of it.")
def lch1_every_op(w: TestContext) -> None:
    q = w.stream()
    for drawn in _one_of_each(w):
        prepared, after = run(w, q, drawn.graph, values_for(drawn, w.seed))
        beside = ~prepared.written()
        ops = ", ".join(n.op for n in drawn.graph.nodes)
        w.equal(after[beside], prepared.before[beside], f"bytes that {ops} must not write")
        w.program.clear()


@case("LCH-1", "Each launch has the operands that it was compiled with.", "launch")
def lch1_own_operands(w: TestContext) -> None:
    q, x = w.stream(), w.buffer()
    numbers = w.numbers()
    w.put(q, x, numbers)
    outs = w.buffers(4, 16)
    programs = [w.compute(q, [(x, 16 * i)], (out, 0), 4) for i, out in enumerate(outs)]
    hold = w.hold(q)
    for program in programs:
        w.launch(q, program)
    hold.release()
    w.sync(q)
    for i, out in enumerate(outs):
        w.equal(w.get(q, out), w.result(numbers[4 * i : 4 * i + 4]), f"launch {i} of four")


@case("LCH-1", "A program can be launched often, and sees what its inputs hold by then.", "launch")
def lch1_launched_often(w: TestContext) -> None:
    q, (x, y) = w.stream(), w.buffers(2)
    program = w.compute(q, [(x, 0)], (y, 0))
    for _ in range(4):
        numbers = w.numbers()
        w.put(q, x, numbers)
        w.order(q)
        w.launch(q, program)
        w.equal(w.get(q, y), w.result(numbers), "the same program with other inputs")


@case("LCH-1", "A program may be closed as soon as its launch is enqueued.", "launch")
def lch1_program_closed_early(w: TestContext) -> None:
    q, z = w.stream(), w.buffer()
    x, y, numbers, program = w.computation(q)
    hold = w.hold(q)
    w.launch(q, program)
    w.close(program)
    another = w.compute(q, [(x, 0)], (z, 0), 1)
    w.launch(q, another)
    hold.release()
    w.equal(w.get(q, y), w.result(numbers), "launched by a program that was closed then")


@case("LCH-1", "A program without nodes does nothing, in its place.")
def lch1_no_nodes(w: TestContext) -> None:
    q = w.stream()
    x, data = w.buffer(), w.bytes()
    w.upload(q, data, x)
    w.order(q)
    w.launch(q, w.compile([], q))
    w.equal(w.get(q, x), data, "after a launch of nothing")


# --- LCH-2 ------------------------------------------------------------------------------------


@case("LCH-2", "Inputs keep their bytes.", "launch")
def lch2_inputs_stay(w: TestContext) -> None:
    q, (x, y, z) = w.stream(), w.buffers(3)
    a, b = w.numbers(), w.numbers()
    w.put(q, x, a)
    w.put(q, y, b)
    w.order(q)
    for _ in range(3):
        w.launch(q, w.compute(q, [(x, 0), (y, 0)], (z, 0)))
    w.equal(w.get(q, z), w.result(a, b), "the result")
    w.equal(w.get(q, x), a, "the first input after launches")
    w.equal(w.get(q, y), b, "the second input after launches")


@case("LCH-2", "Of every op that is declared, inputs keep their bytes.")
def lch2_every_op(w: TestContext) -> None:
    q = w.stream()
    for drawn in _one_of_each(w):
        prepared, after = run(w, q, drawn.graph, values_for(drawn, w.seed))
        written = prepared.written()
        for t in drawn.graph.tensors:
            if t.is_view:
                continue
            part = slice(prepared.start[t.id], prepared.start[t.id] + t.nbytes)
            stays = ~written[part]
            ops = ", ".join(n.op for n in drawn.graph.nodes)
            w.equal(after[part][stays], prepared.before[part][stays], f"operand {t.name} of {ops}")
        w.program.clear()


@case("LCH-2", "A result may take the place of an operand, where the op allows it.", "launch")
def lch2_in_place(w: TestContext) -> None:
    if not OPS[w.exact.name].may_overwrite:
        return
    q, x = w.stream(), w.buffer()
    numbers = w.numbers()
    w.put(q, x, numbers)
    program = w.compute(q, [(x, 0)], (x, 0))
    w.order(q)
    w.launch(q, program)
    w.launch(q, program)
    w.equal(w.get(q, x), w.result(w.result(numbers)), "launched twice in place")


# --- LCH-4 ------------------------------------------------------------------------------------


@case("LCH-4", "The same launch gives the same bytes, on any stream, at any time.", "deterministic")
def lch4_same_bytes(w: TestContext) -> None:
    streams = [w.stream() for _ in range(min(2, w.device.facts.max_streams))]
    for graph, values in _large(w):
        results = []
        for i in range(4):
            prepared, after = run(w, streams[i % len(streams)], graph, values)
            results.append(prepared.output(after, graph.outputs[0]))
        often = prepare(w, streams[0], graph, values)
        for _ in range(3):
            w.launch(streams[0], often.program)
            after = w.get(streams[0], often.arena)
            results.append(often.output(after, graph.outputs[0]))
        for again in results[1:]:
            w.equal(again.view(np.uint8), results[0].view(np.uint8), f"{graph.nodes[0].op} again")
        w.program.clear()


@case("LCH-4", "Also while another stream computes.", "deterministic", "two streams")
def lch4_same_bytes_in_company(w: TestContext) -> None:
    a, b = w.stream(), w.stream()
    for graph, values in _large(w):
        alone = run(w, a, graph, values)[1]
        mine, theirs = prepare(w, a, graph, values), prepare(w, b, graph, values)
        for _ in range(3):
            w.launch(a, mine.program)
            w.launch(b, theirs.program)
        tid = graph.outputs[0]
        expected = mine.output(alone, tid).view(np.uint8)
        for p in (mine, theirs):
            after = w.get(p.stream, p.arena)
            w.equal(p.output(after, tid).view(np.uint8), expected, f"{graph.nodes[0].op} again")
        w.program.clear()


# --- LCH-5 ------------------------------------------------------------------------------------


@case("LCH-5", "A program is refused by every stream but its own.", "launch", "two streams")
def lch5_program_of_another_stream(w: TestContext) -> None:
    a, b = w.stream(), w.stream()
    _, y, numbers, program = w.computation(a)
    w.refused(UsageError, w.launch, b, program)
    w.order(a)
    w.launch(a, program)
    w.equal(w.get(a, y), w.result(numbers), "launched where it belongs")


@case("LCH-5", "Launches of two streams at a time do not share scratch memory.", "two streams")
def lch5_scratch_is_apart(w: TestContext) -> None:
    a, b = w.stream(), w.stream()
    for graph, values in _large(w):
        other = {name: np.flip(v).copy() for name, v in values.items()}
        expected = [run(w, a, graph, values)[1], run(w, a, graph, other)[1]]
        ready = [prepare(w, a, graph, values), prepare(w, b, graph, other)]
        for q in (a, b):
            w.sync(q)
            w.hold(q)
        for _ in range(4):
            for p in ready:
                w.launch(p.stream, p.program)
        w.release()
        tid = graph.outputs[0]
        for p, bytes_alone in zip(ready, expected, strict=True):
            seen = p.output(w.get(p.stream, p.arena), tid)
            wanted = p.output(bytes_alone, tid)
            close = np.allclose(seen, wanted, 1e-5, 1e-5)
            w.require(close, f"{graph.nodes[0].op} on two streams at a time differs from alone")
        w.program.clear()


@case("LCH-5", "Programs of one stream do not disturb each other.", "launch")
def lch5_programs_of_one_stream(w: TestContext) -> None:
    q, (x, y, z) = w.stream(), w.buffers(3)
    numbers = w.numbers()
    w.put(q, x, numbers)
    one = w.compute(q, [(x, 0)], (y, 0))
    two = w.compute(q, [(x, 0)], (z, 0), COUNT // 2)
    w.launch(q, one)
    w.launch(q, two)
    w.launch(q, one)
    w.equal(w.get(q, y), w.result(numbers), "a program launched before and after another")
    w.equal(w.get(q, z, 0, NBYTES // 2), w.result(numbers[: COUNT // 2]), "the one between")


def _one_of_each(w: TestContext) -> Iterator[DrawnGraph]:
    """Yield a graph for each op and type that the device declares."""
    for op, dtype in declared_types(w.device.facts):
        for drawn in graphs_with(op, dtype, 3, w.rng):
            if is_declared(drawn.graph, w.device.facts):
                yield drawn
                break


def _large(w: TestContext) -> Iterator[tuple[Graph, dict[str, np.ndarray]]]:
    """Yield graphs of one op each, large enough that work is cut into pieces."""
    shapes = {"x": (48, 192), "w": (40, 192)}
    for op in ("mul_mat", "sum_rows", "rms_norm", "norm", "soft_max", "gelu", "argsort", "add"):
        if f"{op}:f32" not in w.device.facts.ops:
            continue
        g = GraphBuilder(op)
        x = g.input("x", shapes["x"])
        match op:
            case "mul_mat":
                result = g.op(op, g.weight("w", shapes["w"]), x)
            case "add":
                result = g.op(op, x, x)
            case _:
                result = g.op(op, x)
        graph = g.build(result)
        names = ("x", "w") if op == "mul_mat" else ("x",)
        values = {n: w.rng.standard_normal(shapes[n]).astype(np.float32) for n in names}
        yield graph, values
    if "mul_mat:bf16" in w.device.facts.ops:
        # Other types of weight are often unpacked, or the other factor converted, in scratch.
        g = GraphBuilder("mul_mat_bf16")
        result = g.mul_mat(g.weight("w", (256, 512), BF16), g.input("x", (64, 512)))
        weight, rows = (w.rng.standard_normal((n, 512)).astype(np.float32) for n in (256, 64))
        bits = (weight.view(np.uint32) >> 16).astype(np.uint16)
        yield g.build(result), {"w": bits, "x": rows}
