"""COL: launches that read drawn parts of what several devices hold."""

from typing import Any, Final

import numpy as np

from ggsched.backend.protocols import Event
from ggsched_testing.conformance.call_trace import Bytes
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import TestContext
from ggsched_testing.conformance.faults import lookup

EXACT: Final = 1 << 20
"""Whole numbers below that are summed without rounding, several times in a row."""


@case("COL-1", "Launches read drawn parts of buffers of both devices, many in flight.",
      "peer reads", "peer wait", "launch")  # fmt: skip
def col1_drawn_operands(w: TestContext) -> None:
    q, theirs = w.stream(), w.stream(w.other)
    unit = max(16, w.device.facts.alignment)
    for largest in (70_000, 5000, 300):
        far, near = w.buffer(4 * largest + 64 * unit, w.other), w.buffer(4 * largest + 64 * unit)
        expected = []
        for _ in range(w.draws(12, 6)):
            count = int(largest ** w.rng.random())
            ends, numbers = [], [w.numbers(count), w.numbers(count)]
            places = [(far, unit * int(w.rng.integers(64)))]
            if w.rng.integers(2):
                places.append((near, unit * int(w.rng.integers(64))))
                w.upload(q, numbers[1], *places[1])
            w.upload(theirs, numbers[0], *places[0])
            w.order(q)
            w.wait(q, w.record(theirs))
            if w.rng.integers(2):
                places.reverse()
                numbers[: len(places)] = numbers[: len(places)][::-1]
            result = w.buffer(4 * count)
            w.launch(q, w.compute(q, places, (result, 0), count))
            w.order(q)
            ends.append(w.record(q))
            w.wait(theirs, ends[-1])  # it writes what is read next
            expected.append((result, w.result(*numbers[: len(places)])))
        for result, wanted in expected:
            w.equal(w.get(q, result), wanted, f"computed from parts of up to {largest} elements")


@case("COL-1", "A launch takes rows of a peer's table by a peer's ids.", "peer reads", "peer wait",
      "op get_rows")  # fmt: skip
def col1_drawn_rows(w: TestContext) -> None:
    if "get_rows:f32" not in w.device.facts.ops:
        return
    q, theirs = w.stream(), w.stream(w.other)
    for _ in range(w.draws(12, 6)):
        rows, width, count = (int(w.rng.integers(1, n)) for n in (40, 600, 30))
        table = w.numbers(rows * width).reshape(rows, width)
        ids = w.rng.integers(0, rows, count).astype(np.int32)
        owners = [(q, theirs)[int(w.rng.integers(2))] for _ in range(2)]
        held = [w.buffer(a.nbytes, s.device) for a, s in zip((table, ids), owners, strict=True)]
        for s, data, buffer in zip(owners, (table, ids), held, strict=True):
            w.upload(s, data.view(np.uint8).reshape(-1), buffer)
        w.wait(q, w.record(theirs))
        w.order(q)
        out = w.buffer(4 * count * width)
        w.launch(q, w.compile([lookup(held[0], held[1], out, rows, width, count)], q))
        w.equal(w.get(q, out), table[ids], f"{count} of {rows} rows of {width} elements")


@case("COL-2", "Three devices compute in turn from what all of them hold.", "third peer",
      "peer wait", "launch", "events")  # fmt: skip
def col2_drawn_rings(w: TestContext) -> None:
    """Each launch reads the newest results of two drawn devices, which may be its own."""
    streams = [w.stream(d) for d in w.devices]
    count = int(w.rng.integers(1, 3000))
    ring = [[w.buffer(4 * count, d) for _ in range(2)] for d in w.devices]
    values = [w.numbers(count) for _ in w.devices]
    for q, (x, _), numbers in zip(streams, ring, values, strict=True):
        w.put(q, x, numbers)
    last: list[Event | None] = [None] * len(streams)
    seen: list[tuple[Bytes, Any]] = []
    hold = w.hold(streams[int(w.rng.integers(len(streams)))])
    for _ in range(w.draws(30, 9)):
        k, *read = (int(i) for i in w.rng.integers(len(streams), size=3))
        q, (_, out) = streams[k], ring[k]
        for event in last:
            if event is not None:
                w.wait(q, event)
        program = w.compute(q, [(ring[i][0], 0) for i in read], (out, 0), count)
        w.launch(q, program)
        w.order(q)
        wanted = w.result(*(values[i] for i in read))
        seen.append((w.download(q, out), wanted))
        values[k] = np.where(np.abs(wanted) < EXACT, wanted, np.float32(1))
        if not np.array_equal(values[k], wanted):
            w.upload(q, values[k], out)
        w.order(q)
        ring[k].reverse()
        last[k] = w.record(q)
        del w.program[:-24]
    hold.release()
    for q in streams:
        w.sync(q)
    for target, wanted in seen:
        w.equal(target, wanted, "computed by three devices in turn")


@case("COL-4", "A graph has commands of three devices, in the order of events between them.",
      "third peer", "launch", "capture", "events")  # fmt: skip
def col4_graph_of_three_devices(w: TestContext) -> None:
    streams = [w.stream(d) for d in w.devices]
    x, hops = w.buffer(), int(w.rng.integers(3, 9))
    order = [0, 1, 2, *(int(i) for i in w.rng.integers(3, size=hops)), 0]
    held = [w.buffer(device=w.devices[k]) for k in order]
    places = [x, *held]
    programs = [w.compute(streams[k], [(places[i], 0)], (held[i], 0)) for i, k in enumerate(order)]
    capture = w.capture(*streams)
    before = streams[0]
    for k, program in zip(order, programs, strict=True):
        if streams[k] is not before:
            w.wait(streams[k], w.record(before))
        before = streams[k]
        w.launch(before, program)
    graph = w.end(capture)
    for _ in range(3):
        numbers = wanted = w.numbers()
        w.put(streams[0], x, numbers)
        w.replay(streams[0], graph)
        for _ in order:
            wanted = w.result(wanted)
        w.equal(w.get(streams[0], held[-1]), wanted, f"computed by three devices in {order}")
