"""Machines of simulated devices that run the parts of a plan, with messages in simulated time.

    cluster = SimCluster(graph, plan, parts, machine_of, topology, link=Link(50e-6, 12e9))
    results = cluster.run(inputs)
    cluster.idle_share(), cluster.nbytes[0, 1]

Each machine is a world of its own with a host and the ordinary executor, in a thread. A message
leaves when its sender's host has got that far and its network adapter is free, and arrives after
the latency and the time of its bytes; the receiver's host waits until then. The order in which
threads run does not matter: times are functions of the plan, the costs and the links.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Condition
from typing import Final

import numpy as np

from ggsched.backend.offline_device import OfflineDevice
from ggsched.backend.protocols import Device, HostMemory
from ggsched.errors import DeviceFault, GgschedError
from ggsched.ir.graph import Graph
from ggsched.plan.bundle import Plan
from ggsched.plan.parts import Part, local_plan
from ggsched.run.executor import Executor
from ggsched.run.resources import Resources
from ggsched.run.store import TensorStore
from ggsched.topology.codec import restricted
from ggsched.topology.cost import Link
from ggsched.topology.model import Topology
from ggsched_testing.sim.config import InjectedFaults
from ggsched_testing.sim.costs import Costs, TimeSpan
from ggsched_testing.sim.world import SimWorld

_TIMEOUT_S: Final = 60.0
_COSTS: Final = Costs()


@dataclass(frozen=True, slots=True)
class ClusterFaults:
    """What goes wrong.

    Attributes:
        lose: By machine the number of its command, from 0, at which it is lost.
        drop: Tags of messages that never arrive.
        repeat: Tags of messages that come twice.
        delay: By tag the seconds that a message takes longer, so that later ones overtake it.
    """

    lose: Mapping[int, int] = field(default_factory=dict)
    drop: frozenset[int] = frozenset()
    repeat: frozenset[int] = frozenset()
    delay: Mapping[int, float] = field(default_factory=dict)


class SimCluster:
    """Machines that run a plan once.

    Args:
        graph: Of the plan.
        parts: Of each machine.
        machine_of: The machine of each device.
        topology: All devices.
        weights: By name, in the types of the graph.
        link: From any machine to any other.
        costs: Of all devices of a machine, by machine; the usual ones of those that are not named.
        faults: What goes wrong.

    Attributes:
        nbytes: Bytes that were sent, by sender and receiver.
        messages: Their number.
    """

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        parts: Sequence[Part],
        machine_of: Sequence[int],
        topology: Topology,
        *,
        weights: Mapping[str, np.ndarray],
        link: Link,
        costs: Mapping[int, Costs] | None = None,
        faults: ClusterFaults | None = None,
    ) -> None:
        self._graph, self._plan, self._parts = graph, plan, parts
        self._weights, self._link = weights, link
        self._faults = faults or ClusterFaults()
        self._changed = Condition()
        self._there: dict[tuple[int, int], tuple[float, bytes]] = {}
        self._came: set[tuple[int, int]] = set()
        self._running = 0
        self._waited: set[tuple[int, int]] = set()
        self._error: GgschedError | None = None
        self.nbytes: Counter[tuple[int, int]] = Counter()
        self.messages: Counter[tuple[int, int]] = Counter()
        self._worlds: dict[int, SimWorld] = {}
        self._devices: dict[int, list[Device]] = {}
        for part in parts:
            m = part.machine
            mine = [d for d, machine in enumerate(machine_of) if machine == m]
            world = SimWorld.of_topology(
                restricted(topology, [topology.devices[d].name for d in mine]),
                costs=(costs or {}).get(m, _COSTS),
                faults=InjectedFaults(lose=frozenset({self._faults.lose.get(m, -1)})),
            )
            self._worlds[m] = world
            opened = dict(zip(mine, world.open_all(), strict=True))
            self._devices[m] = [
                opened[d] if d in opened else OfflineDevice(topology, d)
                for d in range(len(topology.devices))
            ]

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[int, np.ndarray]:
        """Run the plan on all machines; return the outputs by tensor id.

        Raises:
            DeviceFault: a machine was lost, or waits for a message that never comes; the others
                gave up.
        """
        self._running = len(self._parts)
        with ThreadPoolExecutor(len(self._parts)) as pool:
            done = [pool.submit(self._run, part, inputs) for part in self._parts]
            found = {t: array for future in done for t, array in future.result().items()}
        if self._error is not None:
            raise self._error
        return found

    def timeline(self) -> list[tuple[int, TimeSpan]]:
        """Return (machine, what ran when) in one simulated time."""
        return [(m, span) for m, world in self._worlds.items() for span in world.timeline()]

    def idle_share(self, machines: Collection[int] | None = None) -> float:
        """Return the share of time in which devices do not compute.

        Args:
            machines: Whose devices count; all of them if not given. The time is that from the first
                launch of the cluster to its last.
        """
        launches = [(m, span) for m, span in self.timeline() if span.kind == "launch"]
        total = max(s.end_s for _, s in launches) - min(s.start_s for _, s in launches)
        counted = self._worlds.keys() if machines is None else machines
        busy = sum(s.end_s - s.start_s for m, s in launches if m in counted)
        return 1 - busy / (sum(len(self._worlds[m].facts) for m in counted) * total)

    def _run(self, part: Part, inputs: Mapping[str, np.ndarray]) -> dict[int, np.ndarray]:
        m = part.machine
        local = local_plan(self._plan, part, self._plan.devices)
        store = TensorStore(self._devices[m], self._weights, timeout_s=_TIMEOUT_S)
        try:
            resources = Resources(self._graph, local, store)
            network = _SimNetwork(self, m, self._worlds[m])
            executor = Executor(
                self._graph, local, resources, timeout_s=_TIMEOUT_S, network=network
            )
            try:
                return executor.run({name: inputs[name] for name in part.inputs})
            finally:
                executor.close()
        except GgschedError as error:
            self._give_up(DeviceFault(error.one_line(), where=f"machine {m}"))
            return {}
        finally:
            store.close()
            self._leave()

    # --- messages -----------------------------------------------------------------------------

    def post(self, src: int, dst: int, tag: int, arrives_s: float, content: bytes) -> None:
        """Put a message on its way."""
        with self._changed:
            self.nbytes[src, dst] += len(content)
            self.messages[src, dst] += 1
            for _ in range((tag not in self._faults.drop) + (tag in self._faults.repeat)):
                self._arrive(src, dst, tag, arrives_s, content)
            self._changed.notify_all()

    def _arrive(self, src: int, dst: int, tag: int, arrives_s: float, content: bytes) -> None:
        """Keep a message until it is requested; a second one with its tag is a fault (NET-6)."""
        if (dst, tag) in self._came:
            what = f"message #{tag} of machine {src} came twice"
            self._error = self._error or DeviceFault(what, where=f"machine {dst}")
        self._came.add((dst, tag))
        self._there[dst, tag] = arrives_s + self._faults.delay.get(tag, 0.0), content

    def take(self, machine: int, src: int, tag: int) -> tuple[float, bytes]:
        """Wait for a message; return when it arrives, and its bytes."""
        wanted = (machine, tag)
        with self._changed:
            self._waited.add(wanted)
            while wanted not in self._there and self._error is None:
                if len(self._waited) == self._running and not self._waited & self._there.keys():
                    self._lost(machine, src, tag)  # nobody is left who could send it
                else:
                    self._changed.wait()
            self._waited.remove(wanted)
            if self._error is not None:
                raise DeviceFault("the run was given up", where=f"machine {machine}")
            return self._there.pop(wanted)

    def seconds(self, nbytes: int) -> tuple[float, float]:
        """Return how long a message keeps its sender's adapter busy, and the latency."""
        return nbytes / self._link.bandwidth, self._link.latency_s

    def _lost(self, machine: int, src: int, tag: int) -> None:
        where = f"machine {machine}"
        self._error = DeviceFault(f"message #{tag} of machine {src} never came", where=where)
        self._changed.notify_all()

    def _give_up(self, error: DeviceFault) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _leave(self) -> None:
        with self._changed:
            self._running -= 1
            self._changed.notify_all()


class _SimNetwork:
    """What the executor of a machine sees; see ``Network``."""

    def __init__(self, cluster: SimCluster, machine: int, world: SimWorld) -> None:
        self._cluster, self._machine, self._world = cluster, machine, world
        self._free_s = 0.0

    def send(self, machine: int, tag: int, source: HostMemory) -> None:
        """See ``Network``; the host goes on at once (NET-3)."""
        busy_s, latency_s = self._cluster.seconds(source.nbytes)
        self._free_s = max(self._free_s, self._world.host_s) + busy_s
        there_s = self._free_s + latency_s
        self._cluster.post(self._machine, machine, tag, there_s, bytes(source))

    def receive(self, machine: int, tag: int, target: HostMemory) -> None:
        """See ``Network``; simulated time passes until the message is there."""
        arrives_s, content = self._cluster.take(self._machine, machine, tag)
        self._world.host_s = max(self._world.host_s, arrives_s)
        target[:] = content
