"""Programs and streams that do everything at once; see ``ggsched.backend.base``."""

from collections.abc import Callable
from typing import Any, Protocol

from ggsched.backend import checks
from ggsched.backend.base_buffer import BaseBuffer, own_buffer, writable_memory
from ggsched.backend.capture import DeviceGraph
from ggsched.backend.capture_errors import replayed_elsewhere_error
from ggsched.backend.events import BaseEvent
from ggsched.backend.list_capture import EAGER, RecordedGraph, Sink
from ggsched.backend.program_body import Body, Command
from ggsched.backend.progress import Progress
from ggsched.backend.protocols import Buffer, Device, Event, HostMemory, Program, Stream
from ggsched.backend.timing import HostTaken, Latest


class MemoryDevice(Device, Protocol):
    """A device whose memory calls can read and write, as ``BaseDevice`` is."""

    event_timeout_s: float

    def read_memory(self, memory: Any, offset: int, target: HostMemory) -> None:
        """Copy bytes of the device into host memory."""

    def write_memory(self, memory: Any, offset: int, source: HostMemory) -> None:
        """Copy host bytes into the device."""

    def copy_memory(
        self, src: Any, src_offset: int, dst: Any, dst_offset: int, nbytes: int
    ) -> None:
        """Copy bytes within the device."""

    def leave_zero(self, memory: Any) -> None:
        """See ``BaseDevice``."""

    def fill_memory(self, memory: Any, offset: int, nbytes: int, pattern: bytes) -> None:
        """Set bytes of the device to a repeated pattern."""


class BaseProgram:
    """Nodes with arrays bound beforehand (LCH-1..5).

    Args:
        stream: Where it runs.
        body: What it runs.
        by_reference: Labels of the nodes that run by the reference arithmetic of their ops.
    """

    def __init__(
        self, stream: Stream, body: Body, by_reference: frozenset[str] = frozenset()
    ) -> None:
        self.stream = stream
        self.body: Body | None = body
        self.by_reference = by_reference

    def close(self) -> None:
        """Release the arrays; legal twice. A launch that is enqueued still has them."""
        self.body = None


class BaseStream:
    """Runs each command when it is enqueued (STR-1..6)."""

    def __init__(self, device: MemoryDevice, name: str) -> None:
        self.device = device
        self.progress = Progress(name)
        self.is_closed = False
        self.sink: Sink = EAGER
        self._is_timed = False
        self._taken: HostTaken | None = None

    # --- for streams that work in the background ------------------------------------------

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        """Run a command that was checked, or see to it that it runs in order."""
        progress = self.progress
        progress.enqueued += 1
        try:
            work()
        except BaseException as error:
            progress.fail(command, error)
            if not isinstance(error, Exception):
                raise
        finally:
            progress.finish_one()

    @property
    def event_timeout_s(self) -> float:
        """How long it waits for an event before it fails."""
        return self.device.event_timeout_s

    def run(self, command: Command, work: Callable[[], None]) -> None:
        """Run a command in its turn, and take its times if somebody requested them."""
        if not self._is_timed:
            self._submit(command, work)
            return
        taken = self._taken = HostTaken()
        if isinstance(command, str):
            self._submit(command, lambda: taken.run(work))
        else:
            body = command
            self._submit(body, lambda: body.run_timed(taken))

    def __take_times__(self) -> Latest:
        """Take the times of the thread that runs a command; see ``ggsched.backend.timing``."""
        self._is_timed = True
        return self._latest

    def _latest(self) -> HostTaken | None:
        taken, self._taken = self._taken, None
        return taken

    def _require_usable(self) -> None:
        """Refuse calls after ``close`` (ERR-3) and after a failed command (ERR-2)."""
        if self.is_closed:
            raise checks.closed_error("stream")
        fault = self.progress.fault
        if fault is not None:
            raise fault.error()

    # --- the contract ----------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Whether everything enqueued so far is complete."""
        if self.is_closed:
            raise checks.closed_error("stream")
        self.sink.require_eager(self, "is_done")
        return self.progress.done >= self.progress.enqueued

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        """Copy host bytes into a buffer (CPY-4)."""
        self._require_usable()
        checks.check_upload(self.device, source, buffer, offset)
        memory = writable_memory(buffer)
        write = self.device.write_memory
        self.sink.add(self, "upload", lambda: write(memory, offset, source))

    def download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        """Copy bytes of a buffer into host memory (CPY-5)."""
        self._require_usable()
        checks.check_download(self.device, buffer, offset, target)
        memory = own_buffer(buffer).memory
        read = self.device.read_memory
        self.sink.add(self, "download", lambda: read(memory, offset, target))

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        """Copy between buffers (CPY-1, CPY-3, CPY-6)."""
        self._require_usable()
        checks.check_copy(self.device, src, src_offset, dst, dst_offset, nbytes)
        device = self.device
        if isinstance(dst, BaseBuffer):
            writable_memory(dst)
        if dst.device is not device:
            origin = own_buffer(src).memory
            target = dst.host_view()[dst_offset : dst_offset + nbytes]
            self.sink.add(self, "copy", lambda: device.read_memory(origin, src_offset, target))
            return
        memory = own_buffer(dst).memory
        if src.device is not device or device.facts.is_host:
            source = src.host_view()[src_offset : src_offset + nbytes]
            self.sink.add(self, "copy", lambda: device.write_memory(memory, dst_offset, source))
            return
        origin = own_buffer(src).memory
        self.sink.add(
            self, "copy", lambda: device.copy_memory(origin, src_offset, memory, dst_offset, nbytes)
        )

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        """Set bytes of a buffer to a repeated pattern (FIL-1..3)."""
        self._require_usable()
        checks.check_fill(self.device, buffer, offset, nbytes, pattern)
        own, fill = own_buffer(buffer), self.device.fill_memory
        if own.is_zero and not any(pattern):
            # Decided in its turn: whatever writes before it has requested the memory by then. Pages
            # that are not touched take no memory before they are used.
            zeros, leave = own.zeros, self.device.leave_zero

            def clear() -> None:
                if own.is_zero:
                    leave(zeros)
                else:
                    fill(zeros, offset, nbytes, pattern)

            self.sink.add(self, "fill", clear)
            return
        memory = writable_memory(buffer)
        self.sink.add(self, "fill", lambda: fill(memory, offset, nbytes, pattern))

    def launch(self, program: Program) -> None:
        """Run a program that was compiled for this stream."""
        self._require_usable()
        if not isinstance(program, BaseProgram) or program.stream is not self:
            raise checks.foreign_program_error(self.progress.where)
        body = program.body
        if body is None:
            raise checks.closed_error("program")
        self.sink.add(self, body, body.run)

    def replay(self, graph: DeviceGraph) -> None:
        """Enqueue what was captured as one command (CAP-1)."""
        self._require_usable()
        if not isinstance(graph, RecordedGraph) or graph.stream is not self:
            raise replayed_elsewhere_error(self.progress.where)
        self.sink.require_eager(self, "replay")
        body = graph.body()
        self.run(body, body.run)

    def record(self, event: Event) -> None:
        """Let an event stand for everything enqueued so far (EVT-1).

        On a stream that is poisoned already the event is recorded *and* the call raises, so that
        whoever waits for it learns of the fault (EVT-6).
        """
        if self.is_closed:
            raise checks.closed_error("stream")
        checks.check_record(self.device, event)
        assert isinstance(event, BaseEvent)  # this device's events are
        self.sink.record(self, event)
        self._require_usable()

    def wait(self, event: Event) -> None:
        """Hold later commands until an event is done (EVT-2, EVT-4)."""
        self._require_usable()
        checks.check_wait(self.device, event)
        self.sink.wait(self, event)

    def barrier(self) -> None:
        """Do nothing: launches and copies are in order anyway (STR-1)."""
        self._require_usable()

    def sync(self, timeout_s: float) -> None:
        """Block until everything enqueued is complete (STR-5)."""
        self._require_usable()
        self.sink.require_eager(self, "sync")
        self.progress.require(self.progress.enqueued, timeout_s)

    def __progress__(self) -> object:
        """Return how far the stream has come; see ``ggsched.backend.progress``."""
        return self.progress.mark()

    def close(self) -> None:
        """Release the stream; legal twice and after a fault (ERR-3)."""
        self.is_closed = True
        self.sink.abort()
