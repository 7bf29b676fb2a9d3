"""Timing: rounds in turn, so that both sides of a ratio see the same machine."""

import time
from collections.abc import Callable, Iterable, Mapping
from statistics import median


def interleaved(
    sides: Mapping[str, Callable[[], None]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Run each side once per round, in turn; return seconds by side.

    One round more is run first and not counted. Give ``time.process_time`` for code that only
    computes on one thread: on a busy machine wall time measures the neighbours.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for i in range(rounds + 1):
        for name, run in sides.items():
            began = clock()
            run()
            took = clock() - began
            if i:
                seconds[name].append(took)
    return seconds


def best(samples: list[float]) -> float:
    """Return the smallest sample: the one least disturbed by others on the machine."""
    return min(samples)


def best_ratio(a: list[float], b: list[float]) -> tuple[float, float, float]:
    """Return the best of a by the best of b, and the smallest and the largest of a/b by round."""
    return best(a) / best(b), *ratio(a, b)[1:]


def spread(samples: Iterable[float]) -> tuple[float, float, float]:
    """Return the sample in the middle, the smallest and the largest."""
    each = sorted(samples)
    return each[len(each) // 2], each[0], each[-1]


def ratio(a: list[float], b: list[float]) -> tuple[float, float, float]:
    """Return the median, the smallest and the largest of a/b, round by round."""
    pairs = [x / y for x, y in zip(a, b, strict=True)]
    return median(pairs), min(pairs), max(pairs)
