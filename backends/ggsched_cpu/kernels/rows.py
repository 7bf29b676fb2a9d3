"""Rows chosen by ids that are known at run time only. Ids out of range raise, whatever comes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from ggsched.backend.arrays import Array
from ggsched.errors import UsageError
from ggsched.ir.dtype import F32, I32
from ggsched_cpu.dequant import Decoder, decoder
from ggsched_cpu.lowering_context import Call, CpuLoweringContext, Node
from ggsched_cpu.requant import ENCODERS, Encoder


def unsigned(ids: Array) -> Array:
    """Return i32 ids as u32, so that negative ones are too large instead of meaning the end."""
    return ids.view(np.uint32)


def checked_ids(ids: Array, count: int) -> Array:
    """Return ids as one axis.

    Raises:
        UsageError: an id is outside ``[0, count)``.
    """
    line = ids.reshape(-1)
    if line.size and line.max() >= count:
        raise no_such_row(int(line[line >= count][0]), count)
    return line


def no_such_row(row: int, count: int) -> UsageError:
    """Return the error for an id out of range."""
    return UsageError(
        f"row {row if row < 1 << 31 else row - (1 << 32)} was requested",
        why=f"there are {count} rows",
        hint="look at what computes the ids",
    )


Batch = tuple[Array, Array, Array]
"""Table (V, n), ids, result (.., n)."""


def _gather(batches: Sequence[Batch]) -> None:
    for table, ids, out in batches:
        np.take(table, checked_ids(ids, table.shape[0]), 0, out, "clip")


def _gather_strided(batches: Sequence[Batch]) -> None:
    """As ``_gather``; ``np.take`` would copy the whole of a strided table first."""
    for table, ids, out in batches:
        out[...] = table[checked_ids(ids, table.shape[0])]


def _gather_packed(batches: Sequence[Batch], decode: Decoder) -> None:
    for table, ids, out in batches:
        decode(table[checked_ids(ids, table.shape[0])], out)


def _gather_one(table: Array, id_: memoryview | Array, count: int, out: Array) -> None:
    row = id_[0]
    if row >= count:
        raise no_such_row(row, count)
    out[...] = table[row]


def only_id(ids: Array) -> memoryview | Array:
    """Return the one id as a memoryview, which costs less to read than an array (see normal).

    A memoryview cannot be read where the bytes are not aligned to the element.
    """
    flat = ids.reshape(-1)
    return flat.data if flat.flags.aligned else flat


def _get_rows(node: Node, site: CpuLoweringContext) -> list[Call]:
    table, ids = node.inputs[0], unsigned(node.inputs[1])
    width = node.out.shape[-1]
    out = node.out.reshape(*table.shape[:-2], -1, width)
    axes = table.shape[:-2]
    batches = (
        [(table[at], ids[at], out[at]) for at in np.ndindex(*axes)] if axes else [(table, ids, out)]
    )
    dtype = node.dtype(0)
    if dtype is not F32 and dtype is not I32:
        return [(_gather_packed, (batches, decoder(dtype)))]
    if ids.size == 1:
        only = table[(0,) * len(axes)]
        return [(_gather_one, (only, only_id(ids), only.shape[0], node.out.reshape(-1)))]
    dense = all(t.flags.c_contiguous for t, _, _ in batches)
    return [(_gather if dense else _gather_strided, (batches,))]


def _scatter(dst: Array, src: Array, ids: Array) -> None:
    dst[checked_ids(ids, dst.shape[0])] = src


def _scatter_one(dst: Array, src: Array, id_: memoryview | Array, count: int) -> None:
    row = id_[0]
    if row >= count:
        raise no_such_row(row, count)
    dst[row] = src


def _scatter_encoded(dst: Array, src: Array, ids: Array, encode: Encoder) -> None:
    dst[checked_ids(ids, dst.shape[0])] = encode(src)


def _set_rows(node: Node, site: CpuLoweringContext) -> list[Call]:
    src, ids = node.inputs[1], unsigned(node.inputs[2])
    encode = ENCODERS.get(node.dtype(0).name)
    if encode is not None:
        return [(_scatter_encoded, (node.out, src, ids, encode))] if ids.size else []
    if ids.size == 1:
        return [(_scatter_one, (node.out, src[0], only_id(ids), node.out.shape[0]))]
    return [(_scatter, (node.out, src, ids))] if ids.size else []


def _add_chosen(x: Array, bias: Array, ids: Array, out: Array) -> None:
    chosen = bias[checked_ids(ids, bias.shape[0])]
    np.add(x, chosen.reshape(x.shape), out)


def _add_id(node: Node, site: CpuLoweringContext) -> list[Call]:
    x, bias, ids = node.inputs
    return [(_add_chosen, (x, bias, unsigned(ids), node.out))]


EMITTERS: Final[Mapping[str, Callable[[Node, CpuLoweringContext], list[Call]]]] = {
    "get_rows": _get_rows,
    "set_rows": _set_rows,
    "add_id": _add_id,
}
