"""Products of a row of a bf16 weight with some rows of activations that are rounded to bf16.

For processors with products of pairs of bf16, as ``gemm_bf16``. Activations take half the room that
they have as f32, so that 8,192 of them stay in the first cache while a weight streams through it.
"""

from collections.abc import Sequence
from typing import Final

from ggsched.ir.dtype import BF16
from ggsched_cpu.kernels.emit import Builder, Value, Variable, vector_of
from ggsched_cpu.kernels.sums import SOON, accumulators, added, fetch
from ggsched_cpu.kernels.target import Target
from ggsched_cpu.kernels.vectors import over_rows

PAIRED: Final = 32
"""Rows have a multiple of this number of columns."""

_VECTOR: Final = vector_of(PAIRED, "bfloat")


def round_bf16(name: str, target: Target) -> Builder:
    """Operand x; result, rows of bf16. Columns are blocks of ``PAIRED``."""
    b = Builder(name, target)

    def row(x: Value, out: Value, blocks: Value) -> None:
        with b.loop(0, blocks) as block:
            values = b.load(vector_of(PAIRED, "float"), b.offset(x, b.mul(block, 4 * PAIRED)), 4)
            b.store(b.cast("fptrunc", values, "bfloat"), b.offset(out, b.mul(block, 2 * PAIRED)), 2)

    over_rows(b, 2, lambda r: row(r.pointers[0], r.pointers[1], r.columns))
    return b


def load_pairs(b: Builder, pointer: Value) -> Value:
    """Load ``PAIRED`` values of bf16."""
    return b.load(_VECTOR, pointer, 2)


def add_pairs(b: Builder, total: Variable, weights: Value, values: Value) -> None:
    """Add products of pairs to a sum of ``PAIRED`` / 2 floats."""
    name = "x86.avx512bf16.dpbf16ps.512"
    b.set(total, b.intrinsic(name, b.get(total), weights, values, suffix="-"))


def pair_products(b: Builder, w: Value, x: Sequence[Value], columns: Value) -> list[Value]:
    """Rows of activations are those of ``round_bf16``."""
    unroll = 1 if b.target.fetches_streams else 2
    step = PAIRED * unroll
    sums = accumulators(b, x, unroll, vector_of(PAIRED // 2, "float"))
    whole = b.binary("and", columns, -step)

    def multiply(column: Value, number: int) -> None:
        at = b.mul(column, BF16.block_nbytes)
        weights = load_pairs(b, b.offset(w, at))
        for start, totals in zip(x, sums, strict=True):
            add_pairs(b, totals[number], weights, load_pairs(b, b.offset(start, at)))

    with b.loop(0, whole, step) as column:
        place = b.offset(w, b.mul(column, BF16.block_nbytes))
        fetch(b, place, step * BF16.block_nbytes, is_fast=True)
        if b.target.fetches_streams:
            b.prefetch(b.offset(place, SOON), level=2)
        for u in range(unroll):
            multiply(b.add(column, PAIRED * u), u)
    with b.loop(whole, columns, PAIRED) as column:
        multiply(column, 0)
    return [b.sum(added(b, totals)) for totals in sums]


__all__ = ["PAIRED", "add_pairs", "load_pairs", "pair_products", "round_bf16"]
