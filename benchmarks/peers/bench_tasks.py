"""What a task costs: 1,000 additions or products of 16 floats in a chain, diamonds, a random DAG.

All peers run the same calls and their last results are equal bit for bit, or the suite fails. The
loop over numpy calls is the limit: it decides nothing and keeps nothing.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Final

import numpy as np

from benchmarks.measure import best, best_ratio, interleaved, spread
from benchmarks.peers.installed import reason_missing
from benchmarks.peers.task_graphs import SHAPES, Tasks
from benchmarks.peers.task_runners import (
    Once,
    Runner,
    dask_threads,
    ggsched_cached,
    ggsched_tasks,
    numpy_loop,
    thread_pool,
    torch_eager,
)
from benchmarks.table import Row

N = 1_000
ROUNDS = 15
OURS: Final = "ggsched, synchronous"
TASKS: Final = "ggsched tasks, 1 worker"
LIMIT: Final = "numpy in a loop"


def runners() -> dict[str, Runner]:
    """Return the runners whose peers are installed, by name."""
    found: dict[str, Runner] = {
        LIMIT: numpy_loop,
        OURS: ggsched_cached(is_sync=True),
        "ggsched, worker": ggsched_cached(is_sync=False),
        "ggsched, synchronous, 2 devices in turn": ggsched_cached(is_sync=True, devices=2),
        "ggsched, worker, 2 devices in turn": ggsched_cached(is_sync=False, devices=2),
        TASKS: ggsched_tasks(1),
        "ggsched tasks, 2 workers": ggsched_tasks(2),
        "ThreadPoolExecutor(1)": thread_pool(1),
        "ThreadPoolExecutor(2)": thread_pool(2),
    }
    if not reason_missing("torch"):
        found["torch eager"] = torch_eager
    if not reason_missing("dask"):
        found |= {"dask threads, 1 worker": dask_threads(1)}
        found |= {"dask threads, 2 workers": dask_threads(2)}
    return found


def run() -> list[Row]:
    """Measure."""
    return [row for shape in SHAPES for row in measure(shape(N), runners(), ROUNDS)]


def measure(tasks: Tasks, wanted: Mapping[str, Runner], rounds: int) -> list[Row]:
    """Return what a task costs with each runner.

    Raises:
        ValueError: a runner's result is not that of the first.
    """
    with ExitStack() as stack:
        sides = {name: stack.enter_context(make(tasks)) for name, make in wanted.items()}
        check_equal(sides)
        took = interleaved({name: partial(_discard, once) for name, once in sides.items()}, rounds)
    return rows_of(tasks, took)


def check_equal(sides: Mapping[str, Once]) -> None:
    """Run each side once and compare.

    Raises:
        ValueError: a result differs from that of the first side, or is not finite.
    """
    results = {name: once() for name, once in sides.items()}
    first, wanted = next(iter(results.items()))
    if not np.isfinite(wanted).all():
        raise ValueError(f"{first} gives {wanted}, which says nothing about the others")
    for name, result in results.items():
        if not np.array_equal(result, wanted):
            raise ValueError(f"{name} gives {result}, but {first} gives {wanted}")


def rows_of(tasks: Tasks, took: Mapping[str, list[float]]) -> list[Row]:
    """Return microseconds a task for each side, and what it is of ggsched's, best over best."""
    rows = []
    n, ours = len(tasks.calls), took.get(OURS)
    for name, seconds in took.items():
        what = f"{tasks.name}: {name}, a task"
        rows.append(Row("tasks", what, *spread(1e6 * s / n for s in seconds), "us"))
        if ours and name != OURS:
            rows.append(Row("tasks", f"  {name} / {OURS}", *best_ratio(seconds, ours)))
    rows += overhead_rows(tasks, took)
    return rows


def overhead_rows(tasks: Tasks, took: Mapping[str, list[float]]) -> list[Row]:
    """Return what dask's threaded scheduler adds to a task, against what ``ggsched_task`` adds.

    The overhead is the time beyond the same calls in a loop, best over best of one run.
    """
    if not {LIMIT, TASKS} <= took.keys():
        return []
    loop = best(took[LIMIT])
    ours = best(took[TASKS]) - loop
    rows = []
    for name in took:
        if name.startswith("dask"):
            ratios = [(a - loop) / (b - loop) for a, b in zip(took[name], took[TASKS], strict=True)]
            what = f"{tasks.name}: overhead of {name} / {TASKS}"
            rows.append(
                Row("tasks", what, (best(took[name]) - loop) / ours, min(ratios), max(ratios))
            )
    return rows


def _discard(once: Once) -> None:
    once()
