"""The world: all devices of one simulation."""

from ggsched.errors import BackendUnavailable
from ggsched.topology.caps import DeviceFacts
from ggsched.topology.model import Topology
from ggsched_testing.schedule_policy import SchedulePolicy
from ggsched_testing.sim.config import BACKEND, InjectedFaults, SimConfig
from ggsched_testing.sim.costs import Costs
from ggsched_testing.sim.device import SimDevice
from ggsched_testing.sim.paths import TopologyPaths
from ggsched_testing.sim.state import WorldState


class SimWorld(WorldState):
    """Devices that share one simulated time and one policy. For one thread.

    Threads of other backends may wait for events meanwhile.

    The arguments are those of ``WorldState``.
    """

    @classmethod
    def of_topology(
        cls,
        topology: Topology,
        *,
        policy: SchedulePolicy | None = None,
        seed: int = 0,
        faults: InjectedFaults | None = None,
        costs: Costs | None = None,
    ) -> "SimWorld":
        """Return a world with the devices of a topology, the same facts and the same paths."""
        configs = [SimConfig.of_facts(facts, costs) for facts in topology.devices]
        world = cls(configs, policy=policy, seed=seed, faults=faults)
        world.facts = list(topology.devices)
        world.paths = TopologyPaths(topology)
        return world

    def open(self, index: int) -> SimDevice:
        """Open a device; each call gives a device of its own.

        Raises:
            BackendUnavailable: there is no such device.
        """
        if not 0 <= index < len(self.facts):
            raise BackendUnavailable(
                f"there is no device {BACKEND}:{index}",
                why=f"the world has {len(self.facts)}",
                hint="count from zero",
            )
        facts, config = self.facts[index], self.configs[index]
        least = 1 if facts.copy_order == "stream" else 2
        queues = max(least, 1 + config.transfer_queues)
        device = self.make_device(index, facts, config.costs, queues)
        device.runs_after_faults = config.runs_after_faults
        return device

    def open_all(self) -> list[SimDevice]:
        """Open each device once."""
        return [self.open(i) for i in range(len(self.facts))]

    def make_device(self, index: int, facts: DeviceFacts, costs: Costs, queues: int) -> SimDevice:
        """Return a device; for worlds whose devices break a rule on purpose."""
        return SimDevice(self, index, facts, costs, queues)
