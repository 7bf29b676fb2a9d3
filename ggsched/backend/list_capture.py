"""Capture as a list of calls, for devices made of ``ggsched.backend.base`` (CAP-1..4)."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol, runtime_checkable

from ggsched.backend.capture import DeviceGraph, captures_beside
from ggsched.backend.capture_errors import (
    captured_already_error,
    capturing_error,
    no_streams_error,
    not_capturable_error,
    other_graph_error,
    outside_error,
)
from ggsched.backend.checks import closed_error
from ggsched.backend.events import BaseEvent, patient_wait
from ggsched.backend.program_body import Body, Command
from ggsched.backend.progress import Progress
from ggsched.backend.protocols import Device, Event, Stream
from ggsched.backend.timing import HostTaken

# --- sinks of commands ----------------------------------------------------------------------------


class RunningStream(Protocol):
    """What sinks use of a stream."""

    progress: Progress

    @property
    def event_timeout_s(self) -> float:
        """How long it waits for an event before it fails."""

    def run(self, command: Command, work: Callable[[], None]) -> None:
        """Run a command in its turn."""


class Sink(Protocol):
    """Takes the commands of streams."""

    @property
    def is_capturing(self) -> bool:
        """Whether commands are written down and do not run."""

    def add(self, stream: RunningStream, command: Command, work: Callable[[], None]) -> None:
        """Take a command."""

    def record(self, stream: RunningStream, event: BaseEvent) -> None:
        """Let an event stand for everything that came from a stream so far."""

    def wait(self, stream: RunningStream, event: Event) -> None:
        """Hold later commands of a stream until an event is done."""

    def require_eager(self, stream: RunningStream, what: str) -> None:
        """Refuse what a captured stream cannot do."""

    def abort(self) -> None:
        """Abort the capture, if there is one."""


class EagerSink:
    """Lets the stream run its commands."""

    is_capturing = False

    def add(self, stream: RunningStream, command: Command, work: Callable[[], None]) -> None:
        """Run a command in its turn."""
        stream.run(command, work)

    def record(self, stream: RunningStream, event: BaseEvent) -> None:
        """Let an event stand for everything that was enqueued so far."""
        event.mark(stream.progress)

    def wait(self, stream: RunningStream, event: Event) -> None:
        """Hold later commands until an event is done, unless it is."""
        if isinstance(event, BaseEvent):
            event.require_outside()
            if not event.is_pending:
                return
        wait = patient_wait(event, stream.event_timeout_s, stream.progress.beat)
        stream.run("wait for an event", wait)

    def require_eager(self, stream: RunningStream, what: str) -> None:
        """Refuse nothing."""

    def abort(self) -> None:
        """Do nothing: there is no capture."""


EAGER: Final = EagerSink()
"""It has no state, so that all streams share it."""


# --- captures -------------------------------------------------------------------------------------


Calls = Sequence[tuple[Command, Callable[[], None]]]


@runtime_checkable
class RecordableStream(Stream, Protocol):
    """A stream whose commands go to a given list."""

    progress: Progress
    is_closed: bool
    sink: Sink


class RecordedCapture:
    """A capture as a list of calls, in the order in which they were enqueued on any stream.

    That order is one that the events of the capture allow, so a replay runs the calls one after
    the other on the first stream.
    """

    def __init__(self, device: Device, streams: Sequence[Stream]) -> None:
        own: list[RecordableStream] = []
        for stream in streams:
            is_able = captures_beside(device, own, stream)
            if not is_able or not isinstance(stream, RecordableStream):
                raise not_capturable_error(stream, device)
            if stream.is_closed:
                raise closed_error("stream")
            if stream.sink.is_capturing or stream in own:
                raise captured_already_error(stream.progress.where)
            own.append(stream)
        if not own:
            raise no_streams_error(device)
        self._streams = own
        self._calls: list[tuple[Command, Callable[[], None]]] = []
        self._is_over = False
        for stream in own:
            stream.sink = self

    is_capturing = True

    def add(self, stream: RunningStream, command: Command, work: Callable[[], None]) -> None:
        """Write down a command that was checked."""
        self._calls.append((command, work))

    def record(self, stream: RunningStream, event: BaseEvent) -> None:
        """Let an event belong to the capture."""
        event.capture = self

    def wait(self, stream: RunningStream, event: Event) -> None:
        """Check an event that a captured stream waits for; the list is in order anyway."""
        if getattr(event, "capture", None) is not self:
            raise outside_error(stream.progress.where)

    def require_eager(self, stream: RunningStream, what: str) -> None:
        """Refuse what a captured stream cannot do (CAP-2)."""
        raise capturing_error(what, stream.progress.where)

    def end(self) -> "RecordedGraph":
        """Stop, and return what was captured."""
        if self._is_over:
            raise closed_error("capture")
        self.abort()
        return RecordedGraph(self._streams[0], self._calls)

    def end_into(self, graph: DeviceGraph) -> str:
        """Stop, and let a graph be what was captured (CAP-4): one list takes another's place."""
        self.require_graph(graph).renew(self._calls)
        self.abort()
        return ""

    def require_graph(self, graph: DeviceGraph) -> "RecordedGraph":
        """Return a graph that may be updated.

        Raises:
            UsageError: the capture is over; or the graph is closed, or another stream's.
        """
        if self._is_over:
            raise closed_error("capture")
        if not isinstance(graph, RecordedGraph) or graph.stream is not self._streams[0]:
            raise other_graph_error(self._streams[0].progress.where)
        graph.body()
        return graph

    def stop(self) -> None:
        """Let the streams run again what they are given, as a capture does that is refused."""
        for stream in self._streams:
            if stream.sink is self:
                stream.sink = EAGER

    def abort(self) -> None:
        """Stop, and forget what was captured; legal twice."""
        if not self._is_over:
            self._is_over = True
            self.stop()


class RecordedGraph:
    """The calls of a ``RecordedCapture``.

    Attributes:
        stream: The stream that replays it.
    """

    def __init__(self, stream: RecordableStream, calls: Calls) -> None:
        self.stream = stream
        self._calls: Calls | None = tuple(calls)

    @property
    def nodes(self) -> int:
        """How many commands it has."""
        return len(self._calls or ())

    def body(self) -> Body:
        """Return what a replay runs; it outlives ``close``.

        Raises:
            UsageError: the graph is closed.
        """
        if self._calls is None:
            raise closed_error("graph")
        return _Replay(self._calls)

    def renew(self, calls: Calls) -> None:
        """Be other calls from the next replay on; those that are enqueued have their own."""
        self._calls = tuple(calls)

    def close(self) -> None:
        """Release it; legal twice."""
        self._calls = None


_MANY: Final = 1 << 32
"""More steps than a command has."""


class _Replay:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._at: Command = "replay"
        self._count = 0

    def run(self) -> None:
        for command, work in self._calls:
            self._at = command
            self._count += 1
            work()

    def run_timed(self, taken: HostTaken) -> None:
        taken.run(self.run)

    def at(self) -> tuple[int, str]:
        inner = getattr(self._at, "at", None)
        count, label = inner() if inner is not None else (0, str(self._at))
        return self._count * _MANY + count, label

    def failed_node(self, error: BaseException) -> str:
        at = self._at
        return at if isinstance(at, str) else at.failed_node(error)
