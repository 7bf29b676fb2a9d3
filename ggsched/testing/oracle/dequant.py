"""Decode packed element types, slowly and plainly.

Written from the layouts of GGUF files (ggml's ``block_q8_0``, ``block_q4_0``, ``block_mxfp4``)
and shared with no backend, so that a mistake here and a mistake there do not cancel.
"""

from collections.abc import Callable
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ggsched.errors import UsageError
from ggsched.ir.dtype import BF16, F16, F32, I32, MXFP4, Q4_0, Q8_0, DType

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]

# The type in which numpy holds one element (bf16: its bits; quantised: the bytes of the blocks).
HOST_DTYPE: Final[dict[str, np.dtype[Any]]] = {
    F32.name: np.dtype("<f4"),
    F16.name: np.dtype("<f2"),
    BF16.name: np.dtype("<u2"),
    I32.name: np.dtype("<i4"),
    Q8_0.name: np.dtype("u1"),
    Q4_0.name: np.dtype("u1"),
    MXFP4.name: np.dtype("u1"),
}

# The sixteen values of an e2m1 number, sign in the highest bit.
_E2M1: Final = (
    0.0,
    0.5,
    1.0,
    1.5,
    2.0,
    3.0,
    4.0,
    6.0,
    -0.0,
    -0.5,
    -1.0,
    -1.5,
    -2.0,
    -3.0,
    -4.0,
    -6.0,
)


def host_shape(dtype: DType, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the numpy array that holds a contiguous tensor.

    That is ``shape`` itself, and ``(..., row_nbytes)`` for quantised types.
    """
    if not dtype.is_quantized:
        return shape
    return (*shape[:-1], dtype.row_nbytes(shape[-1])) if shape else (dtype.block_nbytes,)


def dequantize(raw: Bytes, dtype: DType, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Decode the packed bytes of a contiguous tensor.

    Args:
        raw: uint8 array of any shape, holding the bytes of the tensor in order.
        dtype: Any float type (f32, f16, bf16, q8_0, q4_0, mxfp4).
        shape: Shape of the tensor in elements.

    Returns:
        A fresh float32 array of ``shape``.

    Raises:
        UsageError: ``raw`` is not uint8, has another number of bytes, or ``dtype`` is no float.
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
    if dtype.name not in _DECODE:
        raise UsageError(f"{dtype} is no float type")
    blocks = np.ascontiguousarray(raw).reshape(-1, dtype.block_nbytes)
    with np.errstate(all="ignore"):
        return decode_blocks(blocks, dtype).astype(np.float32).reshape(shape)


def decode_blocks(blocks: Bytes, dtype: DType) -> npt.NDArray[np.float64]:
    """Decode uint8 blocks (..., block_nbytes) to float64 elements (..., block)."""
    return _DECODE[dtype.name](np.ascontiguousarray(blocks))


def _plain(dtype: DType) -> Callable[[Bytes], npt.NDArray[np.float64]]:
    return lambda blocks: blocks.view(HOST_DTYPE[dtype.name]).astype(np.float64)


def _bf16(blocks: Bytes) -> npt.NDArray[np.float64]:
    bits = blocks.view("<u2").astype(np.uint32) << 16  # the upper half of an f32
    return bits.view(np.float32).astype(np.float64)


def _nibbles(packed: Bytes) -> npt.NDArray[np.uint8]:
    """Elements 0..15 sit in the low halves of the 16 bytes, elements 16..31 in the high ones."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=-1)


def _q8_0(blocks: Bytes) -> npt.NDArray[np.float64]:
    scale = np.ascontiguousarray(blocks[..., :2]).view("<f2").astype(np.float64)
    return scale * np.ascontiguousarray(blocks[..., 2:]).view(np.int8).astype(np.float64)


def _q4_0(blocks: Bytes) -> npt.NDArray[np.float64]:
    scale = np.ascontiguousarray(blocks[..., :2]).view("<f2").astype(np.float64)
    return scale * (_nibbles(blocks[..., 2:]).astype(np.float64) - 8.0)


def _mxfp4(blocks: Bytes) -> npt.NDArray[np.float64]:
    exponent = blocks[..., :1].astype(np.int64) - 127
    values = np.array(_E2M1, np.float64)[_nibbles(blocks[..., 1:])]
    return np.ldexp(values, exponent)


_DECODE: Final[dict[str, Callable[[Bytes], npt.NDArray[np.float64]]]] = {
    F32.name: _plain(F32),
    F16.name: _plain(F16),
    BF16.name: _bf16,
    Q8_0.name: _q8_0,
    Q4_0.name: _q4_0,
    MXFP4.name: _mxfp4,
}
