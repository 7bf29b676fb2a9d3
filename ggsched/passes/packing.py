"""Packing: place blocks with lifetimes in one address range.

Offline, all lifetimes known: largest block first, each into the tightest gap that its
contemporaries leave (Pisarchyk and Lee 2020, arXiv 2001.03288). Where lifetimes overlap too much
for that to be near-linear, blocks are placed in order of birth with best fit, as an online
allocator would do.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple

_WORK_PER_BLOCK = 64


class Block(NamedTuple):
    """Bytes that are needed from step ``birth`` to step ``death``, both included."""

    birth: int
    death: int
    nbytes: int


def pack(blocks: Sequence[Block]) -> tuple[list[int], int]:
    """Return an offset for each block and the bytes needed in all.

    Sizes must be multiples of the alignment already. The result is deterministic.
    """
    offsets, total = _by_birth(blocks)
    if total > lower_bound(blocks):
        better, smaller = _by_size(blocks)
        if better is not None and smaller < total:
            return better, smaller
    return offsets, total


def lower_bound(blocks: Sequence[Block]) -> int:
    """Return the most bytes that are needed at one step; no packing needs less."""
    change: dict[int, int] = {}
    for birth, death, nbytes in blocks:
        change[birth] = change.get(birth, 0) + nbytes
        change[death + 1] = change.get(death + 1, 0) - nbytes
    most = live = 0
    for step in sorted(change):
        live += change[step]
        most = max(most, live)
    return most


def _by_birth(blocks: Sequence[Block]) -> tuple[list[int], int]:
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


def _by_size(blocks: Sequence[Block]) -> tuple[list[int] | None, int]:
    """Place the largest first, each into the tightest gap between its contemporaries.

    Returns None where finding contemporaries would not be near-linear.
    """
    n = len(blocks)
    span = max((b.death for b in blocks), default=0) + 1
    width = max(1, 4 * span // max(1, n))
    if sum((b.death - b.birth) // width + 1 for b in blocks) > _WORK_PER_BLOCK * n:
        return None, 0
    rooms: list[list[tuple[int, int, int, int]]] = [[] for _ in range(span // width + 1)]
    offsets, total, work = [0] * n, 0, 0
    for i in sorted(range(n), key=lambda k: (-blocks[k].nbytes, blocks[k].birth, k)):
        birth, death, nbytes = blocks[i]
        if not nbytes:
            continue
        first, last = birth // width, death // width
        near = {p for room in rooms[first : last + 1] for p in room}
        work += len(near)
        if work > _WORK_PER_BLOCK * n:
            return None, 0
        taken = sorted((lo, hi) for lo, hi, b, d in near if b <= death and birth <= d)
        offsets[i] = offset = _tightest(taken, nbytes)
        total = max(total, offset + nbytes)
        entry = (offset, offset + nbytes, birth, death)
        for room in rooms[first : last + 1]:
            room.append(entry)
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
