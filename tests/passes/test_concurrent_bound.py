"""The heaviest set of blocks that may be live together."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched.passes.memory.concurrent_bound import Bound, concurrent_bound
from ggsched.passes.memory.interference import MemoryBlock, lower_bound
from ggsched.passes.memory.packing import pack, pack_bounded
from tests.passes.conflicts import cases


@given(case=cases())
def test_it_is_the_heaviest_set_of_which_no_two_may_share(case):
    assert concurrent_bound(case.blocks, case.apart) == Bound(case.heaviest(), True)


@given(case=cases(steps=0, relation=True))
def test_where_lifetimes_say_nothing(case):
    for block in case.blocks:
        assert (block.birth, block.death) == (0, 0)
    assert concurrent_bound(case.blocks, case.apart) == Bound(case.heaviest(), True)


@given(case=cases(), steps=st.integers(0, 200))
def test_with_few_steps_it_is_a_bound_all_the_same(case, steps):
    bound = concurrent_bound(case.blocks, case.apart, steps=steps)
    heaviest = case.heaviest()
    assert bound.nbytes <= heaviest
    assert not bound.is_exact or bound.nbytes == heaviest
    assert bound.nbytes >= max((b.nbytes for b in case.blocks), default=0)
    more = concurrent_bound(case.blocks, case.apart, steps=steps + 50)
    assert more.nbytes >= bound.nbytes


@given(case=cases(max_size=30, steps=20, relation=False))
def test_by_lifetime_it_is_what_lives_at_one_step(case):
    live = Bound(lower_bound(case.blocks), True)
    assert concurrent_bound(case.blocks) == live
    assert concurrent_bound(case.blocks, lambda i, j: False) == live


@given(case=cases(max_size=40, steps=30))
@settings(max_examples=50, deadline=None)
def test_no_packing_is_below_it(case):
    assert pack(case.blocks, case.apart)[1] >= concurrent_bound(case.blocks, case.apart).nbytes


@given(case=cases())
@settings(deadline=None)
def test_packing_tells_the_same_bound(case):
    packed = pack_bounded(case.blocks, case.apart)
    assert (packed.offsets, packed.total) == pack(case.blocks, case.apart)
    assert packed.bound == concurrent_bound(case.blocks, case.apart)


@pytest.mark.parametrize("count", [0, 1])
def test_few_blocks(count):
    assert concurrent_bound([MemoryBlock(0, 0, 16)] * count, lambda i, j: True) == (
        16 * count,
        True,
    )


def test_two_lanes_of_many_blocks_are_solved():
    """Each lane is a chain; what is done with in one is known to the other a little later."""
    rng = Random(5)
    some = [MemoryBlock(k, k + 12, 64 * rng.randrange(1, 50)) for k in range(4_000)]

    def apart(i, j):
        return abs(i - j) > (2 if i % 2 == j % 2 else 8)

    bound = concurrent_bound(some, apart)
    assert bound.is_exact
    least = max(
        some[k].nbytes + some[k + 2].nbytes + some[k + 1].nbytes for k in range(len(some) - 2)
    )
    assert least <= bound.nbytes < lower_bound(some)


def test_a_large_set_without_conflict_ends_in_time_and_says_so():
    """Half of all pairs, at random: out of reach for a search, but not for a bound."""
    rng = Random(2)
    sharing = {(i, j) for i in range(400) for j in range(i) if rng.random() < 0.5}
    some = [MemoryBlock(0, 0, 64 * rng.randrange(1, 50)) for _ in range(400)]
    bound = concurrent_bound(some, lambda i, j: (max(i, j), min(i, j)) in sharing)
    assert not bound.is_exact
    assert max(b.nbytes for b in some) < bound.nbytes < sum(b.nbytes for b in some)
