"""Work: what is to be enqueued, before anything is said about synchronisation.

A list of work items in program order: the host's writes of the inputs, then for each split its
transfers and its launch, then the read-backs, then the host's reads of the outputs. Each says
which bytes it touches. Hazards are found on these, and ``sync`` turns them into commands.
"""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from ggsched.ir.graph import Graph
from ggsched.plan.command import Step
from ggsched.plan.memory import Memory, Region
from ggsched.plan.splits import HOST, Splits, Transfer
from ggsched.plan.streams import Streams
from ggsched.topology.model import Topology

WorkKind = Literal["host", "upload", "download", "copy", "launch"]
NO_STREAM: Final = -1


class Work(NamedTuple):
    """One item of work.

    Attributes:
        kind: What it becomes; ``host`` items are accesses of the host itself.
        stream: Stream that runs it, or ``NO_STREAM`` for the host.
        source: Id of the transfer or split.
        reads: Byte ranges that are read, merged and sorted, each (arena, start, end).
        writes: Byte ranges that are written, likewise.
        steps: The nodes of a launch.
    """

    kind: WorkKind
    stream: int
    source: int
    reads: tuple[tuple[int, int, int], ...]
    writes: tuple[tuple[int, int, int], ...]
    steps: tuple[Step, ...] = ()


def list_work(
    graph: Graph, topology: Topology, splits: Splits, streams: Streams, memory: Memory
) -> list[Work]:
    """Return all work in program order, the host's accesses first and last.

    An upload to a device that ``snapshots_uploads`` reads its source while it is being enqueued,
    which is an access of the host; the rest of it is the stream's.
    """
    regions = memory.regions
    host_in = [_range(regions[v.id]) for v in splits.values if v.kind == "input"]
    work = [Work("host", NO_STREAM, 0, (), _merge(host_in))]
    steps = _steps(graph, splits, regions)
    next_transfer = 0
    for split_id in range(len(splits.splits) + 1):
        while (
            next_transfer < len(splits.transfers)
            and splits.transfers[next_transfer].before == split_id
        ):
            item = _transfer(splits, streams, regions, splits.transfers[next_transfer])
            device = streams.streams[item.stream].device
            if item.kind == "upload" and topology.devices[device].snapshots_uploads:
                work.append(Work("host", NO_STREAM, item.source, item.reads, ()))
                item = item._replace(reads=())
            work.append(item)
            next_transfer += 1
        if split_id < len(splits.splits):
            s = splits.splits[split_id]
            work.append(_launch(split_id, streams.of_split[split_id], steps[s.first : s.end]))
    host_out = [_range(regions[v.id]) for v in splits.values if v.kind == "output"]
    work.append(Work("host", NO_STREAM, 1, _merge(host_out), ()))
    return work


def _range(region: Region) -> tuple[int, int, int]:
    return region.arena, region.offset, region.offset + region.nbytes


def _transfer(splits: Splits, streams: Streams, regions: Sequence[Region], t: Transfer) -> Work:
    src, dst = splits.values[t.src], splits.values[t.dst]
    kind: WorkKind = "copy"
    if src.device == HOST:
        kind = "upload"
    elif dst.device == HOST:
        kind = "download"
    read, write = transfer_regions(splits, regions, t)
    reads, writes = ((_range(read),), (_range(write),)) if write.nbytes else ((), ())
    return Work(kind, streams.of_transfer[t.id], t.id, reads, writes)


def transfer_regions(
    splits: Splits, regions: Sequence[Region], t: Transfer
) -> tuple[Region, Region]:
    """Return the bytes that a transfer reads and the bytes that it writes."""
    src, dst = splits.values[t.src], splits.values[t.dst]
    base = regions[t.src]
    return Region(base.arena, base.offset + dst.start - src.start, dst.nbytes), regions[t.dst]


def _steps(graph: Graph, splits: Splits, regions: Sequence[Region]) -> list[Step]:
    """Return each node with the bytes of its operands and its result."""
    tensors, values = graph.tensors, splits.values
    base = [(r.arena, r.offset - v.start) for r, v in zip(regions, values, strict=True)]
    steps = []
    for node, bound in zip(graph.nodes, splits.bindings, strict=True):
        operands = []
        for tid, value in zip(node.tensors, bound, strict=True):
            t = tensors[tid]
            arena, origin = base[value]
            operands.append(Region(arena, origin + t.offset, t.nbytes))
        steps.append(Step(node.id, tuple(operands), node.modes))
    return steps


def _launch(split_id: int, stream: int, steps: Sequence[Step]) -> Work:
    reads: list[tuple[int, int, int]] = []
    writes: list[tuple[int, int, int]] = []
    for step in steps:
        for (arena, offset, nbytes), mode in zip(step.operands, step.modes, strict=True):
            if mode == "r":
                reads.append((arena, offset, offset + nbytes))
            elif mode != "-":
                writes.append((arena, offset, offset + nbytes))
    return Work("launch", stream, split_id, _merge(reads), _merge(writes), tuple(steps))


def _merge(ranges: list[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    """Return sorted ranges without overlaps or empty ones."""
    if len(ranges) > 1:
        ranges.sort()
    merged: list[tuple[int, int, int]] = []
    last_arena, last_start, last_end = -1, 0, 0
    for arena, start, end in ranges:
        if start == end:
            continue
        if arena == last_arena and start <= last_end:
            if end > last_end:
                last_end = end
                merged[-1] = (arena, last_start, end)
        else:
            merged.append((arena, start, end))
            last_arena, last_start, last_end = arena, start, end
    return tuple(merged)
