"""Convolutions of few channels, one for each channel above all; numpy does the others by BLAS."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ggsched.backend.arrays import Array
from ggsched_cpu.compiled.tasks import Task, row_task
from ggsched_cpu.lowering_context import Call, CpuLoweringContext, Node
from ggsched_cpu.native import Kernels
from ggsched_cpu_kernels.windows import SLACK

MAX_CHANNELS: Final = 4
"""Of a window; with more a product of matrices is faster."""

MAX_BATCH: Final = 16


def conv(node: Node, site: CpuLoweringContext, kernels: Kernels) -> Sequence[Call | Task] | None:
    """Return a copy of the operand with its pads, and the task of each batch."""
    x, w, *rest = node.inputs
    out = node.out
    strides, dilations, pads = (_ints(node, n) for n in ("strides", "dilations", "pads"))
    n = x.ndim - 2
    plain = all(a.flags.c_contiguous and a.dtype == np.float32 for a in (w, out, *rest))
    if n not in (1, 2) or not plain or x.dtype != np.float32 or len(x) > MAX_BATCH:
        return None
    if w.shape[1] > MAX_CHANNELS or strides[-1] not in (1, 2) or min(pads) < 0 or not out.size:
        return None
    if n == 1:
        x, w, out = x[:, :, None], w[:, :, None], out[:, :, None]
        strides, dilations = (1, *strides), (1, *dilations)
        pads = (0, pads[0], 0, pads[1])
    groups, per = int(node.number("group")), w.shape[1]
    each = len(w) // groups
    high, wide = x.shape[2] + pads[0] + pads[2], x.shape[3] + pads[1] + pads[3]
    size = x.shape[0] * x.shape[1] * high * wide
    memory = site.scratch((size + SLACK,))
    data = memory[:size].reshape(*x.shape[:2], high, wide)
    inside = data[:, :, pads[0] : pads[0] + x.shape[2], pads[1] : pads[1] + x.shape[3]]
    steps: list[Call | Task] = [(_padded, (memory, inside, x))]
    bias = rest[0] if rest else np.zeros(len(w), np.float32)
    kernel = kernels.address("conv", f"stride{strides[1]}")
    plane, line = data.strides[1], data.strides[2]
    own = per, plane, w.shape[2], dilations[0] * line, w.shape[3], dilations[1] * 4
    rows = (groups, each, out.shape[2])
    for source, target in zip(data, out, strict=True):
        begins = (per * plane, 0, strides[0] * line, 4)
        operands = (
            as_strided(source, (*rows, wide), begins),
            w.reshape(groups, each, 1, -1),
            bias.reshape(groups, each, 1, 1),
            target.reshape(*rows, -1),
        )
        keeps = (memory, bias)
        task = row_task(kernel, operands, rows, out.shape[3], kernels.threads, own, keeps=keeps)
        if task is None:
            return None
        steps.append(task)
    return steps


def _ints(node: Node, name: str) -> tuple[int, ...]:
    value = node.param(name)
    assert isinstance(value, tuple)
    return value


def _padded(memory: Array, inside: Array, x: Array) -> None:
    if inside.size != memory.size - SLACK:
        memory.fill(0)
    inside[...] = x
