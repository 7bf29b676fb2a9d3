"""Streams and programs behind checks; see ``ggsched.backend.checked``."""

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Final, Self

from ggsched.backend import checks
from ggsched.backend.call_log import Call, misuse, new_call_log, with_call_log
from ggsched.backend.checked_constants import ByteSpan, require_apart
from ggsched.backend.checked_parts import CheckedBuffer, CheckedEvent, CheckingDevice
from ggsched.backend.fill import fill
from ggsched.backend.host_borrow import WHOLE_NBYTES, Borrow, address_of, digest
from ggsched.backend.ledger import Clock, join
from ggsched.backend.protocols import Buffer, Event, HostMemory, Program, Stream
from ggsched.errors import DeviceFault, GgschedError

SHADOW_NBYTES: Final = WHOLE_NBYTES
"""Downloads up to this length are made a second time, to see whether the host wrote the target."""


class Guard:
    """What surrounds each call of a stream: one thread at a time (STR-6), a log for errors.

    One object for all calls of a stream, as making one for each would cost as much as the checks.
    """

    __slots__ = ("_called", "_stream", "_user")

    def __init__(self, stream: "CheckedStream") -> None:
        self._stream = stream
        self._user: int | None = None
        self._called: Call | None = None

    def __call__(self, verb: str, *operands: object) -> Self:
        """Note a call that is about to be made."""
        stream, me = self._stream, get_ident()
        user = self._user
        if user is not None and user != me:
            raise misuse(
                "STR-6",
                f"two threads use the stream at once: {verb} of thread {me}, by now in {user}",
                where=stream.name,
                hint="give each thread a stream of its own, or a lock",
                call_log=stream.call_log,
            )
        stream.require_open()
        self._user = me
        self._called = stream.device.ledger.call(stream.name, verb, operands)
        stream.call_log.append(self._called)
        return self

    def __enter__(self) -> Call:
        assert self._called is not None
        return self._called

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: object
    ) -> None:
        self._user = None
        if isinstance(error, GgschedError):
            with_call_log(error, self._stream.name, self._stream.call_log)


class CheckedStream:
    """A stream that checks each command before the backend sees it (STR-1..6, ERR-1).

    Args:
        inner: The backend's stream.
        device: The device behind checks.
        name: For messages.
    """

    def __init__(self, inner: Stream, device: CheckingDevice, name: str) -> None:
        self.inner = inner
        self.device = device
        self.name = name
        self.is_closed = False
        self.call_log = new_call_log()
        self._ledger = device.ledger
        self._number = device.ledger.new_stream()
        self._position = 0
        self._clock: Clock = {}
        self._guard = Guard(self)

    def __getattr__(self, name: str) -> object:
        """Offer what the inner stream offers for interop (INT-3)."""
        if name.startswith("__") and name.endswith("__"):
            return getattr(self.inner, name)
        raise AttributeError(name)

    # --- commands ------------------------------------------------------------------------------

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        """Upload, and watch the source until the command is complete (CPY-4)."""
        with self._guard("upload", _name(buffer), offset, _length(source)) as called:
            checks.check_upload(self.device, source, buffer, offset)
            mine = self._open_buffer(buffer, called)
            borrow = self._lend_source(source, called)
            written = _span(mine, offset, source.nbytes)
            self._enqueue(
                called, (mine,), lambda: self.inner.upload(source, mine.inner, offset), written
            )
            if borrow is not None:
                self._ledger.lend(borrow)

    def download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        """Download, and watch the target until the command is complete (CPY-5)."""
        with self._guard("download", _name(buffer), offset, _length(target)) as called:
            checks.check_download(self.device, buffer, offset, target)
            mine = self._open_buffer(buffer, called)
            start = address_of(target)
            for borrow in self._ledger.borrows(start, start + target.nbytes):
                borrow.give_up()  # this command changes it, and legally if it comes after
            self._enqueue(called, (mine,), lambda: self.inner.download(mine.inner, offset, target))
            lent = Borrow("target", target, start, self._number, self._position, called)
            if 0 < target.nbytes <= SHADOW_NBYTES:
                lent.shadow = memoryview(bytearray(target.nbytes))
                self.inner.download(mine.inner, offset, lent.shadow)
            self._ledger.lend(lent)

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        """Copy between buffers, also of devices that are not checked (CPY-1, CPY-3, CPY-6)."""
        operands = (_name(src), src_offset, _name(dst), dst_offset, nbytes)
        with self._guard("copy", *operands) as called:
            checks.check_copy(self.device, src, src_offset, dst, dst_offset, nbytes)
            used = [b for b in (src, dst) if isinstance(b, CheckedBuffer)]
            for buffer in used:
                buffer.require_open(called)
            a, b = _bare(src), _bare(dst)
            written = _span(dst, dst_offset, nbytes)
            self._enqueue(
                called, used, lambda: self.inner.copy(a, src_offset, b, dst_offset, nbytes), written
            )

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        """Fill a buffer (FIL-1..3)."""
        with self._guard("fill", _name(buffer), offset, nbytes) as called:
            checks.check_fill(self.device, buffer, offset, nbytes, pattern)
            mine = self._open_buffer(buffer, called)
            written = _span(mine, offset, nbytes)
            self._enqueue(
                called,
                (mine,),
                lambda: fill(self.inner, mine.inner, offset, nbytes, pattern),
                written,
            )

    def launch(self, program: Program) -> None:
        """Launch a program of this stream with open buffers and constants (LCH-5, LCH-7)."""
        with self._guard("launch", _name(program)) as called:
            if not isinstance(program, CheckedProgram) or program.stream is not self:
                raise misuse(
                    "LCH-5",
                    "the program was compiled for another stream",
                    where=str(called),
                    call_log=self.call_log,
                )
            if program.is_closed:
                raise checks.closed_error(f"program {program.name}")
            for buffer in program.buffers:
                buffer.require_open(called)
            self._enqueue(
                called,
                program.buffers,
                lambda: self.inner.launch(program.inner),
                program.writes,
                program.constants,
            )

    def record(self, event: Event) -> None:
        """Record an event, once (EVT-1, EVT-3)."""
        with self._guard("record", _name(event)) as called:
            checks.check_record(self.device, event)
            mine = self._own_event(event)
            mine.call_log.append(called)
            clock = {**self._clock, self._number: self._position + 1}
            try:
                self._enqueue(called, (), lambda: self.inner.record(mine.inner))
            finally:
                if mine.inner.is_recorded:  # also on a stream that is poisoned already (EVT-6)
                    mine.clock = clock

    def wait(self, event: Event) -> None:
        """Wait for an event that was recorded (EVT-2, EVT-3, EVT-4)."""
        with self._guard("wait", _name(event)) as called:
            checks.check_wait(self.device, event)
            if isinstance(event, CheckedEvent):
                bare = event.inner
                event.call_log.append(called)
            else:
                bare = event
            self._enqueue(called, (), lambda: self.inner.wait(bare))
            if isinstance(event, CheckedEvent) and event.clock is not None:
                join(self._clock, event.clock)

    def barrier(self) -> None:
        """Pass a barrier on (STR-1)."""
        with self._guard("barrier") as called:
            self._enqueue(called, (), self.inner.barrier)

    # --- waiting -------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Whether all is complete; if so the host knows it (STR-3, STR-6)."""
        self.require_open()
        done = self.inner.is_done
        if done:
            self._learn()
        return done

    def sync(self, timeout_s: float) -> None:
        """Block until all is complete, then look at what was borrowed (STR-5)."""
        with self._guard("sync", timeout_s):
            self._run(lambda: self.inner.sync(timeout_s))
            self._learn()

    def close(self) -> None:
        """Release the stream; legal twice and after a fault (ERR-3)."""
        if not self.is_closed:
            self.is_closed = True
            self.call_log.append(self._ledger.call(self.name, "close"))
        self.inner.close()

    # --- helpers -------------------------------------------------------------------------------

    def require_open(self) -> None:
        """Refuse a stream that was closed (ERR-3)."""
        if self.is_closed or self.device.is_closed:
            raise with_call_log(
                checks.closed_error(f"stream {self.name}"), self.name, self.call_log
            )

    def _enqueue(
        self,
        called: Call,
        buffers: Sequence[CheckedBuffer],
        call: Callable[[], None],
        writes: Sequence[ByteSpan] = (),
        constants: Sequence[ByteSpan] = (),
    ) -> None:
        """Pass a command on, and note which buffers it uses."""
        require_apart(called, writes, constants)
        self._run(call)
        self._position += 1
        for buffer in buffers:
            buffer.use(self._number, self._position, called)
        for span in writes:
            span.buffer.writes.note(span.name, span.ranges, self._number, self._position, called)
        for span in constants:
            span.buffer.constants.note(span.name, span.ranges, self._number, self._position, called)

    def _run(self, call: Callable[[], None]) -> None:
        try:
            call()
        except DeviceFault:
            # What follows a fault comes to an end, and nobody relies on what it writes (ERR-2).
            self._ledger.settle(self._number, self._position)
            raise

    def _learn(self) -> None:
        self._ledger.learn({**self._clock, self._number: self._position})

    def _open_buffer(self, buffer: Buffer, called: Call) -> CheckedBuffer:
        assert isinstance(buffer, CheckedBuffer)  # its device is this one
        buffer.require_open(called)
        return buffer

    def _own_event(self, event: Event) -> CheckedEvent:
        assert isinstance(event, CheckedEvent)  # its device is this one
        return event

    def _lend_source(self, source: HostMemory, called: Call) -> Borrow | None:
        """Return the borrow of a source, or None where nobody borrows it.

        Raises:
            UsageError: a command that is not known to be complete writes it, and it is read now.
        """
        start = address_of(source)
        pending = [
            borrow
            for borrow in self._ledger.borrows(start, start + source.nbytes)
            if borrow.kind == "target"
        ]
        if self.device.facts.snapshots_uploads:
            if pending:
                raise misuse(
                    "CPY-4",
                    "the source is read now, and a download into it may be under way",
                    where=str(called),
                    why=f"the host does not know that {pending[0].call} is complete",
                    hint="sync that stream first: uploads of this device take snapshots",
                    call_log=self.call_log,
                )
            return None
        borrow = Borrow("source", source, start, self._number, self._position + 1, called)
        if not pending:
            borrow.digest = digest(source)
        return borrow


class CheckedProgram:
    """A program that knows its stream, its buffers and its constants (LCH-1, LCH-5, LCH-7)."""

    def __init__(
        self,
        inner: Program,
        stream: CheckedStream,
        name: str,
        buffers: tuple[CheckedBuffer, ...],
        spans: tuple[tuple[ByteSpan, ...], tuple[ByteSpan, ...]],
    ) -> None:
        self.inner = inner
        self.stream = stream
        self.name = name
        self.buffers = buffers
        self.writes, self.constants = spans
        self.is_closed = False

    def close(self) -> None:
        """Release it; legal twice and before its launches are complete (ERR-3, LCH-1)."""
        if not self.is_closed:
            self.is_closed = True
            self.stream.device.ledger.call(self.name, "close")
        self.inner.close()


def _name(thing: object) -> str:
    name = getattr(thing, "name", None)
    return name if isinstance(name, str) else type(thing).__name__


def _length(memory: object) -> int:
    nbytes = getattr(memory, "nbytes", -1)
    return nbytes if isinstance(nbytes, int) else -1


def _span(buffer: Buffer, offset: int, nbytes: int) -> tuple[ByteSpan, ...]:
    """Return bytes that a transfer writes, if they are of a device that is checked."""
    if not isinstance(buffer, CheckedBuffer) or not nbytes:
        return ()
    ends = offset, offset + nbytes
    return (ByteSpan(buffer, ends, (ends,)),)


def _bare(buffer: Buffer) -> Buffer:
    return buffer.inner if isinstance(buffer, CheckedBuffer) else buffer
