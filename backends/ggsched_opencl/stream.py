"""A stream is an in-order queue. The newest command stands for all before it."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Protocol

from ggsched.backend import checks
from ggsched.backend.protocols import Buffer, Event, HostMemory, Program
from ggsched.backend.queued.command_queue import CommandQueue
from ggsched.backend.timing import Latest, LateTaken, Taken
from ggsched.errors import DeviceFault, UsageError
from ggsched_kernels.fault_words import FAULT_WORDS, FaultCodes
from ggsched_opencl import driver
from ggsched_opencl.async_errors import IdCheck
from ggsched_opencl.buffer import readable, writable
from ggsched_opencl.driver import COMPLETE, Handle, status_of
from ggsched_opencl.event import OpenClEvent, Point
from ggsched_opencl.polling import POLLING
from ggsched_opencl.program import OpenClProgram, ProgramDevice, Step
from ggsched_opencl.times import ClockMatch, OpenClTaken


class StreamDevice(ProgramDevice, Protocol):
    """What streams use of their device."""

    event_timeout_s: float

    def drain_later(self, queue: Handle, newest: Handle, held: deque[Handle]) -> None:
        """Keep the queue of a closed stream until its commands are complete."""


class OpenClStream(CommandQueue[Point]):
    """An in-order queue of commands (STR-1..6).

    Args:
        device: The device.
        name: For messages and threads.
    """

    def __init__(self, device: StreamDevice, name: str) -> None:
        super().__init__(name, device.event_timeout_s)
        self.device = device
        self.is_closed = False
        self.queue = driver.make_queue(device.context)
        self._match: ClockMatch | None = None
        self._taken: Taken | None = None
        self._late_taken: LateTaken | None = None  # of the command that leaves the backlog
        self._words: Handle = None
        self.codes = FaultCodes(name)
        self._ids_unchecked = False
        self._newest: Handle = None
        self._held: deque[Handle] = deque()  # transfers, which hold host memory (CPY-4, CPY-5)

    # --- for programs ------------------------------------------------------------------------

    @property
    def fault_words(self) -> Handle:
        """Device memory where kernels leave the code of a node that met a bad id."""
        if self._words is None:
            self._words = driver.make_filled_buffer(self.device.context, bytes(4 * FAULT_WORDS))
        return self._words

    # --- enqueueing ----------------------------------------------------------------------------

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        """Copy host bytes into a buffer (CPY-4)."""
        self._require_usable()
        checks.check_upload(self.device, source, buffer, offset)
        self._upload(source, buffer, offset)

    def _upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        handle = writable(buffer)

        def enqueue() -> None:
            before = perf_counter()
            with self._refusing("upload"):
                self._hold(driver.enqueue_upload(self.queue, source, handle, offset))
            self._take_newest(before)

        if source.nbytes:
            self.give("upload", enqueue)

    def download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        """Copy bytes of a buffer into host memory (CPY-5)."""
        self._require_usable()
        checks.check_download(self.device, buffer, offset, target)
        self._download(buffer, offset, target)

    def _download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        handle = readable(buffer)

        def enqueue() -> None:
            before = perf_counter()
            with self._refusing("download"):
                self._hold(driver.enqueue_download(self.queue, handle, offset, target))
            self._take_newest(before)

        if target.nbytes:
            self.give("download", enqueue)

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        """Copy between buffers, of which one may be in host memory (CPY-1, CPY-3, CPY-6)."""
        self._require_usable()
        checks.check_copy(self.device, src, src_offset, dst, dst_offset, nbytes)
        if src.device is not self.device:
            self._upload(src.host_view()[src_offset : src_offset + nbytes], dst, dst_offset)
            return
        if dst.device is not self.device:
            target = dst.host_view()[dst_offset : dst_offset + nbytes]
            checks.check_host_memory(target, "copy", written=True)
            self._download(src, src_offset, target)
            return
        origin, target_handle = readable(src), writable(dst)

        def enqueue() -> None:
            before = perf_counter()
            with self._refusing("copy"):
                self._newest = driver.enqueue_copy(
                    self.queue, origin, src_offset, target_handle, dst_offset, nbytes
                )
                driver.flush(self.queue)
            self._take_newest(before)

        if nbytes:
            self.give("copy", enqueue)

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        """Set bytes of a buffer to a repeated pattern (FIL-1..3)."""
        self._require_usable()
        checks.check_fill(self.device, buffer, offset, nbytes, pattern)
        handle, repeated = writable(buffer), bytes(pattern)

        def enqueue() -> None:
            before = perf_counter()
            with self._refusing("fill"):
                self._newest = driver.enqueue_fill(self.queue, handle, offset, nbytes, repeated)
                driver.flush(self.queue)
            self._take_newest(before)

        if nbytes:
            self.give("fill", enqueue)

    def launch(self, program: Program) -> None:
        """Run a program that was compiled for this stream (LCH-1..5)."""
        self._require_usable()
        if not isinstance(program, OpenClProgram) or program.stream is not self:
            raise checks.foreign_program_error(self.name)
        if program.is_closed:
            raise checks.closed_error("program")
        if not program.steps:
            return
        if self.backlog.is_pending:
            self.give("launch", partial(self._launch, program, program.steps))
        else:
            self._launch(program, program.steps)

    def _launch(self, program: OpenClProgram, steps: Sequence[Step]) -> None:
        queue, enqueue, newest, done = self.queue, driver.enqueue_kernel, self._newest, 0
        timed: list[tuple[str, Handle]] | None = None if self._match is None else []
        before = perf_counter()
        try:
            for kernel, items, group in steps:
                newest = enqueue(queue, kernel, items, group)
                if timed is not None:
                    timed.append((program.labels[done], newest))
                done += 1
        except driver.errors() as error:
            # Some of the nodes are enqueued, so this is no refusal (ERR-1) but a fault (ERR-2).
            self.faults.poison(driver.fault_of(error, program.labels[done], self.name))
        self._newest = newest
        self._take(timed or (), before)
        self._ids_unchecked |= program.checks_ids
        driver.flush(queue)

    def record(self, event: Event) -> None:
        """Let an event stand for everything enqueued so far (EVT-1).

        On a stream that is poisoned already the event is recorded *and* the call raises, so that
        whoever waits for it learns of the fault (EVT-6).
        """
        if self.is_closed:
            raise checks.closed_error("stream")
        checks.check_record(self.device, event)
        assert isinstance(event, OpenClEvent)  # this device's events are
        super().record(event)

    def wait(self, event: Event) -> None:
        """Hold later commands until an event is done (EVT-2, EVT-4)."""
        self._require_usable()
        checks.check_wait(self.device, event)
        super().wait(event)

    def native(self, event: Event) -> OpenClEvent | None:
        """Return an event of this device, which the queue can wait for."""
        own = event.device is self.device
        return event if own and isinstance(event, OpenClEvent) else None

    def enqueue_wait(self, point: Point) -> None:
        """Let the queue wait."""
        before = perf_counter()
        self._newest = driver.enqueue_wait(self.queue, point.handle)
        driver.flush(self.queue)
        self._take_newest(before)

    def hold(self, gate: Handle) -> None:
        """Hold the queue until a user event is complete.

        No rule has this: tests of the contract need it.
        """
        self._require_usable()
        self._newest = driver.enqueue_wait(self.queue, gate)
        driver.flush(self.queue)

    def barrier(self) -> None:
        """Do nothing: the queue keeps launches and copies in order anyway (STR-1)."""
        self._require_usable()

    # --- waiting -------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Whether everything enqueued so far is complete."""
        if self.is_closed:
            raise checks.closed_error("stream")
        if self.backlog.is_pending:
            return False
        return self._newest is None or status_of(self._newest) <= COMPLETE

    def sync(self, timeout_s: float) -> None:
        """Block until everything enqueued is complete (STR-5)."""
        self._require_usable()
        left_s = self.backlog.drain(POLLING, timeout_s)
        self.faults.require_none()
        point = self.point()
        try:
            point.require(left_s)
        except DeviceFault as fault:
            self.faults.poison(fault)
            raise
        self._newest = None
        self._held.clear()
        self.faults.all_is_well()

    def close(self) -> None:
        """Release the stream; legal twice and after a fault (ERR-3).

        Commands that are enqueued still run, also behind a wait that is not over.
        """
        if not self.is_closed:
            self.is_closed = True
            self._taken = None
            self.backlog.finish(self._end)

    def _end(self) -> None:
        self.device.drain_later(self.queue, self._newest, self._held)
        self._newest = None
        self._held = deque()
        self._words = None

    # --- times ---------------------------------------------------------------------------------

    def __take_times__(self) -> Latest:
        """Take times, on a queue that has them; see ``ggsched.backend.timing``.

        Raises:
            UsageError: something was enqueued before.
        """
        if self._newest is not None:
            raise UsageError("the stream has been used", where=self.name, hint="ask at once")
        self.queue = driver.make_queue(self.device.context, is_timed=True)
        self._match = ClockMatch()
        return self._latest

    def _latest(self) -> Taken | None:
        taken, self._taken = self._taken, None
        return taken

    def _take_newest(self, before_s: float) -> None:
        self._take((("", self._newest),), before_s)

    def _take(self, commands: Sequence[tuple[str, Handle]], before_s: float) -> None:
        if self._match is not None and commands:
            taken = OpenClTaken(self._match, commands, before_s, perf_counter())
            if self._late_taken is None:
                self._taken = taken
            else:
                self._late_taken.taken = taken

    # --- helpers -------------------------------------------------------------------------------

    def give(self, command: str, enqueue: Callable[[], None]) -> None:
        """Enqueue a command, behind what is in the backlog."""
        if not self.backlog.is_pending:
            enqueue()
            return
        if self._match is None:
            self.later(command, enqueue)
            return
        late = self._taken = LateTaken()

        def run() -> None:
            self._late_taken = late
            try:
                enqueue()
            finally:
                self._late_taken = None
                late.is_over = True

        def drop(_: DeviceFault) -> None:
            late.is_over = True

        self.later(command, run, drop)

    def _require_usable(self) -> None:
        """Refuse calls after ``close`` (ERR-3) and after a failed command (ERR-2)."""
        if self.is_closed:
            raise checks.closed_error("stream")
        self.faults.require_none()

    @contextmanager
    def _refusing(self, command: str) -> Iterator[None]:
        """Let a refusal of the driver name the command; the stream is as before (ERR-1)."""
        try:
            yield
        except driver.errors() as error:
            raise driver.fault_of(error, command, self.name) from error

    def _hold(self, event: Handle) -> None:
        """Keep a transfer until it is complete: dropping it earlier would block."""
        self._newest = event
        held = self._held
        while held and status_of(held[0]) <= COMPLETE:
            held.popleft()
        held.append(event)
        driver.flush(self.queue)

    def point(self) -> Point:
        """Return the present end of the stream."""
        if self._ids_unchecked:
            check = IdCheck(self.codes)
            words = check.words.data.cast("B")
            check.copied = driver.enqueue_download(self.queue, self.fault_words, 0, words)
            self._hold(check.copied)
            self._ids_unchecked = False
            self.faults.add([check])
        return Point(self._newest, self.faults.verdicts(), self.name)
