"""Transposed convolutions whose windows do not overlap: a product, whose rows are laid between."""

from collections.abc import Sequence

import numpy as np

from ggsched.backend.arrays import Array
from ggsched_cpu.lowering.context import CpuLoweringContext, Node
from ggsched_cpu.lowering.moves import move
from ggsched_cpu.lowering.tasks import Task, row_task
from ggsched_cpu.lowering.tiles import product_task
from ggsched_cpu.native import Kernels


def conv_transpose(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    """Return the tasks of one in one or two dimensions whose strides are its window's extents."""
    x, w, *rest = node.inputs
    out, n = node.out, x.ndim - 2
    arrays = (x, w, out, *rest)
    if n not in (1, 2) or not x.size or not w.size:
        return None
    if any(a.dtype != np.float32 or not a.flags.c_contiguous for a in arrays):
        return None
    if not all(a.flags.aligned for a in arrays) or node.param("strides") != w.shape[2:]:
        return None
    pads, more, dilations = (node.bound.ints(name) for name in ("pads", "more", "dilations"))
    apart = any(d > 1 < m for d, m in zip(dilations, w.shape[2:], strict=True))
    if any(pads) or any(more) or apart:
        return None
    groups = int(node.number("group"))
    high, wide = (1,) * (2 - n) + w.shape[2:]
    down, across = (1,) * (2 - n) + x.shape[2:]
    images, each, per = len(x), w.shape[1], len(w) // groups
    lines = each * high * wide
    rows = ctx.scratch((groups, lines, per))
    turned = move(w.reshape(groups, per, lines).swapaxes(1, 2), rows, kernels)
    bias: Array = np.zeros((1, lines), np.float32)
    tasks = [turned]
    if rest:
        bias = ctx.scratch((groups, lines))
        each_bias = np.broadcast_to(rest[0].reshape(-1, 1), (groups * each, high * wide))
        tasks.append(move(each_bias, bias.reshape(-1, high * wide), kernels))
    spread = ctx.scratch((images, groups, lines, down * across))
    columns = x.reshape(images, groups, per, down * across)
    tasks.append(product_task(rows, columns, bias, spread, kernels))
    planes = images * groups * each
    source = spread.reshape(planes, high, wide, down, across)
    target = out.reshape(planes, down, high, across * wide).swapaxes(1, 2)
    tasks += _laid_out(source, target, kernels)
    return None if None in tasks else [task for task in tasks if task is not None]


def _laid_out(source: Array, target: Array, kernels: Kernels) -> list[Task | None]:
    """Return the tasks that take elements of a line from as many lines, one after the other."""
    planes, high, wide, down, across = source.shape
    if wide == 2:
        operands = (source[:, :, 0], source[:, :, 1], target)
        kernel = kernels.address("zip_rows", "zip_rows")
        return [row_task(kernel, operands, (planes, high, down), across, kernels.threads)]
    apart = target.reshape(planes, high, down, across, wide)
    return [move(source[:, :, j], apart[..., j], kernels) for j in range(wide)]


__all__: Sequence[str] = ["conv_transpose"]
