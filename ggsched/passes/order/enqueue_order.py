"""Outline: what is enqueued and where, before anything is said about bytes.

Items in program order: the host's writes of the inputs, then for each split its transfers and its
launches, then the read-backs, then the host's reads of the outputs. ``work`` adds the bytes that
each touches once memory is planned; ``visibility`` needs the outline alone.
"""

from collections.abc import Sequence
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


def list_outline(
    topology: Topology, splits: Splits, streams: Streams, fusions: Sequence[Fusion] = ()
) -> list[Item]:
    """Return all items in program order, the host's accesses first and last.

    An upload to a device that ``snapshots_uploads`` reads its source while it is being enqueued,
    which is an access of the host; the rest of it is the stream's. Of a copy of rows the host reads
    the ids. A split on one stream is one launch; on several, each node is, and each group; also
    where rows are copied, so that the first product need not wait for the rows of the last.
    """
    order = run_order(len(splits.bindings), fusions)
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


def is_edge(items: Sequence[Item], number: int) -> bool:
    """Whether an item is the host's writes of the inputs or its reads of the outputs."""
    return number in (0, len(items) - 1)


def host_reads(splits: Splits, t: Transfer) -> tuple[int, int, int]:
    """Return what the host reads while it enqueues a transfer: (value, first byte, one past)."""
    if t.rows is not None:
        return t.rows.ids, 0, splits.values[t.rows.ids].nbytes
    src, dst = splits.values[t.src], splits.values[t.dst]
    return t.src, dst.start - src.start, dst.end - src.start
