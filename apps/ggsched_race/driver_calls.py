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

Given = Mapping[str, int]
"""Parameters by name, and what out-parameters point to after the call."""

_PER_THREAD: Final = 2
_NON_BLOCKING: Final = 1
_DEFAULTS: Final = (0, 1)
"""Handles of the legacy default stream."""

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
"""Parameters of the calls that are followed: ``*`` points to the result, ``.`` has another width
than 64 bits and no meaning here, unless it is named."""

FREES: Final = frozenset(
    {
        *("cuMemFree_v2", "cuMemFreeAsync", "cuMemFreeHost", "cuMemHostUnregister", "cuMemUnmap"),
    }
)
"""Calls behind which another thread may get the address."""

UNSEEN: Final = frozenset(
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
"""Calls that touch or order memory and are not followed: the report names each that is made."""


def plain_name(name: str) -> tuple[str, bool]:
    """Return the name of a call without its suffix, and whether stream 0 is the thread's own."""
    plain = name.removesuffix("_ptsz").removesuffix("_ptds")
    return plain, plain != name


class _Memory(NamedTuple):
    """Memory that a call has given.

    Attributes:
        number: In the trace.
    """

    start: int
    end: int
    number: int
    is_host: bool


class DriverCalls:
    """Turns calls into records.

    Args:
        recording: Where they go.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._memories: list[_Memory] = []
        self._host = HostMemory()
        self._captures: dict[int, object] = {}
        self._graphs: dict[int, object] = {}

    def called(
        self, name: str, given: Given, pointers: Sequence[int] = (), label: str = ""
    ) -> None:
        """Record a call that has succeeded.

        Args:
            name: Of the driver's function.
            pointers: Of a launch the numbers in its arguments that may be addresses.
            label: Of a launch the kernel.
        """
        plain, is_per_thread = plain_name(name)
        with self._recording.lock:
            if plain in UNSEEN:
                self._recording.notice(f"{plain} is not followed")
                return
            at = self._recording.sites.here()
            stream = given.get("stream", 0)
            stream = _PER_THREAD if stream == 0 and is_per_thread else stream
            self._call(plain, given, stream, pointers, label, at)

    def called_with_unknown_arguments(self) -> None:
        """Say that kernels are not recorded whose arguments cannot be asked for."""
        self._recording.notice("this driver does not say what arguments kernels have")

    def _call(
        self, name: str, given: Given, stream: int, pointers: Sequence[int], label: str, at: int
    ) -> None:
        short = name.removeprefix("cu").partition("_")[0]
        if short.startswith(("Stream", "Event", "Ctx", "Graph")):
            self._order(short, given, stream, at)
        elif short.startswith("Launch"):
            self._launch(label or "kernel", pointers, self._actor(stream), at)
        elif short.startswith("Memcpy"):
            self._copy(name, given, self._actor(stream), at)
        elif short.startswith("Memset"):
            width = int(short.removeprefix("MemsetD").removesuffix("Async")) // 8
            written = self._bytes(given["dst"], width * given["count"])
            self._recording.work(self._actor(stream), name, (), written, at)
        elif name in FREES:
            self._freed(name, given["address"], stream, at)
        else:
            self._allocated(given["address"], given["nbytes"], "Host" in name, at)

    def _order(self, name: str, given: Given, stream: int, at: int) -> None:
        """Record what orders work, or what launches a graph of it."""
        recording = self._recording
        match name:
            case "StreamCreate" | "StreamCreateWithPriority":
                recording.stream((0, stream), not given["flags"] & _NON_BLOCKING)
            case "EventRecord" | "EventRecordWithFlags":
                recording.record(given["event"], self._actor(stream), at)
            case "EventDestroy":
                recording.event_deleted(given["event"])
            case "StreamWaitEvent":
                recording.wait(given["event"], self._actor(stream), at)
            case "EventSynchronize" | "EventQuery":
                self._wait(at, event=given["event"])
            case "StreamSynchronize" | "StreamQuery":
                self._wait(at, streams=[self._actor(stream)])
            case "CtxSynchronize":
                self._wait(at, streams=recording.streams_of(0))
            case _:
                self._graph(name, given, stream, at)

    def _graph(self, name: str, given: Given, stream: int, at: int) -> None:
        if name == "StreamBeginCapture":
            key = self._captures[stream] = object()
            self._recording.begin_capture(key, self._actor(stream))
        elif name == "StreamEndCapture":
            key = self._graphs[given["graph"]] = self._captures.pop(stream, object())
            self._recording.end_capture(key)
        elif name == "GraphLaunch":
            key = self._graphs.get(given["instance"])
            if key is None:
                self._recording.notice("graphs that are built of nodes are not followed")
            self._recording.replay(key, self._actor(stream), at)
        elif given["graph"] in self._graphs:  # an instance
            self._graphs[given["instance"]] = self._graphs[given["graph"]]

    def _actor(self, stream: int) -> int:
        handle = 0 if stream in _DEFAULTS else stream
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

    def _copy(self, name: str, given: Given, actor: int, at: int) -> None:
        """Record a copy; from and to memory of the host that is not pinned the driver stages."""
        nbytes = given["nbytes"]
        read, written = self._bytes(given["src"], nbytes), self._bytes(given["dst"], nbytes)
        ends = self._at(given["src"]), self._at(given["dst"])
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
