"""Captured graphs: the driver writes down what streams are given, and replays it by one call."""

from collections.abc import Sequence
from typing import Any, Protocol

from ggsched.backend import checks
from ggsched.backend.capture import DeviceGraph
from ggsched.backend.capture_errors import other_graph_error, replayed_elsewhere_error
from ggsched.backend.queued.backlog import Backlog
from ggsched.errors import DeviceFault
from ggsched_cuda import driver
from ggsched_cuda.capture import driver as capturing
from ggsched_cuda.capture_sink import Captured, CapturingSink
from ggsched_cuda.cuda_context import CudaContext
from ggsched_cuda.driver import CudaError
from ggsched_cuda.event import Marker
from ggsched_cuda.queue import CudaQueue


class CapturedStream(Protocol):
    """What captures and graphs use of a stream, a ``CudaStream``."""

    gpu: CudaContext
    name: str
    backlog: Backlog
    queue: CudaQueue
    sink: CudaQueue | CapturingSink

    @property
    def handle(self) -> int:
        """The driver's stream."""

    def unfinished(self) -> list[Marker]:
        """Return markers behind all that is enqueued, if some of that is not complete."""

    def switch(self, sink: CapturingSink | None) -> None:
        """Capture commands from now on, or no more."""


class CudaCapture:
    """What streams are given from now on, instead of running it (CAP-1..4).

    All streams fork from the first one here and are joined to it at the end, so the graph is one
    command of the first. Streams of other GPUs take part like any other: the driver puts their work
    into the same graph (COL-4).

    Args:
        gpu: The GPU of the first stream.
        streams: Open streams of peers, each once, which nobody captures.

    Attributes:
        captured: What the graph uses.
    """

    def __init__(self, gpu: CudaContext, streams: Sequence[CapturedStream]) -> None:
        self._streams = list(streams)
        self._gpu = gpu
        self._sinks: list[CapturingSink] = []
        self._captured: Any = None  # the driver's graph, from the end of the capture on
        self._is_going = True
        self._is_over = False
        gpu.enter()
        for stream in self._streams:
            stream.backlog.pause()  # else what leaves it would be captured
        try:
            before = [marker for stream in self._streams for marker in stream.unfinished()]
        except CudaError as error:
            for stream in self._streams:
                stream.backlog.resume()
            raise self._broken("beginning a capture", error) from error
        self.captured = Captured(before, self.abort)
        for stream in self._streams:
            sink = CapturingSink(stream.queue, self.captured)
            self._sinks.append(sink)
            stream.switch(sink)
        try:
            origin, *others = self._streams
            gpu.enter()
            capturing.begin_capture(origin.handle)
            self._link(origin, others)
        except CudaError as error:
            self.abort()
            raise self._broken("beginning a capture", error) from error

    def end(self) -> "CudaGraph":
        """Stop, and return what was captured.

        Raises:
            UsageError: the capture is over.
            DeviceFault: the driver refused; the streams are as before.
        """
        self._enter()
        try:
            self._stop()
            captured, self._captured = self._captured, None
            executable, count = capturing.make_executable(captured)
        except CudaError as error:
            self.abort()
            raise self._broken("ending a capture", error) from error
        self._is_over = True
        return CudaGraph(self._streams[0], executable, count, self.captured)

    def end_into(self, graph: DeviceGraph) -> str:
        """Stop, and let a graph be what was captured, if the driver can (CAP-4).

        Returns:
            Why it cannot, or an empty text.

        Raises:
            UsageError: the capture is over; or the graph is closed, or another stream's.
            DeviceFault: the driver failed; the streams are as before.
        """
        self._enter()
        origin = self._streams[0]
        if not isinstance(graph, CudaGraph) or graph.stream is not origin:
            raise other_graph_error(origin.name)
        executable = graph.executable_on(origin)
        try:
            self._stop()
            count = capturing.count_nodes(self._captured)
            # The driver does not know of replays in the backlog, which run what the graph was.
            why = "replays of it wait for an event of another backend"
            if not origin.backlog.is_pending:
                why = capturing.update_executable(executable, self._captured)
            if not why:
                graph.renew(count, self.captured)
                self._is_over = True
                captured, self._captured = self._captured, None
                capturing.close_graph(captured)
        except CudaError as error:
            self.abort()
            raise self._broken("updating a graph", error) from error
        return why

    def abort(self) -> None:
        """Stop, and forget what was captured; legal twice. The streams are as before."""
        if self._is_over:
            return
        self._is_over = True
        self._gpu.enter()
        captured, self._captured = self._captured, None
        try:
            if self._is_going:
                captured = capturing.end_capture(self._streams[0].handle)
            if captured is not None:
                capturing.close_graph(captured)
        except CudaError:
            pass  # that it is invalid is why it is being given up
        finally:
            self._leave()
            for forget in self.captured.forgets:
                forget()

    def _enter(self) -> None:
        """Refuse what comes too late, and make the GPU's context current."""
        if self._is_over:
            raise checks.closed_error("capture")
        self._gpu.enter()

    def _stop(self) -> None:
        """Let the driver hand over what it has written down, unless it has done so."""
        if not self._is_going:
            return
        origin, *others = self._streams
        for sink in self._sinks:
            sink.flush()
        for other in others:
            self._link(other, [origin])
        self._gpu.enter()
        self._captured = capturing.end_capture(origin.handle)
        self._leave()

    def _link(self, origin: CapturedStream, others: Sequence[CapturedStream]) -> None:
        """Let streams wait for all that one was given so far."""
        if others:
            marker = origin.queue.marker()
            self.captured.keeps.append(marker)
            for other in others:
                driver.enqueue_wait(other.handle, marker.handle)

    def _leave(self) -> None:
        self._is_going = False
        self.captured.seen.clear()  # it keeps markers, which go back to their GPUs
        for stream, sink in zip(self._streams, self._sinks, strict=True):
            if stream.sink is sink:
                stream.switch(None)
                stream.backlog.resume()

    def _broken(self, what: str, error: CudaError) -> DeviceFault:
        return DeviceFault(
            f"{what} failed",
            where=self._streams[0].name,
            why=str(error),
            hint="run the commands without a capture, and report this",
        )


class CudaGraph:
    """Commands to be replayed by one call.

    The buffers, programs and host memory that they use are borrowed as long as it is open.

    Args:
        stream: The stream that replays it, for as long as it is open.
        executable: The driver's graph.
        count: Number of its nodes.
        captured: What it uses.
    """

    def __init__(
        self, stream: CapturedStream, executable: Any, count: int, captured: Captured
    ) -> None:
        self.stream = stream
        self._executable = executable
        self._take(count, captured)

    def _take(self, count: int, captured: Captured) -> None:
        self.nodes = count
        self.words = frozenset(captured.words)
        self.meets = captured.rendezvous.count > 0
        self._keeps = [m for m in captured.keeps if not isinstance(m, Marker)]
        self._forgets = captured.forgets

    def renew(self, count: int, captured: Captured) -> None:
        """Be what another capture wrote down, now that the driver's graph is that (CAP-4)."""
        self._release()
        self._take(count, captured)

    def executable_on(self, stream: CapturedStream) -> Any:
        """Return the driver's graph for the stream that it was captured on.

        Raises:
            UsageError: another stream, or the graph is closed.
        """
        if self._executable is None:
            raise checks.closed_error("graph")
        if stream is not self.stream:
            raise replayed_elsewhere_error(stream.name)
        return self._executable

    def close(self) -> None:
        """Release it; legal twice. A replay that is enqueued still runs."""
        if self._executable is None:
            return
        executable, self._executable = self._executable, None

        def destroy() -> None:
            self.stream.gpu.enter()
            capturing.close_executable(executable)

        self.stream.backlog.add_always("close", destroy)
        self._release()

    def _release(self) -> None:
        """Release what replays need when those that are enqueued are complete."""
        keeps, forgets = self._keeps, self._forgets
        self._keeps, self._forgets = [], []

        def finish() -> None:
            for forget in forgets:
                forget()
            keeps.clear()

        def finish_later() -> None:
            for marker in self.stream.unfinished():
                self.stream.gpu.drain_later(marker, finish, None)
                return
            finish()

        self.stream.backlog.add_always("close", finish_later)
