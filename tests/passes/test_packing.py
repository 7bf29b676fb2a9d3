"""Packing blocks with lifetimes."""

from itertools import combinations, permutations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ggsched.passes.memory import packing
from ggsched.passes.memory.interference import find_near
from ggsched.passes.memory.packing import MemoryBlock, lower_bound, pack

ALIGNMENT = 16


@st.composite
def blocks(draw, max_size=40, steps=30, sizes=(0, 40)):
    out = []
    for _ in range(draw(st.integers(0, max_size))):
        birth = draw(st.integers(0, steps))
        death = birth + draw(st.integers(0, steps // 2))
        out.append(MemoryBlock(birth, death, ALIGNMENT * draw(st.integers(*sizes))))
    return out


def check(some, offsets, total):
    for block, offset in zip(some, offsets, strict=True):
        assert offset % ALIGNMENT == 0
        assert offset >= 0
        assert offset + block.nbytes <= total
    for (a, x), (b, y) in combinations(zip(some, offsets, strict=True), 2):
        together = a.birth <= b.death and b.birth <= a.death
        apart = x + a.nbytes <= y or y + b.nbytes <= x
        assert apart or not together or not a.nbytes or not b.nbytes
    assert total >= lower_bound(some)
    assert total == max((o + b.nbytes for o, b in zip(offsets, some, strict=True)), default=0)


def by_size(some):
    """Place the largest first; (None, 0) where there are too many pairs to look at."""
    near = find_near(some)
    return (None, 0) if near is None else packing.place_by_size(some, near)


@given(some=blocks())
@example(some=[])
@example(some=[MemoryBlock(0, 0, 0)])
@example(some=[MemoryBlock(0, 5, 16)] * 3)
@example(some=[MemoryBlock(k, k, 16) for k in range(5)])
def test_nothing_that_is_alive_overlaps(some):
    check(some, *pack(some))


@given(some=blocks())
def test_both_ways_by_themselves(some):
    check(some, *packing.place_by_birth(some))
    offsets, total = by_size(some)
    if offsets is not None:
        check(some, offsets, total)


@given(some=blocks())
def test_no_worse_than_either_way_and_always_the_same(some):
    found = pack(some)
    assert pack(list(some)) == found
    totals = [packing.place_by_birth(some)[1]]
    offsets, total = by_size(some)
    if offsets is not None:
        totals.append(total)
    assert found[1] <= min(totals)


@given(some=blocks(max_size=200, steps=400))
@settings(max_examples=20)
def test_many_blocks(some):
    check(some, *pack(some))


@given(some=blocks())
def test_lower_bound_is_the_most_alive_at_one_step(some):
    steps = range(max((b.death for b in some), default=0) + 1)
    alive = [sum(b.nbytes for b in some if b.birth <= t <= b.death) for t in steps]
    assert lower_bound(some) == max(alive, default=0)


def best_possible(some):
    """The least bytes of any packing: some order of placing each as low as it can be has it."""
    least = sum(b.nbytes for b in some)
    for order in permutations(range(len(some))):
        placed = []
        for i in order:
            b = some[i]
            near = sorted((o, o + s.nbytes) for o, s in placed if _meet(s, b))
            at = 0
            for low, high in near:
                if low - at >= b.nbytes:
                    break
                at = max(at, high)
            placed.append((at, b))
        least = min(least, max((o + s.nbytes for o, s in placed), default=0))
    return least


def _meet(a, b):
    return a.birth <= b.death and b.birth <= a.death


@given(some=blocks(max_size=6, steps=8, sizes=(1, 4)))
def test_near_what_is_possible(some):
    total = pack(some)[1]
    best = best_possible(some)
    assert lower_bound(some) <= best <= total
    assert total <= 1.25 * best


def test_a_perfect_packing_is_found_where_it_is_easy():
    """A chain: each result lives until the next is made."""
    chain = [MemoryBlock(k, k + 1, 64) for k in range(50)]
    assert pack(chain)[1] == 128 == lower_bound(chain)


def test_bytes_are_used_again_by_what_fits_best():
    some = [
        MemoryBlock(0, 0, 64),
        MemoryBlock(0, 9, 16),
        MemoryBlock(0, 0, 32),
        MemoryBlock(1, 9, 32),
        MemoryBlock(1, 9, 64),
    ]
    offsets, total = pack(some)
    assert total == 112 == lower_bound(some)
    assert {offsets[3], offsets[4]} == {offsets[0], offsets[2]}


def test_by_size_fills_a_gap_that_fits_exactly():
    some = [
        MemoryBlock(0, 1, 64),
        MemoryBlock(0, 9, 48),
        MemoryBlock(5, 9, 32),
        MemoryBlock(5, 9, 32),
    ]
    assert by_size(some)[1] == 112 == lower_bound(some)


class TestBySizeGivesUp:
    """It looks at pairs, so it stops where too many blocks are alive together."""

    def test_where_lives_are_long(self):
        some = [MemoryBlock(k, k + 5000, 16) for k in range(5000)]
        assert by_size(some) == (None, 0)
        check_total = pack(some)
        assert check_total[1] == lower_bound(some)

    def test_where_many_are_alive_at_once(self):
        some = [MemoryBlock(0, 0, 16 * (1 + k % 7)) for k in range(2000)]
        assert by_size(some) == (None, 0)
        assert pack(some)[1] == sum(b.nbytes for b in some)

    @pytest.mark.parametrize("n", [1, 10, 60])
    def test_not_on_small_ones(self, n):
        assert by_size([MemoryBlock(0, n, 16)] * n)[0] is not None
