"""Blocks with a relation of their own, and what is true of every packing of them."""

from itertools import combinations

from hypothesis import strategies as st

from ggsched.passes.memory.interference import MemoryBlock

ALIGNMENT = 16


class Case:
    """Blocks, and the pairs of which a relation says that they may share bytes.

    ``calls`` counts how often the relation was asked; it is ``None`` for lifetimes alone.
    """

    def __init__(self, blocks, sharing=None):
        self.blocks = blocks
        self.sharing = sharing
        self.apart = None if sharing is None else self._apart

    def __repr__(self):
        return f"Case({self.blocks}, {self.sharing})"

    def _apart(self, i, j):
        assert self.meet(i, j), "asked only where lifetimes meet"
        return frozenset((i, j)) in self.sharing

    def meet(self, i, j):
        a, b = self.blocks[i], self.blocks[j]
        return a.birth <= b.death and b.birth <= a.death

    def conflict(self, i, j):
        some = self.blocks[i].nbytes and self.blocks[j].nbytes
        return (
            bool(some)
            and self.meet(i, j)
            and not (self.sharing is not None and frozenset((i, j)) in self.sharing)
        )

    def check(self, offsets, total):
        """Nothing that conflicts overlaps, all is aligned, and the total is the highest end."""
        ends = [o + b.nbytes for o, b in zip(offsets, self.blocks, strict=True)]
        assert all(o >= 0 and o % ALIGNMENT == 0 for o in offsets)
        assert total == max(ends, default=0)
        for i, j in combinations(range(len(offsets)), 2):
            if self.conflict(i, j):
                assert ends[i] <= offsets[j] or ends[j] <= offsets[i], (i, j)

    def heaviest(self):
        """The heaviest set of which no two may share bytes, by trying all."""
        best = 0
        sets = [((), 0)]
        for i, block in enumerate(self.blocks):
            grown = [
                ((*ids, i), nbytes + block.nbytes)
                for ids, nbytes in sets
                if block.nbytes and all(self.conflict(i, j) for j in ids)
            ]
            sets += grown
            best = max([best, *(nbytes for _, nbytes in grown)])
        return best


@st.composite
def cases(draw, max_size=12, steps=10, relation=None):
    """Draw blocks; with another relation than that of intervals, or (``relation=False``) none."""
    blocks = []
    for _ in range(draw(st.integers(0, max_size))):
        birth = draw(st.integers(0, steps))
        nbytes = ALIGNMENT * draw(st.integers(0, 40))
        blocks.append(MemoryBlock(birth, birth + draw(st.integers(0, steps)), nbytes))
    if relation is False or (relation is None and draw(st.booleans())):
        return Case(blocks)
    rng = draw(st.randoms(use_true_random=False))
    density = draw(st.sampled_from((0.0, 0.1, 0.5, 0.9, 1.0)))
    pairs = combinations(range(len(blocks)), 2)
    return Case(blocks, {frozenset(p) for p in pairs if rng.random() < density})
