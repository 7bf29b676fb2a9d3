"""A stream of the driver, and what the driver does not keep: host memory, faults, reasons."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ggsched.backend import checks
from ggsched.backend.capture_errors import capturing_error
from ggsched.backend.protocols import Buffer, Event, HostMemory, Program
from ggsched.backend.queued.backlog import Backlog, succeeded
from ggsched.backend.queued.error_state import ErrorState, reraise_copy
from ggsched.backend.queued.events import LatePoint
from ggsched.backend.timeouts import late_error
from ggsched.backend.timing import Latest
from ggsched.errors import DeviceFault
from ggsched_cuda import driver
from ggsched_cuda.async_errors import LOST, FaultWords, IdCheck
from ggsched_cuda.buffer import CudaBuffer, address_of_buffer
from ggsched_cuda.cuda_context import is_busy
from ggsched_cuda.driver import CudaError, record_event
from ggsched_cuda.event import CudaEvent, Marker, Point
from ggsched_cuda.graphs import CudaCapture, CudaGraph
from ggsched_cuda.pinned import Quad
from ggsched_cuda.polling import POLLING
from ggsched_cuda.program import CudaProgram, Step
from ggsched_cuda.times import StreamTimes
from ggsched_cuda.transfers import Transfers

if TYPE_CHECKING:
    from ggsched_cuda.device import CudaDevice


class CudaStream:
    """An in-order queue of commands (STR-1..6).

    Args:
        device: The device.
        name: For messages and threads.
    """

    def __init__(self, device: "CudaDevice", name: str) -> None:
        self.device = device
        self.gpu = device.gpu
        self.name = name
        self.is_closed = False
        self.capture: CudaCapture | None = None
        self.gpu.enter()
        self.handle = driver.make_stream()
        # Three fault words, and one that is spare. They stay with the stream for good: a kernel
        # of a program that is still enqueued may write there.
        self.words = FaultWords(self.gpu.pinned.take_quad(), name)
        self.unchecked: set[FaultWords] = set()  # words that some command since may have written
        self.transfers = Transfers(self)
        self._times: StreamTimes | None = None
        self._has_ended = False
        self._blas: tuple[int, int] | None = None
        self.faults = ErrorState()
        self.backlog = Backlog(name, self.faults)
        # Also when nobody closes the stream, and at the end of the process.
        self._cancel = weakref.finalize(self, self.backlog.cancel)

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
        if self._has_ended:
            return []
        if self.capture is not None:  # it may not be asked, and nothing of the capture runs
            return [m for m in self.capture.before if not m.is_done()]
        self.gpu.enter()
        return [self.marker()] if is_busy(self.handle) else []

    def marker(self) -> Marker:
        """Record an event of the driver here."""
        marker = Marker(self.gpu)
        driver.check(record_event(marker.handle, self.handle), "cuEventRecord")
        return marker

    def failed(self, command: str, error: Exception) -> DeviceFault:
        """Poison the stream; return the fault."""
        fault = DeviceFault(f"{command} failed", where=self.name, why=str(error), hint=LOST)
        self.faults.poison(fault)
        return fault

    # --- enqueueing ----------------------------------------------------------------------------

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        """Copy host bytes into a buffer (CPY-4)."""
        self._require_usable()
        checks.check_upload(self.device, source, buffer, offset)
        address = address_of_buffer(buffer) + offset
        if source.nbytes:
            self._give("upload", lambda: self.transfers.upload(source, address))

    def download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        """Copy bytes of a buffer into host memory (CPY-5)."""
        self._require_usable()
        checks.check_download(self.device, buffer, offset, target)
        address = address_of_buffer(buffer) + offset
        if target.nbytes:
            self._give("download", lambda: self.transfers.download(address, target))

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
                    if self.capture is not None:
                        self.capture.flush(self)
                    driver.enqueue_copy(to, source, nbytes, self.handle)
                case (None, int(to)):
                    piece = memoryview(host)[src_offset : src_offset + nbytes]
                    self.transfers.upload(piece, to)
                case (int(source), None):
                    piece = memoryview(host)[dst_offset : dst_offset + nbytes]
                    self.transfers.download(source, piece)

        if nbytes:
            self._give("copy", enqueue)

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        """Set bytes of a buffer to a repeated pattern (FIL-1..3); a memset node where captured."""
        self._require_usable()
        checks.check_fill(self.device, buffer, offset, nbytes, pattern)
        address, repeated = address_of_buffer(buffer) + offset, bytes(pattern)

        def enqueue() -> None:
            if self.capture is not None:
                self.capture.flush(self)
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
        if self._is_behind:
            steps = program.steps
            self._keep("launch", lambda: self._launch(program, steps))
        else:
            self._launch(program, program.steps)

    def _launch(self, program: CudaProgram, steps: Sequence[Step]) -> None:
        if self.capture is not None:
            self.capture.flush(self)
        if program.checks_ids:
            self.note_ids(self.words)
        if self._times is not None:
            steps = self._times.around(steps, program.labels)
        sending = program.sending if self.capture is not None and self._times is None else None
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
            self.failed(program.labels[done], error)
            return
        if sending is not None and self.capture is not None:
            self.capture.put_off[self].launch(sending)

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
        if self.capture is not None:
            self.capture.flush(self)
            event.mark(Point(self.marker(), (), self.name), self.capture)
            return
        fault = self.faults.known()
        if self.backlog.is_pending:
            late: LatePoint[Point] = LatePoint(self.name)
            event.mark(late)
            self.backlog.add("record", self._entering(lambda: late.issue(self.point())), late.drop)
        else:
            try:
                event.mark(self.point())
            except CudaError as error:
                raise self.failed("record", error) from error
        if fault is not None:
            raise reraise_copy(fault)

    def wait(self, event: Event) -> None:
        """Hold later commands until an event is done (EVT-2, EVT-4)."""
        self._require_usable()
        checks.check_wait(self.device, event)
        if self.capture is not None:
            self.capture.wait(self, event)
        elif isinstance(event, CudaEvent):
            point = event.point
            if isinstance(point, LatePoint):
                self._wait_late(point)
            elif self.backlog.is_pending:
                self.backlog.add("wait", self._entering(lambda: self._wait_native(point)))
            else:
                self._wait_native(point)
        elif not succeeded(event):
            self.backlog.wait(event, self.device.event_timeout_s)

    def _wait_late(self, late: LatePoint[Point]) -> None:
        if late.issued is None:
            self.backlog.wait_for_point(late)

        def enqueue() -> None:
            assert late.issued is not None  # the backlog has waited for it
            self._wait_native(late.issued)

        self.backlog.run("wait", self._entering(enqueue))

    def _wait_native(self, point: Point) -> None:
        if point.is_done():
            self.faults.poison(point.failure())
        else:
            assert point.marker is not None  # else it is done
            try:
                driver.enqueue_wait(self.handle, point.marker.handle)
            except CudaError as error:
                raise self.failed("wait", error) from error
        self.faults.add(point.verdicts)

    def barrier(self) -> None:
        """Do nothing: a stream keeps launches and copies in order anyway (STR-1)."""
        self._require_usable()

    def replay(self, graph: CudaGraph) -> None:
        """Enqueue what was captured, as one command of this stream (CAP-1).

        Raises:
            UsageError: the graph was captured on another stream, or is closed.
        """
        self._require_usable()
        self._require_no_capture("replay")
        executable, words = graph.executable_on(self), graph.words
        if self._is_behind:
            self._keep("replay", lambda: self._replay(executable, words))
        else:
            self._replay(executable, words)

    def _replay(self, executable: Any, every: Iterable[FaultWords]) -> None:
        for words in every:
            self.note_ids(words)
        times = self._times
        if times is not None:
            times.begin()
        result = driver.launch_graph(executable, self.handle)
        if times is not None:
            times.end()
        if result[0]:
            self.failed("replay", CudaError("cuGraphLaunch", int(result[0]), str(result[0])))

    # --- waiting -------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Whether everything enqueued so far is complete."""
        if self.is_closed:
            raise checks.closed_error("stream")
        self._require_no_capture("is_done")
        if self.backlog.is_pending:
            return False
        self.gpu.enter()
        return not is_busy(self.handle)

    def sync(self, timeout_s: float) -> None:
        """Block until everything enqueued is complete (STR-5)."""
        self._require_usable()
        self._require_no_capture("sync")
        handle, left_s = self.handle, self.backlog.drain(POLLING, timeout_s)
        self.faults.require_none()
        if not POLLING.wait_until(lambda: not is_busy(handle), left_s):
            raise late_error(self.name, timeout_s)
        self.transfers.all_done()
        result = driver.query_stream(handle)
        if result[0]:
            raise self.failed("a command", CudaError("stream", int(result[0]), str(result[0])))
        for words in self.unchecked:
            self.faults.poison(words.fault())
        self.unchecked.clear()
        self.faults.require_none()
        self.faults.all_is_well()

    def close(self) -> None:
        """Release the stream; legal twice and after a fault (ERR-3).

        Commands that are enqueued still run, also behind a wait that is not over.
        """
        if self.is_closed:
            return
        if self.capture is not None:
            self.capture.abort()
        self.is_closed = True
        self.backlog.finish(self._end)

    def _end(self) -> None:
        self._times = None
        self.gpu.enter()
        marker = Marker(self.gpu)
        record_event(marker.handle, self.handle)
        self.gpu.drain_later(marker, self.transfers.all_done, self._blas)
        self._has_ended = True
        driver.close_stream(self.handle)

    def cancel(self) -> None:
        """Give up waits for events of other backends; what is behind them never takes effect."""
        self._cancel()

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
            self._times = StreamTimes(self)
        return self._times.latest

    # --- helpers -------------------------------------------------------------------------------

    @property
    def _is_behind(self) -> bool:
        """Whether commands have to stay behind those in the backlog; a capture is elsewhere."""
        return self.backlog.is_pending and self.capture is None

    def _give(self, command: str, transfer: Callable[[], None]) -> None:
        """Enqueue a transfer, behind what is in the backlog."""
        if self._is_behind:
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
            raise self.failed(command, error) from error

    def _keep(self, command: str, enqueue: Callable[[], None]) -> None:
        """Put a command into the backlog."""
        times = self._times
        if times is None:
            self.backlog.add(command, self._entering(enqueue))
            return
        late = times.be_late()

        def run() -> None:
            try:
                enqueue()
            finally:
                times.tell(late)

        def drop(_: DeviceFault) -> None:
            late.is_over = True

        self.backlog.add(command, self._entering(run), drop)

    def _entering(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Return a call that makes the GPU's context current before."""

        def run() -> None:
            self.gpu.enter()
            enqueue()

        return run

    def point(self) -> Point:
        """Return the present end of the stream."""
        verdicts = self.faults.verdicts()
        marker = self.marker()
        if self.unchecked:
            pinned = self.gpu.pinned
            made = [
                IdCheck(words, marker.is_done, partial(self._copied, words), pinned)
                for words in self.unchecked
            ]
            self.unchecked.clear()
            self.faults.add(made)
            verdicts += made
        return Point(marker, verdicts, self.name, self.transfers.behind(marker))

    def note_ids(self, words: FaultWords) -> None:
        """Remember that commands from here on may write fault words."""
        if self.capture is not None:
            self.capture.words.add(words)
        else:
            words.before_writing()
            self.unchecked.add(words)

    def _copied(self, words: FaultWords) -> tuple[Quad, Callable[[], bool]]:
        """Copy fault words in the order of the stream."""
        quad = self.gpu.pinned.take_quad()
        if self._has_ended or self.capture is not None:
            return quad, lambda: True
        self.gpu.enter()
        self.transfers.snapshot(words.quad, quad)
        return quad, self.marker().is_done

    def _require_usable(self) -> None:
        """Refuse calls after ``close`` (ERR-3) and after a failed command (ERR-2)."""
        if self.is_closed:
            raise checks.closed_error("stream")
        self.faults.require_none()
        self.gpu.enter()

    def _require_no_capture(self, what: str) -> None:
        if self.capture is not None:
            raise capturing_error(what, self.name)
