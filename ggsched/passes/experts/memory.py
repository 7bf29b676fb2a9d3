"""Memory of experts that are computed away from their weights: staging rings and caches.

A slot of a ring holds the weights of one block at a time, row for row as they lie at home, so that
kernels need not know. Where the rows of a cache lie is decided when the plan runs.
"""

from ggsched.plan.memory import Arena, Region
from ggsched.plan.splits import Splits
from ggsched.topology.model import Topology


def add_rings(
    topology: Topology, splits: Splits, arenas: list[Arena], regions: list[Region]
) -> None:
    """Add an arena for the ring of each device, and the regions of the values in it.

    All slots have the length of the longest.
    """
    fills: dict[tuple[int, int, int], list[int]] = {}
    for t in splits.transfers:
        target = splits.values[t.dst]
        if target.ring >= 0:
            fills.setdefault((target.device, target.ring, t.before), []).append(target.id)
    for device in sorted({device for device, _, _ in fills}):
        alignment = topology.devices[device].alignment
        inside: dict[int, tuple[int, int]] = {}
        longest = slots = 0
        for (where, slot, _), values in fills.items():
            if where != device:
                continue
            at = 0
            for v in values:
                inside[v] = slot, at
                at += -(-splits.values[v].nbytes // alignment) * alignment
            longest, slots = max(longest, at), max(slots, slot + 1)
        arena = len(arenas)
        for v, (slot, offset) in inside.items():
            regions[v] = Region(arena, slot * longest + offset, splits.values[v].nbytes)
        arenas.append(Arena(arena, "compute", device, slots * longest, alignment))


def add_caches(topology: Topology, splits: Splits, arenas: list[Arena]) -> None:
    """Add an arena for each weight of which a device keeps rows from run to run."""
    known: set[tuple[int, str]] = set()
    for t in splits.transfers:
        if t.rows is None or not t.rows.cached:
            continue
        device, name = splits.values[t.dst].device, splits.values[t.src].bound
        if (device, name) not in known:
            known.add((device, name))
            nbytes, alignment = t.rows.cached * t.rows.nbytes, topology.devices[device].alignment
            arenas.append(Arena(len(arenas), "cache", device, nbytes, alignment, name))
