"""The search for a better packing, by lifetimes and by a relation of its own."""

from itertools import combinations, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched.passes.memory import packing, packing_search
from ggsched.passes.memory.interference import MemoryBlock, find_conflicts, find_near, living_sets
from ggsched.passes.memory.packing import lower_bound, pack
from ggsched.passes.memory.packing_search import Packing, search
from tests.passes.conflicts import Case, cases

PLENTY = 10**9
# Both simple ways need 208 bytes, and 144 are enough.
HARD = [
    MemoryBlock(*b)
    for b in ((0, 1, 48), (7, 8, 80), (1, 6, 16), (2, 5, 48), (0, 0, 80), (4, 4, 80), (5, 8, 64))
]


def conflicts_of(case):
    kept = [i for i, b in enumerate(case.blocks) if b.nbytes]
    some = [case.blocks[i] for i in kept]
    apart = None if case.apart is None else lambda i, j: case.apart(kept[i], kept[j])
    near = find_near(some, apart, PLENTY)
    return kept, find_conflicts(some, near, by_lifetime=apart is None)


# --- interference ------------------------------------------------------------------------------


@given(case=cases(max_size=25))
def test_neighbours_are_those_that_may_share_no_byte(case):
    near = find_near(case.blocks, case.apart, PLENTY)
    ids = range(len(case.blocks))
    assert [sorted(n) for n in near] == [
        [j for j in ids if j != i and case.conflict(i, j)] for i in ids
    ]


@given(case=cases(max_size=25))
def test_cliques_cover_all_blocks_and_no_two_members_may_share(case):
    kept, conflicts = conflicts_of(case)
    for ids in conflicts.cliques:
        assert all(case.conflict(kept[i], kept[j]) for i, j in combinations(ids, 2))
    for i, numbers in enumerate(conflicts.cliques_of):
        assert numbers
        assert numbers == [k for k, ids in enumerate(conflicts.cliques) if i in ids]
    assert conflicts.loads == [sum(conflicts.sizes[i] for i in ids) for ids in conflicts.cliques]


@given(case=cases(max_size=25, relation=False))
def test_living_sets_are_the_largest_sets_that_live_at_one_step(case):
    steps = {b.birth for b in case.blocks}
    alive = {
        frozenset(i for i, b in enumerate(case.blocks) if b.nbytes and b.birth <= t <= b.death)
        for t in steps
    }
    largest = {a for a in alive if a and not any(a < b for b in alive)}
    found = [frozenset(ids) for ids in living_sets(case.blocks)]
    assert len(found) == len(set(found))
    assert set(found) == largest


def test_too_many_pairs_are_not_looked_at():
    some = [MemoryBlock(0, 0, 16)] * 5
    assert find_near(some, None, 9) is None
    assert find_near(some, None, 10) is not None


# --- dives and the search ----------------------------------------------------------------------


@given(case=cases(max_size=25), seed=st.integers(0, 100), target=st.integers(0, 100))
def test_a_dive_in_any_order_and_for_any_target_ends_with_a_legal_packing(case, seed, target):
    kept, conflicts = conflicts_of(case)
    order = sorted(range(len(kept)), key=lambda i: hash((i, seed)))
    one = packing_search._Search(conflicts, Packing([], 1 << 60), PLENTY)
    dive = one.dive(order, 16 * target, 1 << 60)
    legal = Case([case.blocks[i] for i in kept])
    if case.sharing is not None:
        legal.sharing = {
            frozenset((a, b))
            for a, b in combinations(range(len(kept)), 2)
            if frozenset((kept[a], kept[b])) in case.sharing
        }
    legal.check(*dive.packing)
    assert dive.packing.total >= max(conflicts.loads, default=0)
    assert dive.steps == one.full_cost
    # Given up means: in that order and for that target it does end above the limit.
    for limit in (dive.packing.total - 1, dive.packing.total):
        again = one.dive(order, min(16 * target, limit), limit)
        assert again.packing is None or again.packing.total <= max(limit, dive.packing.total)


@given(case=cases())
@settings(deadline=None)
def test_with_any_effort_the_packing_is_legal_the_same_each_time_and_never_worse(case):
    totals = []
    for effort in (0, 1, 2):
        found = pack(case.blocks, case.apart, effort=effort)
        case.check(*found)
        assert found == pack(list(case.blocks), case.apart, effort=effort)
        totals.append(found[1])
    assert totals == sorted(totals, reverse=True)
    assert totals[-1] >= case.heaviest()


@given(case=cases(max_size=40, steps=30))
@settings(max_examples=30, deadline=None)
def test_a_larger_budget_is_never_worse(case):
    kept, conflicts = conflicts_of(case)
    start = Packing([0] * len(kept), 1 << 40)
    totals = [search(conflicts, start, budget).total for budget in (0, 3000, 10_000, 40_000)]
    assert totals == sorted(totals, reverse=True)


def least(case):
    """The least bytes of any packing: some order of placing each as low as it can be has it."""
    ids = [i for i, b in enumerate(case.blocks) if b.nbytes]
    best = sum(b.nbytes for b in case.blocks)
    for order in permutations(ids):
        ends: dict[int, tuple[int, int]] = {}
        for i in order:
            at = 0
            for low, high in sorted(ends[j] for j in ends if case.conflict(i, j)):
                if low - at >= case.blocks[i].nbytes:
                    break
                at = max(at, high)
            ends[i] = (at, at + case.blocks[i].nbytes)
        best = min(best, max((high for _, high in ends.values()), default=0))
    return best


@given(case=cases(max_size=6, steps=6))
@settings(deadline=None)
def test_with_effort_small_cases_are_packed_as_well_as_can_be(case):
    assert pack(case.blocks, case.apart, effort=2)[1] == least(case)


@given(case=cases(max_size=30, steps=12, relation=False))
@settings(deadline=None)
def test_a_relation_that_says_nothing_changes_nothing_that_is_promised(case):
    plain = pack(case.blocks)
    asked = pack(case.blocks, lambda i, j: False)
    case.check(*asked)
    assert asked[1] >= lower_bound(case.blocks)
    assert plain[1] >= lower_bound(case.blocks)


def test_blocks_that_may_all_share_take_the_room_of_the_largest():
    some = [MemoryBlock(0, 9, 16 * k) for k in range(1, 9)]
    assert pack(some, lambda i, j: True) == ([0] * 8, 128)


def test_a_ring_is_no_order_of_intervals():
    """Five blocks of which each conflicts with two: 2.5 of them would be enough, 3 are needed."""
    ring = [MemoryBlock(0, 0, 32)] * 5
    case = Case(ring, {frozenset((i, (i + 2) % 5)) for i in range(5)})
    offsets, total = pack(ring, case.apart)
    case.check(offsets, total)
    assert total == 96
    assert case.heaviest() == 64


def test_the_search_finds_what_the_simple_ways_do_not():
    near = find_near(HARD)
    assert packing.place_by_birth(HARD)[1] == packing.place_by_size(HARD, near)[1] == 208
    assert pack(HARD)[1] == 144 == lower_bound(HARD)


@given(case=cases())
@settings(deadline=None)
def test_neighbours_may_be_given_instead_of_the_relation(case):
    near = find_near(case.blocks, case.apart)
    found = pack(case.blocks, near, effort=1)
    case.check(*found)
    if case.apart is not None:
        assert found == pack(case.blocks, case.apart, effort=1)


def test_effort_also_allows_for_more_pairs():
    some = [MemoryBlock(k // 100, 20 + k // 90, 16 * (1 + k * 7919 % 23)) for k in range(1200)]
    assert find_near(some) is None
    assert pack(some, effort=1)[1] <= pack(some)[1]


@pytest.mark.parametrize("budget", [0, 10])
def test_without_a_budget_the_best_so_far_is_returned(budget):
    case = Case(HARD)
    kept, conflicts = conflicts_of(case)
    start = Packing([0] * len(kept), 1 << 40)
    assert search(conflicts, start, budget) is start


def test_a_problem_with_many_blocks_is_left_to_the_simple_ways():
    some = [MemoryBlock(k, k + 3 + k % 5, 16 * (1 + k * 7919 % 23)) for k in range(20_000)]
    near = find_near(some)
    assert pack(some)[1] == min(
        packing.place_by_birth(some)[1], packing.place_by_size(some, near)[1]
    )
