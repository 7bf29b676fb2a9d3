"""Work: the items of the enqueue order with the bytes that each touches.

Hazards are found on these, and ``sync`` turns them into commands.
"""

from collections.abc import Sequence

import msgspec

from ggsched.ir.graph import Graph
from ggsched.passes.order.enqueue_order import Item, WorkKind, host_reads, is_edge
from ggsched.plan.effects import Step
from ggsched.plan.memory import Memory, Region
from ggsched.plan.splits import Splits, Transfer


class Work(msgspec.Struct, frozen=True, gc=False):
    """One item of work.

    Attributes:
        kind: What it becomes; ``host`` items are accesses of the host itself.
        stream: Stream that runs it, or ``NO_STREAM`` for the host.
        source: Id of the transfer or split.
        reads: Bytes that are read, merged and sorted.
        writes: Bytes that are written, likewise.
        steps: The nodes of a launch.
    """

    kind: WorkKind
    stream: int
    source: int
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    steps: tuple[Step, ...] = ()


def list_work(
    graph: Graph, splits: Splits, items: Sequence[Item], order: Sequence[int], memory: Memory
) -> list[Work]:
    """Return the work of each item, whose nodes run in this order."""
    calls = _calls(graph, splits, memory.regions)
    work = []
    for number, item in enumerate(items):
        if item.kind == "launch":
            if item.end == item.first + 1:
                step, reads, writes = calls[order[item.first]]
                steps: tuple[Step, ...] = (step,)
            else:
                steps, reads, writes = _joined([calls[n] for n in order[item.first : item.end]])
            read, written = merge_regions(reads), merge_regions(writes)
            work.append(Work("launch", item.stream, item.source, read, written, steps))
        elif item.kind != "host":
            work.append(_transfer(splits, memory, item))
        elif is_edge(items, number):
            work.append(_edge(splits, memory.regions, item))
        else:
            value, start, end = host_reads(splits, splits.transfers[item.source])
            arena, offset, _ = memory.regions[value]
            read = (Region(arena, offset + start, end - start),) if end > start else ()
            work.append(Work("host", item.stream, item.source, read, ()))
    return work


def _edge(splits: Splits, regions: Sequence[Region], item: Item) -> Work:
    """Return the host's writes of the inputs, or its reads of the outputs."""
    kind = "output" if item.source else "input"
    slots = merge_regions([regions[v.id] for v in splits.values if v.kind == kind])
    reads, writes = (slots, ()) if item.source else ((), slots)
    return Work("host", item.stream, item.source, reads, writes)


def _transfer(splits: Splits, memory: Memory, item: Item) -> Work:
    t = splits.transfers[item.source]
    read, write = transfer_regions(splits, memory.regions, t)
    reads = (read,) if item.has_source and read.nbytes else ()
    writes: tuple[Region, ...] = (write,) if write.nbytes else ()
    cache = cache_region(splits, memory, t)
    if cache is not None:
        writes = merge_regions([*writes, cache])
    return Work(item.kind, item.stream, item.source, reads, writes)


def transfer_regions(
    splits: Splits, regions: Sequence[Region], t: Transfer
) -> tuple[Region, Region]:
    """Return the bytes that a transfer reads and the bytes that it writes."""
    src, dst = splits.values[t.src], splits.values[t.dst]
    read = regions[t.src]
    if dst.start != src.start or dst.end != src.end:
        read = Region(read.arena, read.offset + dst.start - src.start, dst.nbytes)
    return read, regions[t.dst]


def cache_region(splits: Splits, memory: Memory, t: Transfer) -> Region | None:
    """Return where a transfer of rows keeps some of them from run to run, if it does."""
    if t.rows is None or not t.rows.cached:
        return None
    device, name = splits.values[t.dst].device, splits.values[t.src].bound
    for arena in memory.arenas:
        if arena.kind == "cache" and arena.device == device and arena.name == name:
            return Region(arena.id, 0, arena.nbytes)
    return None


_Call = tuple[Step, list[Region], list[Region]]
"""A node's step, what it reads, and what it writes."""


def _calls(graph: Graph, splits: Splits, regions: Sequence[Region]) -> list[_Call]:
    """Return what each node touches."""
    tensors = graph.tensors
    starts = [v.start for v in splits.values]
    calls = []
    for node, bound in zip(graph.nodes, splits.bindings, strict=True):
        operands: list[Region] = []
        reads: list[Region] = []
        writes: list[Region] = []
        for tid, value, mode in zip(node.tensors, bound, node.modes, strict=True):
            t, region = tensors[tid], regions[value]
            into = t.offset - starts[value]
            if into or t.nbytes != region.nbytes:
                region = Region(region.arena, region.offset + into, t.nbytes)
            operands.append(region)
            if mode == "r":
                reads.append(region)
            elif mode != "-":
                writes.append(region)
        calls.append((Step(node.id, tuple(operands), node.modes), reads, writes))
    return calls


def _joined(calls: Sequence[_Call]) -> tuple[tuple[Step, ...], list[Region], list[Region]]:
    """Return what several nodes touch together."""
    steps = tuple([step for step, _, _ in calls])
    reads = [region for _, reads, _ in calls for region in reads]
    writes = [region for _, _, writes in calls for region in writes]
    return steps, reads, writes


def merge_regions(regions: list[Region]) -> tuple[Region, ...]:
    """Return sorted regions without overlaps or empty ones; sorts the list."""
    if len(regions) < 2:
        return tuple(regions) if regions and regions[0][2] else ()
    regions.sort()
    merged: list[Region] = []
    last_arena, last_start, last_end = -1, 0, 0
    for region in regions:
        arena, start, nbytes = region
        if not nbytes:
            continue
        if arena == last_arena and start <= last_end:
            if start + nbytes > last_end:
                last_end = start + nbytes
                merged[-1] = Region(arena, last_start, last_end - last_start)
        else:
            merged.append(region)
            last_arena, last_start, last_end = arena, start, start + nbytes
    return tuple(merged)
