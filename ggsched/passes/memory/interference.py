"""Interference: which blocks may not share bytes, and sets of which no two may.

Lifetimes give the relation by themselves where everything runs in one order. With several streams
it is not an order of intervals: two blocks whose lifetimes meet may share bytes all the same. Both
become lists of neighbours here, so that one search serves both.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

Interferes = Callable[[int, int], bool]
"""Whether two blocks whose lifetimes meet may share bytes all the same; symmetric."""

Neighbours = Sequence[Sequence[int]]
"""For each block those that it may share no byte with; symmetric."""


_PAIRS = (64, 60_000)  # for each block, and in any case; about 0.1 us each


class MemoryBlock(NamedTuple):
    """Bytes that are needed from step ``birth`` to step ``death``, both included."""

    birth: int
    death: int
    nbytes: int


class Conflicts(NamedTuple):
    """What a search needs to know of blocks.

    Attributes:
        sizes: Bytes of each block, none of them 0.
        near: For each block those that it may share no byte with.
        cliques: Sets of blocks of which no two may share bytes; each block is in one or more.
        cliques_of: For each block the numbers of its cliques.
        loads: Bytes of each clique, in all; no packing needs less than the largest.
    """

    sizes: Sequence[int]
    near: Neighbours
    cliques: Sequence[Sequence[int]]
    cliques_of: Sequence[Sequence[int]]
    loads: Sequence[int]


def lower_bound(blocks: Sequence[MemoryBlock]) -> int:
    """Return the most bytes that are needed at one step; no packing by lifetimes needs less."""
    change: dict[int, int] = {}
    for birth, death, nbytes in blocks:
        change[birth] = change.get(birth, 0) + nbytes
        change[death + 1] = change.get(death + 1, 0) - nbytes
    most = live = 0
    for step in sorted(change):
        live += change[step]
        most = max(most, live)
    return most


def find_near(
    blocks: Sequence[MemoryBlock],
    apart: Interferes | Neighbours | None = None,
    most: int | None = None,
) -> Neighbours | None:
    """Return for each block those that it may share no byte with, or None if that takes too long.

    Blocks without bytes have no neighbours. Takes time in proportion to the pairs whose lifetimes
    meet. What it returns may be given to ``pack`` and ``concurrent_bound`` in place of ``apart``.

    Args:
        blocks: Bytes and lifetimes.
        apart: See ``pack``; neighbours are returned as they are.
        most: Pairs of blocks whose lifetimes meet, above which to give up; by default in
            proportion to the blocks.
    """
    if apart is not None and not callable(apart):
        return apart
    if most is None:
        most = max(_PAIRS[0] * len(blocks), _PAIRS[1])
    if _pairs(blocks) > most:
        return None
    near: list[list[int]] = [[] for _ in blocks]
    alive: list[int] = []
    for i in by_birth(blocks):
        birth = blocks[i].birth
        alive = [j for j in alive if blocks[j].death >= birth]
        mine = alive if apart is None else [j for j in alive if not apart(i, j)]
        near[i] += mine
        for j in mine:
            near[j].append(i)
        alive.append(i)
    return near


def _pairs(blocks: Sequence[MemoryBlock]) -> int:
    """Return the number of pairs of blocks with bytes whose lifetimes meet."""
    births = sorted([b.birth for b in blocks if b.nbytes])
    deaths = sorted([b.death for b in blocks if b.nbytes])
    over = pairs = 0
    for before, birth in enumerate(births):
        while deaths[over] < birth:
            over += 1
        pairs += before - over
    return pairs


def find_conflicts(
    blocks: Sequence[MemoryBlock], near: Neighbours, *, by_lifetime: bool
) -> Conflicts:
    """Return sizes, neighbours and cliques.

    By lifetime the cliques are the largest sets that live at one step, all of them. Otherwise each
    such set gives one clique, the largest block first and then whatever fits; a block that is in
    none gets one of its own in the same way.

    Args:
        blocks: Bytes and lifetimes; none without bytes.
        near: What ``find_near`` returned for them.
        by_lifetime: Whether blocks are neighbours exactly where their lifetimes meet.
    """
    cliques = list(living_sets(blocks))
    if not by_lifetime:
        clique = _clique_finder(blocks, near)
        cliques = list(map(clique, cliques))
        covered = {i for ids in cliques for i in ids}
        for i in range(len(blocks)):
            if i not in covered:
                cliques.append([i, *clique(near[i])])
                covered.update(cliques[-1])
        cliques = [list(ids) for ids in dict.fromkeys(tuple(sorted(ids)) for ids in cliques)]
    cliques_of: list[list[int]] = [[] for _ in blocks]
    for number, ids in enumerate(cliques):
        for i in ids:
            cliques_of[i].append(number)
    sizes = [b.nbytes for b in blocks]
    loads = [sum(sizes[i] for i in ids) for ids in cliques]
    return Conflicts(sizes, near, cliques, cliques_of, loads)


def living_sets(blocks: Sequence[MemoryBlock]) -> Iterator[list[int]]:
    """Yield the sets of blocks that live at one step and are not part of another such set."""
    order = by_birth(blocks)
    dying = sorted(order, key=lambda i: -blocks[i].death)
    alive: dict[int, None] = {}  # in order of birth
    for i in order:
        birth = blocks[i].birth
        if blocks[dying[-1]].death < birth:
            yield list(alive)
            while blocks[dying[-1]].death < birth:
                del alive[dying.pop()]
        alive[i] = None
    if alive:
        yield list(alive)


def by_birth(blocks: Sequence[MemoryBlock]) -> list[int]:
    """Return the blocks that have bytes in the order in which they are born."""
    return sorted((i for i, b in enumerate(blocks) if b.nbytes), key=lambda i: blocks[i].birth)


def _clique_finder(
    blocks: Sequence[MemoryBlock], near: Neighbours
) -> Callable[[Sequence[int]], list[int]]:
    """Return a function that takes blocks of which no two may share bytes out of some blocks.

    It takes the largest, then what fits. A set of blocks is the bits of a number, the largest
    block lowest.
    """
    order = sorted(range(len(blocks)), key=lambda i: (-blocks[i].nbytes, i))
    bits = [0] * len(blocks)
    for place, i in enumerate(order):
        bits[i] = 1 << place
    around = [sum(map(bits.__getitem__, ids)) for ids in near]

    def clique(ids: Sequence[int]) -> list[int]:
        taken: list[int] = []
        left = sum(map(bits.__getitem__, ids))
        while left:
            i = order[(left & -left).bit_length() - 1]
            taken.append(i)
            left &= around[i]
        return taken

    return clique
