"""CAP: captures that run, graphs that keep what they saw, refusals that come too late."""

from collections.abc import Callable, Sequence
from typing import Any

from ggsched.backend import checks
from ggsched.backend.base import BaseDevice, BaseStream
from ggsched.backend.base_buffer import own_buffer
from ggsched.backend.capture import DeviceGraph
from ggsched.backend.capture_errors import capturing_error
from ggsched.backend.list_capture import EAGER, RecordedCapture, RecordedGraph
from ggsched.backend.program_body import Command
from ggsched.backend.protocols import Buffer, Event, HostMemory, Stream
from tests.mutants.baselines import CPU
from tests.mutants.mutant import breaks

# --- CAP-1 ------------------------------------------------------------------------------------


@breaks("CAP-1", "A graph is replayed once; later replays do nothing.", CPU)
class OneReplayOnly(BaseStream):
    """The list is used up."""

    def replay(self, graph: DeviceGraph) -> None:
        super().replay(graph)
        if isinstance(graph, RecordedGraph):
            graph._calls = ()


@breaks("CAP-1", "A replay runs at once, whatever its stream was given before.", CPU)
class ReplayAtOnce(BaseStream):
    """It is not enqueued."""

    def replay(self, graph: DeviceGraph) -> None:
        self._require_usable()
        if not isinstance(graph, RecordedGraph) or graph.stream is not self:
            super().replay(graph)
        else:
            graph.body().run()


@breaks("CAP-1", "Any stream replays any graph.", CPU)
class GraphOfAnyStream(BaseStream):
    """Whose it is is not looked at."""

    def replay(self, graph: DeviceGraph) -> None:
        if isinstance(graph, RecordedGraph):
            graph.stream = self
        super().replay(graph)


@breaks("CAP-1", "What the second stream of a capture is given is lost.", CPU)
class FirstStreamOnly(BaseDevice):
    """The others are captured, and left out of the graph."""

    def begin_capture(self, streams: Sequence[Stream]) -> RecordedCapture:
        capture = super().begin_capture(streams)
        for stream in streams[1:]:
            other: Any = stream
            other.sink = Lost()
        return capture


class Lost:
    """A capture that keeps nothing."""

    is_capturing = True

    def add(self, stream: Any, command: Command, work: Callable[[], None]) -> None:
        """Forget it."""

    def record(self, stream: Any, event: Any) -> None:
        """Take it for captured."""
        event.capture = self

    def wait(self, stream: Any, event: Event) -> None:
        """Wait for nothing."""

    def require_eager(self, stream: Any, what: str) -> None:
        """Refuse it."""
        raise capturing_error(what, stream.progress.where)

    def abort(self) -> None:
        """Nothing to do."""


# --- CAP-2 ------------------------------------------------------------------------------------


@breaks("CAP-2", "Commands run while they are captured.", CPU)
class CaptureRuns(BaseDevice):
    """They are written down as well."""

    def begin_capture(self, streams: Sequence[Stream]) -> RecordedCapture:
        capture = super().begin_capture(streams)
        add = capture.add

        def run(stream: Any, command: Command, work: Callable[[], None]) -> None:
            add(stream, command, work)
            work()

        capture.add = run  # type: ignore[method-assign]
        return capture


@breaks("CAP-2", "A captured stream lets itself be synced.", CPU)
class SyncInACapture(BaseStream):
    """It waits for what was enqueued before."""

    def sync(self, timeout_s: float) -> None:
        sink, self.sink = self.sink, EAGER
        try:
            super().sync(timeout_s)
        finally:
            self.sink = sink


@breaks("CAP-2", "A captured wait for an event from outside is taken, and means nothing.", CPU)
class OutsideWaitTaken(BaseStream):
    """The graph waits for nobody."""

    def wait(self, event: Event) -> None:
        if self.sink.is_capturing and event.is_recorded:
            return
        super().wait(event)


@breaks("CAP-2", "What was refused gives the capture up.", CPU)
class RefusalEndsTheCapture(BaseStream):
    """The first error is the last."""

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        try:
            super().copy(src, src_offset, dst, dst_offset, nbytes)
        except Exception:
            self.sink.abort()
            raise


# --- CAP-3 ------------------------------------------------------------------------------------


@breaks("CAP-3", "A captured upload keeps the bytes that it saw at the time of capture.", CPU)
class UploadOfTheCapture(BaseStream):
    """The source is copied."""

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        if self.sink.is_capturing:
            checks.check_upload(self.device, source, buffer, offset)
            source = memoryview(bytes(source))
        super().upload(source, buffer, offset)


@breaks("CAP-3", "A captured upload reads its source in the first replay, and never again.", CPU)
class SourceIsReadOnce(BaseStream):
    """The staging block is filled once."""

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        if not self.sink.is_capturing:
            super().upload(source, buffer, offset)
            return
        checks.check_upload(self.device, source, buffer, offset)
        memory, write = own_buffer(buffer).memory, self.device.write_memory
        staged: list[bytes] = []

        def send() -> None:
            if not staged:
                staged.append(bytes(source))
            write(memory, offset, memoryview(staged[0]))

        self.sink.add(self, "upload", send)


@breaks("CAP-3", "A captured download fills a target of its own.", CPU)
class DownloadOfTheCapture(BaseStream):
    """The caller's target is filled by the first replay only."""

    def download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        if not self.sink.is_capturing:
            super().download(buffer, offset, target)
            return
        checks.check_download(self.device, buffer, offset, target)
        memory, read, left = own_buffer(buffer).memory, self.device.read_memory, [1]

        def once() -> None:
            if left:
                left.pop()
                read(memory, offset, target)

        self.sink.add(self, "download", once)
