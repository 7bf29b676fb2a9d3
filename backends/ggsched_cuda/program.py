"""Nodes as calls of the driver with every argument bound: launching is nothing but enqueueing."""

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from ggsched.backend.base_buffer import BaseBuffer, own_buffer
from ggsched.backend.program import BoundNode, OperandMemory
from ggsched.backend.protocols import Device, Stream
from ggsched.backend.queued.command_queue import CommandSink
from ggsched_cuda import driver
from ggsched_cuda.deferred import MirroredLaunch
from ggsched_cuda.driver import Step
from ggsched_cuda.queue import CudaQueue
from ggsched_cuda.rendezvous import PLACES, PushedLaunch, RendezvousLaunch
from ggsched_cuda_kernels.blas.driver import Product, batches_of
from ggsched_cuda_kernels.calls import Call, Place, ProductCall
from ggsched_cuda_kernels.kernel_selection import lower
from ggsched_cuda_kernels.programmatic_launch import Mode, starts_early
from ggsched_cuda_kernels.warp_specialized.rows import STAGED_ARGS
from ggsched_kernels import CODE, FAULT, Constant, KernelCall, TuningProfile
from ggsched_kernels.calls import Arg, ArgPlaceholder, CodeOf, StreamCall


class ProgramDevice(Device, Protocol):
    """What programs use of their device."""

    early: Mode
    profile: TuningProfile

    def allocate(self, nbytes: int) -> BaseBuffer:
        """Return a fresh buffer."""


class ProgramStream(Stream, Protocol):
    """What programs use of their stream."""

    queue: CudaQueue

    @property
    def sink(self) -> CommandSink:
        """Where commands go."""

    @property
    def device(self) -> ProgramDevice:
        """The device."""


def _enqueue_by(enqueue: Callable[[int], object], stream: int) -> tuple[int]:
    """Let a function enqueue commands on a stream, as a step of a program."""
    enqueue(stream)
    return (driver.READY,)


def _enqueue_all(products: Sequence[Product]) -> tuple[int]:
    """Enqueue products one after another, as a step of a program."""
    for product in products:
        product()
    return (driver.READY,)


_Params = tuple[Any, Any]
"""Memory of arguments, and addresses in it."""


def _arguments(params: _Params, at: int, count: int) -> tuple[ctypes.c_uint64, ...]:
    """Return arguments of a call, to be set before it is launched."""
    return tuple(ctypes.c_uint64.from_address(params[1][at + i]) for i in range(count))


class CudaProgram:
    """Calls for one stream, with memory of their own (LCH-1..5).

    Attributes:
        steps: The calls.
        labels: The node of each.
        checks_ids: Whether one of them may meet an id out of range.
        sending: The last call, if it can write its result to other places too.
        in_turn: The first call as one that is not launched before its predecessors are complete.
        rendezvous: The first call, if it can meet one of another GPU.
        pushed: What can take the place of the first calls, if other GPUs push their rows.
    """

    def __init__(self, stream: ProgramStream, nodes: Sequence[BoundNode]) -> None:
        calls, memory = lower(nodes, stream.device.profile)
        self.stream = stream
        self.is_closed = False
        self.checks_ids = any(isinstance(c, KernelCall) and FAULT in c.args for c in calls)
        self.labels = [call.label for call in calls]
        self.steps: list[Step] = []
        self.sending: MirroredLaunch | None = None
        self.in_turn: Step | None = None
        self.rendezvous: RendezvousLaunch | None = None
        self.pushed: PushedLaunch | None = None
        self._params: list[_Params] = []
        self._owned: list[BaseBuffer] = []
        self._constants: dict[bytes, int] = {}
        self._memory: dict[ArgPlaceholder, int] = {}
        stream.queue.enter()
        kernels = [call for call in calls if isinstance(call, KernelCall)]
        kernels += [call.pushed.call for call in kernels if call.pushed is not None]
        stream.queue.gpu.programs.prepare(kernels, stream.device.early)
        try:
            for kind, nbytes in memory.items():
                self._memory[kind] = self._own(nbytes).memory
            for call in calls:
                self.steps.append(self._bind(call))
            if calls:
                self.sending = self._sending_of(calls[-1])
                self.in_turn = self._in_turn(calls[0])
                self.rendezvous = self._rendezvous_of(calls[0])
                self.pushed = self._pushed_of(calls[0])
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release that memory; legal twice. Launches that are enqueued still have it."""
        self.is_closed = True
        self.steps = []
        self.sending = self.in_turn = self.rendezvous = self.pushed = None
        owned, self._owned = self._owned, []
        for buffer in owned:
            buffer.close()

    def _own(self, nbytes: int) -> BaseBuffer:
        buffer = self.stream.device.allocate(nbytes)
        self._owned.append(buffer)
        return buffer

    def _bind(self, call: Call) -> Step:
        if isinstance(call, ProductCall):
            return self._bind_product(call), ()
        if isinstance(call, StreamCall):
            handle = self.stream.queue.handle
            return _enqueue_by, (call.bound(self._memory_of, handle), handle)
        shared = call.shared_nbytes
        programs = self.stream.queue.gpu.programs
        mode = self.stream.device.early
        function = programs.function(
            call.source, call.defines, call.kernel, shared, mode, call.launch
        )
        params = self._pack([self._value(arg, call.label) for arg in call.args])
        early = starts_early(call.launch, self.stream.queue.gpu.found.arch, mode)
        if early or call.cluster > 1:
            config = driver.launch_config(
                call.groups, call.lanes, shared, self.stream.queue.handle, early=early,
                cluster=call.cluster,
            )  # fmt: skip
            return driver.launch_configured, (config, function, params, 0)
        grid, block = call.groups, (call.lanes, 1, 1)
        arguments = (function, *grid, *block, shared, self.stream.queue.handle, params, 0)
        return driver.launch_kernel, arguments

    def _in_turn(self, call: Call) -> Step:
        """Return the first step without programmatic dependent launch."""
        launch, arguments = self.steps[0]
        if launch is not driver.launch_configured:
            return self.steps[0]
        assert isinstance(call, KernelCall)
        config = driver.launch_config(
            call.groups, call.lanes, call.shared_nbytes, self.stream.queue.handle,
            cluster=call.cluster,
        )  # fmt: skip
        return launch, (config, *arguments[1:])

    def _sending_of(self, call: Call) -> MirroredLaunch | None:
        """Return the last call as one whose result may go to other places, if it can."""
        if not isinstance(call, KernelCall) or call.also is None:
            return None
        also = call.also
        places = _arguments(self._params[-1], also.arg, also.places)
        source = own_buffer(also.buffer).memory + also.offset
        return MirroredLaunch(self.steps[-1], places, source, also.nbytes, call.label)

    def _rendezvous_of(self, call: Call) -> RendezvousLaunch | None:
        """Return the first call as one that meets another GPU's, if it can."""
        if not isinstance(call, KernelCall) or call.meets < 0:
            return None
        return RendezvousLaunch(_arguments(self._params[0], call.meets, PLACES), call.groups[0])

    def _pushed_of(self, call: Call) -> PushedLaunch | None:
        """Return what takes the place of the first calls if rows are pushed, if anything can."""
        pushed = call.pushed if isinstance(call, KernelCall) else None
        if pushed is None:
            return None
        step = self._bind(pushed.call)
        rows = tuple(self._address(part) for part in pushed.parts)
        places = _arguments(self._params[-1], pushed.staged, STAGED_ARGS)
        return PushedLaunch(step, places, pushed.covered, rows, pushed.nbytes)

    def _bind_product(self, call: ProductCall) -> Callable[[], tuple[int]]:
        (m, n, k), x = call.size, self._address(call.x)
        bound = ((call.w, call.y), *call.more)
        places = sorted((self._address(w), self._address(y)) for w, y in bound)
        batches = batches_of(places, call.kind, call.is_narrow) if call.more else call.batches
        how: dict[str, Any] = {"kind": call.kind, "rows": call.rows, "adds": call.adds}
        how |= {"precision": call.precision, "is_narrow": call.is_narrow}
        handle, at_once = self.stream.queue.blas(), batches or call.batches
        found = [
            Product(handle, m, n, k, w, x, y, batches=at_once, has_columns=call.has_columns, **how)
            for w, y in (places if batches is None else places[:1])
        ]
        for product in found:
            self.stream.queue.load_kernels(product)
        return found[0] if len(found) == 1 else partial(_enqueue_all, found)

    def _address(self, place: Place) -> int:
        memory, offset = place
        return self._memory_of(memory) + offset

    def _memory_of(self, memory: OperandMemory | ArgPlaceholder) -> int:
        if isinstance(memory, ArgPlaceholder):
            return self._memory[memory]
        return int(own_buffer(memory).memory)

    def _pack(self, values: Sequence[bytes]) -> int:
        """Lay arguments out in memory; return the address of the list of their addresses."""
        starts = []
        end = 0
        for value in values:
            starts.append(end)
            end += -(-len(value) // 8) * 8
        memory = (ctypes.c_uint64 * max(1, end // 8))()
        base = ctypes.addressof(memory)
        for start, value in zip(starts, values, strict=True):
            ctypes.memmove(base + start, value, len(value))
        pointers = (ctypes.c_void_p * max(1, len(starts)))(*(base + start for start in starts))
        self._params.append((memory, pointers))
        return ctypes.addressof(pointers)

    def _value(self, arg: Arg, label: str) -> bytes:
        if isinstance(arg, bytes):
            return arg
        if arg is CODE or isinstance(arg, CodeOf):
            return self.stream.queue.words.codes.argument(label if arg is CODE else arg.label)
        if isinstance(arg, Constant):
            address = self._constant(arg.content)
        elif arg is FAULT:
            address = self.stream.queue.words.quad.address
        elif isinstance(arg, ArgPlaceholder):
            address = self._memory[arg]
        else:
            address = own_buffer(arg).memory
        return address.to_bytes(8, "little")

    def _constant(self, content: bytes) -> int:
        """Return device memory with content, filled in the order of the stream."""
        if content not in self._constants:
            address, sink = self._own(len(content)).memory, self.stream.sink
            source = memoryview(bytearray(content))
            if content:
                sink.give("compile", lambda: sink.upload(source, address, 0), is_timed=False)
            self._constants[content] = address
        return self._constants[content]
