"""Decode and encode packed element types, slowly and plainly.

Quantised types are decoded field by field, as ``ggsched.ir.blocks`` defines them. No kernel
of a backend uses the code, so that a mistake here and a mistake there do not cancel; the layouts
themselves are tested against the ``gguf`` package.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ggsched.errors import UsageError
from ggsched.ir.blocks import REAL_NBYTES, Bits, BlockLayout, Integers, Real
from ggsched.ir.dtype import BF16, DType

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]


def dequantize(raw: Bytes, dtype: DType, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Decode the packed bytes of a contiguous tensor.

    Args:
        raw: uint8 array of any shape, holding the bytes of the tensor in order.
        dtype: Any float type.
        shape: Shape of the tensor in elements.

    Returns:
        A fresh float32 array of ``shape``.

    Raises:
        UsageError: ``raw`` is not uint8, has another number of bytes, or ``dtype`` is not a float.
        GraphError: the last axis is not a whole number of blocks.
    """
    rows = prod(shape[:-1])
    nbytes = rows * dtype.row_nbytes(shape[-1]) if shape else dtype.block_nbytes
    if raw.dtype != np.uint8 or raw.size != nbytes:
        raise UsageError(
            f"{raw.size} elements of {raw.dtype} for {dtype}{list(shape)}",
            why=f"the packed form has {nbytes} bytes",
            hint="pass the packed bytes as a uint8 array",
        )
    if dtype.kind != "float":
        raise UsageError(f"{dtype} is not a float type")
    blocks = np.ascontiguousarray(raw).reshape(-1, dtype.block_nbytes)
    with np.errstate(all="ignore"):
        return decode_blocks(blocks, dtype).astype(np.float32).reshape(shape)


def decode_blocks(blocks: Bytes, dtype: DType) -> Floats:
    """Decode uint8 blocks (..., block_nbytes) to float64 elements (..., block)."""
    blocks = np.ascontiguousarray(blocks)
    if dtype.layout is not None:
        if blocks.nbytes > KNOWN_NBYTES:
            return decode_layout(blocks, dtype.layout)
        return _known(blocks.tobytes(), blocks.shape, dtype.layout).copy()
    plain = blocks.view(np.dtype(dtype.host))
    if dtype is BF16:
        plain = (plain.astype(np.uint32) << 16).view(np.float32)  # the upper half of an f32
    return plain.astype(np.float64)


KNOWN_NBYTES = 72 << 10
"""Size of weights up to which their elements are kept: runs of a model decode the same ones."""


@lru_cache(64)
def _known(raw: bytes, shape: tuple[int, ...], layout: BlockLayout) -> Floats:
    return decode_layout(np.frombuffer(raw, np.uint8).reshape(shape), layout)


def decode_layout(blocks: Bytes, layout: BlockLayout) -> Floats:
    """Decode uint8 blocks (..., nbytes) of a layout to float64 elements (..., elements)."""
    scale = _real(blocks, layout.scale) * _each(blocks, layout.sub_scales, layout.elements)
    values = scale * _numbers(blocks, layout.codes)
    if layout.min is None:
        return values
    return values + _real(blocks, layout.min) * _each(blocks, layout.sub_mins, layout.elements)


def _real(blocks: Bytes, real: Real) -> Floats:
    raw = np.ascontiguousarray(blocks[..., real.at : real.at + REAL_NBYTES[real.kind]])
    if real.kind == "f16":
        return real.sign * raw.view("<f2").astype(np.float64)
    return real.sign * np.ldexp(np.float64(1.0), raw.astype(np.int64) - 128)


def _each(blocks: Bytes, integers: Integers | None, elements: int) -> Floats:
    """Return a factor for each element: one for each of some equal parts of the block, or 1."""
    if integers is None:
        return np.ones(elements)
    return np.repeat(_numbers(blocks, integers), elements // integers.count, axis=-1)


def _numbers(blocks: Bytes, integers: Integers) -> Floats:
    found = np.zeros((*blocks.shape[:-1], integers.count), np.int64)
    for part in integers.parts:
        bytes_, lows = _places(part)
        bits = blocks[..., bytes_].astype(np.int64) >> lows & (1 << part.width) - 1
        found[..., part.start : part.start + len(lows)] |= bits << part.up
    if integers.table:
        return np.array(integers.table, np.float64)[found]
    if integers.is_signed:
        found -= (found >> integers.width - 1) << integers.width
    return (found - integers.zero).astype(np.float64)


@cache
def _places(part: Bits) -> tuple[Array, Array]:
    """Return byte and lowest bit of each element of a part."""
    bytes_, lows = zip(*part.places(), strict=True)
    return np.array(bytes_), np.array(lows)


def quantize(values: npt.NDArray[np.float32], dtype: DType) -> Bytes:
    """Encode float32 rows as GGUF files have them, byte for byte.

    Returns:
        uint8 array ``(..., row_nbytes)``.

    Raises:
        UsageError: the type is plain, or finding its scales takes a search.
    """
    layout, kind = dtype.layout, encoder_of(dtype)
    if layout is None or not kind:
        raise UsageError(f"there is no encoder for {dtype}")
    x = values.reshape(*values.shape[:-1], -1, layout.elements).astype(np.float32)
    with np.errstate(all="ignore"):
        reals, found = _ENCODERS[kind](x, layout)
    blocks = np.zeros((*x.shape[:-1], layout.nbytes), np.uint8)
    for real, stored in zip(layout.reals, reals, strict=True):
        blocks[..., real.at : real.at + REAL_NBYTES[real.kind]] = stored.view(np.uint8)
    for part in layout.codes.parts:
        for i, (byte, low) in enumerate(part.places(), part.start):
            bits = found[..., i].astype(np.int64) >> part.up & (1 << part.width) - 1
            blocks[..., byte] |= (bits << low).astype(np.uint8)
    return blocks.reshape(*values.shape[:-1], -1)


def encoder_of(dtype: DType) -> str:
    """Return how ``quantize`` finds scales; an empty text for types that it cannot encode."""
    layout = dtype.layout
    if layout is None or layout.sub_scales is not None:
        return ""
    if layout.codes.table:
        return "table" if layout.scale.kind == "e8m0_half" else ""
    if layout.min is not None:
        return "affine"
    return "symmetric" if layout.codes.is_signed else "offset"


def _inverse(scale: Array) -> Array:
    return np.where(scale == 0, np.float32(0), np.float32(1) / scale)


def _symmetric(x: Array, layout: BlockLayout) -> tuple[list[Array], Array]:
    """Round to the nearest, halves away from zero, on a scale of the largest magnitude."""
    scale = np.abs(x).max(-1, keepdims=True) / np.float32(layout.codes.range[1])
    exact = x * _inverse(scale)
    floor = np.floor(np.abs(exact))
    rounded = np.sign(exact) * (floor + np.floor(2 * (np.abs(exact) - floor)))
    return [scale.astype("<f2")], rounded


def _offset(x: Array, layout: BlockLayout) -> tuple[list[Array], Array]:
    """The element of the largest magnitude gets the lowest code."""
    top = np.take_along_axis(x, np.abs(x).argmax(-1, keepdims=True), -1)
    scale = top / np.float32(-layout.codes.zero)
    found = np.trunc(x * _inverse(scale) + np.float32(layout.codes.zero + 0.5)).astype(np.int64)
    return [scale.astype("<f2")], found.clip(0, 2 * layout.codes.zero - 1)


def _affine(x: Array, layout: BlockLayout) -> tuple[list[Array], Array]:
    """The smallest element gets code 0, the largest one the highest code."""
    low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    top = layout.codes.range[1]
    scale = (high - low) / np.float32(top)
    found = np.trunc((x - low) * _inverse(scale) + np.float32(0.5)).astype(np.int64)
    return [scale.astype("<f2"), low.astype("<f2")], found.clip(0, int(top))


def _table(x: Array, layout: BlockLayout) -> tuple[list[Array], Array]:
    """The nearest number of the table, on a power of two such that the largest one fits."""
    table = np.array(layout.codes.table, np.float32)
    size = np.abs(x).max(-1, keepdims=True)
    lowest = 128 - int(np.log2(table.max()))
    stored = np.where(size > 0, np.floor(np.log2(size)) + lowest, 0).astype(np.uint8)
    scale = np.ldexp(np.float32(1), stored.astype(np.int32) - 128)
    found = np.abs(scale[..., None] * table - x[..., None]).argmin(-1)
    return [stored], found


_ENCODERS: Final[dict[str, Callable[[Array, BlockLayout], tuple[list[Array], Array]]]] = {
    "table": _table,
    "affine": _affine,
    "symmetric": _symmetric,
    "offset": _offset,
}
