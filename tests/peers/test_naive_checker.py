"""The obvious checker and the sanitizer are of one mind; interleavings are counted by hand."""

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.peers.bench_checkers import litmus_rows, plan_of, sanitizer, small_program
from benchmarks.peers.interleavings import count_interleavings
from benchmarks.peers.naive_checker import BEFORE, BitClosure, NetworkxClosure, edges, races
from ggsched.passes import Constraints, make_plan
from ggsched.sanitize import check_plan
from ggsched_testing.plan_mutants import drop_host_syncs, drop_waits
from ggsched_testing.schedule_policy import EagerPolicy, RandomPolicy
from tests.support.model_mixes import topology
from tests.support.stream_graphs import random_wide

CLOSURES = (NetworkxClosure, BitClosure)


@pytest.mark.parametrize("closure", CLOSURES)
def test_reachability_by_hand(closure):
    order = closure([(BEFORE, 0), (0, 1), (1, 2), (0, 3)], 4)
    assert order.comes_before(BEFORE, 2)
    assert order.comes_before(0, 2)
    assert not order.comes_before(2, 0)
    assert not order.comes_before(2, 3)
    assert not order.comes_before(3, 2)


@settings(max_examples=25)
@given(n=st.integers(1, 40), pick=st.integers(0, 10**6), window=st.integers(1, 8))
def test_of_one_mind_with_the_sanitizer(n, pick, window):
    plan = make_plan(
        random_wide(n, window), topology(), Constraints(pins={i: i % 2 for i in range(n)})
    )
    mutants = [p for _, p in (*drop_waits(plan), *drop_host_syncs(plan))]
    for candidate in (plan, *mutants[pick % len(mutants) :][:1]) if mutants else (plan,):
        found = [races(candidate, closure) for closure in CLOSURES]
        assert found[0] == found[1]
        assert bool(found[0]) == any(
            f.kind == "race" for f in check_plan(candidate, runs=1).findings
        )


def test_edges_lead_on():
    plan = plan_of(60)
    pairs = list(edges(plan))
    assert all(a < b for a, b in pairs)
    assert [b for _, b in pairs] == sorted(b for _, b in pairs)


def test_rows_of_the_sanitizer():
    rows = sanitizer(plan_of(100), 1)
    assert [row.unit for row in rows] == ["/s", "/s", "/s", "x", "/s", "x"]
    assert all(row.value > 0 for row in rows)


@pytest.mark.parametrize(
    ("needs", "count"),
    [
        ([(), (), ()], 6),
        ([(), (0,), (1,)], 1),
        ([(), (), (0,), (1,)], 6),
        ([(), (0,), (0,), (1, 2)], 2),
    ],
)
def test_interleavings_by_hand(needs, count):
    needs = [frozenset(some) for some in needs]
    assert count_interleavings(needs, 1000) == count
    orders = permutations(range(len(needs)))
    assert count == sum(all(set(needs[i]) <= set(o[:k]) for k, i in enumerate(o)) for o in orders)
    assert count_interleavings(needs, 1) == 1


def test_the_small_plan_gives_one_result():
    program = small_program(4)
    assert program(EagerPolicy()) == program(RandomPolicy(3))
    assert program.n_commands > 8


def test_rows_of_the_litmus_programs():
    rows = litmus_rows(1)
    assert [row.unit for row in rows] == ["/s", "/s", "x"]
    assert rows[0].value < rows[1].value
    assert rows[2].high > 1
