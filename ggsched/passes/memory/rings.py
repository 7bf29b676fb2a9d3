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
from ggsched.plan.streams import Streams

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


def find_rings(splits: Splits, streams: Streams, slots: Slots) -> Mapping[int, Slot]:
    """Return the slot of each value that is handed over: replicas and staged copies.

    So has a result that another stream copies than wrote it, such as one of its reader's device:
    nothing else holds back the stream that writes the next one.
    """
    rings: dict[int, Slot] = {}
    seen: Counter[tuple[object, ...]] = Counter()
    fetched = _fetched(splits, streams)
    for v in splits.values:
        part = bisect_right(slots.firsts, v.storage) - 1  # -1 for what all parts share
        if part < 0 or not (v.kind in ("replica", "staging") or v.id in fetched):
            continue
        key = (v.storage - slots.firsts[part], v.device, v.kind)
        version = seen[part, *key]  # a storage that is written again is handed over again
        seen[part, *key] += 1
        rings[v.id] = (*key, version, part % slots.count)
    return rings


def _fetched(splits: Splits, streams: Streams) -> set[int]:
    """Return the results of nodes that another stream hands over than wrote them last."""
    values = splits.values
    written = {bound[-1]: streams.of_node[node] for node, bound in enumerate(splits.bindings)}
    return {
        t.src
        for t in splits.transfers
        if t.src in written
        and streams.of_transfer[t.id] != written[t.src]
        and values[t.dst].kind != "output"
        and not values[t.src].bound
    }
