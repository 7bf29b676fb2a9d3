"""A device of ggml: facts, memory, streams and programs."""

import os
from collections.abc import Sequence
from contextlib import suppress
from ctypes import c_int, c_void_p
from typing import Final

from ggsched.backend import checks
from ggsched.backend.base import BaseBuffer, BaseProgram, host_facts, physical_memory_nbytes
from ggsched.backend.base_buffer import writable_memory
from ggsched.backend.base_issuing import IssuingDevice, IssuingStream
from ggsched.backend.processors import usable_processors
from ggsched.backend.program import BoundNode
from ggsched.backend.program_body import Steps
from ggsched.backend.protocols import HostMemory, Stream
from ggsched.backend.timing import Clock
from ggsched.errors import OutOfDeviceMemory
from ggsched.ir.dtype import DType
from ggsched.ir.ops import BUILT_IN, OPS, operand_dtypes
from ggsched.topology.caps import HOST_PROCESSOR, DeviceFacts, Kind, WaitPath, op_key
from ggsched_ggml.driver import Handle, Library, Props, own_function, properties
from ggsched_ggml.lowering import FUSIONS, LOWERINGS, GraphMaker, Unlowered
from ggsched_ggml.memory import BackendStream, Memory, allocate, imported
from ggsched_ggml.program import steps_of
from ggsched_ggml.sample_nodes import sample_node

MAX_STREAMS: Final = 16
KINDS: Final[tuple[Kind, ...]] = ("cpu", "gpu", "integrated", "accelerator", "accelerator")
"""By ggml's number of a type of device."""
CPU: Final = 0
_ON_HOST: Final = (CPU, 3)
"""Types of devices that compute on the processor of the host."""


def facts_of(library: Library, handle: Handle, props: Props, name: str) -> DeviceFacts:
    """Return the facts of a device: what ggml says of it, and which nodes it supports.

    In host memory, other built-in ops run by the reference arithmetic.
    """
    kind = library.ggml_backend_dev_buffer_type(handle)
    is_host = bool(library.ggml_backend_buft_is_host(kind))
    ops = supported_ops(library, handle)
    rest = frozenset(BUILT_IN) - {key.partition(":")[0] for key in ops} if is_host else ()
    memory_nbytes = props.memory_total or physical_memory_nbytes()
    return host_facts(
        "ggml",
        ops | {op_key(op, t.name) for op in rest for t in operand_dtypes(OPS[op])},
        name=name,
        description=f"{(props.description or b'').decode().strip()} (ggml {library.version})",
        kind=KINDS[props.type] if props.type < len(KINDS) else "accelerator",
        processor=HOST_PROCESSOR if props.type in _ON_HOST else "",
        alignment=max(64, library.ggml_backend_buft_get_alignment(kind)),
        memory_nbytes=memory_nbytes,
        max_allocation_nbytes=min(memory_nbytes, library.ggml_backend_buft_get_max_size(kind)),
        max_streams=MAX_STREAMS,
        is_host=is_host,
        is_async=True,
        snapshots_uploads=False,
        is_deterministic=props.type == CPU,
        rounds_to_8_bits=True,
        takes_expert_ranges=True,  # by reference
        imports_host_memory=is_host and props.buffer_from_host_ptr,
        fusions=FUSIONS,
        reference_ops=frozenset(rest),
    )


def supported_ops(library: Library, handle: Handle) -> frozenset[str]:
    """Return the ops on types of which a device supports a node of ordinary shapes."""
    pairs = ((op, dtype) for op in LOWERINGS for dtype in operand_dtypes(OPS[op]))
    return frozenset(op_key(o, t.name) for o, t in pairs if _supports(library, handle, o, t))


def _supports(library: Library, handle: Handle, op: str, dtype: DType) -> bool:
    maker = GraphMaker(library, handle, library.ggml_backend_dev_buffer_type(handle))
    try:
        maker.add(sample_node(op, dtype))
    except Unlowered:
        return False
    finally:
        for context in maker.take_contexts():
            library.ggml_free(context)
    return True


class GgmlDevice(IssuingDevice[BackendStream]):
    """A device of ggml.

    Attributes:
        buffers: The buffer type of its memory.
        has_plans: Whether graphs can be prepared (``graph_plan_create``).
    """

    def __init__(self, library: Library, handle: Handle, name: str) -> None:
        props = properties(library, handle)
        is_native = bool(props.is_async and props.events)
        super().__init__(facts_of(library, handle, props, name), is_native=is_native)
        self.library, self.handle = library, handle
        self.buffers = library.ggml_backend_dev_buffer_type(handle)
        self.has_plans = props.type == CPU
        self._is_async = bool(props.is_async)
        self._pinned: Handle = library.ggml_backend_dev_host_buffer_type(handle) or 0
        set_threads = "ggml_backend_set_n_threads", c_void_p, c_int
        self._set_threads = own_function(library, handle, *set_threads)
        text = os.environ.get("GGSCHED_THREADS", "").strip()
        self._threads = int(text) if text.isdigit() else len(usable_processors())

    def __clock__(self) -> Clock | None:  # type: ignore[override]
        """Return the clock of its streams, where a command is complete when it returns."""
        return None if self._is_async else super().__clock__()

    def acquire_memory(self, nbytes: int) -> Memory:
        """Return a buffer of ggml."""
        return allocate(self.library, self.buffers, nbytes)

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
        own = imported(self.library, self.handle, memory, self.facts.alignment)
        return self._register(BaseBuffer(self, memory.nbytes, own, readonly=True))

    def make_stream(self, name: str) -> IssuingStream[BackendStream]:
        """Return a stream with a backend of ggml of its own."""
        try:
            stream = BackendStream(self.library, self.handle, self.host_writes)
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
