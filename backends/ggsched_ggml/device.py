"""A device of ggml: facts, memory, streams and programs."""

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from ctypes import c_int, c_void_p
from dataclasses import replace
from typing import Any, Final

from ggsched.backend import checks
from ggsched.backend.base import BaseBuffer, BaseDevice, BaseProgram, host_facts
from ggsched.backend.base_buffer import writable_memory
from ggsched.backend.base_issuing import IssuingStream, Worker
from ggsched.backend.fill import blocks
from ggsched.backend.program import BoundNode, Operand, full_params
from ggsched.backend.program_body import Steps
from ggsched.backend.protocols import HostMemory, Stream
from ggsched.backend.timeouts import event_timeout
from ggsched.backend.timing import Clock
from ggsched.errors import OutOfDeviceMemory
from ggsched.ir.dtype import F32, I32, DType
from ggsched.ir.ops import BUILT_IN, OPS, operand_dtypes
from ggsched.ir.tensor import contiguous_strides, span_nbytes
from ggsched.topology.caps import HOST_PROCESSOR, DeviceFacts, Kind, WaitPath, op_key
from ggsched_ggml.driver import Handle, Library, Props, own_function, properties
from ggsched_ggml.lowering import FUSIONS, LOWERINGS, GraphMaker, Unlowered
from ggsched_ggml.memory import BackendStream, HostWrites, Memory, allocate, imported
from ggsched_ggml.program import steps_of

MAX_STREAMS: Final = 16
KINDS: Final[tuple[Kind, ...]] = ("cpu", "gpu", "integrated", "accelerator", "accelerator")
"""By ggml's number of a type of device."""
CPU: Final = 0
_ON_HOST: Final = (CPU, 3)
"""Types of devices that compute on the processor of the host."""
_SLACK: Final = 512
"""Bytes behind a buffer: some backends read whole vectors at the end of a packed row."""


def facts_of(library: Library, handle: Handle, props: Props, name: str) -> DeviceFacts:
    """Return the facts of a device: what ggml says of it, and which nodes it supports.

    In host memory, other built-in ops run by the reference arithmetic.
    """
    kind = library.ggml_backend_dev_buffer_type(handle)
    is_host = bool(library.ggml_backend_buft_is_host(kind))
    ops = supported_ops(library, handle)
    rest = frozenset(BUILT_IN) - {key.partition(":")[0] for key in ops} if is_host else ()
    facts = host_facts(
        "ggml",
        ops | {op_key(op, t.name) for op in rest for t in operand_dtypes(OPS[op])},
        name=name,
        description=f"{(props.description or b'').decode().strip()} (ggml {library.version})",
        kind=KINDS[props.type] if props.type < len(KINDS) else "accelerator",
        processor=HOST_PROCESSOR if props.type in _ON_HOST else "",
        alignment=max(64, library.ggml_backend_buft_get_alignment(kind)),
        max_allocation_nbytes=library.ggml_backend_buft_get_max_size(kind),
        max_streams=MAX_STREAMS,
        is_host=is_host,
        is_async=True,
        snapshots_uploads=False,
        is_deterministic=props.type == CPU,
        rounds_to_8_bits=True,
        imports_host_memory=is_host and props.buffer_from_host_ptr,
        fusions=FUSIONS,
        reference_ops=frozenset(rest),
        **({"memory_nbytes": props.memory_total} if props.memory_total else {}),
    )
    most = min(facts.memory_nbytes, facts.max_allocation_nbytes)
    return replace(facts, max_allocation_nbytes=most)


# --- which ops a device supports -----------------------------------------------------------------

SAMPLES: Final = {
    "mul_mat": "64,256 8,256 > 8,64", "mul_mat_id": "4,64,256 8,2,256 i8,2 > 8,2,64",
    "add_id": "8,2,256 4,256 i8,2 > 8,2,256", "get_rows": "16,256 i8 > 8,256",
    "set_rows": "16,256 8,256 i8 >", "rope": "8,4,64 i8 > 8,4,64", "cpy": "8,256 8,256 >",
    "attention": "32,2,256 =32,2,256 8,4,256 > 8,4,256", "concat": "8,256 =8,256 > 16,256",
    "sum_rows": "8,256 > 8,1",
    **dict.fromkeys(("add", "sub", "mul", "div", "swiglu", "swiglu_oai"), "8,256 8,256 > 8,256"),
}  # fmt: skip
"""Shapes of operands and result of a node; ``i`` for ids, ``=`` for the first operand's type."""
_PARAMS: Final[dict[str, dict[str, Any]]] = {"rope": {"n_dims": 64}, "repeat": {"shape": (8, 256)}}


def supported_ops(library: Library, handle: Handle) -> frozenset[str]:
    """Return the ops on types of which a device supports a node of ordinary shapes."""
    pairs = ((op, dtype) for op in LOWERINGS for dtype in operand_dtypes(OPS[op]))
    return frozenset(op_key(o, t.name) for o, t in pairs if _supports(library, handle, o, t))


def _supports(library: Library, handle: Handle, op: str, dtype: DType) -> bool:
    maker = GraphMaker(library, handle)
    try:
        maker.add(_sample(op, dtype))
    except Unlowered:
        return False
    finally:
        for context in maker.take_contexts():
            library.ggml_free(context)
    return True


def _sample(op: str, dtype: DType) -> BoundNode:
    """Return a node without memory."""
    given, _, result = SAMPLES.get(op, "8,256 > 8,256").partition(">")
    inputs = []
    for i, text in enumerate(given.split()):
        kind = I32 if text[0] == "i" else dtype if not i or text[0] == "=" else F32
        kind = I32 if op == "cpy" and dtype is I32 else kind
        inputs.append(_operand(text.strip("i="), kind))
    is_moved = dtype is I32 or (op == "cont" and not dtype.is_quantized)
    through = OPS[op].through
    output = inputs[through or 0] if through is not None else _operand(
        result, dtype if is_moved else F32
    )  # fmt: skip
    return BoundNode(0, op, tuple(inputs), output, full_params(op, _PARAMS.get(op, {})), op)


def _operand(text: str, dtype: DType) -> Operand:
    shape, nobody = tuple(map(int, text.split(","))), None
    strides = contiguous_strides(dtype, shape)
    return Operand(nobody, 0, span_nbytes(dtype, shape, strides), dtype, shape, strides)  # type: ignore[arg-type]


# --- the device ----------------------------------------------------------------------------------


class GgmlDevice(BaseDevice):
    """A device of ggml.

    Attributes:
        buffers: The buffer type of its memory.
        has_plans: Whether graphs can be prepared (``graph_plan_create``).
        is_native: Whether streams wait for each other by events of ggml.
    """

    def __init__(self, library: Library, handle: Handle, name: str) -> None:
        props = properties(library, handle)
        super().__init__(facts_of(library, handle, props, name), {})
        self.library, self.handle = library, handle
        self.buffers = library.ggml_backend_dev_buffer_type(handle)
        self.has_plans = props.type == CPU
        self.is_native = bool(props.is_async and props.events)
        self.here = threading.local()
        self.workers: dict[int, Worker] = {}
        self.event_timeout_s, self._host_writes = event_timeout(), HostWrites()
        self._is_async = bool(props.is_async)
        self._pinned: Handle = library.ggml_backend_dev_host_buffer_type(handle) or 0
        set_threads = "ggml_backend_set_n_threads", c_void_p, c_int
        self._set_threads, self._threads = own_function(library, handle, *set_threads), threads()

    def __clock__(self) -> Clock | None:  # type: ignore[override]
        """Return the clock of its streams, where a command is complete when it returns."""
        return None if self._is_async else super().__clock__()

    @property
    def running(self) -> BackendStream:
        """The stream whose thread calls."""
        stream: BackendStream = self.here.running
        return stream

    def acquire_memory(self, nbytes: int) -> Memory:
        """Return a buffer of ggml."""
        return allocate(self.library, self.buffers, nbytes, _SLACK)

    def read_memory(self, memory: Memory, offset: int, target: HostMemory) -> None:
        """Enqueue a transfer to the host."""
        self.running.read(memory, offset, target)

    def write_memory(self, memory: Memory, offset: int, source: HostMemory) -> None:
        """Enqueue a transfer to the device."""
        self.running.write(memory, offset, source)

    def copy_memory(
        self, src: Memory, src_offset: int, dst: Memory, dst_offset: int, nbytes: int
    ) -> None:
        """Enqueue a copy within the device."""
        self.running.copy(src, src_offset, dst, dst_offset, nbytes)

    def fill_memory(self, memory: Memory, offset: int, nbytes: int, pattern: bytes) -> None:
        """Enqueue a fill."""
        for start, block in blocks(nbytes, pattern):
            self.running.write(memory, offset + start, block)
            self.running.borrowed.append(block)

    def allocate_host(self, nbytes: int) -> HostMemory:
        """Return host memory, pinned where the backend offers that (BUF-6)."""
        self._require_open()
        if nbytes > 0 and self._pinned:
            with suppress(MemoryError):  # plain memory is a correct answer
                return allocate(self.library, self._pinned, nbytes).data
        return super().allocate_host(nbytes)

    def import_host(self, memory: HostMemory) -> BaseBuffer:
        """Return a read-only buffer over host memory, if the facts say so."""
        self._require_open()
        checks.check_import(self.facts, memory)
        if not memory.nbytes:
            return super().import_host(memory)
        own = imported(self.library, self.handle, memory, self.facts.alignment)
        return self._register(BaseBuffer(self, memory.nbytes, own, readonly=True))

    def make_stream(self, name: str) -> IssuingStream[BackendStream]:
        """Return a stream with a backend of ggml of its own."""
        try:
            stream = BackendStream(self.library, self.handle, self._host_writes)
        except MemoryError as error:
            raise OutOfDeviceMemory("ggml makes no stream", where=self.facts.name) from error
        self._set_threads(stream.handle, self._threads)
        return IssuingStream(self, name, stream, is_async=self._is_async)

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        """Build graphs of ggml (LCH-3)."""
        self._require_open()
        checks.check_compile(self, nodes, stream)
        for node in nodes:
            writable_memory(node.output.buffer)
        assert isinstance(stream, IssuingStream)  # this device's streams are
        if stream.is_closed:
            raise checks.closed_error("stream")
        try:
            steps, by_reference = steps_of(self, stream.queue, nodes)
        except MemoryError as error:
            raise OutOfDeviceMemory("no memory for scratch", where=self.facts.name) from error
        return BaseProgram(stream, Steps(steps), by_reference)

    def wait_path(self, other: DeviceFacts) -> WaitPath:
        """Its own events by ggml where it has them; others by the thread of the stream (EVT-4)."""
        return "native" if other.backend == self.facts.backend else "thread"


def threads() -> int:
    """Return how many threads compute on the host: ``GGSCHED_THREADS``, or one for each core."""
    text = os.environ.get("GGSCHED_THREADS", "").strip()
    return int(text) if text.isdigit() and int(text) else len(os.sched_getaffinity(0))
