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
from ggsched.ir.dtype import MXFP4, Q4_0, Q8_0, DType
from ggsched_cpu.dequant import e2m1_doubled, f16_scales, mxfp4_half_scales

VectorProduct = Callable[[Array, Array, Array], None]
"""``f(packed, x, out)`` computes ``out = w @ x`` for rows of packed weights."""


@dataclass(frozen=True, slots=True)
class _Codes:
    """Blocks before scaling.

    Attributes:
        parts: f32 codes (rows, blocks, elements), with their place in the block.
        scales: f32 (rows, blocks).
        zero: The code that stands for 0.
    """

    parts: tuple[tuple[Array, slice], ...]
    scales: Array
    zero: float = 0.0


def vector_product(dtype: DType) -> VectorProduct | None:
    """Return the product with one vector for a quantised type, None for others."""
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


def _blocks(a: Array, dtype: DType) -> Array:
    return a.reshape(a.shape[0], -1, dtype.block_nbytes)


def _scales(packed: Array, dtype: DType) -> Array:
    scales: Array = f16_scales(_blocks(packed, dtype))[..., 0]
    return scales


def _q8_0(packed: Array) -> _Codes:
    # The bytes of the scales are converted with the codes, and not looked at.
    values = _blocks(packed.view(np.int8).astype(np.float32), Q8_0)[..., 2:]
    return _Codes(((values, slice(None)),), _scales(packed, Q8_0))


def _q4_0(packed: Array) -> _Codes:
    low = _blocks((packed & 0x0F).astype(np.float32), Q4_0)[..., 2:]
    high = _blocks((packed >> 4).astype(np.float32), Q4_0)[..., 2:]
    parts = (low, slice(None, 16)), (high, slice(16, None))
    return _Codes(parts, _scales(packed, Q4_0), zero=8.0)


def _mxfp4(packed: Array) -> _Codes:
    low = _blocks(e2m1_doubled(packed << 4), MXFP4)[..., 1:]
    high = _blocks(e2m1_doubled(packed & 0xF0), MXFP4)[..., 1:]
    parts = (low, slice(None, 16)), (high, slice(16, None))
    return _Codes(parts, mxfp4_half_scales(_blocks(packed, MXFP4))[..., 0])


_CODES: Final[Mapping[str, Callable[[Array], _Codes]]] = {
    Q8_0.name: _q8_0,
    Q4_0.name: _q4_0,
    MXFP4.name: _mxfp4,
}
