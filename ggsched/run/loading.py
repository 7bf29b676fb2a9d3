"""Loads weights onto devices: pieces of files are read by several threads, several on their way.

One thread that copies pages of a mapping into memory that a GPU reads gets a tenth of what the link
takes. So a long weight goes piece by piece through a ring of host memory of its device: threads
read pieces of the file into free buffers (from the system's cache of pages, past the mapping, which
stays untouched), the calling thread enqueues the uploads in order, and a buffer is free again when
the event behind its upload is done. Nothing waits for the last upload before ``close``.
"""

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Final

import numpy as np

from ggsched.backend.fill import fill
from ggsched.backend.patience import progress_of, wait_patiently
from ggsched.backend.protocols import Buffer, Device, Event, HostMemory, Stream
from ggsched.errors import OutOfDeviceMemory
from ggsched.interchange.mapped_file import file_behind
from ggsched.run.release import close_all

PIECE_NBYTES: Final = 4 << 20
RING: Final = 12
"""Buffers of a device: 48 MiB."""

MAX_READERS: Final = 8
ZERO: Final = bytes(1)

NoteWrite = Callable[[HostMemory], None]
"""Called with host memory that was written."""


class Loader:
    """Fills buffers of devices. Everything is complete after ``close``, and not before.

    Args:
        devices: All devices.
        stream: Gives the stream of a device that uploads go on.
        timeout_s: How long one piece may take.
        note: Called with host memory that was written and that a device reads.
        piece_nbytes: Length of a buffer of the ring; what is no longer needs none.
    """

    def __init__(
        self,
        devices: tuple[Device, ...],
        stream: Callable[[int], Stream],
        *,
        timeout_s: float,
        note: NoteWrite | None = None,
        piece_nbytes: int = PIECE_NBYTES,
    ) -> None:
        self._devices, self._stream = devices, stream
        self._timeout_s, self._note = timeout_s, note
        self._piece_nbytes = piece_nbytes
        self._rings: dict[int, _Ring] = {}
        self._readers: ThreadPoolExecutor | None = None
        self._borrowed: list[HostMemory] = []
        self._used: set[int] = set()

    def clear(self, device: int, buffer: Buffer) -> None:
        """Enqueue zeros for all of a buffer."""
        self._used.add(device)
        fill(self._stream(device), buffer, 0, buffer.nbytes, ZERO)

    def upload(self, device: int, buffer: Buffer, data: HostMemory) -> None:
        """Enqueue the bytes of a buffer; data is borrowed until ``close``."""
        self._used.add(device)
        stream = self._stream(device)
        step = self._piece_nbytes
        if data.nbytes <= step or self._devices[device].facts.is_host:
            stream.upload(data, buffer, 0)
            self._borrowed.append(data)
            return
        ring = self._rings.get(device)
        if ring is None:
            ring = self._rings[device] = _Ring(stream, step, self._timeout_s)
        reads: deque[tuple[int, HostMemory, Future[None]]] = deque()
        try:
            for start in range(0, data.nbytes, step):
                piece = data[start : start + step]
                if len(reads) == ring.reads:
                    self._send(ring, buffer, *reads.popleft())
                target = ring.take(piece.nbytes)
                reads.append((start, target, self._pool().submit(read_bytes, piece, target)))
            while reads:
                self._send(ring, buffer, *reads.popleft())
        finally:
            wait([reading for _, _, reading in reads])  # after an error: nobody writes any more

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

    def close(self) -> None:
        """Wait for everything, and release what loading needed; legal twice.

        Raises:
            DeviceFault: an upload failed.
            SyncTimeout: one did not come to its end.
        """
        if self._readers is not None:
            self._readers.shutdown()
            self._readers = None
        used, self._used = self._used, set()
        try:
            for device in sorted(used):
                stream = self._stream(device)
                wait_patiently(stream.sync, partial(progress_of, stream), self._timeout_s)
        finally:
            rings, self._rings = self._rings, {}
            close_all(rings.values())
            self._borrowed.clear()

    def _send(
        self, ring: "_Ring", buffer: Buffer, start: int, source: HostMemory, read: "Future[None]"
    ) -> None:
        read.result()
        if self._note is not None:
            self._note(source)
        ring.upload(source, buffer, start)

    def _pool(self) -> ThreadPoolExecutor:
        if self._readers is None:
            self._readers = ThreadPoolExecutor(reader_count(), "ggsched reader")
        return self._readers


class _Ring:
    """Host memory of a device in equal buffers, each used again when its upload is done."""

    def __init__(self, stream: Stream, piece_nbytes: int, timeout_s: float) -> None:
        device = stream.device
        self._stream, self._timeout_s = stream, timeout_s
        self._has_events = device.facts.has_events
        self._is_free_at_once = device.facts.snapshots_uploads
        self._buffers: list[HostMemory] = []
        for _ in range(RING):
            try:
                self._buffers.append(device.allocate_host(piece_nbytes))
            except OutOfDeviceMemory:
                if self._buffers:
                    break
                raise
        self._events: dict[int, Event] = {}
        self._taken = self._sent = 0

    @property
    def size(self) -> int:
        """Number of buffers."""
        return len(self._buffers)

    @property
    def reads(self) -> int:
        """Buffers that are read into at once; uploads are under way from the others."""
        return max(1, self.size // 2)

    def take(self, nbytes: int) -> HostMemory:
        """Return the next buffer, as soon as the upload from it is done."""
        number = self._taken % self.size
        self._taken += 1
        event = self._events.pop(number, None)
        if event is not None:
            try:
                event.sync(self._timeout_s)
            finally:
                event.close()
        return self._buffers[number][:nbytes]

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        """Enqueue the upload of the buffer that was taken first."""
        stream, number = self._stream, self._sent % self.size
        self._sent += 1
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
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(MAX_READERS, allowed or 1))
