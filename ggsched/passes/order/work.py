"""Work: the items of the outline with the bytes that each touches.

Hazards are found on these, and ``sync`` turns them into commands.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ggsched.ir.graph import Graph
from ggsched.passes.order.outline import Item, WorkKind, host_reads
from ggsched.plan.command import Step
from ggsched.plan.memory import Memory, Region
from ggsched.plan.splits import Splits, Transfer


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
    graph: Graph, splits: Splits, outline: Sequence[Item], order: Sequence[int], memory: Memory
) -> list[Work]:
    """Return the work of each item of the outline, whose nodes run in this order."""
    regions = memory.regions
    steps = _steps(graph, splits, regions)
    last = len(outline) - 1
    work = []
    for number, item in enumerate(outline):
        if item.kind == "launch":
            work.append(_launch(item, [steps[n] for n in order[item.first : item.end]]))
        elif item.kind != "host":
            work.append(_transfer(splits, memory, item))
        elif number in (0, last):
            kind = "output" if number else "input"
            slots = merge_ranges([_range(regions[v.id]) for v in splits.values if v.kind == kind])
            reads, writes = (slots, ()) if number else ((), slots)
            work.append(Work("host", item.stream, item.source, reads, writes))
        else:
            value, start, end = host_reads(splits, splits.transfers[item.source])
            arena, offset, _ = regions[value]
            reads = ((arena, offset + start, offset + end),) if end > start else ()
            work.append(Work("host", item.stream, item.source, reads, ()))
    return work


def _range(region: Region) -> tuple[int, int, int]:
    return region.arena, region.offset, region.offset + region.nbytes


def _transfer(splits: Splits, memory: Memory, item: Item) -> Work:
    t = splits.transfers[item.source]
    read, write = transfer_regions(splits, memory.regions, t)
    reads, writes = merge_ranges([_range(read)]), merge_ranges([_range(write)])
    cache = cache_region(splits, memory, t)
    if cache is not None:
        writes = merge_ranges([*writes, _range(cache)])
    return Work(item.kind, item.stream, item.source, reads if item.has_source else (), writes)


def transfer_regions(
    splits: Splits, regions: Sequence[Region], t: Transfer
) -> tuple[Region, Region]:
    """Return the bytes that a transfer reads and the bytes that it writes."""
    src, dst = splits.values[t.src], splits.values[t.dst]
    base = regions[t.src]
    return Region(base.arena, base.offset + dst.start - src.start, dst.nbytes), regions[t.dst]


def cache_region(splits: Splits, memory: Memory, t: Transfer) -> Region | None:
    """Return where a transfer of rows keeps some of them from run to run, if it does."""
    if t.rows is None or not t.rows.cached:
        return None
    device, name = splits.values[t.dst].device, splits.values[t.src].bound
    for arena in memory.arenas:
        if arena.kind == "cache" and arena.device == device and arena.name == name:
            return Region(arena.id, 0, arena.nbytes)
    return None


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


def _launch(item: Item, steps: Sequence[Step]) -> Work:
    reads: list[tuple[int, int, int]] = []
    writes: list[tuple[int, int, int]] = []
    for step in steps:
        for (arena, offset, nbytes), mode in zip(step.operands, step.modes, strict=True):
            if mode == "r":
                reads.append((arena, offset, offset + nbytes))
            elif mode != "-":
                writes.append((arena, offset, offset + nbytes))
    return Work(
        "launch", item.stream, item.source, merge_ranges(reads), merge_ranges(writes), tuple(steps)
    )


def merge_ranges(ranges: list[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
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
