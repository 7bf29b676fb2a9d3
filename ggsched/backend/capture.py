"""Capture: a run of commands is written down once and replayed by one call (CAP-1..4).

Optional: a device offers it by having ``begin_capture``, and its streams then have ``replay``.
Its captures may have ``end_into`` besides, which updates a graph in the place of making one.
``RecordedCapture`` is the plain form of it, a list of calls, for devices made of
``ggsched.backend.base``; a device with graphs of its own hands the list to its driver.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeGuard, runtime_checkable

from ggsched.backend.capture_errors import (
    captured_already_error,
    no_streams_error,
    not_capturable_error,
    other_graph_error,
    outside_error,
)
from ggsched.backend.checks import closed_error
from ggsched.backend.protocols import Device, Event, Stream
from ggsched.backend.timing import HostTaken

if TYPE_CHECKING:
    from ggsched.backend.base import BaseDevice
    from ggsched.backend.base_stream import BaseStream, Body, Command


@runtime_checkable
class Graph(Protocol):
    """Commands that were captured.

    What they use is borrowed as long as it is open (CAP-3), or until it is updated (CAP-4).
    """

    @property
    def nodes(self) -> int:
        """How many commands or kernels it has, for people."""

    def close(self) -> None:
        """Release it; legal twice. Replays that are enqueued run to their end (ERR-3)."""


@runtime_checkable
class Capture(Protocol):
    """Streams that write down what they are given instead of running it (CAP-2)."""

    def end(self) -> Graph:
        """Stop, and return what was captured; the streams are as before.

        Legal after ``end_into`` has refused.

        Raises:
            UsageError: the capture is over.
            DeviceFault: the driver refused; the streams are as before.
        """

    def abort(self) -> None:
        """Stop, and forget what was captured; legal twice. The streams are as before."""


@runtime_checkable
class UpdatingCapture(Capture, Protocol):
    """A capture that can end in a graph that is there already (CAP-4)."""

    def end_into(self, graph: Graph) -> str:
        """Stop, and let a graph be what was captured; the streams are as before.

        Replays that are enqueued run what it was. What it used need not be there any more.

        Args:
            graph: An open graph that was captured on the same first stream.

        Returns:
            An empty text if the graph was updated, and the capture is over. Else why it was not:
            it is as before, and what was captured is to be had by ``end``, or forgotten by
            ``abort``.

        Raises:
            UsageError: the capture is over; or the graph is closed, or another stream's, and the
                capture goes on.
            DeviceFault: the driver failed; the streams are as before, the capture is over, and the
                graph can be closed, but not replayed.
        """


@runtime_checkable
class CapturingDevice(Protocol):
    """A device that offers capture."""

    def begin_capture(self, streams: Sequence[Stream]) -> Capture:
        """Write down what is enqueued on streams from now on.

        All of them fork from the first one here, and are joined to it when the capture ends: the
        graph is one command of the first stream, ordered behind what that one was given before
        and before what it is given later, and ordered with nothing else.

        Raises:
            UsageError: no streams, one twice, one of another device, one that is captured already.
        """


@runtime_checkable
class ReplayingStream(Protocol):
    """A stream of such a device."""

    def replay(self, graph: Graph) -> None:
        """Enqueue what was captured as one command (CAP-1).

        Raises:
            UsageError: the graph was captured on another stream first, or is closed.
        """


def offers_capture(device: Device) -> "TypeGuard[CapturingDevice]":
    """Whether a device offers capture."""
    return isinstance(device, CapturingDevice)


def offers_update(capture: Capture) -> "TypeGuard[UpdatingCapture]":
    """Whether a capture can end in a graph that is there already."""
    return isinstance(capture, UpdatingCapture)


class RecordedCapture:
    """A capture as a list of calls, in the order in which they were enqueued on any stream.

    That order is one that the events of the capture allow, so a replay runs the calls one after
    the other on the first stream.
    """

    def __init__(self, device: "BaseDevice", streams: Sequence[Stream]) -> None:
        from ggsched.backend.base_stream import BaseStream

        own: list[BaseStream] = []
        for stream in streams:
            if not isinstance(stream, BaseStream) or stream.device is not device:
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

    def add(self, command: "Command", work: Callable[[], None]) -> None:
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

    def end_into(self, graph: Graph) -> str:
        """Stop, and let a graph be what was captured (CAP-4): one list takes another's place."""
        self.require_graph(graph).renew(self._calls)
        self.abort()
        return ""

    def require_graph(self, graph: Graph) -> "RecordedGraph":
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

    def __init__(
        self, stream: "BaseStream", calls: "Sequence[tuple[Command, Callable[[], None]]]"
    ) -> None:
        self.stream = stream
        self._calls: Sequence[tuple[Command, Callable[[], None]]] | None = tuple(calls)

    @property
    def nodes(self) -> int:
        """How many commands it has."""
        return len(self._calls or ())

    def body(self) -> "Body":
        """Return what a replay runs; it outlives ``close``.

        Raises:
            UsageError: the graph is closed.
        """
        if self._calls is None:
            raise closed_error("graph")
        return _Replay(self._calls)

    def renew(self, calls: "Sequence[tuple[Command, Callable[[], None]]]") -> None:
        """Be other calls from the next replay on; those that are enqueued have their own."""
        self._calls = tuple(calls)

    def close(self) -> None:
        """Release it; legal twice."""
        self._calls = None


class _Replay:
    def __init__(self, calls: "Sequence[tuple[Command, Callable[[], None]]]") -> None:
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
