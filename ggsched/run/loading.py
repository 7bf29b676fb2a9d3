"""Loads weights onto devices: pieces of files are read by several threads, several on their way.

One thread that copies pages of a mapping into memory that a GPU reads gets a tenth of what the link
takes. So a long weight goes piece by piece through a ring of host memory of its device: threads
read pieces of the file into free buffers (from the system's cache of pages, past the mapping, which
stays untouched), one thread enqueues the uploads in order, and a buffer is free again when the
event behind its upload is done. Nothing waits for the last upload before ``close``.

The thread that enqueues is the loader's own, with streams of its own, so that programs are compiled
meanwhile. It is the caller's where a recorder writes down what happens, and where a device has no
stream left.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from ggsched.backend.fill import fill
from ggsched.backend.plugin_calls import name_of, plugin_call, plugin_faults
from ggsched.backend.processors import usable_processors
from ggsched.backend.progress import progress_of, wait_patiently
from ggsched.backend.protocols import Buffer, Device, Event, HostMemory, Stream
from ggsched.backend.timeouts import start_thread
from ggsched.errors import BackendUnavailable, GgschedError, OutOfDeviceMemory, UsageError
from ggsched.files.mapping import file_behind
from ggsched.run.release import close_all
from ggsched.run.weight_rows import WeightRows

PIECE_NBYTES: Final = 8 << 20
"""Each piece takes the interpreter 0.1 ms, all threads together, which bounds the rate."""

RING: Final = 16
"""Buffers of a device at most: 128 MiB."""

IN_UPLOAD: Final = 4
"""Of these, buffers that are not read into: a link takes one in a tenth of the time of a reader."""

MAX_READERS: Final = RING - IN_UPLOAD
ZERO: Final = bytes(1)

REPORT_INTERVAL_S: Final = 0.05
"""Interval at which ``close``, while it waits for the loader's thread, reports what was sent."""

NoteWrite = Callable[[HostMemory], None]
"""Called with host memory that was written."""


class Loader:
    """Fills buffers of devices. Everything is complete after ``close``, and not before.

    Args:
        stream: Gives the stream of a device that uploads go on.
        timeout_s: How long one piece may take.
        note: Called with host memory that was written and that a device reads.
        own_thread: Whether long weights are uploaded by a thread of the loader.
        piece_nbytes: Length of a buffer of the ring; what is no longer needs none.

    Attributes:
        is_cancelled: Whether buffers may hold anything, since ``cancel`` was called.
    """

    def __init__(
        self,
        devices: tuple[Device, ...],
        stream: Callable[[int], Stream],
        *,
        timeout_s: float,
        note: NoteWrite | None = None,
        own_thread: bool = False,
        piece_nbytes: int = PIECE_NBYTES,
    ) -> None:
        self._devices, self._stream = devices, stream
        self._timeout_s, self._note = timeout_s, note
        self._piece_nbytes = piece_nbytes
        self._rings: dict[tuple[int, bool], _Ring] = {}  # by device, and whether its stream is ours
        self._readers: ThreadPoolExecutor | None = None
        self._borrowed: list[HostMemory] = []
        self._used: set[int] = set()
        self._failure: BaseException | None = None
        self.is_cancelled = False
        self._jobs: deque[_Job] = deque()
        self._thread: threading.Thread | None = None
        self._own_thread, self._own = own_thread, dict[int, Stream | None]()
        self._switching = ExitStack()
        self._sent: deque[Callable[[], None]] = deque()

    def clear(self, device: int, buffer: Buffer) -> None:
        """Enqueue zeros for all of a buffer."""
        self._used.add(device)
        with plugin_faults(name_of(self._devices[device]), "fill"):
            fill(self._stream(device), buffer, 0, buffer.nbytes, ZERO)

    def upload(
        self,
        device: int,
        buffer: Buffer,
        data: HostMemory | WeightRows,
        name: str = "",
        sent: Callable[[], None] | None = None,
    ) -> None:
        """Enqueue the bytes of a buffer; data is borrowed until ``close``.

        Args:
            device: Index of the device.
            data: The bytes.
            name: What they are, for a note in the error if they cannot be read.
            sent: Called when most of them have been enqueued, on the thread that calls the loader.
        """
        if self._failure is not None:
            return  # ``close`` raises it
        job = _Job(device, buffer, data, name, sent)
        if data.nbytes <= self._piece_nbytes or self._devices[device].facts.is_host:
            if isinstance(data, WeightRows):
                data = data.joined()
            stream = self._stream(device)
            self._used.add(device)
            with plugin_faults(name_of(stream.device), "upload"):
                stream.upload(data, buffer, 0)
            self._borrowed.append(data)
            self._sent += [] if sent is None else [sent]
        elif (own := self._own_stream(device)) is None:
            self._used.add(device)
            self._upload_pieces(job, self._stream(device))
        elif isinstance(data, WeightRows) or file_behind(data) is not None:
            self._jobs.append(job)  # it takes no memory to let it wait
        else:
            self._upload_pieces(job, own)
        self._report_sent()

    def read(self, data: HostMemory, target: HostMemory) -> None:
        """Copy bytes to host memory, by several threads, and wait for it."""
        pool, step = self._pool(), self._piece_nbytes
        reads = [
            pool.submit(read_bytes, data[start : start + step], target[start : start + step])
            for start in range(0, data.nbytes, step)
        ]
        wait(reads)
        for reading in reads:
            reading.result()

    def begin(self) -> None:
        """Let long weights be uploaded from now on; else ``close`` does.

        Before that the caller allocates memory, which would wait for the interpreter at each call
        of the driver: 0.30 to 0.47 s for an 8B beside an upload (H200).
        """
        if self._thread is None and self._jobs:
            self._pool()
            thread = threading.Thread(target=self._work, name="ggsched uploads", daemon=True)
            with suppress(BackendUnavailable):  # then ``close`` uploads
                start_thread(thread, "weights")
                self._thread = thread
                self._switching.enter_context(quick_switching())

    def cancel(self) -> None:
        """Leave out what is not on its way; buffers that were to be filled hold anything."""
        self.is_cancelled = True

    def close(self) -> None:
        """Wait for everything, and release what loading needed; legal twice.

        Raises:
            DeviceFault: an upload failed.
            ModelError: a file could not be read. A note names what was to be filled.
            SyncTimeout: one did not come to its end.
        """
        try:
            self._end_thread()
        except BaseException:
            self.cancel()
            self._end_thread()
            raise
        finally:
            self._close()

    def _close(self) -> None:
        rings, self._rings = self._rings, {}
        used, self._used = self._used, set()
        own, self._own = self._own, {}
        streams = [self._stream(d) for d in sorted(used)] + [s for s in own.values() if s]
        try:
            for ring in rings.values():
                while ring.pieces:
                    self._send(ring)
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
        finally:
            self._end_reads()
            try:
                _sync_all(streams, self._timeout_s)
            finally:
                close_all([*rings.values(), *(s for s in own.values() if s)])
                self._borrowed.clear()

    def _upload_pieces(self, job: "_Job", stream: Stream) -> None:
        """Take a long weight through the ring of a stream."""
        device, buffer, data, name, sent = job
        key, step = (device, stream is self._own.get(device)), self._piece_nbytes
        ring = self._rings.get(key)
        if ring is None:
            ring = self._rings[key] = _Ring(stream, step, self._timeout_s)
        for start in range(0, data.nbytes, step):
            ring.grow()
            while ring.is_full:
                if not self._send(ring):
                    return
            target = ring.take(min(step, data.nbytes - start))
            if isinstance(data, WeightRows):
                read = self._pool().submit(data.read_into, target, start)
            else:
                read = self._pool().submit(read_bytes, data[start : start + step], target)
            ring.pieces.append(_Piece(buffer, start, target, read, name))
        self._sent += [] if sent is None else [sent]

    def _report_sent(self) -> None:
        while self._sent:
            self._sent.popleft()()

    # --- the loader's own thread ----------------------------------------------------------------

    def _own_stream(self, device: int) -> Stream | None:
        """Return a stream that no other thread uses, made on first use; None if there is none."""
        if not self._own_thread or self._thread is not None:
            return None
        if device not in self._own:
            owner = self._devices[device]
            try:
                made = plugin_call(name_of(owner), "create_stream", owner.create_stream, Stream)
            except UsageError:  # more than ``max_streams``
                made = None
            self._own[device] = made
        return self._own[device]

    def _work(self) -> None:
        """Upload the weights that wait; what goes wrong is raised by ``close``."""
        name = ""
        try:
            while self._jobs and self._failure is None and not self.is_cancelled:
                job = self._jobs.popleft()
                name, stream = job.name, self._own[job.device]
                assert stream is not None  # or the caller had uploaded it
                self._upload_pieces(job, stream)
            for ring in [ring for (_, is_own), ring in self._rings.items() if is_own]:
                while ring.pieces:
                    self._send(ring)
        except BaseException as error:
            error.add_note(f"while filling {name!r}")
            self._failure = error

    def _end_thread(self) -> None:
        """Wait until all has been enqueued, or given up."""
        thread = self._thread
        if thread is not None:
            while thread.is_alive():
                thread.join(REPORT_INTERVAL_S)
                self._report_sent()
            self._thread = None
            self._switching.close()
        self._work()
        self._jobs.clear()
        self._report_sent()

    def _end_reads(self) -> None:
        """Let nobody write to the rings any more."""
        if self._readers is not None:
            self._readers.shutdown(cancel_futures=True)
            self._readers = None

    def _send(self, ring: "_Ring") -> bool:
        """Enqueue the upload of the piece that was requested first, when it has been read.

        Returns:
            Whether it could be read, and all pieces before it; ``close`` raises what went wrong.
        """
        if self._failure is not None or self.is_cancelled:
            ring.pieces.clear()
            return False
        piece = ring.pieces.popleft()
        try:
            piece.read.result()
        except Exception as error:  # of a weight that another may have come behind by now
            error.add_note(f"while filling {piece.name!r}")
            self._failure = error
            return False
        if self._note is not None:
            self._note(piece.target)
        ring.upload(piece.target, piece.buffer, piece.start)
        return True

    def _pool(self) -> ThreadPoolExecutor:
        if self._readers is None:
            self._readers = ThreadPoolExecutor(reader_count(), "ggsched reader")
        return self._readers


class _Job(NamedTuple):
    """A long weight that is to be uploaded."""

    device: int
    buffer: Buffer
    data: HostMemory | WeightRows
    name: str
    sent: Callable[[], None] | None


class _Piece(NamedTuple):
    """Bytes that are being read into a buffer of a ring, and where they go."""

    buffer: Buffer
    start: int
    target: HostMemory
    read: Future[None]
    name: str


class _Ring:
    """Host memory of a device in equal buffers, each used again when its upload is done.

    Attributes:
        pieces: What has been taken and is not on its way to the device.
    """

    def __init__(self, stream: Stream, piece_nbytes: int, timeout_s: float) -> None:
        device = stream.device
        self._stream, self._timeout_s = stream, timeout_s
        self._has_events = device.facts.has_events
        self._is_free_at_once = device.facts.snapshots_uploads
        self._buffers: list[HostMemory] = []
        self._piece_nbytes, self._size = piece_nbytes, RING
        self._events: dict[int, Event] = {}
        self._taken = self._sent = 0
        self.pieces: deque[_Piece] = deque()

    @property
    def is_full(self) -> bool:
        """Whether the buffers that are not being read into are all needed for uploads."""
        return len(self.pieces) >= max(1, self._size - min(IN_UPLOAD, self._size // 2))

    def grow(self) -> None:
        """Make the next buffer if it is not there, while others are being read into.

        Where there is no more memory the ring stays as it is, and may be full by that.
        """
        if self._taken % self._size < len(self._buffers):
            return
        device = self._stream.device
        try:
            with plugin_faults(name_of(device), "allocate_host"):
                self._buffers.append(device.allocate_host(self._piece_nbytes))
        except OutOfDeviceMemory:
            if not self._buffers:
                raise
            self._size = len(self._buffers)

    def take(self, nbytes: int) -> HostMemory:
        """Return the next buffer, as soon as the upload from it is done."""
        number = self._taken % self._size
        self._taken += 1
        event = self._events.pop(number, None)
        if event is not None:
            with plugin_faults(name_of(self._stream.device), "sync of an event"):
                try:
                    event.sync(self._timeout_s)
                finally:
                    event.close()
        return self._buffers[number][:nbytes]

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        """Enqueue the upload of the buffer that was taken first."""
        stream, number = self._stream, self._sent % self._size
        self._sent += 1
        with plugin_faults(name_of(stream.device), "upload"):
            stream.upload(source.toreadonly(), buffer, offset)
            if self._is_free_at_once:
                return
            if not self._has_events:
                stream.sync(self._timeout_s)
                return
            event = self._events[number] = stream.device.create_event()
            stream.record(event)

    def close(self) -> None:
        """Release the events; uploads must be complete."""
        close_all(self._events.values())
        self._events.clear()
        self._buffers.clear()


def _sync_all(streams: Iterable[Stream], timeout_s: float) -> None:
    """Wait for all streams, also if one fails: their buffers may be released then (BUF-2)."""
    first: GgschedError | None = None
    for stream in streams:
        try:
            with plugin_faults(name_of(stream.device), "sync"):
                wait_patiently(stream.sync, partial(progress_of, stream), timeout_s)
        except GgschedError as error:
            first = first or error
    try:
        if first is not None:
            raise first
    finally:
        first = None  # else its traceback keeps this frame, and so the streams, until gc runs


def read_bytes(source: HostMemory, target: HostMemory) -> None:
    """Copy bytes to host memory; from the file itself, where they are mapped from one.

    Raises:
        ModelError: the file has become shorter, or cannot be read.
    """
    found = file_behind(source)
    if found is None:
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
    else:
        file, offset = found
        file.read_into(target, offset)


def reader_count() -> int:
    """Return how many threads read: one for each processor that the process may use, to a limit."""
    return min(MAX_READERS, len(usable_processors()))


# --- the switch interval --------------------------------------------------------------------------

# A thread that comes back from a call of a driver waits for the interpreter until the thread that
# has it has had it for the switch interval, 5 ms by default, in which a link takes as much as is
# on its way. With a tenth of that an upload beside a thread that plans or compiles keeps most of
# its rate.


INTERVAL_S: Final = 5e-4

_LOCK: Final = threading.Lock()
_before: list[float] = []
"""The interval to come back to, once for each block that is open."""


@contextmanager
def quick_switching() -> Iterator[None]:
    """Let the switch interval of the process be short in the block; blocks of threads may overlap.

    What somebody else sets meanwhile stays.
    """
    with _LOCK:
        _before.append(_before[0] if _before else sys.getswitchinterval())
        if len(_before) == 1:
            sys.setswitchinterval(min(INTERVAL_S, _before[0]))
    try:
        yield
    finally:
        with _LOCK:
            before = _before.pop()
            is_ours = abs(sys.getswitchinterval() - min(INTERVAL_S, before)) < 1e-6
            if not _before and is_ours:
                sys.setswitchinterval(before)
