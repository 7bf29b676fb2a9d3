"""Products of packed weights with one vector, without spreading the scales over the elements.

A row's product is the sum over its blocks of (scale times product of the codes). Numpy is slow on
short inner loops, such as one scale times 32 elements; here each step is either one pass over
contiguous memory or a product of many rows with one block of the vector. That is two to three
times as fast as decoding each weight.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from ggsched.backend.arrays import Array
from ggsched.ir.blocks import BlockLayout
from ggsched.ir.dtype import MXFP4, QUANTIZED_DTYPES, DType
from ggsched_cpu.dequant import MXFP4_SCALE, e2m1_doubled, numbers, reals

VectorProduct = Callable[[Array, Array, Array], None]
"""``f(packed, x, out)`` computes ``out = w @ x`` for rows of packed weights."""


@dataclass(frozen=True, slots=True)
class _Codes:
    """Blocks before scaling.

    Attributes:
        parts: f32 codes (rows, blocks, elements), with their place in the block.
        scales: f32 (rows, blocks).
        mins: What is added to every element, likewise.
        zero: The code that stands for 0.
    """

    parts: tuple[tuple[Array, slice], ...]
    scales: Array
    mins: Array | None = None
    zero: float = 0.0


def vector_product(dtype: DType) -> VectorProduct | None:
    """Return the product with one vector; None for plain types and those with several scales."""
    if dtype.name not in _CODES:
        return None
    codes, block = _CODES[dtype.name], dtype.block
    return lambda packed, x, out: _product(codes(packed), x.reshape(-1, block), out)


def _product(codes: _Codes, x: Array, out: Array) -> None:
    """Compute the products with x (blocks, elements)."""
    total: Array | None = None
    for part, place in codes.parts:
        each = np.matmul(part.transpose(1, 0, 2), x[:, place, None])[..., 0]  # (blocks, rows)
        total = each if total is None else np.add(total, each, total)
    assert total is not None
    if codes.zero:
        np.subtract(total, codes.zero * np.add.reduce(x, 1)[:, None], total)
    np.vecdot(total.T, codes.scales, out)
    if codes.mins is not None:
        np.add(out, np.vecdot(codes.mins, np.add.reduce(x, 1)), out)


def _blocks(a: Array, dtype: DType) -> Array:
    return a.reshape(a.shape[0], -1, dtype.block_nbytes)


def _codes_of(dtype: DType, layout: BlockLayout) -> Callable[[Array], _Codes]:
    codes, first = layout.codes, layout.codes.parts[0]
    is_single = len(codes.parts) == 1 and not codes.table
    is_split = is_single and first.run * (8 // first.width) == first.count

    def split(packed: Array) -> _Codes:
        blocks = _blocks(packed, dtype)
        scales = reals(blocks, layout.scale)[..., 0]
        mins = None if layout.min is None else reals(blocks, layout.min)[..., 0]
        # All bytes are converted at once, those of the scales too, which are not looked at.
        if is_single and codes.is_signed and first.width == 8:
            values = _blocks(packed.view(np.int8).astype(np.float32), dtype)[..., first.at :]
            return _Codes(((values, slice(None)),), scales, mins)
        if not is_split:
            values = numbers(blocks, codes)
            return _Codes(((values, slice(None)),), scales, mins)
        parts, end = [], first.at + first.run
        for i in range(8 // first.width):
            low = packed >> i * first.width if i else packed
            is_last = (i + 1) * first.width == 8
            stored = low if is_last else low & ((1 << first.width) - 1)
            values = _blocks(stored.astype(np.float32), dtype)[..., first.at : end]
            parts.append((values, slice(i * first.run, (i + 1) * first.run)))
        return _Codes(tuple(parts), scales, mins, float(codes.zero))

    return split


def _mxfp4(packed: Array) -> _Codes:
    low = _blocks(e2m1_doubled(packed << 4), MXFP4)[..., 1:]
    high = _blocks(e2m1_doubled(packed & 0xF0), MXFP4)[..., 1:]
    parts = (low, slice(None, 16)), (high, slice(16, None))
    return _Codes(parts, reals(_blocks(packed, MXFP4), MXFP4_SCALE)[..., 0])


_CODES: Final[Mapping[str, Callable[[Array], _Codes]]] = {
    **{
        t.name: _codes_of(t, t.layout)
        for t in QUANTIZED_DTYPES
        if t.layout is not None and t.layout.sub_scales is None
    },
    MXFP4.name: _mxfp4,
}
