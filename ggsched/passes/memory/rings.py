"""Rings: a fixed number of buffers for what is handed from device to device, used in turns.

In a graph that was joined of several parts (micro-batches) each part hands over a value of its own
at each boundary. Nothing in the data flow says that the first of them has been read when the last
is written, so without a limit each needs bytes of its own. With ``count`` slots part k takes the
bytes that part k - count had; the wait that this needs is found with all other hazards, and holds
back the writer until the last reader is done.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ggsched.ir.graph import Graph
from ggsched.plan.splits import Splits

Slot = tuple[object, ...]
"""Names one buffer of a ring."""


@dataclass(frozen=True, slots=True)
class Slots:
    """How many buffers each boundary of a joined graph has.

    Attributes:
        count: Buffers of each ring, 1 or more.
        firsts: Id of the first tensor of each part, see ``ggsched.ir.join.Joined``.
        lanes: Streams of each device that parts take in turns, so that as many of them are under
            way on it at once; each needs memory of its own.
    """

    count: int
    firsts: tuple[int, ...]
    lanes: int = 1

    def lanes_of(self, graph: Graph) -> list[int]:
        """Return the lane of each node: that of its part."""
        return [
            max(0, bisect_right(self.firsts, max(node.tensors)) - 1) % self.lanes
            for node in graph.nodes
        ]


def find_rings(splits: Splits, slots: Slots | None) -> Mapping[int, Slot]:
    """Return the slot of each value that is handed over: replicas and staged copies."""
    if slots is None:
        return {}
    rings: dict[int, Slot] = {}
    seen: Counter[tuple[object, ...]] = Counter()
    for v in splits.values:
        part = bisect_right(slots.firsts, v.storage) - 1  # -1 for what all parts share
        if part < 0 or v.kind not in ("replica", "staging"):
            continue
        key = (v.storage - slots.firsts[part], v.device, v.kind)
        version = seen[part, *key]  # a storage that is written again is handed over again
        seen[part, *key] += 1
        rings[v.id] = (*key, version, part % slots.count)
    return rings
