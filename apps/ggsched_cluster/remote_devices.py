"""Devices of other machines, as planning sees them, and the group that they belong to."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from ggsched.backend.offline_device import RefusingDevice
from ggsched.backend.protocols import Device
from ggsched.errors import BackendUnavailable, UsageError
from ggsched.topology.caps import DeviceFacts, WaitPath
from ggsched.topology.codec import topology_from_text
from ggsched.topology.model import Topology
from ggsched_cluster.driver import Driver
from ggsched_cluster.members import Start


class Group:
    """The machines of one session and their devices.

    Attributes:
        driver: Talks to the workers.
        topology: All devices, without paths between machines.
        machine_of: The machine of each device.
        free: Free bytes of each device when it was opened.
    """

    def __init__(self, scheme: str, driver: Driver) -> None:
        self.driver = driver
        opened = driver.opened
        names = driver.names
        facts: list[DeviceFacts] = []
        copies, waits = {}, {}
        self.machine_of: list[int] = []
        self.free: list[int] = []
        self.first: list[int] = []
        for machine, found in enumerate(opened):
            first = len(facts)
            self.first.append(first)
            with driver.reading(machine):
                topology = topology_from_text(found.topology)
                if len(found.free) != len(topology.devices):
                    raise ValueError(f"free bytes of {len(found.free)} devices")
            facts += [_elsewhere(f, scheme, names[machine]) for f in topology.devices]
            self.machine_of += [machine] * len(topology.devices)
            self.free += found.free
            for (src, dst), path in topology.copy_paths.items():
                pair = (first + src, first + dst)
                copies[pair] = replace(path, src=pair[0], dst=pair[1], by=first + path.by)
            for (waiter, recorder), kind in topology.wait_paths.items():
                waits[first + waiter, first + recorder] = kind
        self.topology = Topology(tuple(facts), copies, waits)
        self._open = len(facts)

    def devices(self) -> list[Device]:
        """Return all devices; the group is closed with the last of them."""
        return [RemoteDevice(self, i) for i in range(len(self.topology.devices))]

    def closed(self) -> None:
        """Note that a device was closed."""
        self._open -= 1
        if self._open == 0:
            self.driver.close()


def _elsewhere(facts: DeviceFacts, scheme: str, machine: str) -> DeviceFacts:
    """Return the facts of a device as others see it: its memory is not this host's."""
    return replace(
        facts,
        name=f"{scheme}://{machine}/{facts.name}",
        backend=scheme,
        is_host=False,
        imports_host_memory=False,
        reads_peers=False,
    )


class RemoteDevice(RefusingDevice):
    """A device of another machine: planned on as any other; work reaches it in parts of plans.

    Args:
        group: Of its session.
        index: Its number there.
    """

    def __init__(self, group: Group, index: int) -> None:
        self.group, self.index = group, index
        self._is_open = True

    @property
    def facts(self) -> DeviceFacts:
        """What it can do, without what concerns its own host's memory."""
        return self.group.topology.devices[self.index]

    @property
    def free_nbytes(self) -> int:
        """Bytes that were free when it was opened."""
        return self.group.free[self.index]

    def copies_with(self, other: DeviceFacts) -> bool:
        """Whether it copies from and to a device: only within its machine."""
        there = self._index_of(other)
        paths = self.group.topology.copy_paths
        found = [paths.get(pair) for pair in ((self.index, there), (there, self.index))]
        return any(path is not None and path.by == self.index for path in found)

    def wait_path(self, other: DeviceFacts) -> WaitPath:
        """How its streams wait for a device's events: only within its machine."""
        there = self._index_of(other)
        return "host" if there < 0 else self.group.topology.wait_path(self.index, there)

    def close(self) -> None:
        """Close it; the last one of its group ends the workers. Legal twice (ERR-3)."""
        if self._is_open:
            self._is_open = False
            self.group.closed()

    def _index_of(self, facts: DeviceFacts) -> int:
        names = [d.name for d in self.group.topology.devices]
        return names.index(facts.name) if facts.name in names else -1

    def _refuse(self) -> NoReturn:
        raise UsageError(
            "this process cannot enqueue on a device of another machine",
            where=self.facts.name,
            hint="give it to a Scheduler, together with devices of its cluster only",
        )


def open_group(
    start: Start,
    wanted: Sequence[tuple[str, tuple[str, ...]]] = (),
    *,
    backends: tuple[str, ...] | None = None,
    timeout_s: float = 30.0,
) -> list[Device]:
    """Start workers and return their devices, by machine.

    Args:
        start: Starts them.
        wanted: Names of devices by machine, in order of priority; none for all usable devices of
            each machine.
        backends: Backends that may be used on the machines; None for all.
        timeout_s: How long something may go on without progress.

    Raises:
        BackendUnavailable: no machine, no device, or another version of ggsched on one of them.
    """
    driver = Driver(start, backends=backends, timeout_s=timeout_s)
    try:
        driver.open(wanted)
        group = Group(start.scheme, driver)
        driver.join(group.topology, group.first)
        devices = group.devices()
        if not devices:
            raise BackendUnavailable("no machine has a usable device", where=f"{start.scheme}://")
    except BaseException:
        driver.close()
        raise
    return devices


def group_of(devices: Sequence[Device]) -> Group | None:
    """Return the group of devices of other machines; None for devices of this process.

    Raises:
        UsageError: both kinds, or not all of a group in its order.
    """
    remote = [d for d in devices if isinstance(d, RemoteDevice)]
    if not remote:
        return None
    group = remote[0].group
    order = [(group, i) for i in range(len(group.topology.devices))]
    if len(remote) != len(devices) or [(d.group, d.index) for d in remote] != order:
        names = ", ".join(d.facts.name for d in devices)
        raise UsageError(
            "devices of this process and of a cluster in one list",
            where=names,
            hint="this machine is a machine of the cluster too: name its devices there",
        )
    return group
