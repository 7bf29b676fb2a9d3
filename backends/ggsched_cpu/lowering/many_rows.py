"""Tasks of products of many rows: panels of activations, then tiles of the weight."""

from dataclasses import dataclass
from math import ceil
from typing import Final

import numpy as np

from ggsched.backend.arrays import Array
from ggsched.ir.dtype import BF16, F32, DType
from ggsched_cpu.kernels.elements import coding
from ggsched_cpu.kernels.gemm import BLOCK_ROWS, MAX_ACTIVATIONS, SLOTS
from ggsched_cpu.kernels.gemm_bf16 import COLUMNS, has_pairs, panel_nbytes
from ggsched_cpu.kernels.gemm_int8 import block_nbytes, group_of
from ggsched_cpu.kernels.int_dot import BLOCK, correction_factor, has_fours
from ggsched_cpu.kernels.panels import panel_width
from ggsched_cpu.lowering.context import CpuLoweringContext, Node, TableKey, experts_of
from ggsched_cpu.lowering.tasks import PARTS_PER_THREAD, Task, address, row_task
from ggsched_cpu.native import Kernels

MIN_ROWS: Final = 16
"""Fewest rows of an f32 weight that panels pay for; the kernel of tiles takes fewer."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """How activations are laid out in panels.

    Attributes:
        family: Suffix of the family of products.
        suffix: Of the families of kernels that fill panels.
        own: Arguments of these kernels beyond those of f32.
    """

    family: str
    suffix: str
    panel_nbytes: int
    own: tuple[int, ...]


def _layout(dtype: DType, columns: int, kernels: Kernels) -> _Layout:
    """Activations are rounded where there are instructions for products of what results.

    To 8 bits beside packed weights, to bf16 beside bf16.
    """
    target = kernels.target
    is_exact = kernels.activations == "f32"
    if dtype is BF16 and not is_exact and has_pairs(target) and columns % COLUMNS == 0:
        return _Layout("bf16", "bf16", panel_nbytes(target, columns), ())
    if dtype.layout is None or is_exact or not has_fours(target):
        return _Layout("f32", "f32", 4 * columns * panel_width(target), ())
    group = group_of(dtype.layout)
    nbytes = columns // BLOCK * block_nbytes(target, group)
    factor = correction_factor(target, coding(dtype.layout)) & 0xFFFF_FFFF
    return _Layout("int8", f"int8_{group}", nbytes, (factor,))


def product(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    """Return tasks for one matrix with dense rows."""
    w, x, out = *node.inputs, node.out
    dtype = node.dtype(0)
    if any(n != 1 for a in (w, x) for n in a.shape[:-2]):
        return None
    w, x, out = (a[(0,) * (a.ndim - 2)] for a in (w, x, out))
    if dtype is F32 and w.shape[0] < MIN_ROWS:
        return None
    layout = _layout(dtype, x.shape[1], kernels)
    packed, tasks = _panels(node, x, layout, ctx, kernels)
    if packed is None:
        return None
    rows, columns, vectors = w.shape[0], x.shape[1], x.shape[0]
    pieces = ceil(vectors / MAX_ACTIVATIONS)
    chunk_rows = _chunk_rows(rows, pieces, kernels.threads)
    values = {
        "w": address(w),
        "x": address(packed),
        "out": address(out),
        "rows": rows,
        "columns": columns,
        "w_row": w.strides[0],
        "vectors": vectors,
        "out_row": out.strides[0],
        "row_chunks": ceil(rows / chunk_rows),
        "chunk_rows": chunk_rows,
        "chunk_vectors": MAX_ACTIVATIONS,
    }
    args = tuple(values.get(name, 0) for name in SLOTS)
    parts = pieces * values["row_chunks"]
    kernel = kernels.address(f"gemm_{dtype}_{layout.family}", "gemm")
    is_serial = kernels.threads == 1
    return [*tasks, Task(kernel, args, parts, is_serial, 0, (w, packed, out), out)]


def _chunk_rows(rows: int, others: int, threads: int) -> int:
    """Return how many rows a part has: whole blocks where there are enough of them."""
    wanted = ceil(PARTS_PER_THREAD * threads / others)
    if threads == 1:
        return rows
    return BLOCK_ROWS * max(1, rows // BLOCK_ROWS // wanted)


def _panels(
    node: Node, x: Array, layout: _Layout, ctx: CpuLoweringContext, kernels: Kernels
) -> tuple[Array | None, list[Task]]:
    """Return activations in panels, and the tasks that lay them out unless they are there."""
    operand = node.bound.inputs[1]
    how = layout.suffix, layout.own
    place = id(operand.buffer), operand.offset, operand.shape, operand.strides
    key: TableKey = ("panels", how, place)
    known = ctx.tables.get(key)
    if known is not None:
        return known[1], []
    (vectors, columns), width = x.shape, panel_width(kernels.target)
    count = ceil(vectors / width)
    packed = ctx.rounded(key, (count, layout.panel_nbytes))
    # A panel's row of x begins ``width`` activations after that of the one before.
    turned = np.lib.stride_tricks.as_strided(
        x, (count, columns), (width * x.strides[0], x.strides[1])
    )
    kernel = kernels.address(f"panels_{layout.suffix}", "pack")
    own = vectors, x.strides[0], *layout.own
    task = row_task(
        kernel, (turned, packed), (count,), columns, kernels.threads, own, keeps=(x,), work=width
    )
    if task is None:
        return None, []
    ctx.tables[key] = (operand,), packed
    return packed, [task]


def routed(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task]:
    """Return tasks for many rows with chosen experts: each expert's rows become panels."""
    w, x, ids = node.inputs
    out, dtype = node.out, node.dtype(0)
    tokens, used = ids.shape
    (experts, rows), columns = w.shape[:2], x.shape[2]
    width = panel_width(kernels.target)
    pairs = tokens * used
    routes = ctx.scratch((2 * (experts + 1) + pairs,), np.int32)
    layout = _layout(dtype, columns, kernels)
    panels = ctx.scratch((pairs // width + experts, layout.panel_nbytes), np.uint8)
    first, of = experts_of(node)
    args = (
        address(ids), *ids.strides, tokens, used, experts, address(routes), first, of,
    )  # fmt: skip
    keeps = ids, routes
    route = Task(kernels.address("routes_f32", "route"), args, 1, True, of, keeps)
    by_use = x.strides[1] if x.shape[1] > 1 else 0
    args = (
        address(x), x.strides[0], by_use, columns, used, experts, address(routes), address(panels),
        *layout.own,
    )  # fmt: skip
    serial = kernels.threads == 1
    packing = kernels.address(f"routes_{layout.suffix}", "pack_routed")
    pack = Task(packing, args, experts, serial, 0, (x, routes, panels))
    chunk_rows = _chunk_rows(rows, experts, kernels.threads)
    values = {
        "w": address(w),
        "x": address(panels),
        "out": address(out),
        "rows": rows,
        "columns": columns,
        "w_row": w.strides[1],
        "out_row": out.strides[0],
        "row_chunks": ceil(rows / chunk_rows),
        "chunk_rows": chunk_rows,
        "experts": experts,
        "w_expert": w.strides[0],
        "routes": address(routes),
        "used": used,
        "out_used": out.strides[1],
    }
    args = tuple(values.get(name, 0) for name in SLOTS)
    kernel = kernels.address(f"gemm_chosen_{dtype}_{layout.family}", "gemm_routed")
    parts = experts * values["row_chunks"]
    return [route, pack, Task(kernel, args, parts, serial, 0, (w, routes, panels, out))]
