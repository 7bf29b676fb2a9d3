"""What all devices on one GPU share: its context, memory, events, machine code."""

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from ggsched.backend.queued.backlog import Backlog
from ggsched_cuda import driver
from ggsched_cuda.blas_kernels import BlasKernels
from ggsched_cuda.driver import NOT_READY, CudaError, DeviceInfo
from ggsched_cuda.event import POLLING, Marker
from ggsched_cuda.pinned import HostCalls, PinnedMemory
from ggsched_cuda.programs import ProgramCache
from ggsched_cuda.rendezvous import RendezvousTurns
from ggsched_cuda.times import GpuClock
from ggsched_cuda_kernels.blas import driver as blas

ALIGNMENT: Final = 256
PATIENCE_S: Final = 10.0  # for zeros


class WorkingStream(Protocol):
    """What keeps memory from being freed: the work of a ``CudaStream``."""

    backlog: Backlog

    def unfinished(self) -> list[Marker]:
        """Return a marker behind all that is enqueued, if some of that is not complete."""


class EnqueuedWork:
    """What keeps memory from being freed, on all GPUs: streams of one read memory of another.

    Attributes:
        lock: Held while any of it changes, and while memory is freed behind it.
        streams: Streams that are open.
        draining: What is left of closed ones: a marker behind their work, what to call when it is
            done, a handle of cuBLAS to take back, and the GPU whose that is.
        turns: Of graphs whose kernels meet.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.turns = RendezvousTurns()
        self.streams: weakref.WeakSet[WorkingStream] = weakref.WeakSet()
        self.draining: list[
            tuple[Marker, Callable[[], None], tuple[int, int] | None, CudaContext]
        ] = []

    def is_pending(self) -> bool:
        """Whether a stream has a backlog, of which the driver does not know."""
        return any(s.backlog.is_pending for s in self.streams)

    def unfinished(self) -> list[Marker]:
        """Return markers behind all that is enqueued and not complete."""
        markers = [m for s in self.streams for m in s.unfinished()]
        return markers + [m for m, *_ in self.draining if not m.is_done()]


class CudaContext:
    """One GPU, opened once in a process (``cuda_contexts.py``).

    Args:
        found: The GPU.
        peers: Numbers of the other GPUs that it can reach.
        pinned: Host memory, which all GPUs share.
        work: What is enqueued, on all GPUs.
        reads_peers: Whether its kernels read memory of every other GPU, and theirs its own.
    """

    def __init__(
        self,
        found: DeviceInfo,
        peers: Sequence[int],
        pinned: PinnedMemory,
        work: EnqueuedWork,
        *,
        reads_peers: bool = True,
    ) -> None:
        self.found = found
        self.peers = tuple(peers)
        self.reads_peers = reads_peers
        self.pinned = pinned
        self.context = driver.context_of(found.ordinal)
        self.enter()
        self.host_calls = HostCalls()
        self.programs = ProgramCache(found.arch)
        self.blas_kernels = BlasKernels()
        self._work, self.turns = work, work.turns
        self._pool = driver.make_pool(found.ordinal, peers)
        self._idle = driver.make_stream()  # never has work of its own
        self._behind = driver.make_stream()  # frees memory behind the work of all streams
        self.clock = GpuClock(self.context, self._idle)
        self._devices = 0  # that are open
        self._events: list[int] = []
        self._blas: list[tuple[int, int]] = []
        self._freed: list[int] = []  # memory that commands in a backlog may use

    def enter(self) -> None:
        """Make the GPU's context current on this thread."""
        driver.enter(self.context)

    # --- devices ------------------------------------------------------------------------------

    def require_use(self) -> None:
        """Check that no fault has ended all work on the GPU.

        Raises:
            CudaError: one has.
        """
        self.enter()
        result = driver.query_stream(self._idle)
        if int(result[0]) != NOT_READY:
            driver.check(result, "cuStreamQuery")

    def begin_device(self) -> None:
        """Count an open device."""
        with self._work.lock:
            self._devices += 1

    def end_device(self, timeout_s: float) -> None:
        """Count a closed device; behind the last one, what is free goes back to the driver.

        Args:
            timeout_s: How long to wait at most for memory that is freed behind other work.
        """
        with self._work.lock:
            self._devices -= 1
            if self._devices:
                return
        with suppress(CudaError):  # of a lost GPU, whose memory is given back with the process
            self.enter()
            if POLLING.wait_until(lambda: not is_busy(self._behind), timeout_s):
                driver.trim_pool(self._pool)

    # --- memory -------------------------------------------------------------------------------

    def take(self, nbytes: int) -> int:
        """Return the address of device memory, also for no bytes at all.

        Raises:
            OutOfDeviceMemory: the driver gives no more.
        """
        self.enter()
        self._free_unused()
        # Kernels copy whole pieces of 16 bytes, the last of a buffer too.
        whole = max(1, -(-nbytes // ALIGNMENT)) * ALIGNMENT
        return driver.take_memory(self._pool, whole, self._idle)

    def take_zeros(self, nbytes: int) -> int:
        """Return the address of device memory that holds zeros.

        Raises:
            OutOfDeviceMemory: the driver gives no more.
        """
        address = self.take(nbytes)
        driver.enqueue_fill(address, nbytes, bytes(4), self._idle)
        POLLING.wait_until(lambda: not is_busy(self._idle), PATIENCE_S)
        return address

    def free(self, address: int) -> None:
        """Free memory when all that is enqueued now is complete (BUF-2); does not block."""
        with self._work.lock:
            self._freed.append(address)
            self._free_unused()

    def _free_unused(self) -> None:
        """Free memory behind all that is enqueued, unless streams have a backlog.

        What is in a backlog may use it, and the driver does not know of that.
        """
        with self._work.lock:
            if not self._freed or self._work.is_pending():
                return
            markers = self._work.unfinished()
            self.enter()
            for marker in markers:
                driver.enqueue_wait(self._behind, marker.handle)
            for address in self._freed:
                driver.give_memory(address, self._behind if markers else self._idle)
            self._freed.clear()

    # --- events -------------------------------------------------------------------------------

    def take_event(self) -> int:
        """Return an event of the driver, of any state."""
        try:
            return self._events.pop()
        except IndexError:
            self.enter()
            return driver.make_event()

    def give_event(self, handle: int) -> None:
        """Take an event back."""
        self._events.append(handle)

    # --- cuBLAS -------------------------------------------------------------------------------

    def take_blas(self, stream: int) -> tuple[int, int]:
        """Return a handle of cuBLAS and its workspace, for one stream alone (LCH-5)."""
        with self._work.lock:
            if self._blas:
                handle, workspace = self._blas.pop()
            else:
                handle, workspace = blas.make_handle(), self.take(blas.WORKSPACE_NBYTES)
        blas.bind_handle(handle, stream, workspace)
        return handle, workspace

    # --- streams ------------------------------------------------------------------------------

    def add(self, stream: WorkingStream) -> None:
        """Count a stream among those whose work keeps memory from being freed."""
        with self._work.lock:
            self._work.streams.add(stream)

    def drain_later(
        self, marker: Marker, finish: Callable[[], None], handle: tuple[int, int] | None
    ) -> None:
        """Call ``finish`` and take a handle of cuBLAS back when a closed stream is through."""
        with self._work.lock:
            self._work.draining.append((marker, finish, handle, self))
            self.sweep()

    def sweep(self) -> bool:
        """Release what closed streams held; return whether all of them are through."""
        with self._work.lock:
            self._free_unused()
            pending = []
            for entry in self._work.draining:
                marker, finish, handle, gpu = entry
                if not marker.is_done():
                    pending.append(entry)
                    continue
                finish()
                if handle is not None:
                    gpu._blas.append(handle)
            self._work.draining = pending
            return all(gpu is not self for *_, gpu in pending)


def is_busy(stream: int) -> bool:
    """Whether a stream of the driver has work; one that failed has none."""
    return int(driver.query_stream(stream)[0]) == NOT_READY


__all__ = ["ALIGNMENT", "CudaContext", "CudaError", "is_busy"]
