"""Which bytes a strided tensor covers, as runs of consecutive bytes."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

MAX_RUNS: Final = 1 << 16
"""Above this number of runs the bytes from the first to the last stand for all of them."""

Run = tuple[int, int]
"""(first byte, one past the last)."""


class Runs(NamedTuple):
    """Bytes of a memory object.

    Attributes:
        runs: Sorted; runs that touch each other are one.
        is_exact: Whether no byte in between is left out of the view.
    """

    runs: list[Run]
    is_exact: bool = True


def strided_runs(sizes: Sequence[int], strides: Sequence[int], offset: int, itemsize: int) -> Runs:
    """Return the bytes of a view.

    Args:
        sizes: Elements of each dimension.
        strides: Elements from one index of a dimension to the next.
        offset: Element that the view begins with.
        itemsize: Bytes of an element.
    """
    return chosen_runs(np.asarray([offset]), sizes, strides, itemsize)


def chosen_runs(starts: Any, sizes: Sequence[int], strides: Sequence[int], itemsize: int) -> Runs:
    """Return the bytes of equal views that begin with several elements.

    Args:
        starts: Array of the elements, e.g. of the first one of each row that ids choose.
    """
    if 0 in sizes or not starts.size:
        return Runs([])
    dims = sorted((s, n) for s, n in zip(strides, sizes, strict=True) if n > 1 and s > 0)
    length = 1
    while dims and dims[0][0] <= length:  # also of windows that overlap
        stride, n = dims.pop(0)
        length += (n - 1) * stride
    count = int(starts.size)
    for _, n in dims:
        count *= n
    if count > MAX_RUNS:
        last = int(starts.max()) + sum((n - 1) * s for s, n in dims) + length
        return Runs([(int(starts.min()) * itemsize, last * itemsize)], False)
    if count == 1:
        first = int(starts.flat[0])
        return Runs([(first * itemsize, (first + length) * itemsize)])
    firsts = np.asarray(starts, np.int64).reshape(-1)
    for stride, n in dims:
        firsts = (firsts[:, None] + np.arange(n, dtype=np.int64) * stride).reshape(-1)
    return Runs(_merged(np.unique(firsts), length, itemsize))


def _merged(firsts: Any, length: int, itemsize: int) -> list[Run]:
    """Join runs of equal length, in order of their beginnings, that touch each other."""
    begins = np.flatnonzero(np.diff(firsts, prepend=firsts[0] - length - 1) > length)
    lasts = np.append(begins[1:], len(firsts)) - 1
    ends = (firsts[lasts] + length) * itemsize
    return list(zip((firsts[begins] * itemsize).tolist(), ends.tolist(), strict=True))


def indexed_starts(offset: int, chosen: Sequence[tuple[Any, int]]) -> Any:
    """Return the element that each combination of ids leads to.

    Args:
        offset: Element that the table begins with.
        chosen: For each dimension that ids choose: the array of ids, and the stride. The arrays
            are broadcast.
    """
    starts: Any = np.asarray(offset, np.int64)
    for ids, stride in chosen:
        starts = starts + np.asarray(ids, np.int64) * stride
    return np.atleast_1d(starts)
