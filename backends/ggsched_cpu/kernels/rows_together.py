"""Long rows of a plain weight, several at a time, with one row of activations.

For processors that fetch streams by themselves (``Target.fetches_streams``). One stream does not
bring all that memory gives. Eight do, where each is longer than a page and what comes next in it is
requested. Activations are read once for eight rows: 8,192 of them in f32 fill the first cache of
Zen 4, so they come from the second one, and less often.
"""

from collections.abc import Sequence
from typing import Final

from ggsched.ir.dtype import BF16, DType
from ggsched_cpu.kernels.bf16_rows import add_pairs, load_pairs
from ggsched_cpu.kernels.elements import load_f32
from ggsched_cpu.kernels.emit import Builder, Value, i64, vector_of
from ggsched_cpu.kernels.sums import SOON
from ggsched_cpu.kernels.target import Target

TOGETHER: Final = 8
"""Rows at a time. Four read 8,192 columns at 21 GB/s (f16), 25 (bf16) and 31 (f32), eight at 25, 28
and 32."""

_LINE: Final = 64
_LONG_NBYTES: Final = 8192
"""Bytes of a row from which it pays: 12 to 70 % faster than row by row; equal or slower below."""

_MEASURED: Final = {("f32", "f32"), ("f16", "f32"), ("bf16", "bf16")}
"""Types of weight and activations."""


def takes_rows_together(target: Target, dtype: DType, activations: str, vectors: int) -> bool:
    """Whether a kernel is faster with several long rows at a time; measured on Zen 4.

    Args:
        target: The processor.
        dtype: Of the weight.
        activations: How they come: ``f32``, ``bf16`` or ``int8``.
        vectors: Rows of them that the kernel takes at a time.
    """
    return target.fetches_streams and vectors == 1 and (dtype.name, activations) in _MEASURED


def together(b: Builder, dtype: DType, rows: Value, columns: Value) -> Value:
    """Return how many of some rows are to be taken together: 0 where they are not long."""
    size = dtype.block_nbytes
    is_long = b.compare("uge", b.mul(columns, size), _LONG_NBYTES)
    is_whole = b.compare("eq", b.binary("and", columns, _LINE // size - 1), 0)
    count = b.binary("and", rows, -TOGETHER)
    return b.select(is_long, b.select(is_whole, count, i64(0)), i64(0))


def products_together(
    b: Builder, dtype: DType, rows: Sequence[Value], x: Value, columns: Value
) -> list[Value]:
    """Return the product of each row with the activations at x.

    Args:
        b: Writes the kernel.
        dtype: Of the weight. Activations are bf16 beside bf16, else f32.
        rows: Where each row of the weight begins.
        x: Where the activations begin.
        columns: A multiple of those in a cache line of the weight.
    """
    lanes, size = b.target.lanes, dtype.block_nbytes
    step = _LINE // size
    sums = [b.var(b.zero(vector_of(lanes, "float"))) for _ in rows]
    with b.loop(0, columns, step) as column:
        at = b.mul(column, size)
        for row in rows:
            b.prefetch(b.offset(row, b.add(at, SOON)), level=2)
        places = [b.offset(row, at) for row in rows]
        if dtype is BF16:
            values = load_pairs(b, b.offset(x, at))
            for place, total in zip(places, sums, strict=True):
                add_pairs(b, total, load_pairs(b, place), values)
        else:
            for u in range(0, step, lanes):
                by_x = b.offset(x, b.mul(b.add(column, u), 4))
                value = b.load(vector_of(lanes, "float"), by_x, 4)
                for place, total in zip(places, sums, strict=True):
                    weight = load_f32(b, dtype, b.offset(place, u * size), lanes)
                    b.set(total, b.fma(weight, value, b.get(total)))
    return [b.sum(b.get(total)) for total in sums]


__all__ = ["TOGETHER", "products_together", "takes_rows_together", "together"]
