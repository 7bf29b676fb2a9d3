"""The file that knows ``cuda.bindings.driver``, but for captures: ``ggsched_cuda.capture.driver``.

Handles are plain integers: streams, events, addresses and functions are passed to the driver about
400,000 times a second, and objects around them cost as much again as the call. ``cuda.core`` has
no word for stream memory operations, host functions and pools that never wait, so all of it goes
through the bindings, in one vocabulary.

Nothing here blocks for longer than it takes to hand work over, but for what its docstring says.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from threading import local
from typing import Any, Final

from ggsched.errors import BackendUnavailable, OutOfDeviceMemory

# Streams beyond the number of hardware queues share one, and would hold each other up (STR-4). The
# driver reads this when it starts; 32 is the most, and 31 streams were held at once on an H200.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

INSTALL_HINT: Final = 'pip install "ggsched[cuda]", and the NVIDIA driver 580 or newer'

try:
    from cuda.bindings import driver as cu
except (ImportError, OSError) as error:
    raise BackendUnavailable(
        "cuda.bindings cannot be imported", where="cuda", why=str(error), hint=INSTALL_HINT
    ) from error

Handle = int

Step = tuple[Callable[..., Any], tuple[Any, ...]]
"""What to call, and with what; it returns a tuple that begins with 0 if all is well."""

READY: Final = 0
NOT_READY: Final = int(cu.CUresult.CUDA_ERROR_NOT_READY)
_OUT_OF_MEMORY: Final = int(cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY)
_A: Final = cu.CUdevice_attribute
_L: Final = cu.CUlaunchAttributeID

launch_kernel: Final = cu.cuLaunchKernel
"""``launch_kernel(function, gx, gy, gz, bx, by, bz, shared, stream, params, 0)`` -> (result,)"""
launch_configured: Final = cu.cuLaunchKernelEx
"""``launch_configured(config, function, params, 0)`` -> (result,); see ``launch_config``."""
query_stream: Final = cu.cuStreamQuery
"""``query_stream(stream)[0]``: ``READY``, ``NOT_READY``, or an error; never blocks."""
query_event: Final = cu.cuEventQuery
record_event: Final = cu.cuEventRecord
launch_graph: Final = cu.cuGraphLaunch


class CudaError(Exception):
    """A call of the driver, the compiler or cuBLAS failed.

    Attributes:
        code: Its number.
    """

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call}: {text} ({code})")
        self.code = code


def check(result: tuple[Any, ...], call: str) -> Any:
    """Return what a call of the driver gave.

    Raises:
        CudaError: the call failed.
    """
    if result[0]:
        raise CudaError(call, int(result[0]), str(result[0]).rpartition(".")[2].split(":")[0])
    return result[1] if len(result) == 2 else result[1:]


# --- GPUs ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A GPU.

    Attributes:
        ordinal: Number of the GPU.
        name: Name of the GPU, e.g. "NVIDIA H200".
        arch: Compute capability as two digits or three, e.g. 90.
        driver: Version of CUDA that the driver knows, e.g. 13000.
        processors: Number of multiprocessors.
        shared_nbytes: Most shared memory that a block can have.
    """

    ordinal: int
    name: str
    arch: int
    memory_nbytes: int
    driver: int
    processors: int
    shared_nbytes: int


@cache
def find_gpus() -> tuple[DeviceInfo, ...]:
    """Return all GPUs that the driver shows.

    Raises:
        BackendUnavailable: there is no driver, or no GPU.
    """
    try:
        check(cu.cuInit(0), "cuInit")
        count = check(cu.cuDeviceGetCount(), "cuDeviceGetCount")
        found = tuple(_describe(i) for i in range(count))
    except Exception as error:  # the bindings raise errors of several libraries
        raise BackendUnavailable(
            "the CUDA driver cannot be used", where="cuda", why=str(error), hint=INSTALL_HINT
        ) from error
    if not found:
        raise BackendUnavailable("there is no NVIDIA GPU", where="cuda", hint=INSTALL_HINT)
    return found


def _describe(ordinal: int) -> DeviceInfo:
    device = check(cu.cuDeviceGet(ordinal), "cuDeviceGet")

    def attribute(which: Any) -> int:
        return int(check(cu.cuDeviceGetAttribute(which, device), "cuDeviceGetAttribute"))

    major = attribute(_A.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
    minor = attribute(_A.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
    name = check(cu.cuDeviceGetName(256, device), "cuDeviceGetName")
    return DeviceInfo(
        ordinal=ordinal,
        name=bytes(name).split(b"\0")[0].decode(),
        arch=10 * major + minor,
        memory_nbytes=int(check(cu.cuDeviceTotalMem(device), "cuDeviceTotalMem")),
        driver=int(check(cu.cuDriverGetVersion(), "cuDriverGetVersion")),
        processors=attribute(_A.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        shared_nbytes=attribute(_A.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
    )


class _Here(local):
    """The context that is current on this thread, as far as this file has set it."""

    context: Any = None


_here: Final = _Here()


@cache
def context_of(ordinal: int) -> Any:
    """Return the primary context of a GPU, the one that other libraries in the process use.

    It is never given back: making one takes a fifth of a second, and giving it back would end
    everything that others have on the GPU.
    """
    device = check(cu.cuDeviceGet(ordinal), "cuDeviceGet")
    return check(cu.cuDevicePrimaryCtxRetain(device), "cuDevicePrimaryCtxRetain")


def enter(context: Any) -> None:
    """Make a context current on this thread; a third of a microsecond if another one was."""
    if _here.context is not context:
        check(cu.cuCtxSetCurrent(context), "cuCtxSetCurrent")
        _here.context = context


def can_reach(ordinal: int, other: int) -> bool:
    """Whether a GPU can access the memory of another one."""
    if ordinal == other:
        return True
    return bool(check(cu.cuDeviceCanAccessPeer(ordinal, other), "cuDeviceCanAccessPeer"))


# --- memory -----------------------------------------------------------------------------------


def make_pool(ordinal: int, peers: Sequence[int]) -> Any:
    """Return a pool of memory of a GPU that GPUs ``peers`` can access.

    It reuses memory only when the stream that freed it has come so far, and never lets a stream
    wait for another one in secret: what is handed out is free.
    """
    props = cu.CUmemPoolProps()
    props.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    props.handleTypes = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
    props.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    props.location.id = ordinal
    pool = check(cu.cuMemPoolCreate(props), "cuMemPoolCreate")
    a = cu.CUmemPool_attribute
    for attribute, value in (
        (a.CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 0),
        (a.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0),
        (a.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, cu.cuuint64_t(1 << 30)),
    ):
        check(cu.cuMemPoolSetAttribute(pool, attribute, value), "cuMemPoolSetAttribute")
    for peer in peers:
        access = cu.CUmemAccessDesc()
        access.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = peer
        access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        check(cu.cuMemPoolSetAccess(pool, [access], 1), "cuMemPoolSetAccess")
    return pool


def trim_pool(pool: Any) -> None:
    """Give back what a pool has and nobody uses."""
    check(cu.cuMemPoolTrimTo(pool, 0), "cuMemPoolTrimTo")


def take_memory(pool: Any, nbytes: int, stream: Handle) -> Handle:
    """Return the address of memory from a pool.

    Args:
        nbytes: At least one.
        stream: A stream without work, so that the memory is there when this returns.

    Raises:
        OutOfDeviceMemory: there is none, also after the pool has given back what it kept.
    """
    for attempt in (0, 1):
        result = cu.cuMemAllocFromPoolAsync(nbytes, pool, stream)
        if not result[0]:
            check(cu.cuStreamSynchronize(stream), "cuStreamSynchronize")
            return int(result[1])
        if int(result[0]) != _OUT_OF_MEMORY or attempt:
            break
        check(cu.cuMemPoolTrimTo(pool, 0), "cuMemPoolTrimTo")
    if int(result[0]) == _OUT_OF_MEMORY:
        raise OutOfDeviceMemory(f"requested {nbytes} bytes", why="the driver gives no more")
    return int(check(result, "cuMemAllocFromPoolAsync"))


def give_memory(address: Handle, stream: Handle) -> None:
    """Free memory when ``stream`` has come so far; does not block."""
    check(cu.cuMemFreeAsync(address, stream), "cuMemFreeAsync")


def take_pinned(nbytes: int) -> Handle:
    """Return the address of page-locked host memory that every GPU can access there.

    Raises:
        OutOfDeviceMemory: the system gives no more.
    """
    flags = cu.CU_MEMHOSTALLOC_PORTABLE | cu.CU_MEMHOSTALLOC_DEVICEMAP
    result = cu.cuMemHostAlloc(nbytes, flags)
    if int(result[0]) == _OUT_OF_MEMORY:
        raise OutOfDeviceMemory(f"requested {nbytes} bytes of pinned host memory")
    return int(check(result, "cuMemHostAlloc"))


def lock_pages(address: int, nbytes: int) -> bool:
    """Lock pages of host memory, so that every GPU can access them there; return whether it is so.

    They cannot be where the system allows no more, where they are locked already, or where a GPU
    would see them at another address.
    """
    which = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
    device = check(cu.cuCtxGetDevice(), "cuCtxGetDevice")
    if not int(check(cu.cuDeviceGetAttribute(which, device), "cuDeviceGetAttribute")):
        return False
    flags = cu.CU_MEMHOSTREGISTER_PORTABLE | cu.CU_MEMHOSTREGISTER_DEVICEMAP
    return int(cu.cuMemHostRegister(address, nbytes, flags)[0]) == 0


def unlock_pages(address: int) -> None:
    """Unlock pages; no command may use them any more."""
    check(cu.cuMemHostUnregister(address), "cuMemHostUnregister")


def enqueue_upload(address: Handle, source: int, nbytes: int, stream: Handle) -> None:
    """Copy pinned host memory to the device."""
    check(cu.cuMemcpyHtoDAsync(address, source, nbytes, stream), "cuMemcpyHtoDAsync")


def enqueue_download(target: int, address: Handle, nbytes: int, stream: Handle) -> None:
    """Copy device memory to pinned host memory."""
    check(cu.cuMemcpyDtoHAsync(target, address, nbytes, stream), "cuMemcpyDtoHAsync")


def enqueue_copy(to: Handle, address: Handle, nbytes: int, stream: Handle) -> None:
    """Copy within a GPU, or between GPUs that reach each other."""
    check(cu.cuMemcpyAsync(to, address, nbytes, stream), "cuMemcpyAsync")


_FILLS: Final = {1: "cuMemsetD8Async", 2: "cuMemsetD16Async", 4: "cuMemsetD32Async"}


def enqueue_fill(address: Handle, nbytes: int, pattern: bytes, stream: Handle) -> None:
    """Set device memory to a repeated pattern of 1, 2 or 4 bytes."""
    name, value = _FILLS[len(pattern)], int.from_bytes(pattern, "little")
    check(getattr(cu, name)(address, value, nbytes // len(pattern), stream), name)


# --- streams and events -----------------------------------------------------------------------


def make_stream() -> Handle:
    """Return a stream that no default stream orders."""
    flags = cu.CUstream_flags.CU_STREAM_NON_BLOCKING
    return int(check(cu.cuStreamCreate(flags), "cuStreamCreate"))


def close_stream(stream: Handle) -> None:
    """Give up a stream; what is enqueued runs to its end."""
    check(cu.cuStreamDestroy(stream), "cuStreamDestroy")


def make_event() -> Handle:
    """Return an event that takes no time stamps."""
    flags = cu.CUevent_flags.CU_EVENT_DISABLE_TIMING
    return int(check(cu.cuEventCreate(flags), "cuEventCreate"))


def make_timed_event() -> Handle:
    """Return an event that takes a time stamp."""
    return int(check(cu.cuEventCreate(0), "cuEventCreate"))


def seconds_between(earlier: Handle, later: Handle) -> float:
    """Return the time between two timed events that are done."""
    return float(check(cu.cuEventElapsedTime(earlier, later), "cuEventElapsedTime")) / 1e3


def enqueue_wait(stream: Handle, event: Handle) -> None:
    """Hold a stream until an event of any GPU, as recorded now, is done."""
    check(cu.cuStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent")


HOST_CALL: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@cache
def _launch_host_func() -> Any:
    """Return the driver's own call: the bindings free a function after it has run once."""
    function = ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc
    function.argtypes = [ctypes.c_void_p, HOST_CALL, ctypes.c_void_p]
    return function


def enqueue_host_call(stream: Handle, function: Any, argument: int) -> None:
    """Let a thread of the driver call a ``HOST_CALL``; it must not call the driver."""
    code = _launch_host_func()(stream, function, argument)
    if code:
        raise CudaError("cuLaunchHostFunc", code, "refused")


# --- programs ---------------------------------------------------------------------------------


def load_module(code: bytes) -> Any:
    """Load machine code into the current context."""
    return check(cu.cuModuleLoadData(code), "cuModuleLoadData")


_ALL_SHARED: Final = 100  # per cent


def function_of(module: Any, name: str, shared_nbytes: int) -> Handle:
    """Return a kernel; more than 48 KiB of dynamic shared memory has to be requested."""
    function = check(cu.cuModuleGetFunction(module, name.encode()), f"cuModuleGetFunction {name}")
    if shared_nbytes > 32 << 10:  # what the kernel declares counts as well
        which = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(cu.cuFuncSetAttribute(function, which, shared_nbytes), "cuFuncSetAttribute")
    # Kernels that overlap have to agree about how a multiprocessor's memory is divided.
    which = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
    check(cu.cuFuncSetAttribute(function, which, _ALL_SHARED), "cuFuncSetAttribute")
    check(cu.cuFuncLoad(function), "cuFuncLoad")  # now, not at a launch behind a held stream
    return int(function)


def launch_config(
    grid: tuple[int, int, int], lanes: int, shared_nbytes: int, stream: Handle, *,
    early: bool = False, cluster: int = 1,
) -> Any:  # fmt: skip
    """Return how to launch: perhaps before the predecessor has ended, perhaps in clusters."""
    attributes = []
    if early:
        attributes.append(cu.CUlaunchAttribute())
        attributes[-1].id = _L.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attributes[-1].value.programmaticStreamSerializationAllowed = 1
    if cluster > 1:
        attributes.append(cu.CUlaunchAttribute())
        attributes[-1].id = _L.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        extent = attributes[-1].value.clusterDim
        extent.x, extent.y, extent.z = cluster, 1, 1
    config = cu.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = lanes, 1, 1
    config.sharedMemBytes, config.hStream = shared_nbytes, cu.CUstream(stream)
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config
