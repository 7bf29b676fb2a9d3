"""The device: facts, memory, programs and kernels."""

import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from ggsched.backend import checks
from ggsched.backend.base_buffer import BaseBuffer
from ggsched.backend.host_memory import allocate_host
from ggsched.backend.precision import activations
from ggsched.backend.program import BoundNode
from ggsched.backend.protocols import HostMemory
from ggsched.backend.queued.device import QueuedDevice
from ggsched.backend.queued.stream import QueuedStream
from ggsched.topology.caps import HOST_PROCESSOR, DeviceFacts, Kind
from ggsched_kernels import CPU, GPU, TuningProfile, source, supported_fusions, supported_ops
from ggsched_kernels.calls import JOINED_NBYTES
from ggsched_opencl import compiled, driver, matrix_units
from ggsched_opencl.driver import COMPLETE, DeviceInfo, Handle, status_of
from ggsched_opencl.event import POLLING, OpenClEvent
from ggsched_opencl.kernel_caches import now_s, pocl_folder, remove_in_use
from ggsched_opencl.landings import Landings
from ggsched_opencl.matrix_units import LARGER_NBYTES
from ggsched_opencl.merging import Merging
from ggsched_opencl.program import OpenClProgram
from ggsched_opencl.queue import OpenClQueue

MAX_STREAMS: Final = 64
MAX_ROW_LANES: Final = 512
MERGED_LANES: Final = 512
"""Work-items of a group of merged kernels.

One such group for each multiprocessor has as many loads under way as two of 256, and meets the
others sooner: 1.0 instead of 1.3 us (H200). With less local memory groups are half as large.
"""

OTHER_LOCAL_NBYTES: Final = 20 << 10
"""Local memory that kernels which copy weights there have besides, and the driver."""

NEIGHBOURS: Final = frozenset(
    {
        "mul_mat, mul_mat, mul_mat",
        "mul_mat+add, mul_mat+add, mul_mat+add",
        "rms_norm+mul, mul_mat+add",
        "rms_norm+mul, mul_mat+add, mul_mat+add, mul_mat+add",
        "rms_norm+mul, mul_mat",
        "rms_norm+mul, mul_mat, mul_mat, mul_mat",
        "rms_norm+mul, mul_mat*2+swiglu",
        "rope, rope+set_rows, set_rows, attention",
    }
)
"""Groups that one kernel computes, whose operands live until the last."""

_LOG: Final = logging.getLogger("ggsched.opencl")


def facts_of(index: int, found: DeviceInfo) -> DeviceFacts:
    """Return the facts of a device.

    A processor counts as an ``accelerator``, not as ``cpu``: its memory is apart from the host's
    as far as the contract goes, and ``-ngl`` is to place layers there.
    """
    version, profile = " ".join(found.version.split(",")[0].split()), profile_of(found)
    return DeviceFacts(
        name=f"opencl:{index}",
        backend="opencl",
        description=f"{found.name} ({found.platform}, {version})",
        kind=_kind_of(found),
        processor=HOST_PROCESSOR if found.is_cpu else "",
        memory_nbytes=found.memory_nbytes,
        max_allocation_nbytes=found.max_allocation_nbytes,
        alignment=found.alignment,
        max_streams=MAX_STREAMS,
        copy_order="stream",
        has_events=True,
        is_async=True,
        is_deterministic=True,
        takes_expert_ranges=True,
        imports_host_memory=found.maps_host_memory,
        ops=supported_ops("opencl", has_f64=found.has_f64),
        fusions=supported_fusions(profile),
        neighbours=NEIGHBOURS if profile.joins else frozenset(),
    )


def _kind_of(found: DeviceInfo) -> Kind:
    if found.is_cpu:
        return "accelerator"
    return "integrated" if found.is_integrated else "gpu"


def profile_of(found: DeviceInfo) -> TuningProfile:
    """Return how kernels are cut for a device.

    A GPU runs the kernels that read a weight of a plain type once, with barriers where a warp's
    lanes would exchange values; those that stage blocks in local memory need more of it than
    OpenCL gives to a group.
    """
    if found.is_cpu:
        return CPU
    merged_lanes = MERGED_LANES if found.local_nbytes >= LARGER_NBYTES else MERGED_LANES // 2
    return replace(
        GPU,
        num_sms=found.compute_units,
        few_rows=8,
        row_lanes=min(MAX_ROW_LANES, found.lanes),
        merged_lanes=merged_lanes if found.has_ptx else 1,
        merged_groups=found.compute_units if found.has_ptx else 0,
        joins=found.parameter_nbytes >= JOINED_NBYTES,
        matrix_units=found.has_ptx,
        staged_nbytes=max(0, found.local_nbytes - OTHER_LOCAL_NBYTES),
        activations=activations(),
    )


class OpenClDevice(QueuedDevice[QueuedStream[OpenClQueue]]):
    """A context of one OpenCL device, with programs that closed devices have compiled in it.

    Args:
        index: Number of the (logical) device.
        found: The OpenCL device.
        profile: How kernels are cut; by the kind of the device if not given.
        timeout_s: See ``QueuedDevice``.

    Attributes:
        landings: Downloads that uploads of their targets wait for, unless drivers read sources of
            uploads in their turn; those for processors do.
    """

    polling = POLLING
    event_type = OpenClEvent

    def __init__(
        self,
        index: int,
        found: DeviceInfo,
        *,
        profile: TuningProfile | None = None,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(facts_of(index, found), timeout_s)
        self.profile = profile or profile_of(found)
        self.landings = None if found.is_cpu else Landings()
        self._handle, self._has_ptx = found.handle, found.has_ptx
        self._compiled = compiled.take(found.handle)
        self.context = self._compiled.context
        self._migrating = driver.make_queue(self.context)
        self.merging = Merging(self.context, self._migrating)
        self._rebuilt: set[tuple[object, ...]] = set()
        self._draining: list[tuple[Handle, Handle, deque[Handle]]] = []

    # --- memory, streams, programs --------------------------------------------------------------

    def acquire_memory(self, nbytes: int) -> Handle:
        """Return fresh memory. Drivers give it lazily, so the device counts it."""
        return driver.make_buffer(self.context, self._migrating, nbytes)

    def allocate_host(self, nbytes: int) -> HostMemory:
        """Return host memory; GPUs copy from and to it by themselves if it is not large (BUF-6)."""
        self._require_open()
        return self.host_memory(nbytes)

    def host_memory(self, nbytes: int) -> HostMemory:
        """Return host memory, for the device itself also while it is being closed."""
        found = None
        if self.landings is not None:
            found = self._compiled.locked.take(self._migrating, nbytes)
        return allocate_host(self.facts, nbytes) if found is None else found

    def import_host(self, memory: HostMemory) -> BaseBuffer:
        """Return a read-only buffer over host memory, on devices that share it.

        Raises:
            OutOfDeviceMemory: it is larger than a buffer of the driver can be.
        """
        self._require_open()
        checks.check_import(self.facts, memory)
        try:
            imported = driver.import_buffer(self.context, memory, self.facts.alignment)
        except driver.errors() as error:
            if memory.nbytes <= self.facts.max_allocation_nbytes:
                raise
            raise self._out_of_memory(memory.nbytes) from error
        return self._register(BaseBuffer(self, memory.nbytes, imported, readonly=True))

    def make_stream(self, name: str) -> QueuedStream[OpenClQueue]:
        """Return a new stream."""
        self.is_drained()
        return QueuedStream(self, OpenClQueue(self, name))

    def make_program(
        self, stream: QueuedStream[OpenClQueue], nodes: Sequence[BoundNode]
    ) -> OpenClProgram:
        """Choose kernels and set their arguments (LCH-3)."""
        return OpenClProgram(self, stream, nodes)

    def take_kernel(self, name: str, defines: tuple[tuple[str, str], ...], kernel: str) -> Handle:
        """Return a kernel object that nobody else uses until it is given back."""
        with self._lock:
            idle = self._compiled.idle[name, defines, kernel]
            if idle:
                return idle.pop()
            began_s = now_s()
            try:
                return self._make_kernel(name, defines, kernel)
            except Exception as error:
                if (name, defines) in self._rebuilt:
                    raise
                self._rebuilt.add((name, defines))
                return self._rebuilt_kernel(name, defines, kernel, error, began_s)

    def _make_kernel(
        self,
        name: str,
        defines: tuple[tuple[str, str], ...],
        kernel: str,
        more: tuple[tuple[str, str], ...] = (),
    ) -> Handle:
        programs = self._compiled.programs
        if (name, defines) not in programs:
            every = (*defines, *more, *(matrix_units.DEFINES if self._has_ptx else ()))
            made = driver.build_program(self.context, source(name, "opencl"), every)
            programs[name, defines] = made
        return driver.make_kernel(programs[name, defines], kernel)

    def _rebuilt_kernel(
        self,
        name: str,
        defines: tuple[tuple[str, str], ...],
        kernel: str,
        error: Exception,
        began_s: float,
    ) -> Handle:
        """Make a kernel without what caches on disk have of it, once for each program.

        Raises:
            UsageError: it cannot be made without them either.
        """
        self.distrust()
        driver.stop_caching()
        folders = remove_in_use(began_s)
        self._compiled.programs.pop((name, defines), None)
        other_text = ("KERNEL_REBUILT", str(time.time_ns()))  # no cache knows it
        found = self._make_kernel(name, defines, kernel, (other_text,))
        where = ", ".join(map(str, folders)) or str(pocl_folder())
        text = "%s: a cache of compiled kernels is damaged, and was built again: %s (%s: %s)"
        reason = " ".join(str(error).split())
        _LOG.warning(text, self.facts.name, where, type(error).__name__, reason)
        return found

    def give_back(self, kernels: Iterable[tuple[tuple[object, ...], Handle]]) -> None:
        """Take kernel objects back; arguments of enqueued commands are the driver's by now."""
        with self._lock:
            if not self.is_closed:
                for key, kernel in kernels:
                    self._compiled.idle[key].append(kernel)

    # --- the end --------------------------------------------------------------------------------

    def drain_later(self, queue: Handle, newest: Handle, held: deque[Handle]) -> None:
        """Keep the queue of a closed stream, or what commands use, until these are complete."""
        with self._lock:
            if newest is not None:
                self._draining.append((queue, newest, held))
            self.is_drained()

    def is_drained(self) -> bool:
        """Whether everything that closed streams were given is complete."""
        with self._lock:
            states = [status_of(newest) for _, newest, _ in self._draining]
            if any(state < COMPLETE for state in states):
                self.distrust()
            pairs = zip(self._draining, states, strict=True)
            self._draining = [drained for drained, state in pairs if state > COMPLETE]
            return not self._draining

    def distrust(self) -> None:
        """Let no other device take the context: a command failed, or a program had to be mended."""
        self._compiled.is_sound = False

    def end(self) -> None:
        """Leave the context with kernels and programs to the next device."""
        if self.is_drained():
            compiled.give_back(self._handle, self._compiled)
        self._compiled = compiled.Compiled(self.context, is_sound=False)
