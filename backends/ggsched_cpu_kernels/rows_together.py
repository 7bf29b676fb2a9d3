"""Long rows of a plain weight, several at a time, with one row of activations (f32 or bf16).

For processors that fetch streams by themselves (``Target.fetches_streams``), of which one stream
does not bring all that memory gives. Eight streams do, where each is longer than a page and what
comes next in it is requested. Activations are read once for eight rows, so 8,192 of them in f32,
which fill the first cache of Zen 4, come from the second one less often.
"""

from typing import Final

from ggsched.ir.dtype import BF16, F16, F32, DType
from ggsched_cpu_kernels.bf16_rows import add_pairs, load_pairs
from ggsched_cpu_kernels.elements import load_f32
from ggsched_cpu_kernels.emit import Builder, Value, i64, vector_of
from ggsched_cpu_kernels.sums import SOON
from ggsched_cpu_kernels.target import Target

TOGETHER: Final = 8
"""Rows at a time. Four read 8,192 columns at 21 GB/s (f16), 25 (bf16) and 31 (f32), eight at 25, 28
and 32."""

_LINE: Final = 64
_LONG_NBYTES: Final = 8192
"""Bytes of a row from which it pays: 12 to 70 % faster than row by row; equal or slower below."""


def takes_rows_together(target: Target, dtype: DType, activations: DType) -> bool:
    """Whether ``long_rows`` is faster on a processor than row by row; measured on Zen 4."""
    return target.fetches_streams and (dtype, activations) in ((F32, F32), (F16, F32), (BF16, BF16))


def long_rows(
    b: Builder,
    dtype: DType,
    activations: DType,
    *,
    w: Value,
    w_row: Value,
    x: Value,
    x_row: Value,
    out: Value,
    out_row: Value,
    first: Value,
    last: Value,
    vectors: Value,
    columns: Value,
) -> Value:
    """Write the products of as many rows as can be taken together; return the first row left.

    Args:
        b: Writes the kernel.
        dtype: Of the weight.
        activations: f32, or bf16 beside a weight of bf16.
        w: The matrix.
        w_row: Bytes from row to row of it.
        x: Activations.
        x_row: Bytes from row to row of them.
        out: Results, f32.
        out_row: Bytes from row to row of them.
        first: First row of the matrix.
        last: The row behind the last.
        vectors: Rows of activations, one after another.
        columns: Of the matrix.
    """
    lanes, size = b.target.lanes, dtype.block_nbytes
    step = _LINE // size
    is_long = b.compare("uge", b.mul(columns, size), _LONG_NBYTES)
    is_whole = b.compare("eq", b.binary("and", columns, step - 1), 0)
    count = b.binary("and", b.sub(last, first), -TOGETHER)
    count = b.select(is_long, b.select(is_whole, count, i64(0)), i64(0))
    stop = b.add(first, count)
    with b.loop(first, stop, TOGETHER) as row:
        rows = [b.offset(w, b.mul(b.add(row, r), w_row)) for r in range(TOGETHER)]
        with b.loop(0, vectors) as vector:
            start = b.offset(x, b.mul(vector, x_row))
            sums = [b.var(b.zero(vector_of(lanes, "float"))) for _ in rows]
            with b.loop(0, columns, step) as column:
                at = b.mul(column, size)
                for place in rows:
                    b.prefetch(b.offset(place, b.add(at, SOON)), level=2)
                places = [b.offset(place, at) for place in rows]
                if activations is BF16:
                    values = load_pairs(b, b.offset(start, at))
                    for place, total in zip(places, sums, strict=True):
                        add_pairs(b, total, load_pairs(b, place), values)
                for u in range(0, step if activations is F32 else 0, lanes):
                    by_x = b.offset(start, b.mul(b.add(column, u), 4))
                    value = b.load(vector_of(lanes, "float"), by_x, 4)
                    for place, total in zip(places, sums, strict=True):
                        weight = load_f32(b, dtype, b.offset(place, u * size), lanes)
                        b.set(total, b.fma(weight, value, b.get(total)))
            results = b.offset(b.offset(out, b.mul(vector, out_row)), b.mul(row, 4))
            for r, total in enumerate(sums):
                b.store(b.sum(b.get(total)), b.offset(results, 4 * r), 4)
    return stop


__all__ = ["TOGETHER", "long_rows", "takes_rows_together"]
