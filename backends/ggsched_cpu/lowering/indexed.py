"""Tasks of ops that take or put elements by index."""

from collections.abc import Callable, Sequence
from math import gcd, prod
from typing import Final

import numpy as np

from ggsched.backend.arrays import Array
from ggsched.ir.dtype import I64
from ggsched_cpu.lowering.context import CpuLoweringContext, Node
from ggsched_cpu.lowering.moves import moved_apart
from ggsched_cpu.lowering.tasks import Task, row_task
from ggsched_cpu.native import Kernels

MIN_SLICE: Final = 8
"""Elements of a slice from which on a row of a kernel for each is worth while."""

ADDED: Final = {"f4": "float", "i4": "i32", "i8": "i64"}
"""Types that are added to, and what kernels call them."""


def _gather(node: Node, kernels: Kernels) -> Task | None:
    """A row is a slice, or, of the last axis, an element."""
    (x, ids), out = node.inputs, node.out
    axis = int(node.number("axis")) % x.ndim
    outer, extent, inner = _around(x, axis)
    if inner == 1:
        each = np.broadcast_to(ids.reshape(1, -1), (outer, ids.size))
        return _by_element(node, each, x.reshape(outer, -1), out.reshape(outer, -1), 1, kernels)
    first, shape = x.reshape(outer, 1, -1)[..., :inner], (outer, ids.size)
    operands = ids.reshape(1, -1, 1), first, out.reshape(*shape, inner)
    own = 1, extent, inner * x.itemsize
    kernel, threads = kernels.address("take", f"slices{x.itemsize}"), kernels.threads
    return row_task(kernel, operands, shape, inner, threads, own, rows=extent, keeps=(x,))


def _gather_elements(node: Node, kernels: Kernels) -> Task | None:
    (x, ids), axis = node.inputs, int(node.number("axis")) % node.out.ndim
    return _by_element(node, ids, x, node.out, axis, kernels)


def _gather_nd(node: Node, kernels: Kernels) -> Task | None:
    x, ids = node.inputs
    return None if node.number("batch_dims") else _by_tuple(node, ids, x, node.out, kernels)


def _scatter_elements(node: Node, kernels: Kernels) -> Task | None:
    (_, ids, updates), axis = node.inputs, int(node.number("axis")) % node.out.ndim
    return _by_element(node, ids, node.out, updates, axis, kernels)


def _scatter_nd(node: Node, kernels: Kernels) -> Task | None:
    _, ids, updates = node.inputs
    return _by_tuple(node, ids, node.out, updates, kernels)


def _by_element(
    node: Node, ids: Array, table: Array, other: Array, axis: int, kernels: Kernels
) -> Task | None:
    """Return the task that moves an element of a table, and of another array, for each index.

    Other axes must be those of the table.
    """
    if _without(table.shape, axis) != _without(ids.shape, axis):
        return None
    how = node.bound.params.get("reduction")  # None where elements are taken
    outer, extent, inner = _around(table, axis)
    count, step = ids.shape[axis], inner * table.itemsize
    shape: tuple[int, ...]
    place: Array
    if inner == 1:
        shape, columns = (outer,), count
        views: list[Array] = [ids.reshape(outer, count), other.reshape(outer, count)]
        place = table.reshape(outer, extent)[:, 0]  # which only indices move on
    else:
        # Rows that may put the same elements are of one part; those of other columns are not.
        blocks = gcd(inner, kernels.threads) if how else 1
        shape, columns = (outer, blocks, count), inner // blocks
        split = (outer, count, blocks, columns)
        views = [a.reshape(split).swapaxes(1, 2) for a in (ids, other)]
        place = table.reshape(outer, extent, blocks, columns)[:, :1].swapaxes(1, 2)
    operands = [views[0], *((views[1], place) if how else (place, views[1]))]
    adds = how == "add"
    name = f"add_{ADDED[table.dtype.str[1:]]}" if adds else f"each{table.itemsize}"
    return row_task(
        kernels.address("put" if how else "take", name), operands, shape, columns,
        kernels.threads, (extent, step), rows=extent, keeps=(table,), work=2,
        together=count if how and inner > 1 else 1,
    )  # fmt: skip


def _around(a: Array, axis: int) -> tuple[int, int, int]:
    """Return the number of elements before an axis, along it, and behind it."""
    return prod(a.shape[:axis]), a.shape[axis], prod(a.shape[axis + 1 :])


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return *shape[:axis], *shape[axis + 1 :]


def _by_tuple(node: Node, ids: Array, table: Array, other: Array, kernels: Kernels) -> Task | None:
    """Return the task that moves a slice of a table for each tuple of indices.

    None for short slices, and where adding to elements of this type has no kernel.
    """
    depth, how = ids.shape[-1], node.bound.params.get("reduction")
    extents, width = table.shape[:depth], prod(table.shape[depth:])
    if width < MIN_SLICE or (how == "add" and table.dtype != np.float32) or not depth:
        return None
    count = ids.size // depth
    blocks = gcd(width, kernels.threads) if how else 1
    shape, columns = (blocks, count), width // blocks
    moved = other.reshape(count, blocks, columns).swapaxes(0, 1)
    first = table.reshape(-1)[:width].reshape(blocks, 1, columns)
    operands = [ids.reshape(1, count, depth), *((moved, first) if how else (first, moved))]
    steps = [prod(table.shape[i + 1 :]) * table.itemsize for i in range(depth)]
    pairs = [n for pair in zip(extents, steps, strict=True) for n in pair]
    name = "add_slices" if how == "add" else f"slices{table.itemsize}"
    return row_task(
        kernels.address("put" if how else "take", name), operands, shape, columns,
        kernels.threads, (depth, *pairs), rows=min(extents), keeps=(table,),
        together=count if how else 1,
    )  # fmt: skip


def _taken(take: Callable[[Node, Kernels], Task | None]) -> Callable[..., list[Task] | None]:
    def emit(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
        task = take(node, kernels) if _is_plain(node) else None
        return None if task is None else [task]

    return emit


def _put(put: Callable[[Node, Kernels], Task | None]) -> Callable[..., list[Task] | None]:
    """Return what copies the operand, and then puts elements or slices."""

    def emit(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
        (x, ids, _), how = node.inputs, node.param("reduction")
        is_known = how == "none" or (how == "add" and x.dtype.str[1:] in ADDED)
        copied = moved_apart(x, node.out, kernels)
        if copied is None or not is_known or not _is_plain(node):
            return None
        if not ids.size:
            return [copied]
        task = put(node, kernels)
        return None if task is None else [copied, task]

    return emit


def _is_plain(node: Node) -> bool:
    arrays = *node.inputs, node.out
    if node.dtype(1) is not I64 or not node.inputs[0].size:
        return False
    return all(a.flags.c_contiguous and a.flags.aligned for a in arrays)


EMITTERS: Final = {
    "nd.gather": _taken(_gather),
    "nd.gather_elements": _taken(_gather_elements),
    "nd.gather_nd": _taken(_gather_nd),
    "nd.scatter_elements": _put(_scatter_elements),
    "nd.scatter_nd": _put(_scatter_nd),
}

__all__: Sequence[str] = ["EMITTERS"]
