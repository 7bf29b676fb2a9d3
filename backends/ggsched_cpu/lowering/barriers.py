"""Which tasks of a table need no barrier behind them."""

from collections.abc import Sequence
from itertools import pairwise

from ggsched_cpu.kernels.walk import COUNTER_SHIFT, COUNTERS, NO_BARRIER, SERIAL
from ggsched_cpu.lowering.tasks import Task, extent


def flags_of(tasks: Sequence[Task]) -> list[int]:
    """Return the flags of the entries of a table, see ``ggsched_cpu.kernels.walk``.

    Neighbours that are the business of one thread need no barrier. Nor do some that say what they
    write, if none touches what another writes: products of one row of activations with several
    weights. Members that find no part of one go on with the next.
    """
    flags = [SERIAL if task.is_serial else 0 for task in tasks]
    beside: list[Task] = []
    for i, (task, following) in enumerate(pairwise(tasks)):
        if task.is_serial or following.is_serial:
            beside = []
            if task.is_serial and following.is_serial:
                flags[i] |= NO_BARRIER
            continue
        beside.append(task)
        if len(beside) < COUNTERS and all(_are_apart(other, following) for other in beside):
            flags[i] |= NO_BARRIER
            flags[i + 1] |= len(beside) << COUNTER_SHIFT
        else:
            beside = []
    return flags


def _are_apart(a: Task, b: Task) -> bool:
    """Whether neither of two tasks touches what the other writes, as far as they say."""
    if a.written is None or b.written is None:
        return False
    return not (_meets(a, b) or _meets(b, a))


def _meets(writer: Task, other: Task) -> bool:
    assert writer.written is not None
    low, high = extent(writer.written)
    return any(start < high and low < end for start, end in map(extent, other.keeps))
