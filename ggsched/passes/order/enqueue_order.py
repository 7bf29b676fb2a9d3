"""Enqueue order: what is enqueued, where and in which order, before anything is said about bytes.

Items in program order: the host's writes of the inputs, then for each split its transfers and its
launches, then the read-backs, then the host's reads of the outputs. ``work`` adds the bytes that
each touches once memory is planned.

A *lane* is what keeps order by itself: a stream, or on a device whose copies and launches are not
ordered with each other (``copy_order``), the copies of a stream and its launches apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from ggsched.plan.fusions import Fusion, run_order
from ggsched.plan.splits import HOST, Splits, Transfer
from ggsched.plan.streams import Streams
from ggsched.topology.model import Topology

WorkKind = Literal["host", "transfer", "launch"]
NO_STREAM: Final = -1


class Item(msgspec.Struct, frozen=True, gc=False):
    """One item.

    Attributes:
        kind: What it becomes; ``host`` items are accesses of the host itself.
        stream: Stream that runs it, or ``NO_STREAM`` for the host.
        source: Id of the transfer or split. Of the host's items: 0 for the inputs, 1 for the
            outputs, or the id of the transfer for which it reads something while enqueueing.
        first: Place of a launch's first node in the order in which nodes run.
        end: One past that of its last node.
        has_source: Whether a transfer reads its source by itself.
    """

    kind: WorkKind
    stream: int
    source: int
    first: int = 0
    end: int = 0
    has_source: bool = True


@dataclass(frozen=True, slots=True)
class Lanes:
    """The lane of each item, and of the host.

    Attributes:
        of_item: Lane of each item.
        of_stream: The lanes of each stream, one or two.
        host: The host's lane.
    """

    of_item: tuple[int, ...]
    of_stream: tuple[tuple[int, ...], ...]
    host: int

    @property
    def count(self) -> int:
        """Number of lanes."""
        return self.host + 1


@dataclass(frozen=True, slots=True)
class EnqueueOrder:
    """The order in which the host enqueues.

    Attributes:
        items: All items in program order, the host's accesses first and last.
        nodes: Nodes in the order in which they run.
        lanes: The lane of each item.
    """

    items: tuple[Item, ...]
    nodes: Sequence[int]
    lanes: Lanes

    @property
    def is_sequential(self) -> bool:
        """Whether all work is on one lane, the host's own apart."""
        return self.lanes.count <= 2


def find_order(
    topology: Topology, splits: Splits, streams: Streams, fusions: Sequence[Fusion] = ()
) -> EnqueueOrder:
    """Return the order in which the host enqueues.

    An upload to a device that ``snapshots_uploads`` reads its source while it is being enqueued,
    which is an access of the host; the rest of it is the stream's. Of a copy of rows the host reads
    the ids. A split on one stream is one launch; on several, each node is, and each group; also
    where rows are copied, so that the first product need not wait for the rows of the last.
    """
    nodes = run_order(len(splits.bindings), fusions)
    items = tuple(_list_items(topology, splits, streams, fusions, nodes))
    return EnqueueOrder(items, nodes, _find_lanes(items, streams, topology))


def _list_items(
    topology: Topology,
    splits: Splits,
    streams: Streams,
    fusions: Sequence[Fusion],
    order: Sequence[int],
) -> list[Item]:
    size_of = {f.nodes[0]: len(f.nodes) for f in fusions}
    snapshots = [topology.devices[s.device].snapshots_uploads for s in streams.streams]
    items = [Item("host", NO_STREAM, 0)]
    by_rows = {t.before for t in splits.transfers if t.rows is not None}
    transfers, next_transfer, of_node = splits.transfers, 0, streams.of_node
    for split_id in range(len(splits.splits) + 1):
        while next_transfer < len(transfers) and transfers[next_transfer].before == split_id:
            t = transfers[next_transfer]
            stream = streams.of_transfer[t.id]
            is_taken = splits.values[t.src].device == HOST and snapshots[stream]
            if is_taken or t.rows is not None:
                items.append(Item("host", NO_STREAM, t.id))
            has_source = t.has_source and not is_taken
            items.append(Item("transfer", stream, t.id, has_source=has_source))
            next_transfer += 1
        if split_id < len(splits.splits):
            s = splits.splits[split_id]
            if s.end == s.first + 1 or (
                split_id not in by_rows and len(set(of_node[s.first : s.end])) == 1
            ):
                items.append(Item("launch", of_node[s.first], split_id, s.first, s.end))
            else:
                at = s.first
                while at < s.end:
                    end = at + size_of.get(order[at], 1)
                    items.append(Item("launch", of_node[order[at]], split_id, at, end))
                    at = end
    items.append(Item("host", NO_STREAM, 1))
    return items


def _find_lanes(items: Sequence[Item], streams: Streams, topology: Topology) -> Lanes:
    of_stream: list[tuple[int, ...]] = []
    count = 0
    for s in streams.streams:
        width = 1 if topology.devices[s.device].copy_order == "stream" else 2
        of_stream.append(tuple(range(count, count + width)))
        count += width
    of_item = []
    for item in items:
        if item.stream == NO_STREAM:
            of_item.append(count)
        else:
            lanes = of_stream[item.stream]
            of_item.append(lanes[0] if item.kind == "launch" else lanes[-1])
    return Lanes(tuple(of_item), tuple(of_stream), count)


def is_edge(items: Sequence[Item], number: int) -> bool:
    """Whether an item is the host's writes of the inputs or its reads of the outputs."""
    return number in (0, len(items) - 1)


def host_reads(splits: Splits, t: Transfer) -> tuple[int, int, int]:
    """Return what the host reads while it enqueues a transfer: (value, first byte, one past)."""
    if t.rows is not None:
        return t.rows.ids, 0, splits.values[t.rows.ids].nbytes
    src, dst = splits.values[t.src], splits.values[t.dst]
    return t.src, dst.start - src.start, dst.end - src.start
