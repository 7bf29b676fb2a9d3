"""How long something takes that a device does again and again."""

import time
from collections.abc import Callable
from typing import Final

_ROUNDS: Final = 3
_SHARE: Final = 6
"""Rounds that the time is meant to hold, once the number of repetitions has settled."""


class Allowance:
    """Seconds that measurements may take together, handed out in equal shares."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._end = clock() + seconds

    @property
    def is_spent(self) -> bool:
        """Whether there is nothing left."""
        return self._clock() >= self._end

    def share(self, measurements: int) -> float:
        """Return the seconds for one of the measurements that are still to be made."""
        return max(0.0, self._end - self._clock()) / max(1, measurements)


def seconds_of(
    repeat: Callable[[int], None],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the least seconds per repetition: other work on the machine only ever adds.

    Args:
        repeat: Does something that number of times and waits until all is complete.
        seconds: About how long to go on; three rounds are made in any case.
        clock: Gives the time in seconds.
    """
    repeat(1)  # the first is not like the others: caches are cold, kernels are compiled
    best, count, rounds = float("inf"), 1, 0
    end = clock() + seconds
    while rounds < _ROUNDS or clock() < end:
        began = clock()
        repeat(count)
        took = clock() - began
        best = min(best, took / count)
        rounds += 1
        if took < seconds / _SHARE / 2:
            count *= 2
    return best
