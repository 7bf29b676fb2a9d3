"""Copies: conversion, joining, tiling."""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from ggsched.backend.arrays import Array
from ggsched.ir.dtype import BF16, F32, DType
from ggsched_cpu.dequant import decoder
from ggsched_cpu.lowering_context import Call, CpuLoweringContext, Node

_ROWS_NBYTES: Final = 1 << 20
"""Most decoded elements at a time, in bytes of f32."""


def _copy(node: Node, site: CpuLoweringContext) -> list[Call]:
    """``cpy`` and ``cont``: the same but for where the result lies."""
    source, dtype = node.inputs[0], node.dtype(0)
    to = node.bound.output.dtype
    if dtype.is_quantized or (dtype is BF16 and to is not BF16):
        return _decode(source, dtype, node.out, to, site)
    return [(np.copyto, (node.out, source))]


def _decode(
    source: Array, dtype: DType, out: Array, to: DType, site: CpuLoweringContext
) -> list[Call]:
    decode = decoder(dtype)
    width = out.shape[-1] if out.ndim else 1
    if to is F32 and out.flags.c_contiguous:
        return [(_in_rows, (decode, source, out.reshape(-1, width)))]
    room = site.scratch((out.size // width, width))
    return [(_in_rows, (decode, source, room)), (np.copyto, (out, room.reshape(out.shape)))]


def _in_rows(decode: Callable[[Array, Array], None], source: Array, out: Array) -> None:
    packed = source.reshape(out.shape[0], -1)
    step = max(1, _ROWS_NBYTES // max(1, 4 * out.shape[1]))
    for start in range(0, out.shape[0], step):
        decode(packed[start : start + step], out[start : start + step])


def _concat(node: Node, site: CpuLoweringContext) -> list[Call]:
    a, b = node.inputs
    axis = int(node.number("axis"))
    head = (slice(None),) * axis
    middle = a.shape[axis]
    first = node.out[(*head, slice(None, middle))]
    second = node.out[(*head, slice(middle, None))]
    return [(np.copyto, (to, part)) for to, part in ((first, a), (second, b)) if part.size]


def _repeat(node: Node, site: CpuLoweringContext) -> list[Call]:
    x, out = node.inputs[0], node.out
    # Each axis of the result is (copies, length); one broadcast copy fills them all.
    split = [extent for m, n in zip(out.shape, x.shape, strict=True) for extent in (m // n, n)]
    spread = [extent for n in x.shape for extent in (1, n)]
    return [(np.copyto, (out.reshape(split), x.reshape(spread)))]


EMITTERS: Final[Mapping[str, Callable[[Node, CpuLoweringContext], list[Call]]]] = {
    "cpy": _copy,
    "cont": _copy,
    "concat": _concat,
    "repeat": _repeat,
}
