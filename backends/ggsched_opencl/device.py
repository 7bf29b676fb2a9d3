"""The device: facts, memory, programs and kernels."""

import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Final

from ggsched.backend import checks
from ggsched.backend.arrays import aligned_bytes
from ggsched.backend.program import BoundNode
from ggsched.backend.protocols import HostMemory, Stream
from ggsched.backend.timeouts import event_timeout
from ggsched.backend.timing import Clock
from ggsched.errors import OutOfDeviceMemory, UsageError
from ggsched.topology.caps import DeviceFacts, WaitPath
from ggsched_kernels import CPU, GPU, TuningProfile, source, supported_fusions, supported_ops
from ggsched_opencl import driver
from ggsched_opencl.buffer import OpenClBuffer
from ggsched_opencl.driver import COMPLETE, DeviceInfo, Handle, status_of
from ggsched_opencl.event import OpenClEvent
from ggsched_opencl.polling import POLLING
from ggsched_opencl.program import OpenClProgram
from ggsched_opencl.stream import OpenClStream

MAX_STREAMS: Final = 64


def facts_of(index: int, found: DeviceInfo) -> DeviceFacts:
    """Return the facts of a device.

    A processor counts as an ``accelerator``, not as ``cpu``: its memory is apart from the host's
    as far as the contract goes, and ``-ngl`` is to place layers there.
    """
    version = " ".join(found.version.split(",")[0].split())
    return DeviceFacts(
        name=f"opencl:{index}",
        backend="opencl",
        description=f"{found.name} ({found.platform}, {version})",
        kind="accelerator" if found.is_cpu else "gpu",
        memory_nbytes=found.memory_nbytes,
        max_allocation_nbytes=found.max_allocation_nbytes,
        alignment=found.alignment,
        max_streams=MAX_STREAMS,
        copy_order="stream",
        has_events=True,
        is_async=True,
        is_deterministic=True,
        imports_host_memory=found.is_cpu,
        ops=supported_ops(),
        fusions=supported_fusions(CPU if found.is_cpu else GPU),
    )


class OpenClDevice:
    """A context of one OpenCL device.

    Args:
        index: Number of the (logical) device.
        found: The OpenCL device.
        profile: How kernels are cut; by the kind of the device if not given.
        timeout_s: How long a stream waits for an event of another backend before it fails;
            ``GGSCHED_TIMEOUT_S`` or 30 if not given.
    """

    def __init__(
        self,
        index: int,
        found: DeviceInfo,
        *,
        profile: TuningProfile | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.facts = facts_of(index, found)
        self.profile = profile or (CPU if found.is_cpu else GPU)
        self.event_timeout_s = event_timeout() if timeout_s is None else timeout_s
        self.context = driver.make_context(found.handle)
        self.is_closed = False
        self._lock = threading.RLock()
        self._buffers: weakref.WeakSet[OpenClBuffer] = weakref.WeakSet()
        self._streams: weakref.WeakSet[OpenClStream] = weakref.WeakSet()
        self._streams_made = 0
        self._programs: dict[tuple[object, ...], Handle] = {}
        self._idle: defaultdict[tuple[object, ...], list[Handle]] = defaultdict(list)
        self._draining: list[tuple[Handle, Handle, deque[Handle]]] = []

    # --- memory -------------------------------------------------------------------------------

    @property
    def free_nbytes(self) -> int:
        """Memory that no open buffer holds."""
        with self._lock:
            used = sum(b.nbytes for b in self._buffers if not b.readonly)
        return self.facts.memory_nbytes - used

    def allocate(self, nbytes: int) -> OpenClBuffer:
        """Return a fresh buffer (BUF-1). Drivers give memory lazily, so it is counted here."""
        self._require_open()
        if nbytes < 0:
            raise UsageError(f"a buffer of {nbytes} bytes", where=self.facts.name)
        with self._lock:
            if nbytes > min(self.free_nbytes, self.facts.max_allocation_nbytes):
                raise checks.out_of_memory_error(self.facts, nbytes, self.free_nbytes)
            try:
                handle = driver.make_buffer(self.context, nbytes)
            except OutOfDeviceMemory as error:
                why = "the driver gives no more; other programs may use it"
                raise checks.out_of_memory_error(
                    self.facts, nbytes, self.free_nbytes, why
                ) from error
            buffer = OpenClBuffer(self, nbytes, handle, self.forget)
            self._buffers.add(buffer)
            return buffer

    def forget(self, buffer: OpenClBuffer) -> None:
        """Count the memory of a closed buffer as free."""
        with self._lock:
            self._buffers.discard(buffer)

    def import_host(self, memory: HostMemory) -> OpenClBuffer:
        """Return a read-only buffer over host memory, on devices that share it."""
        self._require_open()
        checks.check_import(self.facts, memory)
        handle = driver.import_buffer(self.context, memory)
        buffer = OpenClBuffer(self, memory.nbytes, handle, self.forget, readonly=True)
        with self._lock:
            self._buffers.add(buffer)
        return buffer

    def allocate_host(self, nbytes: int) -> HostMemory:
        """Return writable host memory; plain memory, aligned."""
        self._require_open()
        view: HostMemory = aligned_bytes(nbytes, self.facts.alignment).data
        return view

    # --- streams, events, programs ------------------------------------------------------------

    def __clock__(self) -> Clock:
        """Return the clock of its streams' times; see ``ggsched.backend.timing``."""
        return perf_counter

    def create_stream(self) -> OpenClStream:
        """Return a new stream."""
        self._require_open()
        with self._lock:
            if sum(not s.is_closed for s in self._streams) >= MAX_STREAMS:
                raise UsageError(
                    f"more than {MAX_STREAMS} streams",
                    where=self.facts.name,
                    hint="close streams that are no longer used",
                )
            stream = OpenClStream(self, f"{self.facts.name} stream {self._streams_made}")
            self._streams_made += 1
            self._streams.add(stream)
            self._sweep()
            return stream

    def create_event(self) -> OpenClEvent:
        """Return a fresh event (EVT-1)."""
        self._require_open()
        return OpenClEvent(self)

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> OpenClProgram:
        """Choose kernels and set their arguments (LCH-3)."""
        self._require_open()
        checks.check_compile(self, nodes, stream)
        assert isinstance(stream, OpenClStream)  # the check has compared its device
        if stream.is_closed:
            raise checks.closed_error("stream")
        return OpenClProgram(stream, nodes)

    def take_kernel(self, name: str, defines: tuple[tuple[str, str], ...], kernel: str) -> Handle:
        """Return a kernel object that nobody else uses until it is given back."""
        with self._lock:
            idle = self._idle[name, defines, kernel]
            if idle:
                return idle.pop()
            if (name, defines) not in self._programs:
                made = driver.build_program(self.context, source(name, "opencl"), defines)
                self._programs[name, defines] = made
            return driver.make_kernel(self._programs[name, defines], kernel)

    def give_back(self, kernels: Iterable[tuple[tuple[object, ...], Handle]]) -> None:
        """Take kernel objects back; arguments of enqueued commands are the driver's by now."""
        with self._lock:
            if not self.is_closed:
                for key, kernel in kernels:
                    self._idle[key].append(kernel)

    def copies_with(self, other: DeviceFacts) -> bool:
        """Whether streams copy from and to buffers of another device (CPY-6): host ones."""
        return other.is_host

    def wait_path(self, other: DeviceFacts) -> WaitPath:
        """How streams wait for events of another device (EVT-4)."""
        if not other.has_events:
            return "host"
        return "native" if other.name == self.facts.name else "thread"

    # --- the end --------------------------------------------------------------------------------

    def drain_later(self, queue: Handle, newest: Handle, held: deque[Handle]) -> None:
        """Keep the queue of a closed stream until its commands are complete."""
        with self._lock:
            if newest is not None:
                self._draining.append((queue, newest, held))
            self._sweep()

    def _sweep(self) -> None:
        self._draining = [d for d in self._draining if status_of(d[1]) > COMPLETE]

    def close(self) -> None:
        """Close every stream and every buffer; legal twice (ERR-3).

        Waits for events of other backends that are not over are given up, and what is behind them.
        """
        if self.is_closed:
            return
        self.is_closed = True
        for stream in list(self._streams):
            stream.cancel()
        for stream in list(self._streams):
            stream.close()
        POLLING.wait_until(self._is_drained, self.event_timeout_s)
        for buffer in list(self._buffers):
            buffer.close()
        self._idle.clear()
        self._programs.clear()

    def _is_drained(self) -> bool:
        with self._lock:
            self._sweep()
            return not self._draining

    # --- helpers ---------------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self.is_closed:
            raise checks.closed_error(f"device {self.facts.name}")
