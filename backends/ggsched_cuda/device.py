"""The device: facts, memory, streams, programs."""

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Final

from ggsched.backend import checks
from ggsched.backend.capture_errors import (
    captured_already_error,
    no_streams_error,
    not_capturable_error,
)
from ggsched.backend.precision import Activations, activations
from ggsched.backend.program import BoundNode
from ggsched.backend.protocols import HostMemory, Stream
from ggsched.backend.timeouts import event_timeout
from ggsched.backend.timing import Clock
from ggsched.errors import DeviceFault, OutOfDeviceMemory, UsageError
from ggsched.topology.caps import DeviceFacts, WaitPath
from ggsched_cuda.async_errors import LOST
from ggsched_cuda.buffer import CudaBuffer
from ggsched_cuda.cuda_context import ALIGNMENT, CudaContext
from ggsched_cuda.driver import CudaError, DeviceInfo
from ggsched_cuda.event import CudaEvent
from ggsched_cuda.graphs import CudaCapture
from ggsched_cuda.kernel_selection import fusions_of, neighbours_of
from ggsched_cuda.polling import POLLING
from ggsched_cuda.program import CudaProgram
from ggsched_cuda.programmatic_launch import FIRST_ARCH, Mode
from ggsched_cuda.stream import CudaStream
from ggsched_kernels import TuningProfile, supported_ops, warp_profile

PARTS: Final = 4
"""Logical devices of a GPU."""

MAX_STREAMS: Final = 16
RESERVED_NBYTES: Final = 2 << 30
"""Of a GPU, for contexts, machine code, and the workspaces of cuBLAS."""


def facts_of(name: str, parts: int, found: DeviceInfo) -> DeviceFacts:
    """Return the facts of a GPU, or of one of ``parts`` logical devices on it."""
    version = f"{found.driver // 1000}.{found.driver % 1000 // 10}"
    memory = max(0, found.memory_nbytes - RESERVED_NBYTES) // parts // ALIGNMENT * ALIGNMENT
    share = f", 1/{parts} of it" if parts > 1 else ""
    return DeviceFacts(
        name=name,
        backend="cuda",
        description=f"{found.name} (sm_{found.arch}, CUDA {version}{share})",
        kind="gpu",
        memory_nbytes=memory,
        alignment=ALIGNMENT,
        max_streams=MAX_STREAMS,
        copy_order="stream",
        has_events=True,
        is_async=True,
        is_deterministic=True,
        ops=supported_ops(),
        fusions=fusions_of(profile_of(found)),
        neighbours=neighbours_of(profile_of(found)),
    )


def profile_of(found: DeviceInfo, activations: Activations = "f32") -> TuningProfile:
    """Return how kernels are cut for a GPU."""
    profile = warp_profile(found.processors, found.shared_nbytes, found.arch >= FIRST_ARCH)
    return replace(profile, activations=activations)


def gpu_of(facts: DeviceFacts) -> int:
    """Return the number of the GPU of a device of this backend."""
    return int(facts.name.partition(":")[2].partition("/")[0])


class CudaDevice:
    """A GPU, or a logical device on one.

    Args:
        GPU: The GPU.
        name: Name of the device.
        parts: How many devices share the GPU's memory.
        timeout_s: How long a stream waits for an event of another backend before it fails;
            ``GGSCHED_TIMEOUT_S`` or 30 if not given.

    ``GGSCHED_ACTIVATIONS`` is read when the device is made.

    Attributes:
        early: How kernels compiled from now on begin (``ggsched_cuda.programmatic_launch``).
        profile: How kernels that are compiled from now on are cut.
    """

    def __init__(
        self, gpu: CudaContext, name: str, parts: int, *, timeout_s: float | None = None
    ) -> None:
        self.gpu = gpu
        self.facts = facts_of(name, parts, gpu.found)
        self.event_timeout_s = event_timeout() if timeout_s is None else timeout_s
        self.early: Mode = "on"
        self.profile: TuningProfile = profile_of(gpu.found, activations())
        self.is_closed = False
        self._lock = threading.RLock()
        self._buffers: weakref.WeakSet[CudaBuffer] = weakref.WeakSet()
        self._streams: weakref.WeakSet[CudaStream] = weakref.WeakSet()
        self._streams_made = 0
        gpu.begin_device()

    # --- memory -------------------------------------------------------------------------------

    @property
    def free_nbytes(self) -> int:
        """Memory that no open buffer holds."""
        with self._lock:
            used = sum(_rounded(b.nbytes) for b in self._buffers)
        return self.facts.memory_nbytes - used

    def allocate(self, nbytes: int) -> CudaBuffer:
        """Return a fresh buffer (BUF-1)."""
        self._require_open()
        if nbytes < 0:
            raise UsageError(f"a buffer of {nbytes} bytes", where=self.facts.name)
        with self._lock:
            if _rounded(nbytes) > min(self.free_nbytes, self.facts.max_allocation_nbytes):
                raise checks.out_of_memory_error(self.facts, nbytes, self.free_nbytes)
            try:
                with faults(self.facts.name, "allocate"):
                    address = self.gpu.take(nbytes)
            except OutOfDeviceMemory as error:
                why = "the GPU gives no more; other programs may use it"
                raise checks.out_of_memory_error(
                    self.facts, nbytes, self.free_nbytes, why
                ) from error
            buffer = CudaBuffer(self, nbytes, address, free=self.gpu.free, forget=self.forget)
            self._buffers.add(buffer)
            return buffer

    def forget(self, buffer: CudaBuffer) -> None:
        """Count the memory of a closed buffer as free."""
        with self._lock:
            self._buffers.discard(buffer)

    def import_host(self, memory: HostMemory) -> CudaBuffer:
        """Refuse: kernels read memory of the GPU only (TRU-1)."""
        self._require_open()
        checks.check_import(self.facts, memory)
        raise AssertionError("not declared")

    def allocate_host(self, nbytes: int) -> HostMemory:
        """Return writable pinned memory."""
        self._require_open()
        with faults(self.facts.name, "allocate_host"):
            self.gpu.enter()
            return self.gpu.pinned.view(nbytes)

    # --- streams, events, programs ------------------------------------------------------------

    def __clock__(self) -> Clock:
        """Return the clock of its streams' times, the host's; see ``ggsched.backend.timing``."""
        return perf_counter

    def create_stream(self) -> CudaStream:
        """Return a new stream."""
        self._require_open()
        with self._lock:
            if sum(not s.is_closed for s in self._streams) >= MAX_STREAMS:
                raise UsageError(
                    f"more than {MAX_STREAMS} streams",
                    where=self.facts.name,
                    hint="close streams that are no longer used",
                )
            with faults(self.facts.name, "create_stream"):
                stream = CudaStream(self, f"{self.facts.name} stream {self._streams_made}")
            self._streams_made += 1
            self._streams.add(stream)
        self.gpu.add(stream)
        self.gpu.sweep()
        return stream

    def create_event(self) -> CudaEvent:
        """Return a fresh event (EVT-1)."""
        self._require_open()
        return CudaEvent(self)

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> CudaProgram:
        """Choose kernels and bind their arguments (LCH-3)."""
        self._require_open()
        checks.check_compile(self, nodes, stream)
        assert isinstance(stream, CudaStream)  # the check has compared its device
        if stream.is_closed:
            raise checks.closed_error("stream")
        with faults(self.facts.name, "compile"):
            return CudaProgram(stream, nodes)

    def begin_capture(self, streams: Sequence[Stream]) -> CudaCapture:
        """Write down what is enqueued on streams from now on instead of running it (CAP-1..4).

        Raises:
            UsageError: no streams, or one of another device, or one that is captured already.
        """
        self._require_open()
        own = [self._own(stream) for stream in streams]
        if not own or len(set(own)) < len(own):
            raise no_streams_error(self)
        return CudaCapture(self.gpu, own)

    def _own(self, stream: Stream) -> CudaStream:
        if not isinstance(stream, CudaStream) or stream.device is not self:
            raise not_capturable_error(stream, self)
        if stream.is_closed:
            raise checks.closed_error("stream")
        if stream.sink.is_capturing:
            raise captured_already_error(stream.name)
        return stream

    def copies_with(self, other: DeviceFacts) -> bool:
        """Whether streams copy from and to buffers of another device (CPY-6).

        Host memory, and GPUs that this one reaches.
        """
        if other.backend == self.facts.backend:
            mine, theirs = self.gpu.found.ordinal, gpu_of(other)
            return mine == theirs or theirs in self.gpu.peers
        return other.is_host

    def wait_path(self, other: DeviceFacts) -> WaitPath:
        """How streams wait for events of another device (EVT-4)."""
        if not other.has_events:
            return "host"
        if other.backend == self.facts.backend:
            return "native"
        return "thread"

    # --- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Close every stream and every buffer; legal twice (ERR-3).

        Waits for events of other backends that are not over are given up, and what is behind them.
        """
        if self.is_closed:
            return
        self.is_closed = True
        streams = list(self._streams)
        for stream in streams:
            stream.sink.abort()
        for stream in streams:
            stream.cancel()
        for stream in streams:
            stream.close()
        POLLING.wait_until(self.gpu.sweep, self.event_timeout_s)
        for buffer in list(self._buffers):
            buffer.close()
        self.gpu.end_device(self.event_timeout_s)

    def _require_open(self) -> None:
        if self.is_closed:
            raise checks.closed_error(f"device {self.facts.name}")


@contextmanager
def faults(where: str, what: str) -> Iterator[None]:
    """Let an error of the driver be a fault of the device."""
    try:
        yield
    except CudaError as error:
        raise DeviceFault(f"{what} failed", where=where, why=str(error), hint=LOST) from error


def _rounded(nbytes: int) -> int:
    return max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)
