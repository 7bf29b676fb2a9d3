"""A stream of the driver, and what the driver does not keep: host memory, faults, reasons."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from ggsched.backend import checks
from ggsched.backend.protocols import Buffer, Event, HostMemory, Program
from ggsched.backend.timeouts import late_error
from ggsched.backend.timing import Latest
from ggsched.errors import DeviceFault
from ggsched_cuda import driver, transfers
from ggsched_cuda.async_errors import FaultWords
from ggsched_cuda.buffer import CudaBuffer, address_of_buffer
from ggsched_cuda.cuda_context import CudaContext, is_busy
from ggsched_cuda.driver import CudaError, Step, record_event
from ggsched_cuda.event import CudaEvent, Marker
from ggsched_cuda.graphs import CudaGraph
from ggsched_cuda.polling import POLLING
from ggsched_cuda.program import CudaProgram, ProgramDevice
from ggsched_cuda.sinks import Captured, CapturingSink, EagerSink, Sink
from ggsched_cuda.times import StreamTimes


class StreamDevice(ProgramDevice, Protocol):
    """What streams use of their device."""

    gpu: CudaContext
    event_timeout_s: float


class CudaStream:
    """An in-order queue of commands (STR-1..6).

    Args:
        device: The device.
        name: For messages and threads.

    Attributes:
        sink: Where commands go.
    """

    def __init__(self, device: StreamDevice, name: str) -> None:
        self.device = device
        self.gpu = device.gpu
        self.name = name
        self.is_closed = False
        self.gpu.enter()
        self.handle = driver.make_stream()
        # Three fault words, and one that is spare. They stay with the stream for good: a kernel
        # of a program that is still enqueued may write there.
        self.words = FaultWords(self.gpu.pinned.take_quad(), name)
        self._times: StreamTimes | None = None
        self._has_ended = False
        self._blas: tuple[int, int] | None = None
        self._eager = EagerSink(self.gpu, self.handle, name, device.event_timeout_s)
        self.sink: Sink = self._eager
        self.faults, self.backlog = self._eager.faults, self._eager.backlog

    # --- for programs and captures --------------------------------------------------------------

    def blas(self) -> int:
        """Return the stream's own handle of cuBLAS."""
        if self._blas is None:
            self._blas = self.gpu.take_blas(self.handle)
        return self._blas[0]

    def unfinished(self) -> list[Marker]:
        """Return a marker behind all that is enqueued, if some of that is not complete.

        What is in the backlog is not enqueued yet.
        """
        return [] if self._has_ended else self.sink.unfinished()

    def marker(self) -> Marker:
        """Record an event of the driver here."""
        return self._eager.marker()

    def switch(self, sink: CapturingSink | None) -> None:
        """Capture commands from now on, or no more; the backlog is paused meanwhile."""
        self.sink = sink or self._eager
        self._eager.is_current = sink is None

    def capturing_sink(self, captured: Captured) -> CapturingSink:
        """Return what commands go to in a capture."""
        return CapturingSink(self._eager, self.gpu, self.handle, captured)

    def fill_constant(self, source: HostMemory, address: int) -> None:
        """Copy a program's constant to the device, in the order of the stream."""
        self.backlog.run("compile", lambda: self._upload(source, address))

    # --- enqueueing ----------------------------------------------------------------------------

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        """Copy host bytes into a buffer (CPY-4)."""
        self._require_usable()
        checks.check_upload(self.device, source, buffer, offset)
        address = address_of_buffer(buffer) + offset
        if source.nbytes:
            self._give("upload", lambda: self._upload(source, address))

    def download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        """Copy bytes of a buffer into host memory (CPY-5)."""
        self._require_usable()
        checks.check_download(self.device, buffer, offset, target)
        address = address_of_buffer(buffer) + offset
        if target.nbytes:
            self._give("download", lambda: self._download(address, target))

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        """Copy between buffers of GPUs that reach each other, or host memory (CPY-1, CPY-6)."""
        self._require_usable()
        checks.check_copy(self.device, src, src_offset, dst, dst_offset, nbytes)
        ends = (
            src.address + src_offset if isinstance(src, CudaBuffer) else None,
            dst.address + dst_offset if isinstance(dst, CudaBuffer) else None,
        )
        host = b"" if None not in ends else (src if ends[0] is None else dst).host_view()
        if ends[1] is None:
            checks.check_host_memory(host, "copy", written=True)

        def enqueue() -> None:
            match ends:
                case (int(source), int(to)):
                    self.sink.flush()
                    driver.enqueue_copy(to, source, nbytes, self.handle)
                case (None, int(to)):
                    piece = memoryview(host)[src_offset : src_offset + nbytes]
                    self._upload(piece, to)
                case (int(source), None):
                    piece = memoryview(host)[dst_offset : dst_offset + nbytes]
                    self._download(source, piece)

        if nbytes:
            self._give("copy", enqueue)

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        """Set bytes of a buffer to a repeated pattern (FIL-1..3); a memset node where captured."""
        self._require_usable()
        checks.check_fill(self.device, buffer, offset, nbytes, pattern)
        address, repeated = address_of_buffer(buffer) + offset, bytes(pattern)

        def enqueue() -> None:
            self.sink.flush()
            driver.enqueue_fill(address, nbytes, repeated, self.handle)

        if nbytes:
            self._give("fill", enqueue)

    def launch(self, program: Program) -> None:
        """Run a program that was compiled for this stream (LCH-1..5)."""
        self._require_usable()
        if not isinstance(program, CudaProgram) or program.stream is not self:
            raise checks.foreign_program_error(self.name)
        if program.is_closed:
            raise checks.closed_error("program")
        if self.sink.is_behind:
            steps = program.steps
            self._keep("launch", lambda: self._launch(program, steps))
        else:
            self._launch(program, program.steps)

    def _launch(self, program: CudaProgram, steps: Sequence[Step]) -> None:
        sink = self.sink
        sink.flush()
        if program.checks_ids:
            sink.note_ids(self.words)
        if self._times is not None:
            steps = self._times.around(steps, program.labels)
        sending = None if self._times is not None else sink.deferrable(program.sending)
        if sending is not None:
            steps = steps[:-1]
        done = 0
        try:
            for call, arguments in steps:
                result = call(*arguments)
                if result[0]:
                    driver.check(result, "cuLaunchKernel")
                done += 1
        except Exception as error:  # cuBLAS has errors of its own
            # Some of the nodes are enqueued, so this is no refusal (ERR-1) but a fault (ERR-2).
            self._eager.failed(program.labels[done], error)
            return
        if sending is not None:
            sink.defer(sending)

    def record(self, event: Event) -> None:
        """Let an event stand for everything enqueued so far (EVT-1).

        On a stream that is poisoned already the event is recorded *and* the call raises, so that
        whoever waits for it learns of the fault (EVT-6).
        """
        if self.is_closed:
            raise checks.closed_error("stream")
        checks.check_record(self.device, event)
        assert isinstance(event, CudaEvent)  # this device's events are
        self.gpu.enter()
        self.sink.record(event)

    def wait(self, event: Event) -> None:
        """Hold later commands until an event is done (EVT-2, EVT-4)."""
        self._require_usable()
        checks.check_wait(self.device, event)
        self.sink.wait(event)

    def barrier(self) -> None:
        """Do nothing: a stream keeps launches and copies in order anyway (STR-1)."""
        self._require_usable()

    def replay(self, graph: CudaGraph) -> None:
        """Enqueue what was captured, as one command of this stream (CAP-1).

        Raises:
            UsageError: the graph was captured on another stream, or is closed.
        """
        self._require_usable()
        self.sink.require_eager("replay")
        executable, words = graph.executable_on(self), graph.words
        if self.sink.is_behind:
            self._keep("replay", lambda: self._replay(executable, words))
        else:
            self._replay(executable, words)

    def _replay(self, executable: Any, every: Iterable[FaultWords]) -> None:
        for words in every:
            self._eager.note_ids(words)
        times = self._times
        if times is not None:
            times.begin()
        result = driver.launch_graph(executable, self.handle)
        if times is not None:
            times.end()
        if result[0]:
            self._eager.failed("replay", CudaError("cuGraphLaunch", int(result[0]), str(result[0])))

    # --- waiting -------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Whether everything enqueued so far is complete."""
        if self.is_closed:
            raise checks.closed_error("stream")
        self.sink.require_eager("is_done")
        if self.backlog.is_pending:
            return False
        self.gpu.enter()
        return not is_busy(self.handle)

    def sync(self, timeout_s: float) -> None:
        """Block until everything enqueued is complete (STR-5)."""
        self._require_usable()
        self.sink.require_eager("sync")
        handle, left_s = self.handle, self.backlog.drain(POLLING, timeout_s)
        self.faults.require_none()
        if not POLLING.wait_until(lambda: not is_busy(handle), left_s):
            raise late_error(self.name, timeout_s)
        self._eager.all_done()
        result = driver.query_stream(handle)
        if result[0]:
            raise self._eager.failed(
                "a command", CudaError("stream", int(result[0]), str(result[0]))
            )
        for words in self._eager.unchecked:
            self.faults.poison(words.fault())
        self._eager.unchecked.clear()
        self.faults.require_none()
        self.faults.all_is_well()

    def close(self) -> None:
        """Release the stream; legal twice and after a fault (ERR-3).

        Commands that are enqueued still run, also behind a wait that is not over.
        """
        if self.is_closed:
            return
        self.sink.abort()
        self.is_closed = True
        self.backlog.finish(self._end)

    def _end(self) -> None:
        self._times = None
        self.gpu.enter()
        marker = Marker(self.gpu)
        record_event(marker.handle, self.handle)
        self.gpu.drain_later(marker, self._eager.all_done, self._blas)
        self._has_ended = True
        self._eager.is_current = False
        driver.close_stream(self.handle)

    def cancel(self) -> None:
        """Give up waits for events of other backends; what is behind them never takes effect."""
        self._eager.cancel()

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the driver's stream, for other libraries (INT-3)."""
        if self.is_closed:
            raise checks.closed_error("stream")
        return (0, self.handle)

    def __take_times__(self) -> Latest:
        """Take the times of the GPU from now on; see ``ggsched.backend.timing``."""
        if self.is_closed:
            raise checks.closed_error("stream")
        self.gpu.enter()
        if self._times is None:
            self._times = StreamTimes(
                self.gpu.clock, self.handle, self.backlog, lambda: self.sink.is_capturing
            )
        return self._times.latest

    # --- helpers -------------------------------------------------------------------------------

    def _give(self, command: str, transfer: Callable[[], None]) -> None:
        """Enqueue a transfer, behind what is in the backlog."""
        if self.sink.is_behind:
            self._keep(command, lambda: self._timed(command, transfer))
        else:
            self._timed(command, transfer)

    def _timed(self, command: str, transfer: Callable[[], None]) -> None:
        times = self._times
        try:
            if times is not None:
                times.begin()
            transfer()
            if times is not None:
                times.end()
        except CudaError as error:
            raise self._eager.failed(command, error) from error

    def _keep(self, command: str, enqueue: Callable[[], None]) -> None:
        """Put a command into the backlog."""
        times = self._times
        if times is None:
            self._eager.later(command, enqueue)
            return
        late = times.be_late()

        def run() -> None:
            try:
                enqueue()
            finally:
                times.tell(late)

        def drop(_: DeviceFault) -> None:
            late.is_over = True

        self._eager.later(command, run, drop)

    def _upload(self, source: HostMemory, address: int) -> None:
        transfers.upload(self.sink, self.gpu.pinned, self.handle, source, address)

    def _download(self, address: int, target: HostMemory) -> None:
        transfers.download(self.sink, self.gpu.pinned, self.handle, address, target)

    def _require_usable(self) -> None:
        """Refuse calls after ``close`` (ERR-3) and after a failed command (ERR-2)."""
        if self.is_closed:
            raise checks.closed_error("stream")
        self.faults.require_none()
        self.gpu.enter()
