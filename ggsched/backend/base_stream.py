"""Buffers, programs and streams that do everything at once; see ``ggsched.backend.base``."""

from collections.abc import Callable
from typing import Any, Protocol

from ggsched.backend import checks
from ggsched.backend.capture import DeviceGraph
from ggsched.backend.capture_errors import capturing_error, replayed_elsewhere_error
from ggsched.backend.events import BaseEvent, lasting_wait
from ggsched.backend.list_capture import RecordedCapture, RecordedGraph
from ggsched.backend.program import OperandMemory
from ggsched.backend.program_body import Body, Command
from ggsched.backend.progress import Progress
from ggsched.backend.protocols import Buffer, Device, Event, HostMemory, Program, Stream
from ggsched.backend.timing import HostTaken, Latest
from ggsched.errors import UsageError


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

    def fill_memory(self, memory: Any, offset: int, nbytes: int, pattern: bytes) -> None:
        """Set bytes of the device to a repeated pattern."""


class BaseBuffer:
    """Device memory. ``memory`` is whatever the device's ``acquire_memory`` returned (BUF-1)."""

    def __init__(
        self, device: MemoryDevice, nbytes: int, memory: Any, *, readonly: bool = False
    ) -> None:
        self.nbytes = nbytes
        self.device = device
        self.readonly = readonly
        self.is_closed = False
        self._memory = memory

    @property
    def memory(self) -> Any:
        """The memory behind it, for the device.

        Raises:
            UsageError: the buffer is closed (ERR-3).
        """
        if self.is_closed:
            raise checks.closed_error("buffer")
        return self._memory

    def host_view(self) -> HostMemory:
        """Return the bytes themselves (BUF-4)."""
        memory = self.memory
        if not self.device.facts.is_host:
            raise UsageError(
                "the memory is not host memory",
                where=self.device.facts.name,
                hint="download it",
            )
        view: HostMemory = memory.data
        return view

    def close(self) -> None:
        """Release the memory; legal twice (ERR-3)."""
        self.is_closed = True
        self._memory = None


class BaseProgram:
    """Nodes with arrays bound beforehand (LCH-1..5)."""

    def __init__(self, stream: Stream, body: Body) -> None:
        self.stream = stream
        self.body: Body | None = body

    def close(self) -> None:
        """Release the arrays; legal twice. A launch that is enqueued still has them."""
        self.body = None


class BaseStream:
    """Runs each command when it is enqueued (STR-1..6)."""

    def __init__(self, device: MemoryDevice, name: str) -> None:
        self.device = device
        self.progress = Progress(name)
        self.is_closed = False
        self.capture: RecordedCapture | None = None
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
            progress.fail(command if isinstance(command, str) else command.blame(error), error)
            if not isinstance(error, Exception):
                raise
        finally:
            progress.finish_one()

    def _enqueue(self, command: str, work: Callable[[], None]) -> None:
        if self.capture is not None:
            self.capture.add(command, work)
        elif self._is_timed:
            taken = self._taken = HostTaken()
            self._submit(command, lambda: taken.run(work))
        else:
            self._submit(command, work)

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
        if self.capture is not None:
            raise capturing_error("is_done", self.progress.where)
        return self.progress.done >= self.progress.enqueued

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        """Copy host bytes into a buffer (CPY-4)."""
        self._require_usable()
        checks.check_upload(self.device, source, buffer, offset)
        memory = writable_memory(buffer)
        write = self.device.write_memory
        self._enqueue("upload", lambda: write(memory, offset, source))

    def download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        """Copy bytes of a buffer into host memory (CPY-5)."""
        self._require_usable()
        checks.check_download(self.device, buffer, offset, target)
        memory = own_buffer(buffer).memory
        read = self.device.read_memory
        self._enqueue("download", lambda: read(memory, offset, target))

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
            self._enqueue("copy", lambda: device.read_memory(origin, src_offset, target))
            return
        memory = own_buffer(dst).memory
        if src.device is not device or device.facts.is_host:
            source = src.host_view()[src_offset : src_offset + nbytes]
            self._enqueue("copy", lambda: device.write_memory(memory, dst_offset, source))
            return
        origin = own_buffer(src).memory
        self._enqueue(
            "copy", lambda: device.copy_memory(origin, src_offset, memory, dst_offset, nbytes)
        )

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        """Set bytes of a buffer to a repeated pattern (FIL-1..3)."""
        self._require_usable()
        checks.check_fill(self.device, buffer, offset, nbytes, pattern)
        memory, fill = writable_memory(buffer), self.device.fill_memory
        self._enqueue("fill", lambda: fill(memory, offset, nbytes, pattern))

    def launch(self, program: Program) -> None:
        """Run a program that was compiled for this stream."""
        self._require_usable()
        if not isinstance(program, BaseProgram) or program.stream is not self:
            raise checks.foreign_program_error(self.progress.where)
        body = program.body
        if body is None:
            raise checks.closed_error("program")
        if self.capture is not None:
            self.capture.add(body, body.run)
        else:
            self._run(body)

    def replay(self, graph: DeviceGraph) -> None:
        """Enqueue what was captured as one command (CAP-1)."""
        self._require_usable()
        if not isinstance(graph, RecordedGraph) or graph.stream is not self:
            raise replayed_elsewhere_error(self.progress.where)
        if self.capture is not None:
            raise capturing_error("replay", self.progress.where)
        self._run(graph.body())

    def _run(self, body: Body) -> None:
        if self._is_timed:
            taken = self._taken = HostTaken()
            self._submit(body, lambda: body.run_timed(taken))
        else:
            self._submit(body, body.run)

    def record(self, event: Event) -> None:
        """Let an event stand for everything enqueued so far (EVT-1).

        On a stream that is poisoned already the event is recorded *and* the call raises, so that
        whoever waits for it learns of the fault (EVT-6).
        """
        if self.is_closed:
            raise checks.closed_error("stream")
        checks.check_record(self.device, event)
        assert isinstance(event, BaseEvent)  # this device's events are
        if self.capture is not None:
            event.capture = self.capture
            return
        event.mark(self.progress)
        self._require_usable()

    def wait(self, event: Event) -> None:
        """Hold later commands until an event is done (EVT-2, EVT-4)."""
        self._require_usable()
        checks.check_wait(self.device, event)
        timeout = self.device.event_timeout_s
        if self.capture is not None:
            self.capture.wait(event, self.progress.where)
        elif isinstance(event, BaseEvent):
            event.require_outside()
            if not event.is_pending:
                return
            self._enqueue("wait for an event", event.waiter(timeout))
        else:
            self._enqueue("wait for an event", lasting_wait(event, timeout))

    def barrier(self) -> None:
        """Do nothing: launches and copies are in order anyway (STR-1)."""
        self._require_usable()

    def sync(self, timeout_s: float) -> None:
        """Block until everything enqueued is complete (STR-5)."""
        self._require_usable()
        if self.capture is not None:
            raise capturing_error("sync", self.progress.where)
        self.progress.require(self.progress.enqueued, timeout_s)

    def close(self) -> None:
        """Release the stream; legal twice and after a fault (ERR-3)."""
        self.is_closed = True
        if self.capture is not None:
            self.capture.abort()


def own_buffer(buffer: OperandMemory) -> BaseBuffer:
    """Return a buffer whose device the checks have compared, as what it is."""
    assert isinstance(buffer, BaseBuffer)
    return buffer


def writable_memory(buffer: OperandMemory) -> Any:
    """Return the memory of a buffer that a command is to write.

    Raises:
        UsageError: the buffer was imported from host memory, or is closed.
    """
    own = own_buffer(buffer)
    if own.readonly:
        raise UsageError("the buffer is read-only", why="it was imported from host memory")
    return own.memory
