"""Simulated devices: they declare what their configuration says, and refuse the rest (TRU-1)."""

from collections.abc import Sequence

import numpy as np

from ggsched.backend import checks
from ggsched.backend.host_memory import host_bytes
from ggsched.backend.program import BoundNode
from ggsched.backend.protocols import Device, Event, HostMemory, Stream
from ggsched.backend.timing import Clock
from ggsched.errors import DeviceFault, OutOfDeviceMemory, UsageError
from ggsched.ir.graph import Graph
from ggsched.topology.caps import DeviceFacts, WaitPath
from ggsched_testing.sim.costs import Costs
from ggsched_testing.sim.event import SimEvent
from ggsched_testing.sim.memory import SimBuffer, poison
from ggsched_testing.sim.program import SimProgram
from ggsched_testing.sim.state import WorldState
from ggsched_testing.sim.stream import SimStream


class SimDevice:
    """A device of a world.

    Attributes:
        index: Number of its configuration; paths between devices go by it.
        facts: What it declares.
        costs: What things cost in simulated time.
        runs_after_faults: Whether what follows a failed command runs nevertheless (ERR-2).
        lost: Why it cannot be used any more.
    """

    def __init__(
        self, world: WorldState, index: int, facts: DeviceFacts, costs: Costs, queues: int
    ) -> None:
        self.world = world
        self.index = index
        self.facts = facts
        self.costs = costs
        self.runs_after_faults = False
        self.lost: DeviceFault | None = None
        self.streams: list[SimStream] = []
        self.buffers: list[SimBuffer] = []
        self.is_closed = False
        self._queues = queues

    def make_stream(self, number: int) -> SimStream:
        """Return a stream of this device; for devices that break a rule on purpose."""
        return SimStream(self, number, self._queues)

    def make_event(self, number: int) -> SimEvent:
        """Return an event of this device; for devices that break a rule on purpose."""
        return SimEvent(self, number)

    def __clock__(self) -> Clock:
        """Return the clock of simulated time; see ``ggsched.backend.timing``."""
        return self.world.clock

    # --- the contract --------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> SimBuffer:
        """Return a fresh buffer full of poison (BUF-1)."""
        self._require_open()
        checks.check_length(self.facts, nbytes)
        number = self.world.next_number("buffers")
        enough = nbytes <= min(self.free_nbytes, self.facts.max_allocation_nbytes)
        if not enough or number in self.world.faults.no_memory:
            raise self._out_of_memory(nbytes)
        try:
            array = host_bytes(self.facts, nbytes)
        except OutOfDeviceMemory as error:
            raise self._out_of_memory(nbytes) from error
        poison(array)
        buffer = SimBuffer(self, number, array)
        if self.facts.is_host:
            self.world.name_host_memory(array, buffer.space)
        return self._register(buffer)

    @property
    def free_nbytes(self) -> int:
        """Memory that no open buffer holds."""
        used = sum(b.nbytes for b in self.buffers if not b.is_closed and not b.is_imported)
        return self.facts.memory_nbytes - used

    def import_host(self, memory: HostMemory) -> SimBuffer:
        """Return a read-only buffer over host memory, if the facts say so."""
        self._require_open()
        checks.check_import(self.facts, memory)
        array = np.frombuffer(memory.toreadonly(), np.uint8) if memory.nbytes else np.empty(0, "u1")
        number = self.world.next_number("buffers")
        place = self.world.place_of(memory, stays=True)
        return self._register(SimBuffer(self, number, array, is_imported=True, place=place))

    def allocate_host(self, nbytes: int) -> HostMemory:
        """Return writable host memory full of poison."""
        self._require_open()
        array = host_bytes(self.facts, nbytes)
        poison(array)
        return array.data

    def create_stream(self) -> SimStream:
        """Return a new stream."""
        self._require_open()
        if sum(not s.is_closed for s in self.streams) >= self.facts.max_streams:
            raise UsageError(
                f"more than {self.facts.max_streams} streams",
                where=self.facts.name,
                hint="close streams that are no longer used",
            )
        stream = self.make_stream(self.world.next_number("streams"))
        self.streams = [*(s for s in self.streams if not s.is_closed), stream]
        self.world.remember("streams", stream.number)
        return stream

    def create_event(self) -> SimEvent:
        """Return a fresh event (EVT-1)."""
        self._require_open()
        if not self.facts.has_events:
            raise UsageError("has no events", where=self.facts.name, hint="let the host sync")
        event = self.make_event(self.world.next_number("events"))
        self.world.remember("events", event.number)
        return event

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> SimProgram:
        """Bind nodes (LCH-3)."""
        self._require_open()
        checks.check_compile(self, nodes, stream)
        assert isinstance(stream, SimStream)  # the check has compared the devices
        for node in nodes:
            for operand in (*node.inputs, node.output):
                _require_usable(operand.buffer, written=operand is node.output)
        program = SimProgram(self, stream, nodes, self.world.next_number("programs"))
        self.world.remember("programs", program.number)
        return program

    def propose_lanes(self, graph: Graph) -> Sequence[int]:
        """Return any lanes, since it is a hint; of one graph always the same (STR-7)."""
        drawn = np.random.default_rng(int(graph.digest[:8], 16) + self.index)
        return [int(n) for n in drawn.integers(0, self.facts.max_streams, len(graph.nodes))]

    def copies_with(self, other: DeviceFacts) -> bool:
        """Whether streams copy from and to buffers of another device of this world (CPY-6)."""
        number = self.world.index_of(other)
        if number is None:
            return False
        paths, me = self.world.paths, self.index
        return paths.may_copy(me, me, number) or paths.may_copy(me, number, me)

    def wait_path(self, other: DeviceFacts) -> WaitPath:
        """How streams wait for events of another device of this world (EVT-4)."""
        number = self.world.index_of(other)
        return "host" if number is None else self.world.paths.wait_path(self.index, number)

    def close(self) -> None:
        """Close every stream and every buffer; legal twice (ERR-3)."""
        self.is_closed = True
        for stream in self.streams:
            stream.close()
        for buffer in self.buffers:
            buffer.close()

    # --- helpers -------------------------------------------------------------------------------

    def check_path(self, src: Device, dst: Device) -> None:
        """Refuse a copy in a direction, or with a world, for which there is no path (CPY-6)."""
        ends = [d for d in (src, dst) if isinstance(d, SimDevice) and d.world is self.world]
        if len(ends) < 2 or not self.world.paths.may_copy(self.index, ends[0].index, ends[1].index):
            raise UsageError(
                f"no copy path from {src.facts.name} to {dst.facts.name}",
                where=f"{self.facts.name} copy",
                why="copies are never staged through the host implicitly (CPY-6)",
            )

    def check_wait(self, event: Event) -> None:
        """Refuse to wait for an event that was not recorded or that there is no path for."""
        checks.check_wait(self, event)
        if not isinstance(event, SimEvent) or event.device.world is not self.world:
            raise UsageError(
                f"no wait path to events of {event.device.facts.name}",
                where=f"{self.facts.name} wait",
                why="it belongs to another world (EVT-4)",
            )

    def _require_open(self) -> None:
        if self.is_closed:
            raise checks.closed_error(f"device {self.facts.name}")
        if self.lost is not None:
            raise DeviceFault(self.lost.what, where=self.lost.where, why=self.lost.why)

    def _register(self, buffer: SimBuffer) -> SimBuffer:
        self.buffers = [*(b for b in self.buffers if not b.is_closed), buffer]
        self.world.remember("buffers", buffer.number)
        return buffer

    def _out_of_memory(self, nbytes: int) -> OutOfDeviceMemory:
        most, free = self.facts.max_allocation_nbytes, self.free_nbytes
        why = "the system gives no more" if nbytes <= min(most, free) else ""
        return checks.out_of_memory_error(self.facts, nbytes, free, why)


def _require_usable(buffer: object, *, written: bool) -> None:
    assert isinstance(buffer, SimBuffer)  # the check has compared the devices
    if buffer.is_closed:
        raise checks.closed_error("buffer")
    if written and buffer.is_imported:
        raise UsageError("the buffer is read-only", why="it was imported from host memory")
