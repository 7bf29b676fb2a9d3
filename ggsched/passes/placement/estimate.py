"""Estimate: what a placement is likely to take, without planning it.

One pass over the nodes in program order, which is the order on each device. It ranks placements for
a search; which one is taken is decided by plans.
"""

from collections.abc import Sequence

from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role
from ggsched.passes.cost.work_size import node_costs
from ggsched.passes.place import PlacementProblem
from ggsched.topology.caps import processors
from ggsched.topology.cost import HOST, MachineRates

Placed = Sequence[int]
"""Device by storage; -1 for storages that no node writes."""


class Estimator:
    """Seconds and memory of placements of one graph.

    Attributes:
        cost: Seconds of each node, by node and device.
        processors: See ``ggsched.topology.caps.processors``.
        reads: Storages that each node reads, with bytes: (storage, bytes, whether it is one that
            nodes write earlier in the run).
    """

    def __init__(self, problem: PlacementProblem, out: Sequence[int]) -> None:
        self._rates = problem.rates
        self._out = out
        self._homes = _given_homes(problem)
        self._limits = [d.memory_nbytes for d in problem.topology.devices]
        self.processors = processors(problem.topology.devices)
        self.cost = list(zip(*node_costs(problem.rates.devices, problem.graph), strict=True))
        self.reads = _reads(problem.graph, out)
        self._read_back = _read_back(problem.graph)
        self._lasting = [
            (t.id, t.nbytes)
            for t in problem.graph.tensors
            if t.role in (Role.WEIGHT, Role.STATE) and not t.is_view
        ]
        self._links: dict[tuple[int, int], tuple[float, float]] = {}

    def crossing_s(self, src: int, dst: int, nbytes: int) -> float:
        """Return the seconds from a result on one device to its use on another."""
        if src == dst:
            return 0.0
        known = self._links.get((src, dst))
        if known is None:
            known = self._links[src, dst] = _link(self._rates, src, dst)
        return known[0] + nbytes * known[1]

    def rank(self, home: Placed, reserve: Sequence[int]) -> tuple[int, float]:
        """Return (bytes that weights and states lack, seconds); less is better.

        Args:
            home: Device of each storage that nodes write.
            reserve: Bytes of each device that are left to intermediate results.
        """
        devices = self._rates.devices
        free_at = [0.0] * len(devices)
        written: dict[int, float] = {}
        arrived: dict[int, dict[int, float]] = {}
        lasting = dict(self._homes)
        last = -1
        commands = 0
        for i, storage in enumerate(self._out):
            device = home[storage]
            processor = self.processors[device]
            start = free_at[processor]
            for source, nbytes, is_written in self.reads[i]:
                src = home[source]
                if src < 0:
                    src = lasting.setdefault(source, device)
                if src == device:
                    continue
                here = arrived.setdefault(source, {})
                then = here.get(device)
                if then is None:
                    then = written.get(source, 0.0) if is_written else 0.0
                    then += self.crossing_s(src, device, nbytes)
                    here[device] = then
                    commands += 3
                start = max(start, then)
            if device != last:
                start += devices[device].launch_s
                last = device
                commands += 1
            free_at[processor] = written[storage] = start + self.cost[i][device]
            arrived.pop(storage, None)
        ends = [
            written.get(s, 0.0) + self.crossing_s(home[s], HOST, nbytes)
            for s, nbytes in self._read_back
            if home[s] >= 0
        ]
        seconds = max(*free_at, *ends, commands * self._rates.enqueue_s)
        return self._lacking(home, lasting, reserve), seconds

    def _lacking(self, home: Placed, lasting: dict[int, int], reserve: Sequence[int]) -> int:
        """Return the bytes that weights and states lack, over all devices."""
        used = [0] * len(self._limits)
        for storage, nbytes in self._lasting:
            device = home[storage]
            used[device if device >= 0 else lasting.get(storage, 0)] += nbytes
        return sum(
            max(0, n + kept - limit)
            for n, kept, limit in zip(used, reserve, self._limits, strict=True)
        )


def _given_homes(problem: PlacementProblem) -> dict[int, int]:
    """Return where storages are that no node writes: given homes, and inputs in host memory."""
    graph = problem.graph
    found = {t.id: HOST for t in graph.tensors if t.role is Role.INPUT and not t.is_view}
    for name, device in problem.constraints.homes.items():
        if name in graph:
            found[graph.named(name).id] = device
    return found


def _reads(graph: Graph, out: Sequence[int]) -> list[tuple[tuple[int, int, bool], ...]]:
    tensors = graph.tensors
    written: set[int] = set()
    reads = []
    for node, storage in zip(graph.nodes, out, strict=True):
        found: dict[int, int] = {}
        for tid in node.inputs:
            t = tensors[tid]
            if t.storage != storage:
                found[t.storage] = max(found.get(t.storage, 0), t.end - t.offset)
        reads.append(tuple([(s, n, s in written) for s, n in found.items()]))
        written.add(storage)
    return reads


def _read_back(graph: Graph) -> list[tuple[int, int]]:
    return [(graph.tensors[t].storage, graph.tensors[t].nbytes) for t in graph.outputs]


def _link(rates: MachineRates, src: int, dst: int) -> tuple[float, float]:
    """Return the seconds of a copy of no bytes, its event included, and of each byte."""
    link = rates.link(src, dst)
    event_s = 0.0 if src == HOST else rates.devices[src].event_s
    return link.latency_s + event_s, 1 / link.bandwidth
