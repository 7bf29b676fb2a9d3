"""Tasks of matrix products."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Final

from ggsched.backend.arrays import Array
from ggsched.backend.program import Operand
from ggsched.ir.dtype import BF16, DType
from ggsched_cpu.kernels.bf16_rows import PAIRED
from ggsched_cpu.kernels.elements import coding, is_compiled
from ggsched_cpu.kernels.gemm_bf16 import has_pairs
from ggsched_cpu.kernels.gemv import SLOTS, VECTORS
from ggsched_cpu.kernels.int_dot import BLOCK, correction_factor, rounded_nbytes
from ggsched_cpu.kernels.packed_rows import rounded_family
from ggsched_cpu.lowering import many_rows
from ggsched_cpu.lowering.context import CpuLoweringContext, Node, TableKey, experts_of
from ggsched_cpu.lowering.tasks import (
    PART_NBYTES,
    PARTS_PER_THREAD,
    SERIAL_NBYTES,
    Task,
    address,
    parts_for,
    row_task,
)
from ggsched_cpu.native import Kernels

MAX_VECTORS: Final = 8
"""Rows of activations up to which the weight is read row by row."""

MAX_CHOSEN: Final = 32
"""The same for rows with chosen experts."""

_ROW_GROUP: Final = 4
"""Parts of a product have a multiple of this number of rows."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Activations as a kernel reads them.

    Attributes:
        array: What has to stay in memory.
        start: Address of the first row.
        strides: Of each axis before the last, in bytes.
        tasks: What makes them.
        suffix: Of the family of kernels.
    """

    array: Array
    start: int
    strides: tuple[int, ...]
    tasks: tuple[Task, ...]
    suffix: str


def is_dense(a: Array) -> bool:
    """Whether elements of the last axis are adjacent, and where they should be."""
    return a.flags.aligned and (a.shape[-1] == 1 or a.strides[-1] == a.itemsize)


def _activations(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> _Rows | None:
    """Return the activations of a product, rounded unless f32 is set.

    To 8 bits beside packed weights, to bf16 beside bf16 where the processor multiplies pairs.
    """
    w, x = node.inputs[:2]
    dtype, columns = node.dtype(0), x.shape[-1]
    if kernels.activations == "f32":
        return _exact(x)
    operand = node.bound.inputs[1]
    if dtype.layout is not None:
        factor = correction_factor(kernels.target, coding(dtype.layout)) & 0xFFFF_FFFF
        family = rounded_family(kernels.target, dtype)
        how = _Rounding(family, "int8", BLOCK, rounded_nbytes(columns), (factor,))
        return _rounded(operand, x, how, ctx, kernels)
    is_paired = dtype is BF16 and has_pairs(kernels.target) and columns % PAIRED == 0
    if is_paired and _has_rows(w, dtype):
        how = _Rounding("bf16", "bf16", PAIRED, BF16.row_nbytes(columns), ())
        return _rounded(operand, x, how, ctx, kernels)
    return _exact(x)


@dataclass(frozen=True, slots=True)
class _Rounding:
    """How activations are rounded.

    Attributes:
        family: Of the kernel that does it.
        suffix: Of the family of products.
        block: Columns that it takes at a time.
        nbytes: Of a row.
        own: Further arguments.
    """

    family: str
    suffix: str
    block: int
    nbytes: int
    own: tuple[int, ...]


def _exact(x: Array) -> _Rows:
    return _Rows(x, address(x), x.strides[:-1], (), "f32")


def _rounded(
    operand: Operand, x: Array, how: _Rounding, ctx: CpuLoweringContext, kernels: Kernels
) -> _Rows | None:
    place = id(operand.buffer), operand.offset, operand.shape, operand.strides
    key: TableKey = ("rounded", (how.family, how.own), place)
    known = ctx.tables.get(key)
    if known is not None:
        made: Array = known[1]
        return _Rows(made, address(made), made.strides[:-1], (), how.suffix)
    made = ctx.rounded(key, (*x.shape[:-1], how.nbytes))
    kernel = kernels.address(how.family, "round_rows")
    blocks = x.shape[-1] // how.block
    task = row_task(kernel, (x, made), x.shape[:-1], blocks, kernels.threads, how.own)
    if task is None:
        return None
    ctx.tables[key] = (operand,), made
    return _Rows(made, address(made), made.strides[:-1], (task,), how.suffix)


def _product_task(
    kernel: int,
    values: dict[str, int],
    matrices: int,
    read: int,
    threads: int,
    keeps: Sequence[Array],
    rows: int = 0,
) -> Task:
    """Cut a product into parts and return its task.

    ``read`` are the bytes of weights it reads, ``keeps`` all that it touches, last what it writes.
    """
    each = values["rows"]
    wanted = parts_for(read, matrices * -(-each // _ROW_GROUP), threads)
    chunks = max(1, -(-wanted // matrices))
    if wanted > 1 and matrices * chunks > threads and matrices * chunks % threads:
        # Threads cannot have as many each, so parts are smaller.
        wanted = min(PARTS_PER_THREAD * threads, read // PART_NBYTES)
        chunks = max(chunks, -(-wanted // matrices))
    chunk_rows = ceil(ceil(each / chunks) / _ROW_GROUP) * _ROW_GROUP
    chunks = -(-each // chunk_rows)
    values |= {"chunks": chunks, "chunk_rows": chunk_rows}
    args = tuple(values.get(name, 0) for name in SLOTS)
    is_serial = threads == 1 or read < SERIAL_NBYTES or matrices * chunks == 1
    return Task(kernel, args, matrices * chunks, is_serial, rows, tuple(keeps), keeps[-1])


def _vectors_kernel(vectors: int) -> int:
    return next((v for v in VECTORS if v >= vectors), VECTORS[-1])


def mul_mat(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    """Return tasks for a product of few rows."""
    w, x, out = *node.inputs, node.out
    dtype = node.dtype(0)
    if not is_compiled(dtype) or not (is_dense(x) and is_dense(out)) or x.shape[-1] == 0:
        return None
    if x.ndim > 4 or not w.flags.aligned:
        return None
    if x.shape[-2] > MAX_VECTORS:
        return many_rows.product(node, ctx, kernels) if _has_rows(w, dtype) else None
    if not _has_rows(w, dtype) and not _has_columns(w, dtype):
        return None
    rows = _activations(node, ctx, kernels)
    if rows is None:
        return None
    w = w.reshape((1,) * (4 - w.ndim) + w.shape)
    shape = (1,) * (4 - x.ndim) + x.shape
    x_strides = (0,) * (4 - x.ndim) + rows.strides
    out_strides = (0,) * (4 - x.ndim) + out.strides
    vectors, x_row, out_row = shape[2], x_strides[2], out_strides[2]
    outer, inner = shape[0], shape[1]
    shares = [n // m for n, m in zip(shape[:2], w.shape[:2], strict=True)]
    steps = [x_strides[1], out_strides[1]]
    if vectors == 1 and 1 < shares[1] <= MAX_VECTORS:
        # Heads that share keys are like rows of activations.
        vectors, x_row, out_row = shares[1], x_strides[1], out_strides[1]
        inner //= shares[1]
        steps = [s * shares[1] for s in steps]
        shares[1] = 1
    has_rows = _has_rows(w, dtype)
    values = {
        "w": address(w),
        "x": rows.start,
        "out": address(out),
        "rows": w.shape[2],
        "columns": shape[3],
        "w_row": w.strides[2] if has_rows else w.strides[3],
        "vectors": vectors,
        "x_row": x_row,
        "out_row": out_row,
        "inner": inner,
        "w_outer": w.strides[0],
        "w_inner": w.strides[1],
        "x_outer": x_strides[0],
        "x_inner": steps[0],
        "out_outer": out_strides[0],
        "out_inner": steps[1],
        "w_outer_share": shares[0],
        "w_inner_share": shares[1],
    }
    which = _vectors_kernel(vectors)
    if has_rows:
        kernel = kernels.address(f"gemv_{dtype}_{rows.suffix}", f"batch{which}")
    else:
        kernel = kernels.address(f"columns_{dtype}", f"columns{which}")
    matrices = outer * inner
    read = matrices * w.shape[2] * dtype.row_nbytes(shape[3])
    keeps = w, rows.array, out
    return [*rows.tasks, _product_task(kernel, values, matrices, read, kernels.threads, keeps)]


def vectors_task(w: Array, x: Array, out: Array, kernels: Kernels) -> Task:
    """Return the task of ``out = x @ w.T`` in f32, for as many rows of x as a kernel takes.

    Args:
        w: Weight (n, k) with contiguous rows.
        x: (m, k), its rows contiguous.
        out: (m, n), its rows contiguous.
        kernels: What there is.
    """
    values = {
        "w": address(w),
        "x": address(x),
        "out": address(out),
        "rows": w.shape[0],
        "columns": w.shape[1],
        "w_row": w.strides[0],
        "vectors": len(x),
        "x_row": x.strides[0],
        "out_row": out.strides[0],
        "inner": 1,
        "w_outer_share": 1,
        "w_inner_share": 1,
    }
    kernel = kernels.address("gemv_f32_f32", f"batch{_vectors_kernel(len(x))}")
    return _product_task(kernel, values, 1, w.nbytes, kernels.threads, (w, x, out))


def _has_rows(w: Array, dtype: DType) -> bool:
    return dtype.is_quantized or w.shape[-1] == 1 or w.strides[-1] == dtype.block_nbytes


def _has_columns(w: Array, dtype: DType) -> bool:
    return not dtype.is_quantized and w.strides[-2] == dtype.block_nbytes


def mul_mat_id(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    """Return tasks for products of few rows with chosen experts."""
    w, x, ids = node.inputs
    out, dtype = node.out, node.dtype(0)
    tokens, used = ids.shape
    if not is_compiled(dtype) or not (is_dense(x) and is_dense(out)) or x.shape[-1] == 0:
        return None
    if not (w.flags.aligned and ids.flags.aligned and _has_rows(w, dtype)):
        return None
    first, of = experts_of(node)
    cleared = _clear_absent(node, kernels)
    if cleared is None:
        return None
    if tokens * used > MAX_CHOSEN:
        return [*cleared, *many_rows.routed(node, ctx, kernels)]
    rows = _activations(node, ctx, kernels)
    if rows is None:
        return None
    values = {
        "w": address(w),
        "x": rows.start,
        "out": address(out),
        "rows": w.shape[1],
        "columns": x.shape[2],
        "w_row": w.strides[1],
        "vectors": 1,
        "inner": used,
        "w_outer": w.strides[0],
        "x_outer": rows.strides[0],
        "x_inner": rows.strides[1] if x.shape[1] > 1 else 0,
        "out_outer": out.strides[0],
        "out_inner": out.strides[1],
        "w_outer_share": 1,
        "w_inner_share": 1,
        "ids": address(ids),
        "id_outer": ids.strides[0],
        "id_inner": ids.strides[1],
        "experts": w.shape[0],
        "first_expert": first,
        "all_experts": of,
    }
    kernel = kernels.address(f"gemv_chosen_{dtype}_{rows.suffix}", "ids1")
    matrices = prod(ids.shape)
    read = matrices * w.shape[1] * dtype.row_nbytes(x.shape[2])
    keeps = w, rows.array, ids, out
    task = _product_task(kernel, values, matrices, read, kernels.threads, keeps, of)
    return [*cleared, *rows.tasks, task]


def _clear_absent(node: Node, kernels: Kernels) -> list[Task] | None:
    """Return what sets rows of the result to 0 whose experts are elsewhere; None if it cannot."""
    (w, _, ids), (first, of) = node.inputs, experts_of(node)
    if of == w.shape[0]:
        return []
    kernel, own = kernels.address("add_id", "clear_absent"), (w.shape[0], first, of)
    operands, width = (ids, node.out), node.out.shape[2]
    task = row_task(kernel, operands, ids.shape, width, kernels.threads, own, rows=of)
    return None if task is None else [task]
