"""Sums in registers while a weight streams through: accumulators, and what is fetched ahead."""

from collections.abc import Sequence
from typing import Final

from ggsched_cpu.kernels.emit import Builder, Value, Variable

FAR: Final = 8192
"""How far ahead of its use a weight is fetched into the L2 cache, in bytes: two pages, at which
processors stop. The first cache waits for few lines at a time, 16 on an Intel Xeon, which bounds
what comes from memory; the second waits for 48."""

NEAR: Final = 2048
"""How far ahead it is fetched from there into the first."""

SOON: Final = 1024
"""How far ahead a weight is fetched into the L2 cache beside a processor that fetches streams by
itself, in bytes. What is fetched 2 to 8 KB ahead disturbs its own fetching."""

_LINE: Final = 64

Sums = list[list[Variable]]


def fetch(
    b: Builder, pointer: Value, nbytes: int, *, at_once: bool = False, is_fast: bool = False
) -> None:
    """Fetch what is used some time after ``nbytes`` bytes from here on.

    What lies behind ``b.weights_end``, where that is known, is another thread's to fetch.

    Args:
        b: Writes the kernel.
        pointer: What is used now.
        nbytes: How much.
        at_once: Into the first cache from afar: as fast where little is computed with each line,
            and faster from the third cache.
        is_fast: Whether the kernel waits for memory and not for its own arithmetic. Some processors
            then fetch best by themselves.

    Processors that fetch past their caches do so ``b.ahead`` bytes ahead, whatever the kernel does.
    """
    if is_fast and b.target.fetches_streams:
        return
    if b.ahead is not None:
        far = b.offset(pointer, b.ahead)
        for at in range(0, nbytes, _LINE):
            b.prefetch(b.offset(far, at), level=0)
        return
    near, far = b.offset(pointer, NEAR), b.offset(pointer, FAR)
    if b.weights_end is not None:
        far = b.select(b.compare("ult", far, b.weights_end), far, near)
    for at in range(0, nbytes, _LINE):
        b.prefetch(b.offset(far, at), level=1 if at_once else 2)
        if not at_once:
            b.prefetch(b.offset(near, at))


def accumulators(b: Builder, x: Sequence[object], count: int, type_: str) -> Sums:
    """Return for each row of activations some sums of a type, which begin at 0."""
    return [[b.var(b.zero(type_)) for _ in range(count)] for _ in x]


def added(b: Builder, totals: Sequence[Variable]) -> Value:
    """Return the sum of accumulators of one type."""
    found = b.get(totals[0])
    for more in totals[1:]:
        found = b.fadd(found, b.get(more))
    return found
