"""Nodes as kernels whose arguments are set: launching is nothing but enqueueing."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ggsched.backend.base_buffer import BaseBuffer, own_buffer, writable_memory
from ggsched.backend.program import BoundNode, Operand
from ggsched.backend.protocols import Device
from ggsched.backend.queued.stream import QueuedStream
from ggsched_kernels import (
    CODE,
    FAULT,
    Constant,
    KernelCall,
    Lowered,
    TuningProfile,
    lower_nodes,
)
from ggsched_kernels.calls import Arg, ArgPlaceholder, CodeOf, StreamCall, i32, i64
from ggsched_kernels.merged import merged, runs
from ggsched_opencl import driver
from ggsched_opencl.driver import Handle, place_of
from ggsched_opencl.merging import MAX_POLLS, Merging
from ggsched_opencl.queue import OpenClQueue

Step = tuple[Callable[..., Handle], Handle, object, object]
"""What to call with the queue and a kernel, its work-items, and those of a group."""


class ProgramDevice(Device, Protocol):
    """What programs use of their device."""

    context: Any
    profile: TuningProfile
    merging: Merging

    def allocate(self, nbytes: int) -> BaseBuffer:
        """Return a fresh buffer."""

    def take_kernel(self, name: str, defines: tuple[tuple[str, str], ...], kernel: str) -> Handle:
        """Return a kernel object that nobody else uses until it is given back."""

    def give_back(self, kernels: Iterable[tuple[tuple[object, ...], Handle]]) -> None:
        """Take kernel objects back."""

    def drain_later(self, queue: Handle, newest: Handle, held: deque[Handle]) -> None:
        """Keep what is held until a command is complete."""


class OpenClProgram:
    """Kernels for one stream, with scratch memory of their own (LCH-1..5).

    Args:
        stream: The only stream that runs it.
        nodes: Nodes, checked, in order.
    """

    def __init__(
        self, device: ProgramDevice, stream: QueuedStream[OpenClQueue], nodes: Sequence[BoundNode]
    ) -> None:
        for node in nodes:
            writable_memory(node.output.buffer)
        lowered, merges = _lowered([_placed(node) for node in nodes], device.profile)
        merges = merges and stream.queue.times is None  # times are those of single calls
        self._device = device
        self.stream = stream
        self.is_closed = False
        kernels = [call for call in lowered.calls if isinstance(call, KernelCall)]
        self.checks_ids = any(FAULT in call.args for call in kernels)
        self.steps: list[Step] = []
        self.labels: list[str] = []
        # OpenCL kernels do not keep their arguments alive.
        self._buffers: list[Handle] = []
        self._newest: Handle = None  # of merged kernels
        self._kernels: list[tuple[tuple[object, ...], Handle]] = []
        self._memory: dict[ArgPlaceholder, BaseBuffer] = {}
        self._constants: dict[bytes, Handle] = {}
        try:
            for memory, nbytes in lowered.memory.items():
                self._memory[memory] = device.allocate(nbytes)
            for run in runs(lowered.calls) if merges else [lowered.calls]:
                if not merges or len(run) == 1 or not self._merge(run):
                    for call in run:
                        self._add(call)
        except BaseException:
            self.close()
            raise

    def _merge(self, calls: Sequence[Any]) -> bool:
        """Add calls as the steps of one kernel; False where its groups do not meet."""
        made, device = merged(calls), self._device
        key = (made.name, (), "merged")
        kernel = device.take_kernel(*key)
        self._kernels.append((key, kernel))
        groups = device.profile.merged_groups
        if not device.merging.do_meet(made, kernel, groups):
            return False
        values = {id(v): v for c in calls for a in c.args for v in [self._value(a, c.label)]}
        handles = {key: v for key, v in values.items() if not isinstance(v, bytes)}
        placing = device.take_kernel(made.name, (), "placed")
        self._kernels.append(((made.name, (), "placed"), placing))
        found = device.merging.addresses(placing, list(handles.values()))
        addresses = dict(zip(handles, found, strict=True))

        def value_of(arg: Arg, label: str) -> bytes:
            value = self._value(arg, label)
            return value if isinstance(value, bytes) else i64(addresses[id(value)])

        context = device.context
        table = driver.make_filled_buffer(context, made.table(value_of))
        barrier = driver.make_filled_buffer(context, bytes(64))
        self._buffers += [table, barrier, *handles.values()]
        label = calls[0].label
        code = self.stream.queue.codes.argument(label)
        given = (table, i32(len(calls)), barrier, MAX_POLLS, self.stream.queue.fault_words, code)
        for i, value in enumerate(given):
            driver.set_argument(kernel, i, value)
        self.checks_ids = True
        self.labels.append(label)
        lanes = made.lanes
        self.steps.append((self._enqueue_merged, kernel, (groups * lanes, 1, 1), (lanes, 1, 1)))
        return True

    def _enqueue_merged(self, *command: Any) -> Handle:
        self._newest = self._device.merging.enqueue(*command)
        return self._newest

    def _add(self, call: KernelCall | StreamCall) -> None:
        self.labels.append(call.label)
        if isinstance(call, StreamCall):
            enqueue = call.bound(lambda memory: self._value(memory, call.label), None)
            self.steps.append((driver.enqueue_by, enqueue, None, None))
            return
        key = (call.source, call.defines, call.kernel)
        kernel = self._device.take_kernel(*key)
        self._kernels.append((key, kernel))
        for i, arg in enumerate(call.args):
            driver.set_argument(kernel, i, self._value(arg, call.label))
        x, y, z = call.groups
        group = call.lanes, 1, 1
        self.steps.append((driver.enqueue_kernel, kernel, (x * call.lanes, y, z), group))

    def _value(self, arg: Arg, label: str) -> Handle | bytes:
        if isinstance(arg, bytes):
            return arg
        if isinstance(arg, Constant):
            context = self._device.context
            if arg.content not in self._constants:
                made = driver.make_filled_buffer(context, arg.content)
                self._constants[arg.content] = made
            return self._constants[arg.content]
        if arg is FAULT:
            return self.stream.queue.fault_words
        if arg is CODE or isinstance(arg, CodeOf):
            return self.stream.queue.codes.argument(arg.label if isinstance(arg, CodeOf) else label)
        if isinstance(arg, ArgPlaceholder):
            return self._memory[arg].memory  # the lowering has counted it
        handle, _ = place_of(own_buffer(arg).memory, 0)
        self._buffers.append(handle)
        return handle

    def close(self) -> None:
        """Give the kernels back and release the scratch memory; legal twice.

        Launches in the stream's backlog need the kernels' arguments as they are.
        """
        if self.is_closed:
            return
        self.is_closed = True
        self.steps = []
        self.stream.backlog.add_always("close", self._release)

    def _release(self) -> None:
        self._device.give_back(self._kernels)
        self._kernels = []
        # The driver does not know of memory that a merged kernel has addresses of.
        self._device.drain_later(None, self._newest, deque(self._buffers))
        self._buffers = []
        self._constants = {}
        memory, self._memory = self._memory, {}
        for buffer in memory.values():
            buffer.close()


def _lowered(nodes: Sequence[BoundNode], profile: TuningProfile) -> tuple[Lowered, bool]:
    """Lower nodes, by groups of the size of merged kernels if some can be merged, and say so."""
    if profile.merged_groups > 0:
        lanes = profile.merged_lanes
        span = max(profile.span, lanes * profile.vector)
        found = lower_nodes(nodes, replace(profile, lanes=lanes, span=span, row_lanes=lanes))
        if any(len(run) > 1 for run in runs(found.calls)):
            return found, True
    return lower_nodes(nodes, profile), False


def _placed(node: BoundNode) -> BoundNode:
    """Return a node with operands in imported memory where they are in the buffer behind it."""
    return replace(node, inputs=tuple(map(_placed_operand, node.inputs)))


def _placed_operand(operand: Operand) -> Operand:
    _, offset = place_of(own_buffer(operand.buffer).memory, operand.offset)
    return operand if offset == operand.offset else replace(operand, offset=offset)
