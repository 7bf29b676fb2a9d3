"""Devices that are only facts: those of a topology file, to plan for and not to run on."""

from collections.abc import Sequence
from typing import NoReturn

from ggsched.backend.program import BoundNode
from ggsched.backend.protocols import Buffer, Device, Event, HostMemory, Program, Stream
from ggsched.errors import UsageError
from ggsched.topology.caps import DeviceFacts, WaitPath
from ggsched.topology.model import Topology


class RefusingDevice:
    """A device that can be planned on and not reached: it refuses memory, streams and programs."""

    def allocate(self, nbytes: int) -> Buffer:
        """Refuse."""
        self._refuse()

    def import_host(self, memory: HostMemory) -> Buffer:
        """Refuse."""
        self._refuse()

    def allocate_host(self, nbytes: int) -> HostMemory:
        """Refuse."""
        self._refuse()

    def create_stream(self) -> Stream:
        """Refuse."""
        self._refuse()

    def create_event(self) -> Event:
        """Refuse."""
        self._refuse()

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> Program:
        """Refuse."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        """Say why, and what to do instead."""
        raise NotImplementedError


class OfflineDevice(RefusingDevice):
    """A device of a topology; it has the facts that planning needs and refuses the rest.

    Args:
        index: Number of the device there.
    """

    def __init__(self, topology: Topology, index: int) -> None:
        self.topology = topology
        self.index = index

    @property
    def facts(self) -> DeviceFacts:
        """What the file says of it."""
        return self.topology.devices[self.index]

    def copies_with(self, other: DeviceFacts) -> bool:
        """Whether the file has a copy path between the two that this device executes."""
        there = self._index_of(other)
        pairs = ((self.index, there), (there, self.index))
        paths = [self.topology.copy_paths.get(pair) for pair in pairs]
        return any(path is not None and path.by == self.index for path in paths)

    def wait_path(self, other: DeviceFacts) -> WaitPath:
        """How the file says that this device waits for events of another (EVT-4)."""
        return self.topology.wait_path(self.index, self._index_of(other))

    def close(self) -> None:
        """Do nothing: nothing was opened."""

    def _index_of(self, facts: DeviceFacts) -> int:
        return self.topology.device_index(facts.name)

    def _refuse(self) -> NoReturn:
        raise UsageError(
            "nothing runs on a device that is described by a file",
            where=self.facts.name,
            hint="plan for it here, and run on the machine that has it",
        )


class OfflineStream:
    """The place of a stream of a device that is elsewhere; nothing can be enqueued on it."""

    def __init__(self, device: OfflineDevice) -> None:
        self.device = device


def paper_devices(topology: Topology) -> list[Device]:
    """Return the devices of a machine that is not at hand, to be given to a ``Scheduler``."""
    return [OfflineDevice(topology, i) for i in range(len(topology.devices))]


def paper_topology(devices: Sequence[Device]) -> Topology | None:
    """Return the topology of which these are all the devices, in order; None if there is none."""
    if not devices or not isinstance(devices[0], OfflineDevice):
        return None
    topology = devices[0].topology
    wanted = [(topology, i) for i in range(len(topology.devices))]
    found = [(d.topology, d.index) for d in devices if isinstance(d, OfflineDevice)]
    return topology if found == wanted and len(devices) == len(wanted) else None
