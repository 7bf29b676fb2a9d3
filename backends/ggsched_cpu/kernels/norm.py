"""Normalisation and reductions over the last axis. The result may be the bytes of ``x``.

While a token is decoded the weights stream through the caches between any two of these calls, so
they run cold, and what counts is how much code and how many objects a call touches. Hence the
bound ``reduce`` methods with positional arguments (axis, dtype, out, keepdims), and memoryviews
instead of numpy's scalars.
"""

from collections.abc import Callable, Mapping
from math import sqrt
from typing import Final

import numpy as np

from ggsched.backend.arrays import Array
from ggsched_cpu.lowering_context import Call, CpuLoweringContext, Node, constant, larger


def _reduce(ufunc: np.ufunc, x: Array, out: Array) -> Call:
    """Return the call that reduces the last axis into ``out`` (.., 1)."""
    return ufunc.reduce, (x, -1, None, out, True)


def _rms_norm_row(
    x: Array,
    matrix: Array,
    eps: float,
    total: Array,
    cell: Array,
    number: "memoryview[float]",
    out: Array,
) -> None:
    """Normalise one row.

    ``matrix`` is x as (1, n): a product of the kind that has just run. ``total``, ``cell`` and
    ``number`` are one number, with an axis for the product, without one for the ufunc, which
    spares it an iterator, and for Python.
    """
    np.dot(matrix, x, total)
    number[()] = 1.0 / sqrt(number[()] / x.size + eps)
    np.multiply(x, cell, out)


def _rms_norm(node: Node, site: CpuLoweringContext) -> list[Call]:
    x, out, eps = node.inputs[0], node.out, node.number("eps")
    count = x.shape[-1]
    if x.size == count:
        head = (0,) * (x.ndim - 1)
        row, cell = x[head], site.scratch(())
        return [(_rms_norm_row, (row, row[None], eps, cell[None], cell, cell.data, out[head]))]
    total = site.scratch(x.shape[:-1])
    return [
        (np.vecdot, (x, x, total)),
        (np.divide, (total, constant(count), total)),
        (np.add, (total, constant(eps), total)),
        (np.sqrt, (total, total)),
        (np.divide, (x, total[..., None], out)),
    ]


def _norm(node: Node, site: CpuLoweringContext) -> list[Call]:
    x, out = node.inputs[0], node.out
    count = constant(x.shape[-1])
    mean = site.scratch((*x.shape[:-1], 1))
    total = mean[..., 0]
    return [
        _reduce(np.add, x, mean),
        (np.divide, (mean, count, mean)),
        (np.subtract, (x, mean, out)),
        (np.vecdot, (out, out, total)),
        (np.divide, (total, count, total)),
        (np.add, (total, constant(node.number("eps")), total)),
        (np.sqrt, (total, total)),
        (np.divide, (out, mean, out)),
    ]


def _soft_max(node: Node, site: CpuLoweringContext) -> list[Call]:
    x, out = node.inputs[0], node.out
    rest = list(node.inputs[1:])
    calls: list[Call] = []
    if node.number("scale") != 1.0:
        calls.append((np.multiply, (x, constant(node.number("scale")), out)))
        x = out
    if node.param("mask"):
        calls.append((np.add, (x, rest.pop(0), out)))
        x = out
    top = site.scratch((*out.shape[:-1], 1))
    total = site.scratch(top.shape)
    calls.append(_reduce(np.maximum, x, top))
    sink = rest.pop(0)[:, None, None] if node.param("sinks") else None
    if sink is not None:
        calls.append((larger, (top, sink, top)))
    calls += [
        (np.subtract, (x, top, out)),
        (np.exp, (out, out)),
        _reduce(np.add, out, total),
    ]
    if sink is not None:
        calls += [
            (np.subtract, (sink, top, top)),
            (np.exp, (top, top)),
            (np.add, (total, top, total)),
        ]
    return [*calls, (np.divide, (out, total, out))]


def _sum_rows(node: Node, site: CpuLoweringContext) -> list[Call]:
    return [_reduce(np.add, node.inputs[0], node.out)]


EMITTERS: Final[Mapping[str, Callable[[Node, CpuLoweringContext], list[Call]]]] = {
    "rms_norm": _rms_norm,
    "norm": _norm,
    "soft_max": _soft_max,
    "sum_rows": _sum_rows,
}
