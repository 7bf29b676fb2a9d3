"""Tasks of the kernel of tiles (``ggsched_cpu.kernels.convolution``): cuts, and products by it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import ceil
from typing import Final

import numpy as np

from ggsched.backend.arrays import Array
from ggsched_cpu.kernels.convolution import SLOTS, panel_width
from ggsched_cpu.lowering import moves, products
from ggsched_cpu.lowering.context import CpuLoweringContext, Node
from ggsched_cpu.lowering.tasks import Task, address, parts_for
from ggsched_cpu.native import Kernels

FLOPS_PER_BYTE: Final = 8
"""A processor computes so much in the time in which it reads a byte, about."""

MAX_BATCHES: Final = 16
"""Products of one node that are tasks of their own, as their matrices are not evenly apart."""


def is_apart(line: int) -> bool:
    """Whether lines so many bytes apart can be read where they lie, again and again.

    A cache has few places for addresses that differ by a multiple of a power of two; panels that
    are laid out take the places in turn.
    """
    return line % 1024 != 0


def tiles_task(
    values: Mapping[str, int],
    images: int,
    kernels: Kernels,
    keeps: Sequence[Array],
    family: str = "conv",
    own: Sequence[int] = (),
) -> Task:
    """Cut windows and rows of the weight into parts, and return the task.

    Args:
        values: Arguments except those that say the cut, see ``SLOTS``.
        images: How many there are.
        kernels: What there is.
        keeps: See ``Task``.
        family: Of kernels, which says the activations.
        own: Parameters of these.
    """
    windows, rows, panel = (values[name] for name in ("windows", "rows", "panel"))
    others = images * values["groups"]
    elements = values["channels"] * values["height"] * values["width"]
    work = 2 * others * rows * windows * elements
    wanted = ceil(parts_for(work // FLOPS_PER_BYTE, work, kernels.threads) / others)
    chunk = panel * max(1, ceil(windows / panel / wanted))
    chunks = ceil(windows / chunk)
    tile_rows = 8 * max(1, ceil(rows / 8 / ceil(wanted / chunks)))
    row_chunks = ceil(rows / tile_rows)
    cut = {"chunk": chunk, "chunks": chunks, "tile_rows": tile_rows, "row_chunks": row_chunks}
    known = {**values, **cut}
    args = (*(known[name] for name in SLOTS), *own)
    parts = others * chunks * row_chunks
    kernel = kernels.address(family, "conv")
    return Task(kernel, args, parts, wanted == 1 and parts == 1, 0, tuple(keeps))


def product_task(w: Array, x: Array, bias: Array, out: Array, kernels: Kernels) -> Task | None:
    """Return the task of products and a bias: windows are the columns of x.

    Args:
        w: (groups, m, k), its rows contiguous.
        x: (images, groups, k, n), anywhere.
        bias: (groups or 1, m), contiguous.
        out: (images, groups, m, n), its rows contiguous.
        kernels: What there is.

    Returns:
        None if a column is too long for a panel.
    """
    images, groups, k, n = x.shape
    panel = panel_width(kernels.target, k)
    if not panel:
        return None
    lanes = kernels.target.lanes
    values = {
        "x": address(x),
        "w": address(w),
        "bias": address(bias),
        "out": address(out),
        "channels": k,
        "plane": x.strides[2],
        "height": 1,
        "tap_row": 0,
        "width": 1,
        "tap": 0,
        "across": n,
        "line": 0,
        "step": x.strides[3],
        "windows": n,
        "rows": w.shape[1],
        "w_row": w.strides[1],
        "out_row": out.strides[2],
        "groups": groups,
        "x_image": x.strides[0],
        "x_group": x.strides[1],
        "out_image": out.strides[0],
        "out_group": out.strides[1],
        "w_group": w.strides[0],
        "bias_group": bias.strides[0] if len(bias) > 1 else 0,
        "is_direct": int(x.strides[3] == x.itemsize and is_apart(x.strides[2])),
        "panel": min(panel, lanes * ceil(n / lanes)),
    }
    return tiles_task(values, images, kernels, (w, x, bias, out))


def mul_mat(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> Sequence[Task] | None:
    """Return tasks for a product: by what the weight's layout has kernels for, else by tiles."""
    made = products.mul_mat(node, ctx, kernels)
    if made is not None:
        return made
    w, x, out = *node.inputs, node.out
    is_plain = all(a.dtype == np.float32 and a.flags.aligned for a in (w, x, out))
    if not is_plain or not x.size or x.ndim > 4 or not products.is_dense(out):
        return None
    if products.is_dense(x):
        return _by_tiles(w, x, out, kernels)
    dense = ctx.scratch(x.shape)
    moved = moves.move(x, dense, kernels)
    made = products.mul_mat(replace(node, inputs=(w, dense)), ctx, kernels)
    made = _by_tiles(w, dense, out, kernels) if made is None else made
    return None if moved is None or made is None else [moved, *made]


def _by_tiles(w: Array, x: Array, out: Array, kernels: Kernels) -> list[Task] | None:
    """Return tasks that multiply the columns of w with rows of x, which are a kernel's weight."""
    w, x, out = (a.reshape((1,) * (4 - a.ndim) + a.shape) for a in (w, x, out))
    outer, inner = (n // m for n, m in zip(x.shape[:2], w.shape[:2], strict=True))
    batches, heads = x.shape[:2]
    is_even = batches > 1 and all(a.strides[0] == heads * a.strides[1] for a in (w, x, out))
    if is_even and outer == inner == 1:
        w, x, out = (a.reshape(1, batches * heads, *a.shape[2:]) for a in (w, x, out))
    if len(x) * inner > MAX_BATCHES:
        return None
    none = np.zeros((1, x.shape[2]), np.float32)
    turned = w.swapaxes(2, 3)
    tasks = []
    for i, j in product(range(len(x)), range(inner)):  # heads that share a matrix lie together
        one, shared = slice(i // outer, i // outer + 1), slice(j, None, inner)
        tasks.append(product_task(x[i, shared], turned[one], none, out[i : i + 1, shared], kernels))
    return None if None in tasks else [task for task in tasks if task is not None]


__all__: Sequence[str] = ["is_apart", "mul_mat", "product_task", "tiles_task"]
