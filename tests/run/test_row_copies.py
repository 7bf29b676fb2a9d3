"""Runs of neighbours, caches of rows by generation, and ids that are read once."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.errors import UsageError
from ggsched.run.expert_binding import Decision, merged
from ggsched.run.expert_ledger import Account, ExpertLedger
from ggsched.run.row_cache import RowCache

row_sets = st.sets(st.integers(0, 40)).map(sorted)


@given(rows=row_sets)
def test_runs_cover_the_rows_and_are_as_few_as_can_be(rows):
    runs = merged(rows)
    assert [r for first, number in runs for r in range(first, first + number)] == rows
    assert all(a + n < b for (a, n), (b, _) in itertools.pairwise(runs))


def test_ids_are_read_once_in_each_run():
    ids, ledger = np.array([3, 1, 3, 0], np.int32), ExpertLedger()
    decision = Decision(memoryview(ids.view(np.uint8)), ledger)
    assert decision.rows(1) == (0, 1, 3)
    ids[:] = 2
    assert decision.rows(1) == (0, 1, 3)
    assert decision.rows(2) == (2,)
    assert ledger.id_reads == 2


class Model:
    """What a cache should do, by a list of rows in the order of their last use."""

    def __init__(self, slots):
        self.slots, self.rows = slots, []

    def use(self, rows):
        found = [r for r in rows if r in self.rows]
        missing = [r for r in rows if r not in self.rows]
        self.rows = [r for r in self.rows if r not in found] + found
        kept = missing[: max(0, self.slots - len(found))]
        self.rows = (self.rows + kept)[-self.slots :]
        return found, kept


@given(slots=st.integers(1, 6), uses=st.lists(row_sets, max_size=12))
def test_the_row_used_longest_ago_makes_room(slots, uses):
    cache, model = RowCache(slots, lambda: 0), Model(slots)
    content = {}
    for rows in uses:
        found = cache.find(rows)
        assert all(content[slot] == row for row, slot in found.items())
        kept, _ = cache.admit([r for r in rows if r not in found], len(found))
        assert not set(kept.values()) & set(found.values())
        content |= {slot: row for row, slot in kept.items()}
        assert all(0 <= slot < slots for slot in kept.values())
        assert (list(found), list(kept)) == model.use(rows)
        assert list(cache.rows) == model.rows


def test_rows_of_another_generation_do_not_count():
    generation = [0]
    cache = RowCache(4, lambda: generation[0])
    cache.find([1, 2])
    cache.admit([1, 2], 0)
    assert set(cache.find([1, 2, 3])) == {1, 2}
    generation[0] = 1
    assert cache.find([1, 2, 3]) == {}
    cache.admit([3], 0)
    cache.forget()
    assert cache.find([3]) == {}


def test_evictions_are_counted():
    cache = RowCache(2, lambda: 0)
    cache.find([1, 2])
    assert cache.admit([1, 2], 0)[1] == 0
    cache.find([2, 5])
    assert cache.admit([5], 1) == ({5: 0}, 1)
    assert cache.rows == (2, 5)


def test_a_cache_holds_something():
    with pytest.raises(UsageError, match="at least one"):
        RowCache(0, lambda: 0)


def test_a_ledger_adds_up():
    ledger = ExpertLedger()
    ledger.account("w", "gpu:0").add(Account(decisions=1, uploaded_nbytes=8))
    ledger.account("w", "gpu:1").add(Account(decisions=2, layer_nbytes=5))
    assert (ledger.total.decisions, ledger.total.uploaded_nbytes) == (3, 8)
    assert ledger.by_tensor() == {
        "w -> gpu:0": {"decisions": 1, "uploaded_nbytes": 8},
        "w -> gpu:1": {"decisions": 2, "layer_nbytes": 5},
    }
