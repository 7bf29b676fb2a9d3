"""ERR-3, EVT-5, CAP-1: closing that does too much or too little, to others most of all."""

from collections.abc import Callable, Sequence
from typing import Any

from ggsched.backend.base import BaseBuffer, BaseDevice, BaseEvent, BaseProgram, BaseStream
from ggsched.backend.list_capture import RecordedGraph
from ggsched.backend.program import BoundNode
from ggsched.backend.program_body import Command
from ggsched.backend.protocols import Event, Stream
from ggsched.errors import UsageError
from tests.mutants.baselines import CPU
from tests.mutants.mutant import breaks
from tests.mutants.mutate_calls import ChangedWaits, is_replayed, nothing, streams_beside

# --- events -----------------------------------------------------------------------------------


@breaks("EVT-5", "Closing an event before it is done lets go who waits for it.", CPU)
class ClosedEventLetsWaitersGo(ChangedWaits):
    """Its semaphore is signalled, so that nobody hangs."""

    def waiting_for(self, event: BaseEvent) -> Callable[[], None]:
        return _until_done_or(event, lambda: event._is_closed)


def _until_done_or(event: BaseEvent, is_over: Callable[[], bool]) -> Callable[[], None]:
    progress, position = event._progress, event._position
    assert progress is not None

    def hold() -> None:
        while not is_over() and not progress.wait_for(position, 1e-3):
            pass

    return hold


@breaks("ERR-3", "Closing a stream lets go who waits for its events.", CPU)
class ClosedStreamLetsWaitersGo(ChangedWaits):
    """Its events go with it."""

    def waiting_for(self, event: BaseEvent) -> Callable[[], None]:
        owner = next((s for s in streams_beside(self) if s.progress is event._progress), self)
        return _until_done_or(event, lambda: owner.is_closed)


@breaks("ERR-3", "Events of a stream that was closed are done.", CPU)
class EventsOfClosedStreamsAreDone(BaseEvent):
    """They look at the stream, and there is none."""

    __slots__ = ()

    @property
    def is_done(self) -> bool:
        streams: Any = getattr(self.device, "_streams")  # noqa: B009
        owner = next((s for s in streams if s.progress is self._progress), None)
        return super().is_done or (owner is not None and owner.is_closed)


@breaks("ERR-3", "Events of a stream that was closed cannot be waited for.", CPU)
class EventsOfClosedStreamsRaise(BaseStream):
    """They are taken for closed as well."""

    def wait(self, event: Event) -> None:
        if isinstance(event, BaseEvent) and event.is_recorded:
            for stream in streams_beside(self):
                if stream.is_closed and stream.progress is event._progress:
                    raise UsageError("the event's stream is closed", where=self.progress.where)
        super().wait(event)


# --- streams ----------------------------------------------------------------------------------


@breaks("ERR-3", "The thread of a stream that was closed stays.", CPU)
class ThreadsOutliveTheirStreams(BaseStream):
    """Nothing makes it end."""

    def close(self) -> None:
        self.is_closed = True
        self.device.__dict__.setdefault("kept", []).append(self)


@breaks("ERR-3", "Streams that were closed count as open.", CPU)
class ClosedStreamsCount(BaseDevice):
    """After as many as are declared, there are none."""

    def create_stream(self) -> BaseStream:
        made = self.__dict__["made"] = int(self.__dict__.get("made", 0)) + 1
        if made > self.facts.max_streams:
            raise UsageError("no more streams", where=self.facts.name)
        return super().create_stream()


@breaks("ERR-3", "Closing a stream spoils the programs of the others.", CPU)
class ClosingSpoilsOtherPrograms(BaseDevice):
    """The handle of the library goes with the first stream."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        program = super().compile(nodes, stream)
        body, older = program.body, list(self._streams)
        if body is not None:
            run = body.run
            setattr(body, "run", lambda: None if any(s.is_closed for s in older) else run())  # noqa: B010
        return program


@breaks("ERR-3", "A closed stream ends what stands behind the first hundred commands.", CPU)
class CloseDropsALongQueue(BaseStream):
    """It drains for a while, and then it is enough."""

    def begin(self) -> None:
        self.left = -1

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        def run() -> None:
            if self.is_closed:
                self.left = 100 if self.left < 0 else max(0, self.left - 1)
            if self.left:
                work()

        super()._submit(command if isinstance(command, str) else "launch", run)


# --- graphs -----------------------------------------------------------------------------------


@breaks("CAP-1", "Closing a graph drops its replays that have not run.", CPU)
class ClosedGraphDropsItsReplays(BaseStream):
    """They have a reference to the graph only."""

    def replay(self, graph: Any) -> None:
        if not is_replayed(self, graph):
            super().replay(graph)
            return
        body = graph.body()
        self._submit("replay", lambda: body.run() if graph._calls is not None else None)


@breaks("ERR-3", "A graph that was closed is replayed.", CPU)
class ClosedGraphIsReplayed(BaseDevice):
    """close does nothing."""

    def begin_capture(self, streams: Sequence[Stream]) -> Any:
        capture = super().begin_capture(streams)
        end = capture.end

        def end_open() -> RecordedGraph:
            graph = end()
            graph.close = nothing  # type: ignore[method-assign]
            return graph

        capture.end = end_open  # type: ignore[method-assign]
        return capture


# --- buffers and devices ----------------------------------------------------------------------


@breaks("ERR-3", "Closing a device leaves its buffers open.", CPU)
class DeviceLeavesBuffersOpen(BaseDevice):
    """Their memory is never released."""

    def close(self) -> None:
        self.is_closed = True
        for stream in list(self._streams):
            stream.close()


@breaks("ERR-3", "Closing a device a second time raises.", CPU)
class DeviceClosedTwiceRaises(BaseDevice):
    """The context is gone."""

    def close(self) -> None:
        if self.is_closed:
            raise UsageError("the device is closed", where=self.facts.name)
        super().close()


@breaks("ERR-3", "A device that was closed begins a capture.", CPU)
class ClosedDeviceCaptures(BaseDevice):
    """Some calls forget to look."""

    def begin_capture(self, streams: Sequence[Stream]) -> Any:
        if not self.is_closed:
            return super().begin_capture(streams)
        return None


@breaks("ERR-3", "The view of a buffer can be had after its close.", CPU)
class ClosedBufferShowsItsBytes(BaseBuffer):
    """The address is still known."""

    def host_view(self) -> Any:
        if not self.is_closed:
            self.__dict__["seen"] = super().host_view()
        return self.__dict__.get("seen") or super().host_view()
