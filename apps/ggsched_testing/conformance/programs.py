"""Random programs without races, on live devices and on the model at once.

Each method enqueues one thing. What it would race with is ordered first, by an event or by the
host, as ``how`` says and the devices can. So every byte is what the model says when the host
knows the command to be complete, and only then is it looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ggsched.backend.capture import DeviceGraph
from ggsched.backend.protocols import Event, Stream
from ggsched_testing.conformance.cleanup import Hold
from ggsched_testing.conformance.context import TestContext
from ggsched_testing.conformance.exact import exact_op
from ggsched_testing.conformance.model import HOST, Access, Clock, Mark, Memory, ModelOrder, Numbers
from ggsched_testing.conformance.rules import BrokenRule

COUNT: Final = 16
"""Elements of a buffer."""

MAX_VALUE: Final = 1 << 23
"""Host memory is numbered up to here, as f32 has all whole numbers that far."""

EVENT, OLD_EVENT, SYNC = range(3)
"""How to order: by a new event, by one that was recorded before, by the host."""


@dataclass(frozen=True, slots=True)
class ProgramShape:
    """What a program is about beside its commands.

    Attributes:
        unit: f32 values of an element; a buffer has ``COUNT`` elements.
        skew: Bytes of a buffer in front of its first element.
        streams: Streams of the first device; of others one less, one at least.
        is_patient: Whether the host waits at the end only, so that many commands are in flight.
    """

    unit: int = 1
    skew: int = 0
    streams: int = 2
    is_patient: bool = False

    def at(self, element: int) -> int:
        """Return the offset of an element in a buffer, in bytes."""
        return self.skew + 4 * self.unit * element


@dataclass(frozen=True, slots=True)
class Graph:
    """A captured graph of copies, on the stream of a queue."""

    queue: "Queue"
    graph: DeviceGraph
    moves: tuple[tuple[Access, Access], ...]


@dataclass(frozen=True, slots=True)
class Queue:
    """A stream, the number of its device, and its lanes for launches and for copies."""

    stream: Stream
    device: int
    launches: int
    copies: int

    @property
    def lanes(self) -> tuple[int, int]:
        """Both lanes; one and the same where the device keeps copies and launches in order."""
        return self.launches, self.copies


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event with what it stands for."""

    event: Event
    device: int
    clock: Clock


class CaseProgram:
    """Devices and the model of what they do.

    Args:
        world: One or two devices.
        shape: Sizes and streams.
    """

    def __init__(self, world: TestContext, shape: ProgramShape) -> None:
        self.world = world
        self.shape = shape
        self.order = ModelOrder()
        self.queues: list[Queue] = []
        self.buffers: list[Memory] = []
        self.host: list[Memory] = []
        self.events: list[Recorded] = []
        self.graphs: list[Graph] = []
        self._holds: list[Hold] = []
        self._next = 1.0
        for number, device in enumerate(world.devices):
            most = max(1, shape.streams - number)
            for _ in range(min(most, device.facts.max_streams)):
                self._add_stream(number)
            for _ in range(3 - number):
                self.allocate(number)

    def _add_stream(self, number: int) -> None:
        stream = self.world.stream(self.world.devices[number])
        lane = self.order.new_lane()
        split = stream.device.facts.copy_order != "stream"
        self.queues.append(Queue(stream, number, lane, self.order.new_lane() if split else lane))

    # --- memory -----------------------------------------------------------------------------

    def allocate(self, number: int) -> None:
        """Allocate a buffer on a device."""
        device = self.world.devices[number]
        buffer = self.world.buffer(self.shape.at(COUNT), device)
        self.buffers.append(Memory.fresh(buffer, number, COUNT, self.shape.unit))

    def replace_buffer(self, at: int) -> None:
        """Close a buffer, once the host knows that nobody uses it, and allocate another one."""
        memory = self.buffers[at]
        self._let_host_know(memory.users)
        self.world.close(memory.thing)
        for kept in [
            g for g in self.graphs if any(memory in (a.memory, b.memory) for a, b in g.moves)
        ]:
            self.world.close(kept.graph)
            self.graphs.remove(kept)
        del self.buffers[at]
        self.allocate(memory.device)

    def host_memory(self, count: int) -> Memory:
        """Return fresh host memory with numbers that nothing else has."""
        values = self._fresh_values(count)
        array = values.reshape(-1)
        memory = Memory.fresh(array, -1, count, self.shape.unit)
        memory.values[:] = values
        memory.known[:] = True
        self.host.append(memory)
        return memory

    def rewrite(self, memory: Memory) -> None:
        """Let the host write host memory, once it may (CPY-4, CPY-5)."""
        whole = Access(memory, 0, memory.count, True)
        self._let_host_have([whole])
        self.world.call_trace.add_host(memory.thing)
        self.world.log(f"the host rewrites {self.world.name(memory.thing)}")
        memory.values[:] = self._fresh_values(memory.count)
        memory.thing[:] = memory.values.reshape(-1)
        memory.known[:] = True
        self.order.enqueue(HOST, [whole])
        self.order.learn(HOST, {HOST: self.order.count[HOST]})

    def _fresh_values(self, count: int) -> Numbers:
        """Return values that nothing else has, unless there are millions."""
        first, self._next = self._next, self._next + count * self.shape.unit
        values = np.arange(first, self._next) % MAX_VALUE
        return values.astype(np.float32).reshape(count, self.shape.unit)

    # --- commands ---------------------------------------------------------------------------

    def upload(self, q: Queue, source: Memory, dst: Access, how: int) -> None:
        """Upload the beginning of host memory."""
        src = Access(source, 0, dst.end - dst.start, False)
        snapshot = q.stream.device.facts.snapshots_uploads
        if snapshot:  # it is the host that reads, while it enqueues
            self._let_host_have([src])
        self._admit(q, q.copies, [dst] if snapshot else [src, dst], how)
        part, at = source.thing[: self.shape.unit * src.end], self.shape.at(dst.start)
        self.world.upload(q.stream, part, dst.memory.thing, at)
        self._move(src, dst)

    def download(self, q: Queue, src: Access, target: Memory, how: int) -> None:
        """Download to the beginning of host memory."""
        dst = Access(target, 0, src.end - src.start, True)
        self._admit(q, q.copies, [src, dst], how)
        raw = target.thing.view(np.uint8)[: 4 * self.shape.unit * dst.end]
        self.world.download_to(q.stream, src.memory.thing, self.shape.at(src.start), raw)
        self._move(src, dst)

    def copy(self, q: Queue, src: Access, dst: Access, how: int) -> None:
        """Copy between buffers."""
        self._admit(q, q.copies, [src, dst], how)
        self._copy(q, src, dst)
        self._move(src, dst)

    def fill(self, q: Queue, dst: Access, pattern: bytes, how: int) -> None:
        """Fill with a pattern, whose repetition is no NaN."""
        self._admit(q, q.copies, [dst], how)
        nbytes = 4 * self.shape.unit * (dst.end - dst.start)
        self.world.fill(q.stream, dst.memory.thing, self.shape.at(dst.start), nbytes, pattern)
        dst.memory.values[dst.part] = np.frombuffer(4 // len(pattern) * pattern, np.float32)
        dst.memory.known[dst.part] = True

    def capture(self, q: Queue, moves: Sequence[tuple[Access, Access]]) -> Graph:
        """Capture copies; needs a device that offers capture and orders its copies by stream."""
        capture = self.world.capture(q.stream)
        for src, dst in moves:
            self._copy(q, src, dst)
        graph = Graph(q, self.world.end(capture), tuple(moves))
        self.graphs.append(graph)
        return graph

    def replay(self, graph: Graph, how: int) -> None:
        """Replay a graph."""
        q = graph.queue
        self._admit(q, q.copies, [access for move in graph.moves for access in move], how)
        self.world.replay(q.stream, graph.graph)
        for src, dst in graph.moves:
            self._move(src, dst)

    def launch(self, q: Queue, inputs: list[Access], out: Access, how: int) -> None:
        """Compile the exact op of the device and launch it."""
        op = exact_op(q.stream.device.facts)
        assert op is not None  # the caller has checked it
        taken = [inputs[min(i, len(inputs) - 1)] for i in range(op.arity)]
        self._admit(q, q.launches, [*taken, out], how)
        places = [(a.memory.thing, self.shape.at(a.start)) for a in taken]
        target = (out.memory.thing, self.shape.at(out.start))
        count = self.shape.unit * (out.end - out.start)
        program = self.world.compute(q.stream, places, target, count)
        self.world.launch(q.stream, program)
        result = op.apply(*(a.memory.values[a.part] for a in taken))
        known = np.logical_and.reduce([a.memory.known[a.part] for a in taken])
        out.memory.values[out.part] = result
        out.memory.known[out.part] = known

    def record(self, q: Queue) -> Recorded:
        """Record a new event."""
        event = self.world.record(q.stream)
        self._count(q)
        made = Recorded(event, q.device, self.order.everything({*q.lanes}))
        self.events.append(made)
        return made

    def can_wait(self, q: Queue, device: int) -> bool:
        """Whether a stream waits for events of a device."""
        mine, theirs = q.stream.device, self.world.devices[device]
        if not (mine.facts.has_events and theirs.facts.has_events):
            return False
        return device == q.device or mine.wait_path(theirs.facts) != "host"

    def wait(self, q: Queue, recorded: Recorded) -> None:
        """Let a stream wait for an event."""
        self.world.wait(q.stream, recorded.event)
        self._count(q, recorded.clock)

    def barrier(self, q: Queue) -> None:
        """Join the two lanes of a stream."""
        self.world.order(q.stream)
        self._count(q, self.order.everything({*q.lanes}))

    # --- the host ---------------------------------------------------------------------------

    def sync(self, thing: Queue | Recorded) -> None:
        """Let the host wait; streams that are held are released before it would wait for them."""
        clock = self._clock_of(thing)
        if self.order.is_blocked(clock):
            self.release()
        self.world.sync(thing.stream if isinstance(thing, Queue) else thing.event)
        self.order.learn(HOST, clock)

    def probe(self, thing: Queue | Recorded) -> None:
        """Ask ``is_done``: false while held, and as good as a sync where true."""
        live = thing.stream if isinstance(thing, Queue) else thing.event
        clock = self._clock_of(thing)
        done = live.is_done
        self.world.log(f"{self.world.name(live)}.is_done -> {done}")
        if done and self.order.is_blocked(clock):
            raise BrokenRule(f"{self.world.name(live)} is done while what it follows is held")
        if not done and self.order.knows(clock):
            raise BrokenRule(f"{self.world.name(live)} is not done, after a sync that covers it")
        if done:
            self.order.learn(HOST, clock)

    def hold(self, q: Queue) -> None:
        """Hold a stream, if there is a way and it is not held."""
        if q.launches in self.order.holds:
            return
        hold = self.world.hold(q.stream)
        if hold.is_real:
            self._holds.append(hold)
            for lane in {*q.lanes}:
                self.order.holds[lane] = self.order.count[lane]
            self._count(q)  # what holds it is not complete either

    def release(self) -> None:
        """Let every stream go on, after a moment in which a broken device may show itself."""
        if self._holds:
            self.world.pause()
        for hold in self._holds:
            hold.release()
        self._holds.clear()
        self.order.holds.clear()

    def look(self, memory: Memory) -> None:
        """Compare what the host may see of host memory with the model."""
        known = self.order.clocks[HOST]
        may = [w is None or w[1] <= known.get(w[0], 0) or w[0] == HOST for w in memory.writer]
        self._compare(memory, memory.thing, np.array(may))

    def finish(self) -> None:
        """Wait for everything and compare every byte."""
        self.release()
        for q in self.queues:
            self.sync(q)
        for memory in self.host:
            self.look(memory)
        for memory in self.buffers:
            q = next(q for q in self.queues if q.device == memory.device)
            seen = self.world.get(q.stream, memory.thing)[self.shape.skew :].view(np.float32)
            self._compare(memory, seen, np.ones(memory.count, np.bool_))

    # --- helpers ----------------------------------------------------------------------------

    def _count(self, q: Queue, after: Clock | None = None) -> None:
        """Count a command that touches nothing, on both lanes; it may come after something."""
        for lane in {*q.lanes}:
            self.order.learn(lane, after or {})
            self.order.enqueue(lane, ())

    def _clock_of(self, thing: Queue | Recorded) -> Clock:
        if isinstance(thing, Recorded):
            return thing.clock
        return self.order.everything({*thing.lanes})

    def _copy(self, q: Queue, src: Access, dst: Access) -> None:
        at, to = self.shape.at(src.start), self.shape.at(dst.start)
        nbytes = self.shape.at(src.end) - at
        self.world.copy(q.stream, src.memory.thing, at, dst.memory.thing, to, nbytes)

    def _move(self, src: Access, dst: Access) -> None:
        dst.memory.values[dst.part] = src.memory.values[src.part].copy()
        dst.memory.known[dst.part] = src.memory.known[src.part].copy()

    def _admit(self, q: Queue, lane: int, accesses: list[Access], how: int) -> None:
        """Order a command after all that it would race with, and count it."""
        for mark in self.order.missing(lane, accesses):
            self._order_after(q, lane, mark, how)
        self.order.enqueue(lane, accesses)

    def _order_after(self, q: Queue, lane: int, mark: Mark, how: int) -> None:
        other, number = mark
        if number <= self.order.before(lane).get(other, 0):
            return  # ordering after another one has brought it along
        p = next(p for p in self.queues if other in p.lanes)
        if p is q and q.stream.device.facts.copy_order == "barrier":
            self.barrier(q)
        elif how == SYNC or not self.can_wait(q, p.device):
            self.sync(p)
        else:
            self.wait(q, self._event_after(q, p, mark, how))

    def _event_after(self, q: Queue, p: Queue, mark: Mark, how: int) -> Recorded:
        if how == OLD_EVENT:
            for recorded in self.events:
                covers = recorded.clock.get(mark[0], 0) >= mark[1]
                if covers and self.can_wait(q, recorded.device):
                    return recorded
        return self.record(p)

    def _let_host_have(self, accesses: list[Access]) -> None:
        self._let_host_know(dict(self.order.missing(HOST, accesses)))

    def _let_host_know(self, marks: Clock) -> None:
        for other, number in sorted(marks.items()):
            if number > self.order.clocks[HOST].get(other, 0):
                self.sync(next(p for p in self.queues if other in p.lanes))

    def _compare(self, memory: Memory, seen: np.ndarray, may: np.ndarray) -> None:
        expected = memory.values.reshape(-1)
        differs = (seen != expected).reshape(memory.count, -1)
        wrong = (differs & (memory.known & may)[:, np.newaxis]).reshape(-1)
        if wrong.any():
            i = int(np.flatnonzero(wrong)[0])
            name = self.world.name(memory.thing)
            raise BrokenRule(
                f"{name}: {int(wrong.sum())} of {expected.size} numbers are wrong; "
                f"number {i} is {seen[i]:g} instead of {expected[i]:g}"
            )
