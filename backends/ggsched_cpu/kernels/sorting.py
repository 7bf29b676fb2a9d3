"""Sorting of the last axis. Equal elements keep their order."""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from ggsched.backend.arrays import Array
from ggsched_cpu.lowering_context import Call, CpuLoweringContext, Node

_SELECT_FROM: Final = 512
"""From this length on, selecting the largest first is faster than sorting all (measured)."""


def _ascending(x: Array, out: Array) -> None:
    np.copyto(out, np.argsort(x, -1, "stable"), "unsafe")


def _descending(x: Array, out: Array) -> None:
    np.copyto(out, np.argsort(-x, -1, "stable"), "unsafe")


def _largest(x: Array, k: int, out: Array) -> None:
    np.copyto(out, np.argsort(-x, -1, "stable")[..., :k], "unsafe")


def _select_largest(x: Array, k: int, out: Array) -> None:
    for row, result in zip(x.reshape(-1, x.shape[-1]), out.reshape(-1, k), strict=True):
        result[:] = _select_row(row, k)


def _largest_one(x: Array, k: int, out: Array) -> None:
    found = np.argmax(x, -1, keepdims=True)
    if np.isnan(np.take_along_axis(x, found, -1)).any():  # which argmax takes for the largest
        _largest(x, k, out)
    else:
        np.copyto(out, found, "unsafe")


def _select_row(row: Array, k: int) -> Array:
    """Return the k largest of one row: those above the k-th value, then the first equal ones."""
    limit = np.partition(row, row.size - k)[row.size - k]
    above = np.flatnonzero(row > limit)
    equal = np.flatnonzero(row == limit)[: k - above.size]
    chosen = np.concatenate([above, equal])
    if chosen.size != k:  # NaN is neither above nor equal
        return np.argsort(-row, kind="stable")[:k]
    chosen.sort()
    return chosen[np.argsort(-row[chosen], kind="stable")]


def _argsort(node: Node, site: CpuLoweringContext) -> list[Call]:
    return [(_descending if node.param("descending") else _ascending, (node.inputs[0], node.out))]


def _top_k(node: Node, site: CpuLoweringContext) -> list[Call]:
    x, k = node.inputs[0], int(node.number("k"))
    select = x.shape[-1] >= _SELECT_FROM and k <= x.shape[-1] // 8
    make = _largest_one if k == 1 else _select_largest if select else _largest
    return [(make, (x, k, node.out))]


EMITTERS: Final[Mapping[str, Callable[[Node, CpuLoweringContext], list[Call]]]] = {
    "argsort": _argsort,
    "top_k": _top_k,
}
