"""Work: the items of the enqueue order with the bytes that each touches.

Hazards are found on these, and ``sync`` turns them into commands.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from ggsched.ir.graph import Graph
from ggsched.passes.order.enqueue_order import Item, WorkKind, host_reads, is_edge
from ggsched.plan.effects import Step
from ggsched.plan.memory import Memory, Region
from ggsched.plan.splits import Splits, Transfer

_step: Final[Callable[..., Step]] = tuple.__new__
"""Makes a step without a call of Python; a plan has thousands."""

_NOWHERE: Final = Region(0, 0, 0)


class Work(msgspec.Struct, frozen=True, gc=False):
    """One item of work.

    Attributes:
        kind: What it becomes; ``host`` items are accesses of the host itself.
        stream: Stream that runs it, or ``NO_STREAM`` for the host.
        source: Id of the transfer or split.
        reads: Bytes that are read, merged and sorted.
        writes: Bytes that are written, likewise.
        steps: The nodes of a launch.
        ends: The bytes that a transfer comes from and goes to.
    """

    kind: WorkKind
    stream: int
    source: int
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    steps: tuple[Step, ...] = ()
    ends: tuple[Region, Region] = (_NOWHERE, _NOWHERE)


_Touched = tuple[tuple[Step, ...], tuple[Region, ...], tuple[Region, ...]]
"""The steps of some nodes, what they read together, and what they write."""


def list_work(
    graph: Graph, splits: Splits, items: Sequence[Item], order: Sequence[int], memory: Memory
) -> list[Work]:
    """Return the work of each item, whose nodes run in this order."""
    touched = _toucher(graph, splits, memory.regions)
    work = []
    for number, item in enumerate(items):
        if item.kind == "launch":
            steps, reads, writes = touched(order[item.first : item.end])
            work.append(Work("launch", item.stream, item.source, reads, writes, steps))
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
    t, regions = splits.transfers[item.source], memory.regions
    src, dst = splits.values[t.src], splits.values[t.dst]
    read, write = regions[t.src], regions[t.dst]
    if dst.start != src.start or dst.end != src.end:
        read = Region(read[0], read[1] + dst.start - src.start, dst.nbytes)
    reads = (read,) if item.has_source and read[2] else ()
    writes: tuple[Region, ...] = (write,) if write[2] else ()
    if t.rows is not None:
        cache = cache_region(splits, memory, t)
        if cache is not None:
            writes = merge_regions([*writes, cache])
    return Work(item.kind, item.stream, item.source, reads, writes, (), (read, write))


def cache_region(splits: Splits, memory: Memory, t: Transfer) -> Region | None:
    """Return where a transfer of rows keeps some of them from run to run, if it does."""
    if t.rows is None or not t.rows.cached:
        return None
    device, name = splits.values[t.dst].device, splits.values[t.src].bound
    for arena in memory.arenas:
        if arena.kind == "cache" and arena.device == device and arena.name == name:
            return Region(arena.id, 0, arena.nbytes)
    return None


def _toucher(
    graph: Graph, splits: Splits, regions: Sequence[Region]
) -> Callable[[Sequence[int]], _Touched]:
    """Return a function that returns what some nodes touch."""
    nodes, tensors, bindings = graph.nodes, graph.tensors, splits.bindings
    starts = [v.start for v in splits.values]

    def touched(ids: Sequence[int]) -> _Touched:
        steps: list[Step] = []
        reads: list[Region] = []
        writes: list[Region] = []
        for n in ids:
            node = nodes[n]
            modes, operands = node.modes, []
            tids = (*node.inputs, node.output)
            k = 0
            for value in bindings[n]:
                t, mode, region, start = tensors[tids[k]], modes[k], regions[value], starts[value]
                k += 1  # noqa: SIM113  # faster than to count and to zip
                if t.offset != start or t.nbytes != region[2]:
                    region = Region(region[0], region[1] + t.offset - start, t.nbytes)
                operands.append(region)
                if mode == "r":
                    reads.append(region)
                elif mode != "-":
                    writes.append(region)
            steps.append(_step(Step, (n, tuple(operands), modes)))
        return tuple(steps), merge_regions(reads), merge_regions(writes)

    return touched


def merge_regions(regions: list[Region]) -> tuple[Region, ...]:
    """Return sorted regions without overlaps or empty ones."""
    if len(regions) < 2:
        return tuple(regions) if regions and regions[0][2] else ()
    merged: list[Region] = []
    last_arena, last_start, last_end = -1, 0, 0
    for region in sorted(regions if len(regions) < 4 else set(regions)):
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
