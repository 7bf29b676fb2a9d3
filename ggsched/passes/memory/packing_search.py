"""Packing search: try orders, place from the bottom upwards, keep the best.

A *dive* places all blocks once. It goes upwards and never back: the next block is the one that can
lie lowest, on top of the neighbours that are placed already; among equals the order decides. These
are the canonical solutions of MiniMalloc (Moffitt, ASPLOS 2023), and so are the two inferences. A
block must wait if with it the rest of one of its cliques would not fit below the target; and
nothing is placed so high that a waiting block would fit below it, because that is never needed.
Where MiniMalloc goes back, the dive raises its target by as little as it can, so that each dive
ends with a packing, and names the clique that was in the way.

Around it, orders are searched by moving single blocks, half of them out of that clique, mostly to
an earlier place (squeaky wheel optimisation: Joslin and Clements 1999). A dive that must end above
the order at hand is given up at once.

Steps are counted, not seconds, and the random numbers have a fixed seed, so the result depends on
the arguments alone; and as the budget decides nothing but the end, more of it is never worse.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from random import Random
from typing import NamedTuple

from ggsched.passes.memory.interference import Conflicts

_NEVER = 1 << 62
_STALL = 100
STEPS_PER_BLOCK = 20
"""Steps that placing a block costs, besides one for each of its neighbours."""


class Packing(NamedTuple):
    """Offsets of blocks, and the bytes that they need in all."""

    offsets: Sequence[int]
    total: int


class _Dive(NamedTuple):
    """What came of a dive.

    Attributes:
        packing: Offsets and total, or None if the dive was given up.
        tight: The clique that raised the target last, -1 if none did.
        steps: Work done.
    """

    packing: Packing | None
    tight: int
    steps: int


class _Waiting(NamedTuple):
    """A block that could be placed only above the target.

    Attributes:
        need: Bytes that its cliques would need in all.
        offset: Where it would lie.
        place: Its place in the order.
    """

    need: int
    offset: int
    place: int


def search(conflicts: Conflicts, best: Packing, budget: int) -> Packing:
    """Return a packing that is no larger than ``best``.

    Args:
        conflicts: What to place, and which of it may not share bytes.
        best: A packing of the same blocks.
        budget: Steps that may be taken; one step looks at one neighbour.
    """
    return _Search(conflicts, best, budget).run()


class _Search:
    def __init__(self, conflicts: Conflicts, best: Packing, budget: int) -> None:
        self.conflicts = conflicts
        self.best = best
        self.bound = max(conflicts.loads, default=0)
        self.left = budget
        self.random = Random(0).random
        near, cliques_of = conflicts.near, conflicts.cliques_of
        self.costs = [
            STEPS_PER_BLOCK + len(a) + len(b) for a, b in zip(near, cliques_of, strict=True)
        ]
        self.full_cost = sum(self.costs) + STEPS_PER_BLOCK * len(self.costs) // 4

    def run(self) -> Packing:
        starts: list[tuple[int, list[int], int]] = []
        for order in _orders(self.conflicts):
            if self.is_over():
                return self.best
            dive = self.dive(order, self.bound, _NEVER)
            assert dive.packing is not None
            starts.append((dive.packing.total, order, dive.tight))
        starts.sort(key=lambda start: start[0])
        rounds = 0
        kept = starts[0]
        while not self.is_over():
            # Twice from the best order so far, then once from the next of those at the start.
            at = starts[rounds // 3 % len(starts)] if rounds % 3 == 0 else kept
            at = self.descend(*at)
            if at[0] <= kept[0]:
                kept = at
            rounds += 1
        return self.best

    def is_over(self) -> bool:
        """Whether the bound is met or the budget does not allow for another dive."""
        return self.best.total <= self.bound or self.left < self.full_cost

    def descend(self, total: int, order: list[int], tight: int) -> tuple[int, list[int], int]:
        """Change an order, never for the worse, until nothing has helped for long."""
        stalled = 0
        while stalled < _STALL and not self.is_over():
            changed = self.moved(order, tight)
            target = self.bound + (self.best.total - self.bound) * 19 // 20
            dive = self.dive(changed, target, total)
            if dive.packing is None or dive.packing.total > total:
                stalled += 1
                continue
            if dive.packing.total < total:
                stalled = 0
            total, order, tight = dive.packing.total, changed, dive.tight
        return total, order, tight

    def moved(self, order: list[int], tight: int) -> list[int]:
        """Return the order with up to three blocks moved."""
        random, count = self.random, len(order)
        order = order[:]
        for _ in range((1, 1, 2, 3)[int(random() * 4)]):
            if tight >= 0 and random() < 0.5:
                clique = self.conflicts.cliques[tight]
                block = clique[int(random() * len(clique))]
            else:
                block = int(random() * count)
            place = order.index(block)
            order.pop(place)
            order.insert(int(random() * (place if random() < 0.75 else count)), block)
        return order

    def dive(self, order: list[int], target: int, limit: int) -> _Dive:
        """Place all blocks; give up where the target would have to rise above the limit."""
        sizes, near, _, cliques_of, loads = self.conflicts
        count, costs = len(sizes), self.costs
        left = list(loads)  # bytes of each clique that are still to be placed
        floors = [0] * count  # how low a block can lie; _NEVER when it is placed
        offsets, places = [0] * count, [0] * count
        for place, i in enumerate(order):
            places[i] = place
        heap = [(0, place) for place in range(count)]
        waiting: list[_Waiting] = []
        fence, tight, steps, todo = _NEVER, -1, STEPS_PER_BLOCK * count // 4, count
        while todo:
            if heap and heap[0][0] < fence:
                offset, place = heappop(heap)
                i = order[place]
                if offset != floors[i]:
                    continue
                need = offset + max([left[c] for c in cliques_of[i]])
                top = offset + sizes[i]
                if need > target:
                    waiting.append(_Waiting(need, offset, place))
                    fence = min(fence, top)
                    continue
                offsets[i], floors[i] = offset, _NEVER
                todo -= 1
                steps += costs[i]
                for c in cliques_of[i]:
                    left[c] -= sizes[i]
                for j in near[i]:
                    if floors[j] < top:
                        floors[j] = top
                        heappush(heap, (top, places[j]))
                continue
            waiting = [w for w in waiting if floors[order[w.place]] == w.offset]
            lowest = min([w.offset + sizes[order[w.place]] for w in waiting], default=_NEVER)
            if lowest == _NEVER or (heap and heap[0][0] < lowest):
                fence = lowest
                continue
            target, _, place = min(waiting)
            tight = max(cliques_of[order[place]], key=left.__getitem__)
            if target > limit:
                self.left -= steps
                return _Dive(None, tight, steps)
            heap += [(w.offset, w.place) for w in waiting]
            heapify(heap)
            waiting, fence = [], _NEVER
        self.left -= steps
        total = max(map(int.__add__, offsets, sizes), default=0)
        packing = Packing(offsets, total)
        if total < self.best.total:
            self.best = packing
        return _Dive(packing, tight, steps)


def _orders(conflicts: Conflicts) -> list[list[int]]:
    """Return orders to begin with, by load of the cliques, reach and area, the best first."""
    sizes, near, _, cliques_of, loads = conflicts
    blocks = range(len(sizes))
    load = [-max(loads[c] for c in cliques_of[i]) for i in blocks]
    reach = [-len(near[i]) for i in blocks]
    area = [-len(cliques_of[i]) * sizes[i] for i in blocks]
    keys = (
        list(zip(load, reach, area, strict=True)),
        list(zip(reach, area, load, strict=True)),
        list(zip(load, area, reach, strict=True)),
        list(zip(area, reach, load, strict=True)),
    )
    return [sorted(blocks, key=key.__getitem__) for key in keys]
