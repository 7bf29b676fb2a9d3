"""The only file that knows pyopencl. Its objects are handed around as they are, typed ``Any``.

Everything here is in terms of one in-order queue, buffers, kernels whose arguments are set, and
events. What pyopencl or a platform does oddly is dealt with here, with the reason beside it.
"""

import ctypes
import logging
import os
import platform as machine
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np

from ggsched.backend.arrays import Array
from ggsched.errors import BackendUnavailable, DeviceFault, OutOfDeviceMemory, UsageError
from ggsched.files.own import is_own, refusal
from ggsched_opencl.kernel_caches import (
    pocl_folder,
    remove_programs_of_pyopencl,
    use_folder_of_process,
    user_cache,
    watch,
    writes_to,
)
from ggsched_opencl.process_end import CALLS
from ggsched_opencl.vendors import SETTING, Refused, libraries, probed, visible

try:
    import pyopencl as cl
except (ImportError, OSError) as error:
    raise BackendUnavailable(
        "pyopencl cannot be imported",
        where="opencl",
        why=str(error),
        hint='pip install "ggsched[opencl]", which brings PoCL, an OpenCL for processors',
    ) from error

Handle = Any
"""An object of pyopencl."""

INSTALL_HINT: Final = (
    'pip install "ggsched[opencl]" brings PoCL; GPUs need the OpenCL driver of their vendor'
)
INTEL_HINT: Final = (
    'pip install "ggsched[opencl-intel]" brings Intel\'s OpenCL for x86-64 (275 MB); or use the '
    "backend cpu"
)
OTHERS_HINT: Final = "use the backend cpu, or another OpenCL: docs/how-to/opencl-without-pocl.md"
OPTIONS: Final = ("-cl-std=CL1.2", "-cl-mad-enable")
COMPLETE: Final[int] = 0
RUNNING: Final[int] = 1
_PROBED_NBYTES: Final = 1 << 20
_PAGE_NBYTES: Final = 4096  # the smallest there is
_LOG: Final = logging.getLogger("ggsched.opencl")

enqueue_kernel: Final = cl.enqueue_nd_range_kernel
"""``enqueue_kernel(queue, kernel, work_items, group)`` -> event; about a microsecond."""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """An OpenCL device.

    Attributes:
        handle: The device.
        platform: Name of its platform, e.g. "Portable Computing Language".
        version: Version of the platform.
        name: Name of the device.
        is_cpu: Whether it is a processor, with the memory of the host.
        max_allocation_nbytes: Largest buffer.
        alignment: Of buffers, in bytes.
        has_f64: Whether kernels can compute with f64.
        is_integrated: Whether it is a GPU that computes in the memory of the host.
        maps_host_memory: Whether buffers over host memory are that memory, and no copy of it.
        place: Where it is on the bus, as far as the driver tells: the same for one device.
        compute_units: Multiprocessors.
        parameter_nbytes: Most bytes of a kernel's arguments.
        lanes: Most work-items of a group.
        has_ptx: Whether kernels may contain inline PTX (``matrix_units``).
        local_nbytes: Local memory of a group of such a device, as far as it was probed.
    """

    handle: Handle
    platform: str
    version: str
    name: str
    is_cpu: bool
    memory_nbytes: int
    max_allocation_nbytes: int
    alignment: int
    has_f64: bool = False
    is_integrated: bool = False
    maps_host_memory: bool = False
    place: str = ""
    compute_units: int = 1
    parameter_nbytes: int = 1024
    lanes: int = 128
    has_ptx: bool = False
    local_nbytes: int = 0

    @property
    def of(self) -> str:
        """Name and version of the platform, as people know it."""
        return f"{self.platform}, {' '.join(self.version.split(',')[0].split())}"


@dataclass(frozen=True, slots=True)
class FoundDevices:
    """The OpenCL devices of this machine.

    Attributes:
        devices: Those that can be used, each once.
        notes: A sentence for each platform or driver that was chosen among several or left out.
    """

    devices: tuple[DeviceInfo, ...]
    notes: tuple[str, ...]


def find_devices() -> FoundDevices:
    """Find the devices of all platforms, in an order that does not change from run to run.

    Platforms come in any order (two of one name with two installations of PoCL), so they are
    sorted by name and version; devices keep their order within a platform. A processor for which
    its platform cannot compile is left out: PoCL 3.0 refuses those that are newer than its LLVM.
    Where several platforms offer one device, one of them is chosen.

    Raises:
        BackendUnavailable: no platform, or none with a device that can be used; or OpenCL was used
            before this process was forked.
    """
    if _first_process() != os.getpid():
        why = f"process {_first_process()} used it before, and its threads do not survive a fork"
        hint = "start processes by 'spawn', or fork before devices are opened"
        raise BackendUnavailable(
            "cannot be used in a forked process", where="opencl", why=why, hint=hint
        )
    _settle_caches()
    watch(pocl_folder())
    notes = [str(refused) for refused in _load_drivers()]
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        raise BackendUnavailable(
            "there is no OpenCL platform",
            where="opencl",
            why="; ".join([*notes, str(error)]),
            hint=INSTALL_HINT,
        ) from error
    usable: list[DeviceInfo] = []
    refused: list[str] = []
    for platform in sorted(set(platforms), key=lambda p: (p.name.strip(), p.version.strip())):
        try:
            devices = platform.get_devices()
        except cl.Error:  # a platform without devices says so by failing
            continue
        for device in (_describe(platform, device) for device in devices):
            why = _compiler_error(device) if device.is_cpu else ""
            if why:
                refused.append(f"{device.name} ({device.of}) is not used: {why}")
            else:
                usable.append(device)
    if refused and not usable:
        is_x86 = machine.machine().lower() in ("x86_64", "amd64")
        raise BackendUnavailable(
            "the compiler of the OpenCL platform does not support the processor",
            where="opencl",
            why="; ".join([*refused, *notes]),
            hint=INTEL_HINT if is_x86 else OTHERS_HINT,
        )
    if not usable:
        raise BackendUnavailable(
            f"none of {len(platforms)} OpenCL platforms has a device",
            where="opencl",
            why="; ".join(notes),
            hint=INSTALL_HINT,
        )
    chosen, left_out = _each_once(usable)
    notes = [*refused, *left_out, *notes]
    if notes:
        names = dict.fromkeys(device.of for device in chosen)
        notes.insert(0, f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} used")
    maps = (replace(d, maps_host_memory=d.is_cpu and _maps(d.handle)) for d in chosen)
    return FoundDevices(tuple(maps), tuple(notes))


@cache
def _load_drivers() -> tuple[Refused, ...]:
    """Let the loader find the drivers, which it looks for once; return those that do harm."""
    usable, refused = probed(libraries())
    if usable or refused:
        with visible(usable), suppress(cl.Error):  # the caller meets it again
            cl.get_platforms()
    return tuple(refused)


def _each_once(usable: Sequence[DeviceInfo]) -> tuple[list[DeviceInfo], list[str]]:
    """Return devices without those that another platform offers too, and notes on these.

    All processors are one device: that of the host. Of two versions of a platform the newer one is
    chosen, else the first by name. GPUs are told apart by their place on the bus.
    """
    chosen: list[DeviceInfo] = []
    notes: list[str] = []
    first: dict[str, DeviceInfo] = {}
    for device in usable:
        key = "the processor" if device.is_cpu else device.place
        if not key:
            continue
        known = first.setdefault(key, device)
        if known.platform == device.platform:
            first[key] = max(known, device, key=lambda d: d.version)
    for device in usable:
        best = first.get("the processor" if device.is_cpu else device.place, device)
        if (best.platform, best.version) == (device.platform, device.version):
            chosen.append(device)
        else:
            notes.append(
                f"{device.name} ({device.of}) is not used: {best.platform} offers the same device; "
                f"{SETTING} names the drivers to use instead"
            )
    return chosen, notes


@cache
def _settle_caches() -> None:
    """Leave caches alone that cannot be written, or that others can write, before they are used.

    PoCL has no device without one, and pyopencl prints a traceback. Both take a relative
    ``XDG_CACHE_HOME``.
    """
    of_pyopencl = [user_cache() / name for name in ("pytools", "pyopencl")]
    named = os.environ.get("XDG_CACHE_HOME", "").strip()
    is_relative = bool(named) and not os.path.isabs(named)
    if is_relative or not (all(map(is_own, of_pyopencl)) and writes_to(of_pyopencl[0])):
        stop_caching()
    folder = pocl_folder()
    if why := refusal(folder):
        use_folder_of_process(why)
    elif not writes_to(folder):
        use_folder_of_process(f"{folder} cannot be written")
    elif is_relative:
        os.environ["POCL_CACHE_DIR"] = str(folder)


@cache
def _first_process() -> int:
    """Return the process that has used OpenCL first; forked ones inherit the answer."""
    return os.getpid()


def _compiler_error(device: DeviceInfo) -> str:
    """Return why the platform cannot compile for a device, or nothing if it can."""
    try:
        _compile_something(device.handle)
    except cl.Error as error:
        lines = [line.strip() for line in str(error).splitlines()]
        why = next((line for line in lines if line.startswith("error:")), lines[0])
        return why.removeprefix("error: ")
    return ""


@cache
def _compile_something(device: Handle) -> None:
    """Compile for a device; once in a process if that works, as it takes most of an opening.

    A program that fails is tried in another text, since a damaged cache spoils one text only.
    """
    context = cl.Context([device])
    text = "__kernel void ggsched_probe(__global int *a) { a[0] = 1; }"
    try:
        _built(context, text, ())
    except cl.Error:
        _built(context, f"{text} // {os.getpid()}", ())


def _built(context: Handle, text: str, options: Sequence[str]) -> Handle:
    """Build a program, without pyopencl's cache of programs where that is damaged.

    pyopencl raises whatever it meets there, also a ``KeyError`` for a setting of its own
    (``PYOPENCL_CACHE_FAILURE_FATAL``) that nobody has made.
    """
    with warnings.catch_warnings(), CALLS:
        warnings.simplefilter("ignore")  # compilers talk; an error is an exception
        try:
            return cl.Program(context, text).build(list(options))
        except cl.Error:
            raise
        except Exception as error:
            stop_caching()
            folder, reason = remove_programs_of_pyopencl(), type(error).__name__
            remark = "opencl: a cache of compiled kernels is damaged, and was removed: %s (%s: %s)"
            _LOG.warning(remark, folder, reason, error)
            return cl.Program(context, text).build(list(options))


@cache
def _maps(device: Handle) -> bool:
    """Whether a buffer over host memory is that memory; some drivers make a copy in silence.

    They tell from address and length, so the piece is long and begins as imports do.
    """
    host = (ctypes.c_char * _PROBED_NBYTES)()
    context = cl.Context([device])
    seen = bytearray(1)
    try:
        mapped = import_buffer(context, memoryview(host).cast("B")[1:], _alignment(device))
        queue = cl.CommandQueue(context)
        host[1] = b"\7"
        cl.enqueue_copy(queue, seen, mapped.handle, src_offset=mapped.offset)
    except cl.Error:
        return False
    return seen == b"\7"


def _describe(platform: Handle, device: Handle) -> DeviceInfo:
    is_cpu = bool(device.type & cl.device_type.CPU)
    return DeviceInfo(
        handle=device,
        platform=platform.name.strip(),
        version=platform.version.strip(),
        name=device.name.strip(),
        is_cpu=is_cpu,
        memory_nbytes=int(device.global_mem_size),
        max_allocation_nbytes=int(device.max_mem_alloc_size),
        alignment=_alignment(device),
        has_f64="cl_khr_fp64" in device.extensions.split(),
        is_integrated=not is_cpu and bool(device.host_unified_memory),
        place=_place(device),
        compute_units=int(device.max_compute_units),
        parameter_nbytes=int(device.max_parameter_size),
        lanes=int(device.max_work_group_size),
    )


def _alignment(device: Handle) -> int:
    return max(64, int(device.mem_base_addr_align) // 8)


def _place(device: Handle) -> str:
    """Return the place of a device on the PCI bus, where the driver knows it."""
    if "cl_khr_pci_bus_info" not in device.extensions.split():
        return ""
    try:
        found = device.pci_bus_info_khr
    except (AttributeError, cl.Error):
        return ""
    return f"{found.pci_domain}:{found.pci_bus}:{found.pci_device}:{found.pci_function}"


def stop_caching() -> None:
    """Let pyopencl read and write no cache on disk any more in this process.

    It keeps its databases open, so those that are removed would fail again at the next kernel.
    """
    cl._PYOPENCL_NO_CACHE = True


def make_context(device: Handle) -> Handle:
    """Return a context of one device."""
    return cl.Context([device])


def make_queue(context: Handle, *, is_timed: bool = False) -> Handle:
    """Return an in-order queue; events of a timed one know when their command ran."""
    if not is_timed:
        return cl.CommandQueue(context)
    return cl.CommandQueue(context, properties=cl.command_queue_properties.PROFILING_ENABLE)


def make_buffer(context: Handle, queue: Handle, nbytes: int) -> Handle:
    """Return device memory; OpenCL has no empty buffers, so those get a byte.

    Drivers acquire the memory with the first command that uses it. PoCL 3.0 takes no lock for that:
    where first commands came from two threads at once, it took the buffer for outdated and crashed.
    So the first command is given here, one that moves nothing.

    Args:
        context: Of the device.
        queue: Of that context, for this alone.
        nbytes: How much.

    Raises:
        OutOfDeviceMemory: the driver refused.
    """
    try:
        made = cl.Buffer(context, cl.mem_flags.READ_WRITE, max(1, nbytes))
        undefined = cl.mem_migration_flags.CONTENT_UNDEFINED
        cl.enqueue_migrate_mem_objects(queue, [made], flags=undefined)
        return made
    except (cl.MemoryError, cl.LogicError) as error:
        raise OutOfDeviceMemory(f"requested {nbytes} bytes", why=str(error)) from error


def make_filled_buffer(context: Handle, content: bytes) -> Handle:
    """Return device memory with content."""
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    return cl.Buffer(context, flags, hostbuf=bytearray(content or b"\0"))


def locked_memory(context: Handle, queue: Handle, nbytes: int) -> Array | None:
    """Return host memory whose pages the driver has locked, None if it has none.

    It is that of a buffer that no command uses, mapped for as long as the array lives.
    """
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
    access: Any = cl.map_flags.READ | cl.map_flags.WRITE
    try:
        with CALLS:
            made = cl.Buffer(context, flags, nbytes)
            kind = np.dtype(np.uint8)
            array: Array = cl.enqueue_map_buffer(queue, made, access, 0, (nbytes,), kind)[0]
    except cl.Error:
        return None
    return array


@dataclass(frozen=True, slots=True)
class Imported:
    """A buffer over host memory that begins in front of what is imported.

    Attributes:
        handle: The buffer.
        offset: Where in it the imported bytes begin.
    """

    handle: Handle
    offset: int


def import_buffer(context: Handle, memory: memoryview, alignment: int) -> Imported:
    """Return a read-only buffer over host memory, which it keeps alive.

    It begins at a multiple of the alignment, at most so many bytes before the memory: Intel's
    runtime makes a copy of other memory and says nothing. These bytes are of the same page, so they
    are mapped, and nobody reads them.
    """
    if not memory.nbytes:
        return Imported(cl.Buffer(context, cl.mem_flags.READ_ONLY, 1), 0)
    start = np.frombuffer(memory, np.uint8).ctypes.data
    ahead = start % min(alignment, _PAGE_NBYTES)
    whole: Any = (ctypes.c_char * (ahead + memory.nbytes)).from_address(start - ahead)
    whole.owner = memory
    flags = cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR
    return Imported(cl.Buffer(context, flags, hostbuf=whole), ahead)


def place_of(memory: Handle | Imported, offset: int) -> tuple[Handle, int]:
    """Return the buffer behind a device's memory, and an offset in that buffer."""
    if isinstance(memory, Imported):
        return memory.handle, memory.offset + offset
    return memory, offset


def build_program(context: Handle, text: str, defines: Sequence[tuple[str, str]]) -> Handle:
    """Compile a source.

    Raises:
        UsageError: the compiler refused it; a defect of the kernels or of the driver.
    """
    options = [*OPTIONS, *(f"-D{name}={value}" for name, value in defines)]
    try:
        return _built(context, text, options)
    except cl.Error as error:
        raise UsageError(
            "the OpenCL compiler refused a kernel",
            where=" ".join(options),
            why=str(error),
            hint="report this with the name and version of the OpenCL platform",
        ) from error


def probe(
    device: Handle, text: str, defines: Sequence[tuple[str, str]], lanes: int, nbytes: int
) -> bytes | None:
    """Return what the kernel ``probe`` of a source makes of zeros, by one group.

    It has a context of its own, which a fault would end. None if the driver refuses any of it.
    """
    options = [*OPTIONS, *(f"-D{name}={value}" for name, value in defines)]
    found = bytearray(nbytes)
    try:
        context = cl.Context([device])
        kernel = make_kernel(_built(context, text, options), "probe")
        queue, made = cl.CommandQueue(context), make_filled_buffer(context, bytes(nbytes))
        kernel.set_arg(0, made)
        enqueue_kernel(queue, kernel, (lanes,), (lanes,))
        cl.enqueue_copy(queue, found, made)
    except cl.Error:
        return None
    return bytes(found)


def make_kernel(program: Handle, name: str) -> Handle:
    """Return a kernel object of its own; that takes half a millisecond in PoCL, so keep it."""
    with CALLS:
        return cl.Kernel(program, name)


def set_argument(kernel: Handle, index: int, value: Handle | bytes) -> None:
    """Set an argument: a buffer, or a value in its bytes.

    For bytes ``set_arg`` tries other meanings first, which takes 100 times as long.
    """
    if isinstance(value, bytes):
        kernel._set_arg_buf(index, value)
    else:
        kernel.set_arg(index, value)


def enqueue_upload(queue: Handle, source: memoryview, buffer: Handle, offset: int) -> Handle:
    """Copy host bytes to a buffer, return the event. It holds the host memory.

    Dropping such an event before it is complete would block, so it has to be kept.
    """
    with CALLS:
        return cl.enqueue_copy(queue, buffer, source, dst_offset=offset, is_blocking=False)


def enqueue_download(queue: Handle, buffer: Handle, offset: int, target: memoryview) -> Handle:
    """Copy bytes of a buffer to the host, return the event; see ``enqueue_upload``."""
    with CALLS:
        return cl.enqueue_copy(queue, target, buffer, src_offset=offset, is_blocking=False)


def read_back(queue: Handle, buffer: Handle, target: memoryview) -> None:
    """Copy a buffer to the host, and wait for it."""
    cl.enqueue_copy(queue, target, buffer)


def enqueue_copy(
    queue: Handle, src: Handle, src_offset: int, dst: Handle, dst_offset: int, nbytes: int
) -> Handle:
    """Copy between buffers of one context, return the event."""
    return cl.enqueue_copy(
        queue, dst, src, src_offset=src_offset, dst_offset=dst_offset, byte_count=nbytes
    )


def enqueue_fill(queue: Handle, buffer: Handle, offset: int, nbytes: int, pattern: bytes) -> Handle:
    """Set bytes of a buffer to a repeated pattern, return the event."""
    return cl.enqueue_fill_buffer(queue, buffer, pattern, offset, nbytes)


def enqueue_wait(queue: Handle, event: Handle) -> Handle:
    """Hold later commands of the queue until an event of its context is complete."""
    return cl.enqueue_barrier(queue, wait_for=[event])


def enqueue_by(queue: Handle, enqueue: Callable[[Handle], object], *_: object) -> Handle:
    """Let a function enqueue commands; return an event behind them, its own if it returns one."""
    event = enqueue(queue)
    return event if isinstance(event, cl.Event) else cl.enqueue_marker(queue)


def make_gate(context: Handle) -> Handle:
    """Return an event that the host completes, see ``open_gate``; for tests."""
    return cl.UserEvent(context)


def open_gate(gate: Handle) -> None:
    """Complete a user event.

    Never with an error: PoCL 3.0 aborts the process when commands of two queues depend on it, and
    by the standard the context is lost then. So no queue waits for what may fail; see
    ``ggsched.backend.queued.backlog``.
    """
    gate.set_status(COMPLETE)


def status_of(event: Handle) -> int:
    """Return the state of an event: 0 complete, above not yet, below failed; never blocks."""
    status: int = event.command_execution_status
    return status


def times_of(event: Handle) -> tuple[int, int, int] | None:
    """Return when a complete command was enqueued, began and ended, in ns of the device's clock.

    None where the device does not report it, which it need not for every command.
    """
    try:
        profile = event.profile
        return int(profile.queued), int(profile.start), int(profile.end)
    except cl.Error:
        return None


def flush(queue: Handle) -> None:
    """Send what is enqueued on its way (STR-3)."""
    queue.flush()


def fault_of(error: Exception, command: str, where: str) -> DeviceFault:
    """Return what a refused command becomes."""
    return DeviceFault(f"{command} failed", where=where, why=f"{type(error).__name__}: {error}")


def errors() -> type[Exception]:
    """Return the base of what pyopencl raises."""
    base: type[Exception] = cl.Error
    return base
