"""What calls of the CUDA driver do, as records: any program, whatever library it launches with.

A call is its name and its parameters as numbers; ``cupti`` reports them. Copies, sets, events,
streams, captured graphs and allocations are exact. A kernel may touch all of each allocation that
its arguments point into, from there on: its findings are possible ones.
"""

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ggsched_race.host_memory import HostMemory
from ggsched_race.recording import HOST, Bytes, Recording

Parameters = Mapping[str, int]
"""Parameters of a call by name; of an out-parameter the value that it points to."""

_PER_THREAD: Final = 2
"""``CU_STREAM_PER_THREAD``: the handle of the calling thread's default stream."""
_NON_BLOCKING: Final = 1
"""``CU_STREAM_NON_BLOCKING``: the stream is not ordered with the legacy default stream."""
_LEGACY: Final = (0, 1)
"""Handles of the legacy default stream: null and ``CU_STREAM_LEGACY``."""

SIGNATURES: Final[dict[str, str]] = {
    "cuMemAlloc_v2": "*address nbytes",
    "cuMemAllocManaged": "*address nbytes",
    "cuMemAllocAsync": "*address nbytes stream",
    "cuMemAllocFromPoolAsync": "*address nbytes pool stream",
    "cuMemHostAlloc": "*address nbytes",
    "cuMemHostAlloc_v2": "*address nbytes",
    "cuMemAllocHost_v2": "*address nbytes",
    "cuMemHostRegister_v2": "address nbytes",
    "cuMemHostUnregister": "address",
    "cuMemFreeHost": "address",
    "cuMemFree_v2": "address",
    "cuMemFreeAsync": "address stream",
    "cuMemMap": "address nbytes",
    "cuMemUnmap": "address nbytes",
    "cuMemcpy": "dst src nbytes",
    "cuMemcpyHtoD_v2": "dst src nbytes",
    "cuMemcpyDtoH_v2": "dst src nbytes",
    "cuMemcpyDtoD_v2": "dst src nbytes",
    "cuMemcpyAsync": "dst src nbytes stream",
    "cuMemcpyHtoDAsync_v2": "dst src nbytes stream",
    "cuMemcpyDtoHAsync_v2": "dst src nbytes stream",
    "cuMemcpyDtoDAsync_v2": "dst src nbytes stream",
    **{f"cuMemsetD{bits}_v2": f"dst .u{bits} count" for bits in (8, 16, 32)},
    **{f"cuMemsetD{bits}Async": f"dst .u{bits} count stream" for bits in (8, 16, 32)},
    "cuLaunchKernel": "function .u32*7 stream arguments extra",
    "cuLaunchCooperativeKernel": "function .u32*7 stream arguments",
    "cuLaunchKernelEx": "config function arguments extra",
    "cuEventRecord": "event stream",
    "cuEventRecordWithFlags": "event stream",
    "cuEventSynchronize": "event",
    "cuEventQuery": "event",
    "cuEventDestroy_v2": "event",
    "cuStreamCreate": "*stream .u32flags",
    "cuStreamCreateWithPriority": "*stream .u32flags",
    "cuStreamWaitEvent": "stream event",
    "cuStreamSynchronize": "stream",
    "cuStreamQuery": "stream",
    "cuCtxSynchronize": "",
    "cuCtxSynchronize_v2": "context",
    "cuStreamBeginCapture_v2": "stream",
    "cuStreamEndCapture": "stream *graph",
    "cuGraphInstantiate_v2": "*instance graph",
    "cuGraphInstantiateWithFlags": "*instance graph",
    "cuGraphInstantiateWithParams": "*instance graph",
    "cuGraphLaunch": "instance stream",
}
"""Names of the parameters of the calls that are recorded, in order. ``*`` marks an out-parameter;
``.u32flags`` has another width than 64 bits, and ``.u32*7`` are seven parameters that nothing uses.
"""

FREES: Final = frozenset(
    {
        *("cuMemFree_v2", "cuMemFreeAsync", "cuMemFreeHost", "cuMemHostUnregister", "cuMemUnmap"),
    }
)
"""Calls that release an address: another thread may be given it before the call returns."""

NOT_FOLLOWED: Final = frozenset(
    {
        *("cuMemcpy2D_v2", "cuMemcpy2DUnaligned_v2", "cuMemcpy2DAsync_v2", "cuMemcpy3D_v2"),
        *("cuMemcpy3DAsync_v2", "cuMemcpyPeer", "cuMemcpyPeerAsync", "cuMemcpyBatchAsync"),
        *("cuMemcpyBatchAsync_v2", "cuMemsetD2D8_v2", "cuMemsetD2D16_v2", "cuMemsetD2D32_v2"),
        *("cuMemsetD2D8Async", "cuMemsetD2D16Async", "cuMemsetD2D32Async", "cuLaunchHostFunc"),
        *("cuStreamWaitValue32_v2", "cuStreamWaitValue64_v2", "cuStreamWriteValue32_v2"),
        *("cuStreamWriteValue64_v2", "cuStreamBeginCaptureToGraph", "cuMemAllocPitch_v2"),
        *("cuGraphAddKernelNode_v2", "cuGraphAddMemcpyNode", "cuGraphAddNode_v2"),
    }
)
"""Calls that access memory or order work and are not recorded; the report names those made."""


def plain_name(name: str) -> tuple[str, bool]:
    """Return the name of a call without the suffix for per-thread streams, and whether it had one.

    With the suffix stream 0 is the calling thread's default stream.
    """
    plain = name.removesuffix("_ptsz").removesuffix("_ptds")
    return plain, plain != name


class _Memory(NamedTuple):
    """An allocation.

    Attributes:
        number: Of the memory object in the trace.
    """

    start: int
    end: int
    number: int
    is_host: bool


class DriverCalls:
    """Translates driver calls into records of a trace."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._memories: list[_Memory] = []
        self._host = HostMemory()
        self._captures: dict[int, object] = {}
        self._graphs: dict[int, object] = {}

    def record(
        self, name: str, params: Parameters, pointers: Sequence[int] = (), label: str = ""
    ) -> None:
        """Record a call that has succeeded.

        Args:
            name: The driver's function.
            pointers: Words of a launch's arguments; those within an allocation count as addresses.
            label: Name of the kernel that is launched.
        """
        plain, is_per_thread = plain_name(name)
        with self._recording.lock:
            if plain in NOT_FOLLOWED:
                self._recording.notice(f"{plain} is not followed")
                return
            at = self._recording.sites.here()
            stream = params.get("stream", 0)
            stream = _PER_THREAD if stream == 0 and is_per_thread else stream
            self._call(plain, params, stream, pointers, label, at)

    def note_unknown_arguments(self) -> None:
        """Report that accesses of kernels are missing: the driver does not list arguments."""
        self._recording.notice("this driver does not say what arguments kernels have")

    def _call(
        self,
        name: str,
        params: Parameters,
        stream: int,
        pointers: Sequence[int],
        label: str,
        at: int,
    ) -> None:
        short = name.removeprefix("cu").partition("_")[0]
        if short.startswith(("Stream", "Event", "Ctx", "Graph")):
            self._order(short, params, stream, at)
        elif short.startswith("Launch"):
            self._launch(label or "kernel", pointers, self._actor(stream), at)
        elif short.startswith("Memcpy"):
            self._copy(name, params, self._actor(stream), at)
        elif short.startswith("Memset"):
            width = int(short.removeprefix("MemsetD").removesuffix("Async")) // 8
            written = self._bytes(params["dst"], width * params["count"])
            self._recording.work(self._actor(stream), name, (), written, at)
        elif name in FREES:
            self._freed(name, params["address"], stream, at)
        else:
            self._allocated(params["address"], params["nbytes"], "Host" in name, at)

    def _order(self, name: str, params: Parameters, stream: int, at: int) -> None:
        """Record what orders work, or what launches a graph of it."""
        recording = self._recording
        match name:
            case "StreamCreate" | "StreamCreateWithPriority":
                recording.stream((0, stream), not params["flags"] & _NON_BLOCKING)
            case "EventRecord" | "EventRecordWithFlags":
                recording.record(params["event"], self._actor(stream), at)
            case "EventDestroy":
                recording.event_deleted(params["event"])
            case "StreamWaitEvent":
                recording.wait(params["event"], self._actor(stream), at)
            case "EventSynchronize" | "EventQuery":
                self._wait(at, event=params["event"])
            case "StreamSynchronize" | "StreamQuery":
                self._wait(at, streams=[self._actor(stream)])
            case "CtxSynchronize":
                self._wait(at, streams=recording.streams_of(0))
            case _:
                self._graph(name, params, stream, at)

    def _graph(self, name: str, params: Parameters, stream: int, at: int) -> None:
        if name == "StreamBeginCapture":
            key = self._captures[stream] = object()
            self._recording.begin_capture(key, self._actor(stream))
        elif name == "StreamEndCapture":
            key = self._graphs[params["graph"]] = self._captures.pop(stream, object())
            self._recording.end_capture(key)
        elif name == "GraphLaunch":
            key = self._graphs.get(params["instance"])
            if key is None:
                self._recording.notice("graphs that are built of nodes are not followed")
            self._recording.replay(key, self._actor(stream), at)
        elif params["graph"] in self._graphs:  # an instance
            self._graphs[params["instance"]] = self._graphs[params["graph"]]

    def _actor(self, stream: int) -> int:
        handle = 0 if stream in _LEGACY else stream
        return self._recording.stream((0, handle), is_blocking=stream == _PER_THREAD)

    def _wait(self, at: int, *, event: int | None = None, streams: Sequence[int] = ()) -> None:
        self._notice_changes(at)
        self._host.waited(streams)
        self._recording.sync(at, event=event, streams=streams)

    # --- memory -----------------------------------------------------------------------------------

    def _allocated(self, address: int, nbytes: int, is_host: bool, at: int) -> None:
        place, text = "pinned" if is_host else "cuda", f"({nbytes},) uint8"
        number = self._recording.memory(nbytes, text, at, place=place)
        insort(self._memories, _Memory(address, address + nbytes, number, is_host))
        if is_host:
            self._host.add(address, nbytes, number)

    def _freed(self, name: str, address: int, stream: int, at: int) -> None:
        memory = self._at(address)
        if memory is None:
            return
        if name == "cuMemFreeAsync":
            whole = [(memory.number, 0, memory.end - memory.start)]
            self._recording.work(self._actor(stream), name, (), whole, at)
        elif name not in ("cuMemHostUnregister", "cuMemUnmap"):  # the driver waits for the device
            self._wait(at, streams=self._recording.streams_of(0))
        self._memories.remove(memory)
        self._host.remove(memory.number)
        self._recording.memory_died(memory.number)
        self._recording.memory_gone(memory.number)

    def _at(self, address: int) -> _Memory | None:
        k = bisect_right(self._memories, address, key=lambda m: m.start) - 1
        return self._memories[k] if k >= 0 and address < self._memories[k].end else None

    def _bytes(self, address: int, nbytes: int) -> list[Bytes]:
        memory = self._at(address)
        if memory is None:
            return []
        start = address - memory.start
        return [(memory.number, start, min(start + nbytes, memory.end - memory.start))]

    # --- work -------------------------------------------------------------------------------------

    def _launch(self, label: str, pointers: Sequence[int], actor: int, at: int) -> None:
        touched: list[Bytes] = []
        for pointer in dict.fromkeys(pointers):
            memory = self._at(pointer)
            if memory is not None:
                touched += self._bytes(pointer, memory.end - pointer)
        self._recording.work(actor, label, touched, touched, at, is_partial=True, is_possible=True)

    def _copy(self, name: str, params: Parameters, actor: int, at: int) -> None:
        """Record a copy; from and to memory of the host that is not pinned the driver stages."""
        nbytes = params["nbytes"]
        read, written = (
            self._bytes(params["src"], nbytes),
            self._bytes(params["dst"], nbytes),
        )
        ends = self._at(params["src"]), self._at(params["dst"])
        if ends[0] is not None and ends[0].is_host:
            self._notice_changes(at, ends[0].number)
            if not self._recording.is_capturing(actor):
                self._host.queued(read, actor)
        self._recording.work(actor, name, read, written, at, is_copy=True)
        is_on_device = all(end is not None and not end.is_host for end in ends)
        if ends[1] is None or ("Async" not in name and not is_on_device):
            self._host.waited([actor])
            self._recording.sync(at, streams=[actor], is_inherent=True)

    def _notice_changes(self, at: int, memory: int | None = None) -> None:
        """Record that the host has written pinned memory that queued copies read."""
        for number, start, end in self._host.changed(None if memory is None else {memory}):
            self._recording.work(HOST, "code of the host", (), [(number, start, end)], at)
