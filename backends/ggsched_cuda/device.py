"""The device: facts, memory, streams, programs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from ggsched.backend import checks
from ggsched.backend.base import physical_memory_nbytes
from ggsched.backend.capture import captures_beside
from ggsched.backend.capture_errors import (
    captured_already_error,
    no_streams_error,
    not_capturable_error,
)
from ggsched.backend.precision import Activations, Precision, activations, precision
from ggsched.backend.program import BoundNode
from ggsched.backend.protocols import Buffer, HostMemory, Stream
from ggsched.backend.queued.device import QueuedDevice
from ggsched.errors import DeviceFault
from ggsched.topology.caps import DeviceFacts
from ggsched_cuda.async_errors import LOST
from ggsched_cuda.buffer import CudaBuffer
from ggsched_cuda.cuda_context import ALIGNMENT, CudaContext
from ggsched_cuda.driver import CudaError, DeviceInfo
from ggsched_cuda.event import POLLING, CudaEvent
from ggsched_cuda.graphs import CudaCapture
from ggsched_cuda.program import CudaProgram
from ggsched_cuda.stream import CudaStream
from ggsched_cuda_kernels.kernel_selection import fusions_of, neighbours_of
from ggsched_cuda_kernels.programmatic_launch import FIRST_ARCH, Mode
from ggsched_kernels import TuningProfile, supported_ops, warp_profile

PARTS: Final = 4
"""Logical devices of a GPU."""

MAX_STREAMS: Final = 16
RESERVED_NBYTES: Final = 2 << 30
"""Of a GPU, for contexts, machine code, and the workspaces of cuBLAS."""


def facts_of(
    name: str,
    parts: int,
    found: DeviceInfo,
    *,
    reads_peers: bool = True,
    precision: Precision = "f32",
) -> DeviceFacts:
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
        takes_expert_ranges=True,
        reads_peers=reads_peers,
        precision=precision,
        ops=supported_ops("cuda", has_f64=True),
        fusions=fusions_of(profile_of(found)),
        neighbours=neighbours_of(profile_of(found)),
    )


def profile_of(
    found: DeviceInfo, activations: Activations = "f32", *, reads_peers: bool = False
) -> TuningProfile:
    """Return how kernels are cut for a GPU."""
    profile = warp_profile(found.processors, found.shared_nbytes, found.arch >= FIRST_ARCH)
    return replace(
        profile,
        activations=activations,
        reads_peers=reads_peers,
        group_mma=found.arch == FIRST_ARCH,
    )


def gpu_of(facts: DeviceFacts) -> int:
    """Return the number of the GPU of a device of this backend."""
    return int(facts.name.partition(":")[2].partition("/")[0])


class CudaDevice(QueuedDevice[CudaStream]):
    """A GPU, or a logical device on one.

    Args:
        name: Name of the device.
        parts: How many devices share the GPU's memory.
        timeout_s: See ``QueuedDevice``.

    ``GGSCHED_ACTIVATIONS`` and ``GGSCHED_PRECISION`` are read when the device is made.

    Attributes:
        early: How kernels compiled from now on begin (``programmatic_launch`` of the kernels).
        profile: How kernels that are compiled from now on are cut.
    """

    polling = POLLING
    event_type = CudaEvent

    def __init__(
        self, gpu: CudaContext, name: str, parts: int, *, timeout_s: float | None = None
    ) -> None:
        peers, rounded = gpu.reads_peers, precision()
        facts = facts_of(name, parts, gpu.found, reads_peers=peers, precision=rounded)
        super().__init__(facts, timeout_s)
        self.gpu = gpu
        self.early: Mode = "on"
        profile = profile_of(gpu.found, activations(), reads_peers=peers)
        self.profile: TuningProfile = replace(profile, precision=rounded)
        gpu.begin_device()

    # --- memory -------------------------------------------------------------------------------

    def counted_nbytes(self, nbytes: int) -> int:
        """Return what a buffer takes of the device's memory."""
        return max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)

    def acquire_memory(self, nbytes: int) -> int:
        """Return the address of fresh memory."""
        with faults(self.facts.name, "allocate"):
            return self.gpu.take(nbytes)

    def make_buffer(self, nbytes: int, memory: int) -> CudaBuffer:
        """Return a buffer over fresh memory."""
        return CudaBuffer(self, nbytes, memory, self.gpu.free)

    def allocate_host(self, nbytes: int) -> HostMemory:
        """Return writable pinned memory."""
        self._require_open()
        checks.check_length(self.facts, nbytes)
        if nbytes > physical_memory_nbytes():
            raise checks.no_host_memory_error(self.facts, nbytes)
        with faults(self.facts.name, "allocate_host"):
            self.gpu.enter()
            return self.gpu.pinned.view(nbytes)

    def __page_lock__(self, memory: HostMemory) -> Callable[[], None] | None:
        """Lock pages of host memory of others; see ``ggsched.backend.page_lock``."""
        self._require_open()
        with faults(self.facts.name, "lock pages"):
            self.gpu.enter()
            unlock = self.gpu.pinned.lock(memory)
        if unlock is None:
            return None

        def release() -> None:
            self.gpu.enter()
            unlock()

        return release

    def reaches(self, buffer: Buffer) -> bool:
        """Whether the driver copies from and to a buffer: of this GPU, or of one it reaches."""
        return isinstance(buffer, CudaBuffer)

    # --- streams and programs -----------------------------------------------------------------

    def make_stream(self, name: str) -> CudaStream:
        """Return a new stream."""
        with faults(self.facts.name, "create_stream"):
            stream = CudaStream(self, name)
        self.gpu.add(stream)
        self.gpu.sweep()
        return stream

    def make_program(self, stream: CudaStream, nodes: Sequence[BoundNode]) -> CudaProgram:
        """Choose kernels and bind their arguments (LCH-3)."""
        with faults(self.facts.name, "compile"):
            return CudaProgram(stream, nodes)

    def begin_capture(self, streams: Sequence[Stream]) -> CudaCapture:
        """Write down what is enqueued on streams from now on instead of running it (CAP-1..4).

        Raises:
            UsageError: no streams, one of a device that is no peer (COL-4), or one that is
                captured already.
        """
        self._require_open()
        taken: list[CudaStream] = []
        for stream in streams:
            is_able = captures_beside(self, taken, stream)
            if not is_able or not isinstance(stream, CudaStream):
                raise not_capturable_error(stream, self)
            if stream.is_closed:
                raise checks.closed_error("stream")
            if stream.sink.is_capturing:
                raise captured_already_error(stream.name)
            taken.append(stream)
        if not taken or len(set(taken)) < len(taken):
            raise no_streams_error(self)
        return CudaCapture(self.gpu, taken)

    def copies_with(self, other: DeviceFacts) -> bool:
        """Whether streams copy from and to buffers of another device (CPY-6).

        Host memory, and GPUs that this one reaches.
        """
        if other.backend == self.facts.backend:
            mine, theirs = self.gpu.found.ordinal, gpu_of(other)
            return mine == theirs or theirs in self.gpu.peers
        return other.is_host

    def waits_natively(self, other: DeviceFacts) -> bool:
        """Whether streams of the driver wait for events of another device: of any GPU."""
        return other.backend == self.facts.backend

    # --- the end --------------------------------------------------------------------------------

    def is_drained(self) -> bool:
        """Whether everything that closed streams were given is complete."""
        return self.gpu.sweep()

    def end(self) -> None:
        """Release the GPU."""
        self.gpu.end_device(self.event_timeout_s)


@contextmanager
def faults(where: str, what: str) -> Iterator[None]:
    """Let an error of the driver be a fault of the device."""
    try:
        yield
    except CudaError as error:
        raise DeviceFault(f"{what} failed", where=where, why=str(error), hint=LOST) from error
