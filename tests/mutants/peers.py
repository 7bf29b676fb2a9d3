"""COL-1 to COL-4: launches that read a peer wrongly, too early or too late; graphs without it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ggsched.backend.base import BaseDevice, BaseProgram, BaseStream
from ggsched.backend.list_capture import RecordedCapture
from ggsched.backend.program import BoundNode, Operand
from ggsched.backend.protocols import Buffer, Event, HostMemory, Program, Stream
from ggsched.errors import UsageError
from ggsched_testing.sim import SimDevice, SimProgram
from tests.mutants.baselines import CPU, SIM
from tests.mutants.mutant import breaks, graft
from tests.mutants.mutate_calls import Around, bytes_of, nothing


def _is_far(device: Any, operand: Operand) -> bool:
    return operand.buffer.device is not device


def _far(device: Any, nodes: Sequence[BoundNode]) -> list[Operand]:
    return [o for n in nodes for o in n.inputs if _is_far(device, o)]


# --- COL-1 ------------------------------------------------------------------------------------


@breaks("COL-1", "Operands of peers are refused although it declares them.", CPU)
class PeersAreRefused(BaseDevice):
    """It knows its own buffers only."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        if _far(self, nodes):
            raise UsageError("the buffer belongs to another device")
        return super().compile(nodes, stream)


@breaks("COL-1", "A peer's operand is taken from the beginning of its buffer.", CPU)
class PeerOffsetsAreIgnored(BaseDevice):
    """The address of the allocation is what the other device hands out."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        def moved(o: Operand) -> Operand:
            return replace(o, offset=0) if _is_far(self, o) else o

        changed = [replace(n, inputs=tuple(map(moved, n.inputs))) for n in nodes]
        return super().compile(changed, stream)


@breaks("COL-1", "Results in a peer's buffer are taken.", CPU)
class PeersAreWritten(BaseDevice):
    """What can be read can be written."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        return super().compile([n for n in nodes if not _is_far(self, n.output)], stream)


@breaks("COL-1", "Devices that do not declare it take operands of others.", SIM)
class UndeclaredReads(SimDevice):
    """Nothing checks where a buffer is."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> SimProgram:
        return super().compile([n for n in nodes if not _far(self, [n])], stream)


# --- COL-2 ------------------------------------------------------------------------------------


class _Copying(BaseDevice):
    """Launches compute from copies of what peers hold."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        """Put buffers of its own in the place of peers'."""
        copies: list[tuple[Operand, Buffer]] = []

        def near(o: Operand) -> Operand:
            if not self.is_copied(o):
                return o
            copies.append((o, self.allocate(o.nbytes)))
            return replace(o, buffer=copies[-1][1], offset=0)

        changed = [replace(n, inputs=tuple(map(near, n.inputs))) for n in nodes]
        program = super().compile(changed, stream)

        def refresh() -> None:
            for o, buffer in copies:
                view = np.frombuffer(buffer.host_view(), np.uint8)
                view[:] = bytes_of(o)[o.offset : o.offset + o.nbytes]

        if copies:
            self.note(program, refresh)
        return program

    def is_copied(self, operand: Operand) -> bool:
        """Whether a launch computes from a copy of an operand."""
        return _is_far(self, operand)

    def note(self, program: BaseProgram, refresh: Callable[[], None]) -> None:
        """Say when the copies are made."""


@breaks("COL-2", "What peers hold is copied when a program is compiled.", CPU)
class PeersAreCopiedWhenCompiled(_Copying):
    """As if they were constant."""

    def note(self, program: BaseProgram, refresh: Callable[[], None]) -> None:
        refresh()


@breaks("COL-2", "What peers hold is copied before the first run of a program only.", CPU)
class PeersAreCached(_Copying):
    """A cache that the peer's writes do not reach."""

    def note(self, program: BaseProgram, refresh: Callable[[], None]) -> None:
        todo = [refresh]

        def first() -> None:
            while todo:
                todo.pop()()

        if program.body is not None:
            program.body = Around(program.body, first, nothing)


@breaks("COL-2", "What peers hold is read when a launch is enqueued.", CPU)
class PeersAreReadWhenEnqueued(_Copying):
    """The host makes the copy."""

    def note(self, program: BaseProgram, refresh: Callable[[], None]) -> None:
        stream: Any = program.stream
        known = stream.__dict__.setdefault("refresh", {})
        if not known:
            launch = stream.launch

            def launched(given: Program) -> None:
                known.get(id(given), nothing)()
                launch(given)

            stream.launch = launched
        known[id(program)] = refresh


# --- COL-3 ------------------------------------------------------------------------------------


class _Late(BaseStream):
    """A stream that enqueues launches which read peers later than in its order."""

    def begin(self) -> None:
        """Nothing is deferred."""
        self.__dict__["put_off"] = []

    def launch(self, program: Program) -> None:
        """Put it off, if it reads a peer."""
        if getattr(program, "reads_far", False):
            self.__dict__["put_off"].append(program)
        else:
            super().launch(program)

    def _catch_up(self) -> None:
        late, self.__dict__["put_off"] = self.__dict__["put_off"], []
        for program in late:
            super().launch(program)

    def download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        """Now it is needed."""
        self._catch_up()
        super().download(buffer, offset, target)


class _MarksFar(BaseDevice):
    """Its programs know whether they read peers; its streams are of another kind."""

    stream_part: type = _Late

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        """Mark the program."""
        program = super().compile(nodes, stream)
        vars(program)["reads_far"] = bool(_far(self, nodes))
        return program

    def create_stream(self) -> BaseStream:
        """Make a stream of that kind."""
        made: BaseStream = graft(super().create_stream(), self.stream_part)
        return made


@breaks("COL-3", "A launch that reads a peer runs when its result is requested.", CPU)
class PeerLaunchesAreLazy(_MarksFar):
    """Events behind it, and the host, believe that it is complete."""


@breaks("COL-3", "A launch reads the peer once more when its result is requested.", CPU)
class PeerLaunchesRunAgain(_MarksFar):
    """The result is what the peer held last."""

    class Again(_Late):
        """A stream that launches twice."""

        def launch(self, program: Program) -> None:
            BaseStream.launch(self, program)
            if getattr(program, "reads_far", False):
                self.__dict__["put_off"].append(program)

        def _catch_up(self) -> None:
            late, self.__dict__["put_off"] = self.__dict__["put_off"], []
            for program in late:
                BaseStream.launch(self, program)

    stream_part = Again


@breaks("COL-3", "Waits for events of peers are left out.", CPU)
class WaitsForPeersAreLeftOut(BaseStream):
    """A device that writes again does not wait for its readers."""

    def wait(self, event: Event) -> None:
        backend = self.device.facts.backend
        if event.device is self.device or event.device.facts.backend != backend:
            super().wait(event)


# --- COL-4 ------------------------------------------------------------------------------------


@breaks("COL-4", "Streams of peers are not captured.", CPU)
class PeersAreNotCaptured(BaseDevice):
    """A capture is of one device."""

    def begin_capture(self, streams: Sequence[Stream]) -> RecordedCapture:
        if any(stream.device is not self for stream in streams):
            raise UsageError("the stream belongs to another device")
        return super().begin_capture(streams)


@breaks("COL-4", "What a peer's stream is given in a capture is lost.", CPU)
class PeerCommandsAreLost(BaseDevice):
    """The graph has the device's own commands."""

    def begin_capture(self, streams: Sequence[Stream]) -> RecordedCapture:
        capture = super().begin_capture(streams)
        add = capture.add

        def own(stream: Any, command: Any, work: Callable[[], None]) -> None:
            if stream.device is self:
                add(stream, command, work)

        capture.add = own  # type: ignore[method-assign]
        return capture


@breaks("COL-4", "A graph runs the commands of one device behind those of the other.", CPU)
class PeersComeLast(BaseDevice):
    """Events between devices are no edges of it."""

    def begin_capture(self, streams: Sequence[Stream]) -> RecordedCapture:
        capture: Any = super().begin_capture(streams)
        add, end, late = capture.add, capture.end, list[tuple[Any, Any, Any]]()

        def sort(stream: Any, command: Any, work: Callable[[], None]) -> None:
            if stream.device is self:
                add(stream, command, work)
            else:
                late.append((stream, command, work))

        def ended() -> Any:
            for entry in late:
                add(*entry)
            return end()

        capture.add, capture.end = sort, ended
        made: RecordedCapture = capture
        return made


@breaks("COL-4", "A peer's stream stays captured.", CPU)
class PeerStreamsStayCaptured(BaseDevice):
    """The end of a capture is reported to the device's own streams only."""

    def begin_capture(self, streams: Sequence[Stream]) -> RecordedCapture:
        capture = super().begin_capture(streams)
        stop, others = capture.stop, [s for s in streams if s.device is not self]

        def stopped() -> None:
            sinks = [getattr(s, "sink", None) for s in others]
            stop()
            for stream, sink in zip(others, sinks, strict=True):
                stream.__dict__["sink"] = sink

        capture.stop = stopped  # type: ignore[method-assign]
        return capture
