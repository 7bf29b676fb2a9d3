"""STR, EVT, CPY, CAP, BUF, COL: commands whose sizes, number and streams are drawn."""

from collections.abc import Callable
from time import monotonic
from typing import Any, Final

import numpy as np

from ggsched.backend.capture import Capture, DeviceGraph, offers_update
from ggsched.backend.program import BoundNode, Operand
from ggsched.backend.protocols import Buffer, Event, Stream
from ggsched.errors import OutOfDeviceMemory, UsageError
from ggsched.ir.dtype import F32, I32
from ggsched_testing.conformance.call_trace import Bytes
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import TestContext
from ggsched_testing.conformance.traffic import MAX_HELD, Lane, Traffic

KIB: Final = 1 << 10
MIB: Final = 1 << 20
ROUNDS: Final = 6
LINKS: Final = 40
"""Events by which launches follow each other; values double with each launch."""
MAX_STREAMS: Final = 6
EXACT: Final = 1 << 20
"""Whole numbers below that are summed without rounding, several times in a row."""

# --- transfers of any size --------------------------------------------------------------------


@case("STR-1", "Transfers of drawn sizes, hundreds in flight, take effect in their order.")
def str1_drawn_transfers(w: TestContext) -> None:
    q = w.stream()
    for largest, steps in ((4 * MIB + 13, 24), (MIB + 5, 60), (64 * KIB + 3, 150), (257, 400)):
        traffic = Traffic(w, [q], largest, 6 * largest)
        traffic.large_steps(traffic.lanes[0])
        for _ in range(w.draws(steps, steps // 2)):
            traffic.step(traffic.lanes[0])
        traffic.check(f"transfers of up to {largest} bytes on one stream")


@case("STR-4", "Transfers of drawn sizes on several streams do not disturb each other.",
      "two streams")  # fmt: skip
def str4_drawn_transfers(w: TestContext) -> None:
    for largest in (MIB + 5, 64 * KIB + 3, 4 * KIB):
        streams = _streams(w)
        traffic = Traffic(w, streams, largest, 4 * largest)
        for lane in traffic.lanes:
            traffic.large_steps(lane)
        for _ in range(w.draws(20 * len(streams), 16)):
            traffic.step(traffic.lanes[int(w.rng.integers(len(streams)))])
        traffic.check(f"transfers of up to {largest} bytes on {len(streams)} streams")
        w.close(*streams)


@case("EVT-2", "Buffers that streams hand over by events are used in order, however many.",
      "events", "two streams")  # fmt: skip
def evt2_drawn_exchanges(w: TestContext) -> None:
    for largest, steps in ((MIB + 5, 24), (16 * KIB + 1, 100), (64, 240)):
        streams = _streams(w)
        traffic = Traffic(w, streams, largest, 6 * largest)
        for i in range(w.draws(steps, steps // 2)):
            if i % (MAX_HELD // 6) == 0:
                w.release()
                w.hold(streams[int(w.rng.integers(len(streams)))])
            one, two = (traffic.lanes[k] for k in w.rng.permutation(len(streams))[:2])
            traffic.step(one)
            traffic.exchange(one, two)
        w.release()
        traffic.check(f"{steps} exchanges between {len(streams)} streams")
        w.close(*streams)


@case("EVT-2", "Launches that follow each other by events over drawn streams are in order.",
      "events", "launch", "two streams")  # fmt: skip
def evt2_drawn_launches(w: TestContext) -> None:
    for _ in range(w.draws(6, 3)):
        streams, count = _streams(w), int(w.rng.integers(1, 6000))
        ring = [w.buffer(4 * count) for _ in range(3)]
        numbers = w.numbers(count)
        q, at = streams[0], 0
        w.upload(q, numbers, ring[0])
        w.order(q)
        hold = w.hold(q)
        for i in range(LINKS):
            event = w.record(q)
            q = streams[int(w.rng.integers(len(streams)))]
            w.wait(q, event)
            for _ in range(2):
                after = (at + 1) % len(ring)
                w.launch(q, w.compute(q, [(ring[at], 0)], (ring[after], 0), count))
                numbers, at = w.result(numbers), after
            if i == MAX_HELD // 6:
                hold.release()
        w.equal(w.get(q, ring[at]), numbers, f"{2 * LINKS} launches on {len(streams)} streams")
        w.close(*streams, *ring)


def _streams(w: TestContext) -> list[Stream]:
    most = min(MAX_STREAMS, w.device.facts.max_streams)
    return [w.stream() for _ in range(int(w.rng.integers(2, most + 1)))]


# --- memory between the host and a device -----------------------------------------------------


@case(
    "CPY-4", "Uploads of one class of sizes or two, many in flight on several streams, stay apart."
)
def cpy4_drawn_uploads_in_flight(w: TestContext) -> None:
    """What a backend copies a source to is reused behind the transfer only.

    It may be reused for another stream, and as host memory of the device, which the host writes.
    """
    for largest in (256 * KIB, 64 * KIB, MIB):
        streams = [w.stream() for _ in range(min(3, w.device.facts.max_streams))]
        pool, count = w.bytes(4 * largest), min(64, 8 * MIB // largest)
        buffers = [w.buffer(largest) for _ in range(count)]
        for _ in range(w.draws(ROUNDS, 2)):
            starts = w.rng.integers(2 * largest, size=count)
            sizes = largest - w.rng.integers(largest // 4, size=count)
            sizes[w.rng.random(count) < w.rng.random()] //= 32  # of another class
            data = [pool[a : a + n] for a, n in zip(starts, sizes, strict=True)]
            hold = w.hold(streams[0]) if w.rng.integers(2) else None
            bursts = w.rng.integers(1, 40, size=count)
            order = np.repeat(np.arange(count) % len(streams), bursts)[:count]
            for i, at in enumerate(order):
                w.upload(streams[at], data[i], buffers[i])
                _write_host_memory(w, largest)
                if hold is not None and i == count // 3:
                    hold.release()
            deadline = monotonic() + w.timeout_s
            while not all(q.is_done for q in streams) and monotonic() < deadline:
                _write_host_memory(w, largest)
            for q in streams:
                w.sync(q)
            for x, expected in zip(buffers, data, strict=True):
                seen = w.get(streams[-1], x, 0, expected.size)
                w.equal(seen, expected, f"one of {count} uploads in flight")
            w.program.clear()
        w.close(*streams, *buffers)


def _write_host_memory(w: TestContext, nbytes: int) -> None:
    """Write some bytes of host memory of the device, which is given back at once."""
    view = np.frombuffer(w.device.allocate_host(nbytes), np.uint8)
    view[:: max(1, nbytes // 8)] = 0


@case("CPY-5", "Downloads of one class of sizes, many in flight on several streams, stay apart.")
def cpy5_drawn_downloads_in_flight(w: TestContext) -> None:
    for largest in (MIB, 8 * KIB, 64 * KIB):
        streams = [w.stream() for _ in range(min(3, w.device.facts.max_streams))]
        count = min(40, 16 * MIB // largest)
        sizes = [largest - int(w.rng.integers(largest // 4)) for _ in range(count)]
        data = [w.bytes(n) for n in sizes]
        buffers = [w.buffer(n) for n in sizes]
        for x, content in zip(buffers, data, strict=True):
            w.put(streams[0], x, content)
        burst = int(w.rng.integers(1, 12))
        hold = w.hold(streams[0])
        targets = [w.download(streams[i // burst % len(streams)], x) for i, x in enumerate(buffers)]
        hold.release()
        for q in streams:
            w.sync(q)
        for target, expected in zip(targets, data, strict=True):
            w.equal(target, expected, f"one of {count} downloads in flight")
        w.close(*streams, *buffers)
        w.program.clear()


# --- graphs -----------------------------------------------------------------------------------


class _Graphs:
    """Captures of drawn transfers on one to three streams, and replays of them."""

    def __init__(self, w: TestContext) -> None:
        most = min(3, w.device.facts.max_streams) if w.device.facts.has_events else 1
        self.w = w
        self.streams = [w.stream() for _ in range(int(w.rng.integers(1, most + 1)))]
        nbytes = int(w.rng.choice([200, 5000, 70_001]))
        self.traffic = Traffic(w, self.streams, nbytes, 30 * nbytes)
        everything = [own for lane in self.traffic.lanes for own in lane.own]
        self.first = Lane(self.streams[0], everything)
        self.effects: list[Callable[[], None]] = []

    def capture(self) -> Capture:
        """Capture up to eight transfers, and exchanges where there are several streams."""
        w, traffic = self.w, self.traffic
        capture = w.capture(*self.streams)
        self.effects = traffic.captured = []
        for _ in range(int(w.rng.integers(9))):
            lanes = [traffic.lanes[i] for i in w.rng.permutation(len(traffic.lanes))[:2]]
            traffic.step(lanes[0], downloads=False)
            if len(lanes) == 2 and w.rng.integers(2):
                traffic.exchange(*lanes)
        traffic.captured = None
        return capture

    def replay(self, graph: DeviceGraph, count: int) -> None:
        """Replay a graph often, with transfers of its first stream between."""
        for _ in range(count):
            if self.w.rng.integers(2):
                self.traffic.step(self.first)
            self.w.replay(self.streams[0], graph)
            for effect in self.effects:
                effect()

    def close(self) -> None:
        """Close the streams."""
        for q in self.streams:
            self.w.close(q)


@case("CAP-1", "Graphs of drawn transfers and streams do what their commands did.", "capture")
def cap1_drawn_graphs(w: TestContext) -> None:
    for _ in range(w.draws(6, 3)):
        graphs = _Graphs(w)
        graph = w.end(graphs.capture())
        other = w.stream() if w.device.facts.max_streams > len(graphs.streams) else None
        beside = None if other is None else w.hold(other)
        graphs.replay(graph, int(w.rng.integers(1, 60)))
        w.sync(graphs.streams[0])
        if beside is not None:
            beside.release()
        hold = w.hold(graphs.streams[0])
        graphs.replay(graph, int(w.rng.integers(1, 12)))
        if w.rng.integers(2):
            w.close(graph)
        hold.release()
        graphs.traffic.check(f"replays of a graph of {len(graphs.effects)} transfers")
        graphs.close()


@case("CAP-1", "Hundreds of replays take effect each, with hundreds of commands in flight.",
      "capture")  # fmt: skip
def cap1_drawn_rotations(w: TestContext) -> None:
    """Each replay turns a ring by a word, so that none can be lost without a trace."""
    q, words = w.stream(), 64
    ring, turned, data = w.buffer(4 * words), w.buffer(4 * words), w.bytes(4 * words)
    capture = w.capture(q)
    w.copy(q, ring, 0, turned, 4, 4 * words - 4)
    w.copy(q, ring, 4 * words - 4, turned, 0, 4)
    w.copy(q, turned, 0, ring, 0, 4 * words)
    graph = w.end(capture)
    w.put(q, ring, data)
    for count in (w.draws(640, 64), int(w.rng.integers(1, 40))):
        other = w.buffer(4)
        for _ in range(count):
            w.replay(q, graph)
            if w.rng.integers(4) == 0:
                w.fill(q, other, 0, 4, b"\x11")
                if w.device.facts.has_events:
                    w.wait(q, w.record(q))
            del w.program[24:]
        data = np.roll(data, 4 * count)
        w.equal(w.get(q, ring), data, f"a ring after {count} replays")


@case("CAP-4", "A graph that is updated again and again does what was captured last.", "capture",
      "update")  # fmt: skip
def cap4_drawn_updates(w: TestContext) -> None:
    for _ in range(w.draws(6, 3)):
        graphs = _Graphs(w)
        graph = w.end(graphs.capture())
        graphs.replay(graph, 2)
        for _ in range(6):
            capture: Any = graphs.capture()
            if not offers_update(capture) or capture.end_into(graph):
                graph = w.end(capture)
            graphs.replay(graph, int(w.rng.integers(1, 5)))
        graphs.traffic.check("replays of a graph that was updated")
        graphs.close()


# --- memory -----------------------------------------------------------------------------------


@case("BUF-1", "Buffers of drawn sizes keep their bytes while others come and go.")
def buf1_drawn_sizes(w: TestContext) -> None:
    q, most = w.stream(), min(MIB, w.device.facts.max_allocation_nbytes)
    pool, live = w.bytes(most), dict[Buffer, Bytes]()
    for _ in range(w.draws(160, 60)):
        if live and w.rng.random() < 0.4:
            buffer = list(live)[int(w.rng.integers(len(live)))]
            w.equal(w.get(q, buffer), live.pop(buffer), "a buffer after others were closed")
            w.close(buffer)
        else:
            n = int(most ** w.rng.random())
            buffer, first = w.buffer(n), int(w.rng.integers(most - n + 1))
            live[buffer] = pool[first : first + n]
            w.upload(q, live[buffer], buffer)
    for buffer, content in live.items():
        w.equal(w.get(q, buffer), content, "a buffer among others of drawn sizes")
    for _ in range(w.draws(640, 40)):
        w.close(closed := w.buffer(int(w.rng.integers(1, 300))))
        w.refused(UsageError, w.upload, q, pool[:1], closed)
        del w.program[24:]


@case("BUF-1", "In whatever order buffers are closed, all memory can be had again at once.",
      "little memory")  # fmt: skip
def buf1_drawn_fragments(w: TestContext) -> None:
    facts = w.device.facts
    unit = max(facts.alignment, facts.memory_nbytes // 64)
    for _ in range(w.draws(6, 3)):
        held, left = list[Buffer](), facts.memory_nbytes
        while left >= unit:
            n = min(int(w.rng.integers(1, 5)) * unit, left // unit * unit)
            held.append(w.buffer(n))
            left -= n
        w.refused(OutOfDeviceMemory, w.buffer, left + 1)
        for i in w.rng.permutation(len(held)):
            w.close(held[i], held[i])
        w.close(w.buffer(min(facts.max_allocation_nbytes, facts.memory_nbytes)))


# --- peers ------------------------------------------------------------------------------------


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
        strides = (4 * width, 4)
        node = BoundNode(
            0, "get_rows",
            (Operand(held[0], 0, table.nbytes, F32, (rows, width), strides),
             Operand(held[1], 0, ids.nbytes, I32, (count,), (4,))),
            Operand(out, 0, out.nbytes, F32, (count, width), strides), {}, "n0 get_rows",
        )  # fmt: skip
        w.launch(q, w.compile([node], q))
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
