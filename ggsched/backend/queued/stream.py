"""Streams over a library's queue: calls are checked here, and given to the queue or a capture."""

from typing import Any, Generic, Protocol, TypeVar

from ggsched.backend import checks
from ggsched.backend.base_buffer import own_buffer, writable_memory
from ggsched.backend.checks import check_timeout
from ggsched.backend.protocols import Buffer, Device, Event, HostMemory, Program
from ggsched.backend.queued.command_queue import CommandQueue, CommandSink
from ggsched.backend.timing import Latest

Q = TypeVar("Q", bound=CommandQueue[Any])


class StreamDevice(Device, Protocol):
    """What streams use of their device."""

    def reaches(self, buffer: Buffer) -> bool:
        """Whether the library copies from and to a buffer."""


class QueuedStream(Generic[Q]):
    """An in-order queue of commands (STR-1..6).

    Args:
        queue: The library's queue.

    Attributes:
        sink: Where commands go: the queue, or a capture.
    """

    def __init__(self, device: StreamDevice, queue: Q) -> None:
        self.device = device
        self.queue = queue
        self.sink: CommandSink = queue
        self.name = queue.name
        self.faults, self.backlog = queue.faults, queue.backlog
        self.is_closed = False

    # --- enqueueing ----------------------------------------------------------------------------

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        """Copy host bytes into a buffer (CPY-4)."""
        self._require_usable()
        checks.check_upload(self.device, source, buffer, offset)
        self._upload("upload", source, writable_memory(buffer), offset)

    def download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        """Copy bytes of a buffer into host memory (CPY-5)."""
        self._require_usable()
        checks.check_download(self.device, buffer, offset, target)
        self._download("download", own_buffer(buffer).memory, offset, target)

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        """Copy between buffers that the library reaches, or host memory (CPY-1, CPY-3, CPY-6)."""
        self._require_usable()
        checks.check_copy(self.device, src, src_offset, dst, dst_offset, nbytes)
        reaches, sink = self.device.reaches, self.sink
        if not reaches(src):
            piece = src.host_view()[src_offset : src_offset + nbytes]
            self._upload("copy", piece, writable_memory(dst), dst_offset)
        elif not reaches(dst):
            piece = dst.host_view()[dst_offset : dst_offset + nbytes]
            checks.check_host_memory(piece, "copy", written=True)
            self._download("copy", own_buffer(src).memory, src_offset, piece)
        else:
            ends = (own_buffer(src).memory, src_offset, writable_memory(dst), dst_offset)
            if nbytes:
                sink.give("copy", lambda: sink.copy(*ends, nbytes))

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        """Set bytes of a buffer to a repeated pattern (FIL-1..3)."""
        self._require_usable()
        checks.check_fill(self.device, buffer, offset, nbytes, pattern)
        memory, repeated, sink = writable_memory(buffer), bytes(pattern), self.sink
        if nbytes:
            sink.give("fill", lambda: sink.fill(memory, offset, nbytes, repeated))

    def launch(self, program: Program) -> None:
        """Run a program that was compiled for this stream (LCH-1..5)."""
        self._require_usable()
        found: Any = program
        if getattr(program, "stream", None) is not self:
            raise checks.foreign_program_error(self.name)
        if found.is_closed:
            raise checks.closed_error("program")
        steps, sink = found.steps, self.sink
        sink.give("launch", lambda: sink.launch(found, steps))

    def barrier(self) -> None:
        """Do nothing: a queue keeps launches and copies in order anyway (STR-1)."""
        self._require_usable()

    def record(self, event: Event) -> None:
        """Let an event stand for everything enqueued so far (EVT-1).

        On a stream that is poisoned already the event is recorded *and* the call raises, so that
        whoever waits for it learns of the fault (EVT-6).
        """
        self._require_open()
        checks.check_record(self.device, event)
        self.queue.enter()
        self.sink.record(event)

    def wait(self, event: Event) -> None:
        """Hold later commands until an event is done (EVT-2, EVT-4)."""
        self._require_usable()
        checks.check_wait(self.device, event)
        self.sink.wait(event)

    # --- waiting -------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Whether everything enqueued so far is complete."""
        self._require_open()
        self.sink.require_eager("is_done")
        if self.backlog.is_pending:
            return False
        self.queue.enter()
        return self.queue.is_idle()

    def __progress__(self) -> object:
        """Return how far the stream has come; see ``ggsched.backend.progress``."""
        return self.queue.__progress__()

    def sync(self, timeout_s: float) -> None:
        """Block until everything enqueued is complete (STR-5)."""
        self._require_usable()
        self.sink.require_eager("sync")
        check_timeout(timeout_s, self.name)
        left_s = self.backlog.drain(self.queue.polling, timeout_s)
        self.faults.require_none()
        self.queue.complete(left_s)
        self.faults.require_none()
        self.faults.all_is_well()

    def cancel(self) -> None:
        """Give up waits for events of other backends; what is behind them never takes effect."""
        self.queue.cancel()

    def close(self) -> None:
        """Release the stream; legal twice and after a fault (ERR-3).

        Commands that are enqueued still run, also behind a wait that is not over.
        """
        if not self.is_closed:
            self.sink.abort()
            self.is_closed = True
            self.backlog.finish(self.queue.end)

    def __take_times__(self) -> Latest:
        """Take times from now on; see ``ggsched.backend.timing``."""
        self._require_open()
        self.queue.enter()
        if self.queue.times is None:
            self.queue.times = self.queue.make_times()
        return self.queue.times.latest

    # --- helpers -------------------------------------------------------------------------------

    def _upload(self, command: str, source: HostMemory, memory: Any, offset: int) -> None:
        sink = self.sink
        if source.nbytes:
            if not sink.is_capturing:
                self.queue.await_source(source)
            sink.give(command, lambda: sink.upload(source, memory, offset))

    def _download(self, command: str, memory: Any, offset: int, target: HostMemory) -> None:
        sink = self.sink
        if target.nbytes:
            sink.give(command, lambda: sink.download(memory, offset, target))

    def _require_open(self) -> None:
        if self.is_closed:
            raise checks.closed_error("stream")

    def _require_usable(self) -> None:
        """Refuse calls after ``close`` (ERR-3) and after a failed command (ERR-2)."""
        self._require_open()
        self.faults.require_none()
        self.queue.enter()
