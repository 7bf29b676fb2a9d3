"""Concurrent bound: the heaviest set of blocks that may be live together.

Two blocks that may not share bytes lie apart in every packing, so the bytes of any clique of that
relation are a lower bound, and the heaviest clique is the best of its kind. By lifetimes it is what
lives at one step. Where some blocks may share bytes though their lifetimes meet, the live set of
the sequential order is a bound only if that order can happen, and the heaviest clique is searched:
among the neighbours of each block that are older than it, by branch and bound with weighted
colourings (the bound of Tomita and Kameda 2007 and of Kumlander 2008, for cliques with weights).
Where there are too many pairs for that, only the heaviest live sets are looked at.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ggsched.passes.memory.interference import (
    Interferes,
    MemoryBlock,
    Neighbours,
    by_birth,
    find_near,
    living_sets,
    lower_bound,
)

_STEPS = (40, 50_000)  # for each block, and in any case


class Bound(NamedTuple):
    """Bytes below which no packing can go.

    Attributes:
        nbytes: Bytes of a set of blocks of which no two may share bytes.
        is_exact: Whether no such set has more. A packing may need more all the same.
    """

    nbytes: int
    is_exact: bool


def concurrent_bound(
    blocks: Sequence[MemoryBlock],
    apart: Interferes | Neighbours | None = None,
    *,
    steps: int | None = None,
    pairs: int | None = None,
) -> Bound:
    """Return the bytes of the heaviest set of blocks of which no two may share bytes.

    Args:
        blocks: What is to be placed; see ``pack``.
        apart: See ``pack``. Without it the bound is exact.
        steps: Pairs and blocks to look at, once the neighbours are known, before the search ends
            with what it has; by default in proportion to the blocks.
        pairs: Pairs above which neighbours are not looked for, see ``find_near``.
    """
    if apart is None:
        return Bound(lower_bound(blocks), True)
    if steps is None:
        steps = max(_STEPS[0] * len(blocks), _STEPS[1])
    near = find_near(blocks, apart, pairs)
    if near is None:
        assert callable(apart)
        return _heaviest_of_living(blocks, apart, steps)
    return _Heaviest(blocks, near, steps).run()


class _Heaviest:
    def __init__(self, blocks: Sequence[MemoryBlock], near: Neighbours, steps: int) -> None:
        self.sizes = [b.nbytes for b in blocks]
        self.left = steps
        self.best = max(self.sizes, default=0)
        # Each block's neighbours that are born before it: a clique stands with its youngest.
        rank = {i: place for place, i in enumerate(by_birth(blocks))}
        self.before = {
            i: frozenset([j for j in near[i] if rank[j] < place]) for i, place in rank.items()
        }

    def run(self) -> Bound:
        sizes = self.sizes
        most = {i: sizes[i] + sum(map(sizes.__getitem__, ids)) for i, ids in self.before.items()}
        for i in sorted(most, key=lambda i: (-most[i], i)):
            if most[i] <= self.best:
                break
            ids = sorted(self.before[i], key=lambda j: (-sizes[j], j))
            self.best = max(self.best, sizes[i])
            if not self._search(sizes[i], ids):
                return Bound(self.best, False)
        return Bound(self.best, True)

    def _search(self, taken: int, ids: Sequence[int]) -> bool:
        """Search the heaviest clique among blocks, the largest first; whether it is found."""
        count, before = len(ids), self.before
        self.left -= count * (count - 1) // 2
        if self.left < 0:
            self.best = max(self.best, taken + self._grow(ids))
            return False
        sizes = [self.sizes[i] for i in ids]
        near = [0] * count
        for a, i in enumerate(ids):
            older = before[i]
            for b, j in enumerate(ids[:a]):
                if j in older or i in before[j]:
                    near[a] |= 1 << b
                    near[b] |= 1 << a
        # Bytes that were taken, what may still be taken as bits, and the most that can come of it.
        stack = [(taken, (1 << count) - 1, taken + sum(sizes))]
        while stack:
            weight, among, most = stack.pop()
            if most <= self.best:
                continue
            self.left -= among.bit_count() + 1
            if self.left < 0:
                return False
            weight, among = _take_sure(weight, among, near, sizes)
            self.best = max(self.best, weight)
            allowed = 0
            for v, most in _coloured(among, near, sizes):
                if weight + most > self.best:
                    stack.append((weight + sizes[v], allowed & near[v], weight + most))
                allowed |= 1 << v
        return True

    def _grow(self, ids: Sequence[int]) -> int:
        """Take the largest, then whatever fits; return the bytes."""
        weight, before = 0, self.before
        while ids:
            i = ids[0]
            weight += self.sizes[i]
            ids = [j for j in ids[1:] if j in before[i] or i in before[j]]
        return weight


def _heaviest_of_living(blocks: Sequence[MemoryBlock], apart: Interferes, steps: int) -> Bound:
    """Look at the heaviest living sets only: take the largest, then whatever fits."""
    sizes = [b.nbytes for b in blocks]
    sets = [(sum(map(sizes.__getitem__, ids)), ids) for ids in living_sets(blocks)]
    sets.sort(key=lambda entry: -entry[0])
    best = 0
    for most, ids in sets:
        if most <= best or steps <= 0:
            break
        left, weight = sorted(ids, key=lambda i: (-sizes[i], i)), 0
        while left and steps > 0:
            steps -= len(left)
            first = left[0]
            weight += sizes[first]
            left = [j for j in left[1:] if not apart(first, j)]
        best = max(best, weight)
    return Bound(best, best == max((most for most, _ in sets), default=0))


def _take_sure(
    weight: int, among: int, near: Sequence[int], sizes: Sequence[int]
) -> tuple[int, int]:
    """Take the blocks that share bytes with none of the others; return the weight and the rest."""
    rest = left = among
    while left:
        v = left.bit_length() - 1
        left ^= 1 << v
        if among & ~near[v] == 1 << v:
            weight += sizes[v]
            rest ^= 1 << v
    return weight, rest


def _coloured(among: int, near: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return the blocks in an order, and the most that each and those before it can hold.

    A class of blocks that may all share bytes adds its largest, which has the lowest number.
    """
    out: list[tuple[int, int]] = []
    most = 0
    while among:
        open_, members = among, []
        while open_:
            v = (open_ & -open_).bit_length() - 1
            members.append(v)
            open_ &= ~(near[v] | 1 << v)
            among ^= 1 << v
        out += [(v, most + sizes[v]) for v in reversed(members)]
        most += sizes[members[0]]
    return out
