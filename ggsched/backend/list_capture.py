"""Capture as a list of calls, for devices made of ``ggsched.backend.base`` (CAP-1..4)."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from ggsched.backend.capture import DeviceGraph
from ggsched.backend.capture_errors import (
    captured_already_error,
    no_streams_error,
    not_capturable_error,
    other_graph_error,
    outside_error,
)
from ggsched.backend.checks import closed_error
from ggsched.backend.program_body import Body, Command
from ggsched.backend.progress import Progress
from ggsched.backend.protocols import Device, Event, Stream
from ggsched.backend.timing import HostTaken

Calls = Sequence[tuple[Command, Callable[[], None]]]


@runtime_checkable
class RecordableStream(Stream, Protocol):
    """A stream that writes down what it is given while ``capture`` is set."""

    progress: Progress
    is_closed: bool
    capture: "RecordedCapture | None"


class RecordedCapture:
    """A capture as a list of calls, in the order in which they were enqueued on any stream.

    That order is one that the events of the capture allow, so a replay runs the calls one after
    the other on the first stream.
    """

    def __init__(self, device: Device, streams: Sequence[Stream]) -> None:
        own: list[RecordableStream] = []
        for stream in streams:
            if stream.device is not device or not isinstance(stream, RecordableStream):
                raise not_capturable_error(stream, device)
            if stream.is_closed:
                raise closed_error("stream")
            if stream.capture is not None or stream in own:
                raise captured_already_error(stream.progress.where)
            own.append(stream)
        if not own:
            raise no_streams_error(device)
        self._streams = own
        self._calls: list[tuple[Command, Callable[[], None]]] = []
        self._is_over = False
        for stream in own:
            stream.capture = self

    def add(self, command: Command, work: Callable[[], None]) -> None:
        """Write down a command that was checked."""
        self._calls.append((command, work))

    def wait(self, event: Event, where: str) -> None:
        """Check an event that a captured stream waits for; the list is in order anyway."""
        if getattr(event, "capture", None) is not self:
            raise outside_error(where)

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
            if stream.capture is self:
                stream.capture = None

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


class _Replay:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._at: Command = "replay"

    def run(self) -> None:
        for command, work in self._calls:
            self._at = command
            work()

    def run_timed(self, taken: HostTaken) -> None:
        taken.run(self.run)

    def blame(self, error: BaseException) -> str:
        at = self._at
        return at if isinstance(at, str) else at.blame(error)
