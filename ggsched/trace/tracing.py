"""Live devices that record their commands, around devices of any backend.

    recorder = Recorder()
    devices = traced(open_devices(["opencl:0"]), recorder)
    ...
    write_trace(recorder.trace("run"), "run.jsonl")

What is passed on is the inner objects, so a backend sees nothing of it. What a device refuses is
not written down.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, Final, TypeVar

import msgspec

from ggsched.backend.capture import DeviceGraph, offers_capture
from ggsched.backend.fill import fill
from ggsched.backend.program import BoundNode, Operand, OperandMemory
from ggsched.backend.protocols import Buffer, Device, Event, HostMemory, Program, Stream
from ggsched.backend.timing import HostTaken, Taken, clock_of, take_times
from ggsched.ir.ops import op_by_name
from ggsched.topology.caps import DeviceFacts, WaitPath
from ggsched.trace.recorder import Recorder
from ggsched.trace.replays import CaptureLog, TracedCapture, TracedGraph
from ggsched.trace.schema import Access, Barrier, Free, Record, Sync, Wait, Work
from ggsched.trace.stamps import Stamp

_MANY_OPEN: Final = 256
"""Commands whose times are not known yet, after which it is looked whether they are."""

_MAX_COPIES: Final = 10_000
"""Copies of a stream that are remembered, since a plan makes the same ones in each run."""


def traced(devices: Sequence[Device], recorder: Recorder) -> list[Device]:
    """Return the devices with a recorder around each; closing them closes the inner ones."""
    return [TracedDevice(device, recorder) for device in devices]


class TracedDevice:
    """A device whose memory, streams and events are recorded."""

    def __init__(self, inner: Device, recorder: Recorder) -> None:
        self.inner = inner
        self.recorder = recorder
        clock = clock_of(inner)
        self.is_timed = clock is not None and recorder.uses(clock)
        self._streams = 0
        if recorder.replays and offers_capture(inner):
            self.begin_capture = self._begin_capture

    @property
    def facts(self) -> DeviceFacts:
        """The inner device's facts."""
        return self.inner.facts

    def allocate(self, nbytes: int) -> Buffer:
        """Allocate, and note the memory."""
        inner = self.inner.allocate(nbytes)
        number = self.recorder.memory(f"{self.facts.name} buffer", nbytes)
        return TracedBuffer(inner, self, number)

    def import_host(self, memory: HostMemory) -> Buffer:
        """Import, and note that the bytes are host memory."""
        inner = self.inner.import_host(memory)
        number = self.recorder.host_memory(f"{self.facts.name} imported", memory)
        return TracedBuffer(inner, self, number)

    def allocate_host(self, nbytes: int) -> HostMemory:
        """Allocate, and note the memory."""
        view = self.inner.allocate_host(nbytes)
        self.recorder.host_memory(f"{self.facts.name} host memory", view)
        return view

    def create_stream(self) -> Stream:
        """Create a stream that is recorded."""
        inner = self.inner.create_stream()
        name = f"{self.facts.name} q{self._streams}"
        self._streams += 1
        actor = self.recorder.stream(name, self.facts.name, self.facts.copy_order)
        return TracedStream(inner, self, actor)

    def create_event(self) -> Event:
        """Create an event with a number."""
        return TracedEvent(self.inner.create_event(), self)

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> Program:
        """Compile, and note what each node touches."""
        bare = [_bare_node(node) for node in nodes]
        if not isinstance(stream, TracedStream):
            return self.inner.compile(bare, stream)
        program = self.inner.compile(bare, stream.inner)
        return TracedProgram(program, nodes, stream.actor)

    def copies_with(self, other: DeviceFacts) -> bool:
        """As the inner device."""
        return self.inner.copies_with(other)

    def wait_path(self, other: DeviceFacts) -> WaitPath:
        """As the inner device."""
        return self.inner.wait_path(other)

    def close(self) -> None:
        """Close the inner device."""
        self.inner.close()

    def _begin_capture(self, streams: Sequence[Stream]) -> TracedCapture:
        """Capture, and note what replays do."""
        own = [s for s in streams if isinstance(s, TracedStream)]
        assert offers_capture(self.inner)
        inner = self.inner.begin_capture([getattr(s, "inner", s) for s in streams])
        return TracedCapture(inner, own, self.recorder)


class TracedBuffer:
    """A buffer with a number."""

    def __init__(self, inner: Buffer, device: TracedDevice, memory: int) -> None:
        self.inner = inner
        self.device: Device = device
        self.memory = memory
        self._recorder = device.recorder
        self._is_closed = False

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self.inner.nbytes

    def __getattr__(self, name: str) -> object:
        """Offer what the inner buffer offers for interop."""
        return _interop(self.inner, name)

    def host_view(self) -> HostMemory:
        """As the inner buffer; what is done with the view is not recorded."""
        return self.inner.host_view()

    def close(self) -> None:
        """Note that the memory ends, and close the inner buffer."""
        if not self._is_closed:
            self._is_closed = True
            recorder = self._recorder
            recorder.add(Free(recorder.thread, self.memory), (recorder.clock(), 0.0, None))
        self.inner.close()


class TracedEvent:
    """An event with a number."""

    def __init__(self, inner: Event, device: TracedDevice) -> None:
        self.inner = inner
        self.device: Device = device
        self.number = device.recorder.event()
        self._recorder = device.recorder

    @property
    def is_recorded(self) -> bool:
        """As the inner event."""
        return self.inner.is_recorded

    @property
    def is_done(self) -> bool:
        """As the inner event; if it is done that is as good as a sync (EVT-5)."""
        done = self.inner.is_done
        if done:
            self._recorder.saw_done(event=self.number)
        return done

    def sync(self, timeout_s: float) -> None:
        """Wait, and note it once it is over."""
        recorder = self._recorder
        before = recorder.clock()
        self.inner.sync(timeout_s)
        entry = Sync(recorder.thread, event=self.number)
        recorder.add(entry, (before, recorder.clock(), None))

    def close(self) -> None:
        """Close the inner event."""
        self.inner.close()


class TracedProgram:
    """A program that knows what its nodes touch."""

    def __init__(self, inner: Program, nodes: Sequence[BoundNode], actor: int) -> None:
        self.inner = inner
        self._nodes, self._actor = tuple(nodes), actor
        self._by_reference: frozenset[str] = getattr(inner, "by_reference", frozenset())
        self._works = tuple(self._work(n) for n in nodes)
        self._takes_rows = any(o.chosen is not None for n in nodes for o in n.inputs)
        self._by: dict[int, tuple[Work, ...]] = {}

    def enqueued_by(self, thread: int) -> tuple[Work, ...]:
        """Return the work of one launch by a host thread."""
        if self._takes_rows:  # other ones each time
            works = (self._work(n) for n in self._nodes)
            return tuple(msgspec.structs.replace(work, by=thread) for work in works)
        if thread not in self._by:
            self._by[thread] = tuple(
                msgspec.structs.replace(work, by=thread) for work in self._works
            )
        return self._by[thread]

    def close(self) -> None:
        """Close the inner program."""
        self.inner.close()

    def _work(self, node: BoundNode) -> Work:
        """Return what a node does: it reads its operands and writes its result (LCH-1)."""
        op = op_by_name(node.op)
        reads = [o for i, o in enumerate(node.inputs) if i != op.through]
        return Work(
            self._actor,
            node.label,
            reads=tuple(a for o in reads for a in _read(o)),
            writes=_bytes(node.output.buffer, node.output.offset, node.output.nbytes),
            is_partial=op.partial or not _is_dense(node.output),
            by_reference=node.label in self._by_reference,
        )


class TracedStream:
    """A stream whose commands are recorded once they have been accepted."""

    def __init__(self, inner: Stream, device: TracedDevice, actor: int) -> None:
        self.inner = inner
        self.device: Device = device
        self.actor = actor
        self._device = device
        self.lanes: dict[int, int] = {}
        self.collect(None)
        self._latest = take_times(inner) if device.is_timed else None
        self._open: deque[Taken] = deque()
        self._copies: dict[tuple[int, ...], tuple[Work, Buffer, Buffer]] = {}

    def __getattr__(self, name: str) -> object:
        """Offer what the inner stream offers for interop."""
        return _interop(self.inner, name)

    @property
    def is_done(self) -> bool:
        """As the inner stream; if it is done that is as good as a sync (STR-3)."""
        done = self.inner.is_done
        if done:
            self._device.recorder.saw_done(stream=self.actor)
        return done

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        """Upload; the host reads the source itself where the device takes snapshots (CPY-4)."""
        before = self._recorder.clock()
        self.inner.upload(source, _inner(buffer), offset)
        recorder = self._recorder
        thread, reads = recorder.thread, recorder.host_range(source)
        stamp = self._stamp(before)
        if self._snapshots:
            recorder.add(Work(thread, "upload", thread, reads), (before, 0.0, None))
            reads = ()
        writes = _bytes(buffer, offset, source.nbytes)
        recorder.add(Work(self.actor, "upload", thread, reads, writes, is_copy=True), stamp)

    def download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        """Download."""
        before = self._recorder.clock()
        self.inner.download(_inner(buffer), offset, target)
        recorder = self._recorder
        reads, writes = _bytes(buffer, offset, target.nbytes), recorder.host_range(target)
        work = Work(self.actor, "download", recorder.thread, reads, writes, is_copy=True)
        recorder.add(work, self._stamp(before))

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        """Copy."""
        before = self._recorder.clock()
        self.inner.copy(_inner(src), src_offset, _inner(dst), dst_offset, nbytes)
        thread = self._recorder.thread
        key = (thread, id(src), src_offset, id(dst), dst_offset, nbytes)
        known = self._copies.get(key)
        if known is None:
            reads, writes = _bytes(src, src_offset, nbytes), _bytes(dst, dst_offset, nbytes)
            work = Work(self.actor, "copy", thread, reads, writes, is_copy=True)
            if len(self._copies) >= _MAX_COPIES:
                self._copies.clear()
            known = self._copies[key] = (work, src, dst)  # both kept, so that no id is used again
        self._recorder.add(known[0], self._stamp(before))

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        """Fill."""
        before = self._recorder.clock()
        fill(self.inner, _inner(buffer), offset, nbytes, pattern)
        writes = _bytes(buffer, offset, nbytes)
        work = Work(self.actor, "fill", self._recorder.thread, (), writes, is_copy=True)
        self._recorder.add(work, self._stamp(before))

    def launch(self, program: Program) -> None:
        """Launch."""
        before = self._recorder.clock()
        if not isinstance(program, TracedProgram):
            self.inner.launch(program)
            return
        self.inner.launch(program.inner)
        self._recorder.add_launch(program.enqueued_by, self._stamp(before))

    def record(self, event: Event) -> None:
        """Record.

        It is noted before, since another thread may wait for the event as soon as it is recorded.
        """
        if not isinstance(event, TracedEvent):
            self.inner.record(event)
            return
        recorder, was_recorded = self._recorder, event.inner.is_recorded
        entry = Record(self.actor, event.number, recorder.thread)
        stamp: list[Any] = [recorder.clock(), 0.0, None]
        recorder.add(entry, stamp)
        try:
            self.inner.record(event.inner)
            stamp[2] = self._taken()
        except BaseException:
            # On a poisoned stream the event is recorded all the same (EVT-6).
            if was_recorded or not event.inner.is_recorded:
                recorder.take_back(entry)
            raise

    def wait(self, event: Event) -> None:
        """Wait; a wait for an event of a device that is not recorded leaves no record."""
        if not isinstance(event, TracedEvent):
            self.inner.wait(event)
            return
        before = self._recorder.clock()
        self.inner.wait(event.inner)
        entry = Wait(self.actor, event.number, self._recorder.thread)
        self._recorder.add(entry, self._stamp(before))

    def replay(self, graph: DeviceGraph) -> None:
        """Replay; a graph that was captured on streams that are not recorded leaves no record."""
        inner: Any = self.inner
        if not isinstance(graph, TracedGraph):
            inner.replay(graph)
            return
        before = self._recorder.clock()
        inner.replay(graph.inner)
        stamp = before, 0.0, None
        for entry in graph.entries():
            self._recorder.add(entry, stamp)

    def collect(self, log: CaptureLog | None) -> None:
        """Give records to a log from now on; with None to the recorder again."""
        device = self._device
        self._recorder: Recorder | CaptureLog = log or device.recorder
        self._snapshots = log is None and device.facts.snapshots_uploads  # else by replays (CAP-3)

    def barrier(self) -> None:
        """Put a barrier."""
        before = self._recorder.clock()
        self.inner.barrier()
        self._recorder.add(Barrier(self.actor, self._recorder.thread), self._stamp(before))

    def sync(self, timeout_s: float) -> None:
        """Wait for everything, and note it once it is over."""
        recorder = self._recorder
        before = recorder.clock()
        self.inner.sync(timeout_s)
        recorder.add(Sync(recorder.thread, stream=self.actor), (before, recorder.clock(), None))
        self._look()

    def close(self) -> None:
        """Close the inner stream."""
        self._look()
        self._open.clear()
        self.inner.close()

    # --- times ---------------------------------------------------------------------------------

    def _stamp(self, before_s: float) -> Stamp:
        return before_s, 0.0, self._taken()

    def _taken(self) -> Taken | None:
        taken = None if self._latest is None else self._latest()
        if taken is not None and type(taken) is not HostTaken:  # which holds nothing
            self._open.append(taken)
            if len(self._open) > _MANY_OPEN:
                self._look()
        return taken

    def _look(self) -> None:
        """Look at times that are known by now, so that nothing of the device is kept for them."""
        while self._open and self._open[0].parts() is not None:
            self._open.popleft()


Memory = TypeVar("Memory", bound=OperandMemory)


def _interop(inner: object, name: str) -> object:
    if name.startswith("__") and name.endswith("__"):
        return getattr(inner, name)
    raise AttributeError(name)


def _inner(buffer: Memory) -> Memory | Buffer:
    return buffer.inner if isinstance(buffer, TracedBuffer) else buffer


def _bytes(buffer: OperandMemory, offset: int, nbytes: int) -> tuple[Access, ...]:
    if nbytes and isinstance(buffer, TracedBuffer):
        return (Access(buffer.memory, offset, offset + nbytes),)
    return ()


def _read(operand: Operand) -> tuple[Access, ...]:
    """Return the bytes of an operand that are read: all, or those of the rows that are there."""
    if operand.chosen is None:
        return _bytes(operand.buffer, operand.offset, operand.nbytes)
    return tuple(
        access
        for first, last in operand.chosen.ranges
        for access in _bytes(operand.buffer, operand.offset + first, last - first)
    )


def _bare_node(node: BoundNode) -> BoundNode:
    inputs = tuple(replace(o, buffer=_inner(o.buffer)) for o in node.inputs)
    return replace(
        node, inputs=inputs, output=replace(node.output, buffer=_inner(node.output.buffer))
    )


def _is_dense(operand: Operand) -> bool:
    """Whether a tensor has all bytes of its bounding range."""
    dtype = operand.dtype
    return prod(operand.shape) // dtype.block * dtype.block_nbytes == operand.nbytes
