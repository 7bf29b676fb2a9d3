"""Devices that can do less: real ones behind the facts and paths of another topology.

A plan for any topology can so be run on the devices at hand. What the topology does not offer is
refused (TRU-1), hence a plan that uses it by mistake fails instead of passing by luck.
"""

from collections.abc import Sequence
from dataclasses import replace

from ggsched.backend.fill import fill
from ggsched.backend.program import BoundNode, Operand
from ggsched.backend.protocols import Buffer, Device, Event, HostMemory, Program, Stream
from ggsched.errors import UsageError
from ggsched.topology.caps import DeviceFacts, WaitPath
from ggsched.topology.model import Topology


def limited_devices(inner: Sequence[Device], topology: Topology) -> list[Device]:
    """Return one device for each of the topology's, backed by ``inner`` in order.

    The inner devices must be able to copy and wait among themselves in every way; closing what
    is returned closes them.
    """
    return [LimitedDevice(device, i, topology) for i, device in enumerate(inner)]


class LimitedDevice:
    """A device with the facts and the paths of a topology's device."""

    def __init__(self, inner: Device, index: int, topology: Topology) -> None:
        self.inner = inner
        self.index = index
        self.topology = topology
        self._streams = 0

    @property
    def facts(self) -> DeviceFacts:
        """The topology's facts, not the inner device's."""
        return self.topology.devices[self.index]

    def allocate(self, nbytes: int) -> Buffer:
        """Allocate from the inner device and remember whose it is."""
        return LimitedBuffer(self.inner.allocate(nbytes), self)

    def import_host(self, memory: HostMemory) -> Buffer:
        """Refuse unless declared."""
        if not self.facts.imports_host_memory:
            raise UsageError("does not import host memory", where=self.facts.name)
        return LimitedBuffer(self.inner.import_host(memory), self)

    def allocate_host(self, nbytes: int) -> HostMemory:
        """Return the inner device's host memory."""
        return self.inner.allocate_host(nbytes)

    def create_stream(self) -> Stream:
        """Refuse more streams than declared."""
        self._streams += 1
        if self._streams > self.facts.max_streams:
            raise UsageError("more streams than max_streams", where=self.facts.name)
        return LimitedStream(self.inner.create_stream(), self)

    def create_event(self) -> Event:
        """Refuse unless events are declared."""
        if not self.facts.has_events:
            raise UsageError("has no events", where=self.facts.name)
        return LimitedEvent(self.inner.create_event(), self)

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> Program:
        """Compile on the inner device."""
        assert isinstance(stream, LimitedStream)
        known = self.inner.facts.fusions
        return self.inner.compile([_unwrap(n, known) for n in nodes], stream.inner)

    def copies_with(self, other: DeviceFacts) -> bool:
        """Whether this device executes copies in either direction."""
        j = self.topology.device_index(other.name)
        paths = (
            self.topology.copy_paths.get((self.index, j)),
            self.topology.copy_paths.get((j, self.index)),
        )
        return any(path is not None and path.by == self.index for path in paths)

    def wait_path(self, other: DeviceFacts) -> WaitPath:
        """Return the topology's path."""
        return self.topology.wait_path(self.index, self.topology.device_index(other.name))

    def close(self) -> None:
        """Close the inner device."""
        self.inner.close()


class LimitedBuffer:
    """A buffer that belongs to a limited device."""

    def __init__(self, inner: Buffer, device: LimitedDevice) -> None:
        self.inner = inner
        self.device: Device = device

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self.inner.nbytes

    def host_view(self) -> HostMemory:
        """Refuse unless the device is declared to be a host device."""
        if not self.device.facts.is_host:
            raise UsageError("has no host view", where=self.device.facts.name)
        return self.inner.host_view()

    def close(self) -> None:
        """Close the inner buffer."""
        self.inner.close()


class LimitedEvent:
    """An event that belongs to a limited device."""

    def __init__(self, inner: Event, device: LimitedDevice) -> None:
        self.inner = inner
        self.device: Device = device

    @property
    def is_recorded(self) -> bool:
        """As the inner event."""
        return self.inner.is_recorded

    @property
    def is_done(self) -> bool:
        """As the inner event."""
        return self.inner.is_done

    def sync(self, timeout_s: float) -> None:
        """Wait for the inner event."""
        self.inner.sync(timeout_s)

    def close(self) -> None:
        """Close the inner event."""
        self.inner.close()


class LimitedStream:
    """A stream that refuses what its device does not declare."""

    def __init__(self, inner: Stream, device: LimitedDevice) -> None:
        self.inner = inner
        self._device = device
        self.device: Device = device

    @property
    def is_done(self) -> bool:
        """As the inner stream."""
        return self.inner.is_done

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        """Upload to this device's buffers only, from a copy where the facts promise a snapshot."""
        if self._device.facts.snapshots_uploads:
            source = memoryview(bytes(source))
        self.inner.upload(source, self._own(buffer), offset)

    def download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        """Download from this device's buffers only."""
        self.inner.download(self._own(buffer), offset, target)

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        """Copy along declared paths only (CPY-6)."""
        assert isinstance(src, LimitedBuffer)
        assert isinstance(dst, LimitedBuffer)
        a, b = _index(src.device), _index(dst.device)
        path = self._device.topology.copy_paths.get((a, b))
        if a != b and (path is None or path.by != self._device.index):
            raise UsageError(f"no copy path from {a} to {b}", where=self._device.facts.name)
        self.inner.copy(src.inner, src_offset, dst.inner, dst_offset, nbytes)

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        """Fill this device's buffers only."""
        fill(self.inner, self._own(buffer), offset, nbytes, pattern)

    def launch(self, program: Program) -> None:
        """Launch on the inner stream."""
        self.inner.launch(program)

    def record(self, event: Event) -> None:
        """Record this device's events only."""
        assert isinstance(event, LimitedEvent)
        if event.device is not self._device:
            raise UsageError("an event of another device", where=self._device.facts.name)
        self.inner.record(event.inner)

    def wait(self, event: Event) -> None:
        """Wait along declared paths only (EVT-4)."""
        assert isinstance(event, LimitedEvent)
        waiter, recorder = self._device.index, _index(event.device)
        path = self._device.topology.wait_path(waiter, recorder)
        if waiter != recorder and path == "host":
            raise UsageError(f"no wait path to {recorder}", where=self._device.facts.name)
        self.inner.wait(event.inner)

    def barrier(self) -> None:
        """Refuse unless ``copy_order`` says that barriers mean something."""
        if self._device.facts.copy_order != "barrier":
            raise UsageError("has no barrier", where=self._device.facts.name)
        self.inner.barrier()

    def sync(self, timeout_s: float) -> None:
        """Wait for the inner stream."""
        self.inner.sync(timeout_s)

    def close(self) -> None:
        """Close the inner stream."""
        self.inner.close()

    def _own(self, buffer: Buffer) -> Buffer:
        assert isinstance(buffer, LimitedBuffer)
        if buffer.device is not self._device:
            raise UsageError("a buffer of another device", where=self._device.facts.name)
        return buffer.inner


def _index(device: Device) -> int:
    assert isinstance(device, LimitedDevice)
    return device.index


def _unwrap(node: BoundNode, fusions: frozenset[str]) -> BoundNode:
    """Return the node on bare buffers, without a group that the inner device does not know."""
    group = node.group if node.group is not None and node.group.pattern in fusions else None
    inputs = tuple(_bare(o) for o in node.inputs)
    return replace(node, inputs=inputs, output=_bare(node.output), group=group)


def _bare(operand: Operand) -> Operand:
    assert isinstance(operand.buffer, LimitedBuffer)
    return replace(operand, buffer=operand.buffer.inner)
