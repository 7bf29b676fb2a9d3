"""The loop of each search for a placement: rank by estimate, confirm by plan."""

from collections.abc import Callable, Iterable, Iterator
from heapq import nsmallest
from typing import Any, TypeVar

C = TypeVar("C")
F = TypeVar("F")


def ranked(
    candidates: Iterable[C],
    estimate: Callable[[C], Any],
    confirm: Callable[[C], F | None],
    most: int | None = None,
) -> Iterator[F]:
    """Yield what plans confirm, those of the least estimate first.

    An estimate takes microseconds and a plan takes as long as planning, so the caller stops at the
    first result that is good enough.

    Args:
        candidates: Placements; the first of equal ones is confirmed first.
        estimate: Returns what is to be small.
        confirm: Makes the plan of a candidate; returns None if it is not good enough.
        most: How many are confirmed at most.
    """
    found = list(candidates)
    for candidate in nsmallest(len(found) if most is None else most, found, key=estimate):
        result = confirm(candidate)
        if result is not None:
            yield result
