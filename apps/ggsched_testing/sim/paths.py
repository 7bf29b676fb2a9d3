"""Which device copies from where to where, and how devices wait for each other."""

from collections.abc import Sequence
from typing import Protocol

from ggsched.topology.caps import WaitPath
from ggsched.topology.model import Topology
from ggsched_testing.sim.config import SimConfig


class Paths(Protocol):
    """Paths between the devices of a world, which go by numbers."""

    def may_copy(self, by: int, src: int, dst: int) -> bool:
        """Whether streams of ``by``, one of the two ends, copy from ``src`` to ``dst`` (CPY-6)."""

    def wait_path(self, waiter: int, recorder: int) -> WaitPath:
        """How streams of ``waiter`` wait for events of ``recorder`` (EVT-4)."""


class ConfigPaths:
    """Paths as each device's ``SimConfig`` says."""

    def __init__(self, configs: Sequence[SimConfig]) -> None:
        self._configs = configs
        self._has_events = [config.facts(i).has_events for i, config in enumerate(configs)]

    def may_copy(self, by: int, src: int, dst: int) -> bool:
        """Whether ``by`` copies with the other end."""
        other = dst if by == src else src
        allowed = self._configs[by].copies
        return by == other or allowed is None or other in allowed

    def wait_path(self, waiter: int, recorder: int) -> WaitPath:
        """Return the waiter's path; the host where one of the two has no events."""
        if not (self._has_events[waiter] and self._has_events[recorder]):
            return "host"
        waits = self._configs[waiter].waits
        return waits if isinstance(waits, str) else waits.get(recorder, "native")


class TopologyPaths:
    """Paths exactly as a topology has them, each direction by itself."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology

    def may_copy(self, by: int, src: int, dst: int) -> bool:
        """Whether the topology has this very path."""
        path = self._topology.copy_paths.get((src, dst))
        return src == dst or (path is not None and path.by == by)

    def wait_path(self, waiter: int, recorder: int) -> WaitPath:
        """Return the topology's path."""
        return self._topology.wait_path(waiter, recorder)
