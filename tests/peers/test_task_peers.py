"""Tasks for the peers: what the graphs are, that all runners agree, and that a lie is noticed."""

import numpy as np
import pytest

from benchmarks.peers.bench_tasks import LIMIT, OURS, check_equal, measure, rows_of, runners
from benchmarks.peers.task_graphs import FIRST, SHAPES, C, X, chain, diamonds, random_dag
from benchmarks.peers.task_runners import numpy_loop


def test_a_chain_by_hand():
    tasks = chain(3)
    assert tasks.calls == (("add", X, C), ("add", FIRST, C), ("add", FIRST + 1, C))
    with numpy_loop(tasks) as once:
        x, c = tasks.inputs()
        assert (once() == ((x + c) + c) + c).all()


def test_a_diamond_by_hand():
    tasks = diamonds(10)
    assert len(tasks.calls) == 10
    with numpy_loop(tasks) as once:
        x, c = tasks.inputs()
        for _ in range(2):
            x = (x * c + x * c) + x * c
        assert (once() == x).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [5, 200, 1000])
def test_every_result_is_needed_and_finite(shape, n):
    tasks = shape(n)
    assert len(tasks.calls) == n
    assert all(max(a, b) < FIRST + i for i, (_, a, b) in enumerate(tasks.calls))
    read = {k for _, a, b in tasks.calls for k in (a, b)}
    assert {FIRST + i for i in range(n - 1)} <= read
    assert len(tasks.graph().nodes) == n
    with numpy_loop(tasks) as once:
        assert np.isfinite(once()).all()


def test_a_random_dag_depends_on_its_seed():
    assert random_dag(100, 1) == random_dag(100, 1) != random_dag(100, 2)


@pytest.mark.parametrize("shape", SHAPES)
def test_all_that_are_installed_agree_and_have_rows(shape):
    wanted = runners()
    assert {LIMIT, OURS, "ThreadPoolExecutor(2)"} <= set(wanted)
    rows = measure(shape(40), wanted, 2)
    assert len(rows) == 2 * len(wanted) - 1
    assert all(0 < row.low <= row.high for row in rows)


def test_a_wrong_result_is_noticed():
    right = np.arange(4.0)
    check_equal({"a": lambda: right, "b": lambda: right.copy()})
    with pytest.raises(ValueError, match="b gives"):
        check_equal({"a": lambda: right, "b": lambda: right + 1e-7})
    with pytest.raises(ValueError, match="says nothing"):
        check_equal({"a": lambda: np.full(4, np.inf)})


def test_rows_are_per_task_and_over_ours():
    rows = rows_of(chain(10), {OURS: [2e-5, 1e-5], "x": [4e-5, 6e-5]})
    assert [row.unit for row in rows] == ["us", "us", "x"]
    assert (rows[0].low, rows[0].high) == pytest.approx((1, 2))
    assert (rows[2].value, rows[2].low, rows[2].high) == pytest.approx((4, 2, 6))
