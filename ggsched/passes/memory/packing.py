"""Packing: place blocks with lifetimes in one address range.

Three ways, each tried only where the one before is not as good as the bound. In order of birth
with best fit, as an online allocator would do; the largest block first, each into the tightest gap
between the blocks that interfere with it (Pisarchyk and Lee 2020, arXiv 2001.03288); and a search
over orders (``packing_search``). The last two look at pairs of blocks that interfere and are left
out where there are too many for that to be near-linear.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple

from ggsched.passes.memory.concurrent_bound import Bound, concurrent_bound
from ggsched.passes.memory.interference import (
    Interferes,
    MemoryBlock,
    Neighbours,
    find_conflicts,
    find_near,
    lower_bound,
)
from ggsched.passes.memory.packing_search import STEPS_PER_BLOCK, Packing, search

__all__ = [
    "Interferes",
    "MemoryBlock",
    "Neighbours",
    "find_near",
    "lower_bound",
    "pack",
    "pack_bounded",
]

# A step of the search takes about 0.1 us. Small problems are soon searched through.
_STEPS = (400, 120_000)  # for each block, and at most
_STEPS_PER_EFFORT = (5_000, 1_000_000)  # for each block, and at most


class Packed(NamedTuple):
    """Where blocks lie.

    Attributes:
        offsets: An offset for each block, in bytes.
        total: Bytes needed in all.
        bound: Bytes below which no packing can go.
    """

    offsets: list[int]
    total: int
    bound: Bound


def pack(
    blocks: Sequence[MemoryBlock], apart: Interferes | Neighbours | None = None, *, effort: int = 0
) -> tuple[list[int], int]:
    """Return an offset for each block and the bytes needed in all; see ``pack_bounded``."""
    packed = pack_bounded(blocks, apart, effort=effort)
    return packed.offsets, packed.total


def pack_bounded(
    blocks: Sequence[MemoryBlock], apart: Interferes | Neighbours | None = None, *, effort: int = 0
) -> Packed:
    """Return an offset for each block, the bytes needed in all, and their lower bound.

    Sizes must be multiples of the alignment already; then so are the offsets. The result depends
    on the arguments alone, not on the time that anything takes, and more effort is never worse.

    Args:
        blocks: What to place. Blocks whose lifetimes do not meet may share bytes.
        apart: Whether two blocks whose lifetimes meet may share bytes all the same; symmetric.
            It need not be an order of intervals. Where the lifetimes say nothing, give all blocks
            the same one. Or what ``find_near`` made of it.
        effort: How long to search where the bound is not met, in millions of looks at a neighbour
            (0.1 to 0.2 s each), fewer for less than 200 blocks. With 0 the search ends after an
            eighth of the first million, and is left out where a single try would take longer.
    """
    offsets, total = place_by_birth(blocks)
    near = None
    if apart is None:
        bound = Bound(lower_bound(blocks), True)
    elif total == (most := max((b.nbytes for b in blocks), default=0)):
        bound = Bound(most, True)
    else:
        near = find_near(blocks, apart)
        bound = concurrent_bound(blocks, apart if near is None else near, pairs=0)
    if total <= bound.nbytes:
        return Packed(offsets, total, Bound(bound.nbytes, True))
    if apart is None:
        near = find_near(blocks)
    if near is None and effort:
        near = find_near(blocks, apart, effort * _STEPS_PER_EFFORT[1])
    if near is None:
        return Packed(offsets, total, bound)
    better, smaller = place_by_size(blocks, near)
    if smaller < total:
        offsets, total = better, smaller
    if total > bound.nbytes:
        offsets, total = _searched(blocks, near, apart is None, Packing(offsets, total), effort)
    return Packed(offsets, total, Bound(bound.nbytes, bound.is_exact or total == bound.nbytes))


def _searched(
    blocks: Sequence[MemoryBlock],
    near: Neighbours,
    by_lifetime: bool,
    found: Packing,
    effort: int,
) -> tuple[list[int], int]:
    """Return what the search makes of a packing."""
    offsets = list(found.offsets)
    steps = _most_steps(len(blocks), effort)
    ids = [i for i, block in enumerate(blocks) if block.nbytes]
    if sum(map(len, near)) + STEPS_PER_BLOCK * len(ids) > steps:
        return offsets, found.total
    number = {i: k for k, i in enumerate(ids)}
    some = [blocks[i] for i in ids]
    around = [[number[j] for j in near[i]] for i in ids]
    conflicts = find_conflicts(some, around, by_lifetime=by_lifetime)
    best = search(conflicts, Packing([offsets[i] for i in ids], found.total), steps)
    for i, offset in zip(ids, best.offsets, strict=True):
        offsets[i] = offset
    return offsets, best.total


def _most_steps(count: int, effort: int) -> int:
    each, most = _STEPS_PER_EFFORT
    return min(_STEPS[0] * count, _STEPS[1]) + effort * min(each * count, most)


def place_by_birth(blocks: Sequence[MemoryBlock]) -> tuple[list[int], int]:
    """Place in order of birth into the tightest free gap; grow only if none fits."""
    offsets = [0] * len(blocks)
    dying: dict[int, list[int]] = {}
    free: list[tuple[int, int]] = []  # (offset, nbytes), by offset, never adjacent
    top, last = 0, -1
    deaths: list[int] = []
    for i in sorted(range(len(blocks)), key=lambda k: (blocks[k].birth, -blocks[k].nbytes)):
        birth, death, nbytes = blocks[i]
        if not nbytes:
            continue
        if birth != last:
            while deaths and deaths[0] < birth:
                for dead in dying.pop(deaths.pop(0)):
                    top = _release(free, offsets[dead], blocks[dead].nbytes, top)
            last = birth
        best = -1
        for k, (_, size) in enumerate(free):
            if nbytes <= size and (best < 0 or size < free[best][1]):
                best = k
        if best >= 0:
            offsets[i], size = free[best]
            if size == nbytes:
                free.pop(best)
            else:
                free[best] = (offsets[i] + nbytes, size - nbytes)
        elif free and free[-1][0] + free[-1][1] == top:
            offsets[i] = free.pop()[0]
            top = offsets[i] + nbytes
        else:
            offsets[i], top = top, top + nbytes
        if death not in dying:
            dying[death] = []
            insort(deaths, death)
        dying[death].append(i)
    return offsets, max((o + b.nbytes for o, b in zip(offsets, blocks, strict=True)), default=0)


def _release(free: list[tuple[int, int]], offset: int, nbytes: int, top: int) -> int:
    """Return bytes to the free list, joined with its neighbours."""
    k = bisect_left(free, (offset, 0))
    if k < len(free) and free[k][0] == offset + nbytes:
        nbytes += free.pop(k)[1]
    if k and free[k - 1][0] + free[k - 1][1] == offset:
        k -= 1
        before = free.pop(k)
        offset, nbytes = before[0], before[1] + nbytes
    free.insert(k, (offset, nbytes))
    return top


def place_by_size(blocks: Sequence[MemoryBlock], near: Neighbours) -> tuple[list[int], int]:
    """Place the largest first, each into the tightest gap that is free of interference."""
    offsets, total = [0] * len(blocks), 0
    ends = [-1] * len(blocks)  # of those that are placed
    for i in sorted(range(len(blocks)), key=lambda k: (-blocks[k].nbytes, blocks[k].birth, k)):
        nbytes = blocks[i].nbytes
        taken = sorted([(offsets[j], ends[j]) for j in near[i] if ends[j] >= 0])
        offsets[i] = _tightest(taken, nbytes)
        ends[i] = offsets[i] + nbytes
        total = max(total, ends[i])
    return offsets, total


def _tightest(taken: list[tuple[int, int]], nbytes: int) -> int:
    """Return the offset of the smallest gap that fits, or the end."""
    best, best_size, end = -1, 0, 0
    for low, high in taken:
        gap = low - end
        if gap >= nbytes and (best < 0 or gap < best_size):
            best, best_size = end, gap
        end = max(end, high)
    return end if best < 0 else best
