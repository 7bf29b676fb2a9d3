"""Correct synchronous defaults, so that a plug-in is its facts and its kernels.

    def add(out, inputs, params):
        np.add(inputs[0], inputs[1], out)

    def open_backend():
        facts = host_facts("mine", ["add:f32"])
        return BaseBackend("mine", lambda index: BaseDevice(facts, {"add": add}))

Each command runs at once on the caller's thread, which the contract allows (STR-2). All checks of
arguments are made here, and a kernel that raises poisons its stream (ERR-2). A device with memory
of its own overrides ``acquire_memory``, ``read_memory`` and ``write_memory``; a stream that works
in the background overrides ``_submit`` of ``BaseStream`` and little else.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, Final

import numpy as np

from ggsched.backend import checks
from ggsched.backend.arrays import Array, aligned_bytes, bind
from ggsched.backend.base_buffer import BaseBuffer, own_buffer, writable_memory
from ggsched.backend.base_stream import BaseProgram, BaseStream
from ggsched.backend.device_core import DeviceCore
from ggsched.backend.events import BaseEvent
from ggsched.backend.fill import blocks
from ggsched.backend.list_capture import RecordedCapture
from ggsched.backend.program import BoundNode, Operand
from ggsched.backend.program_body import Steps
from ggsched.backend.protocols import Device, HostMemory, Stream
from ggsched.backend.timing import Clock
from ggsched.errors import BackendUnavailable, UsageError
from ggsched.ir.ops import Param
from ggsched.topology.caps import DeviceFacts, WaitPath

Kernel = Callable[[Array, Sequence[Array], Mapping[str, Param]], None]
"""``kernel(out, inputs, params)`` writes every element of ``out``.

``out`` may be the very bytes of an input that the op lists in ``OpDef.may_overwrite``, and is one
of the inputs for ops that write through an operand. Arrays are as ``ggsched.backend.arrays.bind``
makes them.
"""


def host_facts(backend: str, ops: Iterable[str], **changes: Any) -> DeviceFacts:
    """Return the facts of a synchronous device in host memory; ``changes`` replace fields."""
    fields: dict[str, Any] = {
        "name": f"{backend}:0",
        "backend": backend,
        "description": f"{backend} on the host",
        "kind": "cpu",
        "memory_nbytes": physical_memory_nbytes(),
        "alignment": 64,
        "max_streams": 64,
        "is_host": True,
        "has_events": True,
        "copy_order": "stream",
        "snapshots_uploads": True,
        "is_deterministic": True,
        "ops": frozenset(ops),
    }
    return DeviceFacts(**{**fields, **changes})


def physical_memory_nbytes() -> int:
    """Return how much memory the machine has in all, a figure that does not change."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


_FEW: Final = 4096
"""Bytes that are copied sooner than numpy makes arrays for them."""


class BaseDevice(DeviceCore[BaseStream]):
    """A device that computes with numpy kernels.

    ``read_memory``, ``write_memory`` and ``copy_memory`` work on what ``acquire_memory`` returns,
    which for a host device is a uint8 array.
    """

    def __init__(self, facts: DeviceFacts, kernels: Mapping[str, Kernel]) -> None:
        super().__init__(facts)
        self.kernels = kernels

    def __clock__(self) -> Clock:
        """Return the clock of its streams' times; see ``ggsched.backend.timing``.

        They are those of the thread that runs a command: a device whose ``write_memory`` or
        kernels return before they are done sets ``__clock__ = None``.
        """
        return perf_counter

    # --- hooks ------------------------------------------------------------------------------

    def acquire_memory(self, nbytes: int) -> Any:
        """Return fresh memory; ``MemoryError`` becomes ``OutOfDeviceMemory``."""
        return aligned_bytes(nbytes, self.facts.alignment)

    def read_memory(self, memory: Any, offset: int, target: HostMemory) -> None:
        """Copy bytes of the device's memory into host memory."""
        nbytes = target.nbytes
        if nbytes <= _FEW:
            target[:] = memory.data[offset : offset + nbytes]
        else:
            np.copyto(np.frombuffer(target, np.uint8), memory[offset : offset + nbytes])

    def write_memory(self, memory: Any, offset: int, source: HostMemory) -> None:
        """Copy host bytes into the device's memory."""
        nbytes = source.nbytes
        if nbytes <= _FEW:
            memory.data[offset : offset + nbytes] = source
        else:
            np.copyto(memory[offset : offset + nbytes], np.frombuffer(source, np.uint8))

    def copy_memory(
        self, src: Any, src_offset: int, dst: Any, dst_offset: int, nbytes: int
    ) -> None:
        """Copy within the device's memory."""
        between = memoryview(bytearray(nbytes))
        self.read_memory(src, src_offset, between)
        self.write_memory(dst, dst_offset, between)

    def fill_memory(self, memory: Any, offset: int, nbytes: int, pattern: bytes) -> None:
        """Set bytes of the device's memory to a repeated pattern."""
        for start, block in blocks(nbytes, pattern):
            self.write_memory(memory, offset + start, block)

    def leave_zero(self, memory: Any) -> None:
        """Take note that memory was to be cleared, which is known to be zeros already."""

    def make_stream(self, name: str) -> BaseStream:
        """Return a new stream of the device's kind."""
        return BaseStream(self, name)

    # --- the contract ----------------------------------------------------------------------

    def import_host(self, memory: HostMemory) -> BaseBuffer:
        """Return a read-only buffer over host memory, if the facts say so."""
        self._require_open()
        checks.check_import(self.facts, memory)
        view = np.frombuffer(memory.toreadonly(), np.uint8) if memory.nbytes else _no_bytes()
        return self._register(BaseBuffer(self, memory.nbytes, view, readonly=True))

    def create_event(self) -> BaseEvent:
        """Return a fresh event (EVT-1)."""
        if self.is_closed:  # there are several events in each run
            self._require_open()
        return BaseEvent(self)

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        """Bind arrays to kernels (LCH-3)."""
        self._require_open()
        checks.check_compile(self, nodes, stream)
        for node in nodes:
            writable_memory(node.output.buffer)
        return BaseProgram(stream, Steps([(node.label, self._bind(node)) for node in nodes]))

    def begin_capture(self, streams: Sequence[Stream]) -> RecordedCapture:
        """Write down what is enqueued on streams from now on (CAP-1..4)."""
        self._require_open()
        return RecordedCapture(self, streams)

    def copies_with(self, other: DeviceFacts) -> bool:
        """Whether streams copy from and to buffers of another device (CPY-6): host ones."""
        return other.is_host

    def wait_path(self, other: DeviceFacts) -> WaitPath:
        """How streams wait for events of another device (EVT-4): only for their own kind's."""
        return "native" if other.backend == self.facts.backend else "host"

    # --- helpers -----------------------------------------------------------------------------

    def _bind(self, node: BoundNode) -> Callable[[], None]:
        try:
            kernel = self.kernels[node.op]
        except KeyError:
            raise UsageError(f"there is no kernel for {node.op}", where=node.label) from None
        if not self.facts.is_host:
            return lambda: self._run_staged(node, kernel)
        out = bind(node.output, _window(node.output))
        inputs = [bind(operand, _window(operand)) for operand in node.inputs]
        return lambda: kernel(out, inputs, node.params)

    def _run_staged(self, node: BoundNode, kernel: Kernel) -> None:
        """Run a kernel on host copies of its operands, for memory that is not host memory.

        The output is read first: a kernel that writes through leaves some bytes alone.
        """
        windows = [memoryview(bytearray(o.nbytes)) for o in (node.output, *node.inputs)]
        for operand, window in zip((node.output, *node.inputs), windows, strict=True):
            self.read_memory(own_buffer(operand.buffer).memory, operand.offset, window)
        inputs = [bind(o, w) for o, w in zip(node.inputs, windows[1:], strict=True)]
        kernel(bind(node.output, windows[0]), inputs, node.params)
        self.write_memory(own_buffer(node.output.buffer).memory, node.output.offset, windows[0])


class BaseBackend:
    """A plug-in that opens devices by calling ``make``.

    Args:
        name: Name of the entry point.
        make: Opens the device of an index.
        count: Devices that are offered.
        limit: First index that is refused; more than ``count`` for logical devices.
        contract_version: The contract that the plug-in was written against.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[int], Device],
        *,
        count: int = 1,
        limit: int | None = None,
        contract_version: tuple[int, int] = (1, 0),
    ) -> None:
        self.name = name
        self.contract_version = contract_version
        self._make = make
        self._count = count
        self._limit = count if limit is None else limit

    def device_count(self) -> int:
        """How many devices are offered."""
        return self._count

    def open_device(self, index: int) -> Device:
        """Open a device; every call gives a device of its own."""
        if not 0 <= index < self._limit:
            raise BackendUnavailable(
                f"there is no device {self.name}:{index}",
                why=f"there are {self._limit}",
                hint="count from zero",
            )
        return self._make(index)


def _no_bytes() -> Array:
    return np.empty(0, np.uint8)


def _window(operand: Operand) -> HostMemory:
    memory = operand.buffer.host_view()
    return memory[operand.offset : operand.offset + operand.nbytes]


__all__ = [
    "BaseBackend",
    "BaseBuffer",
    "BaseDevice",
    "BaseEvent",
    "BaseProgram",
    "BaseStream",
    "Kernel",
    "host_facts",
    "physical_memory_nbytes",
]
