"""Sums in registers while a weight streams through: accumulators, and what is fetched ahead."""

from collections.abc import Sequence
from typing import Final

from ggsched_cpu_kernels.emit import Builder, Value, Variable

AHEAD: Final = 8192
"""How far ahead of its use a weight is fetched, in bytes: two pages, at which processors stop."""

_LINE: Final = 64

Sums = list[list[Variable]]


def fetch(b: Builder, pointer: Value, nbytes: int) -> None:
    """Fetch what is used some time after ``nbytes`` bytes from here on."""
    for at in range(0, nbytes, _LINE):
        b.prefetch(b.offset(pointer, AHEAD + at))


def accumulators(b: Builder, x: Sequence[object], count: int, type_: str) -> Sums:
    """Return for each row of activations some sums of a type, which begin at 0."""
    return [[b.var(b.zero(type_)) for _ in range(count)] for _ in x]


def added(b: Builder, totals: Sequence[Variable]) -> Value:
    """Return the sum of accumulators of one type."""
    found = b.get(totals[0])
    for more in totals[1:]:
        found = b.fadd(found, b.get(more))
    return found
