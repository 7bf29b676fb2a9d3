"""The machines of one session, and one topology of all their devices."""

from dataclasses import replace

from ggsched.topology.caps import DeviceFacts
from ggsched.topology.codec import topology_from_text
from ggsched.topology.model import Topology
from ggsched_cluster.driver import Driver


class Group:
    """The machines of one session and their devices; it is closed with the last of these.

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
