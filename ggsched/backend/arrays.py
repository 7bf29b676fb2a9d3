"""Numpy views of operands over host bytes, for plug-ins that compute with numpy."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ggsched.backend.program import Operand
from ggsched.backend.protocols import HostMemory
from ggsched.errors import UsageError
from ggsched.ir.dtype import DType

Array = npt.NDArray[Any]

BYTE: Final = np.dtype(np.uint8)


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """Return the type of the arrays that ``bind`` gives; bf16 as its bits."""
    return np.dtype(dtype.host)


def numpy_shape(dtype: DType, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the arrays that ``bind`` gives: quantised ones end in row_nbytes."""
    if not dtype.is_quantized:
        return shape
    return (*shape[:-1], dtype.row_nbytes(shape[-1])) if shape else (dtype.block_nbytes,)


def bind(operand: Operand, window: HostMemory) -> Array:
    """Return a numpy view of an operand over its own bytes.

    Args:
        operand: What to bind.
        window: The operand's bounding byte range, ``operand.nbytes`` long. The view can be
            written if the window can.

    Returns:
        An array of the operand's shape and strides and of numpy's type; bf16 as uint16;
        quantised types as uint8 rows ``(..., row_nbytes)``.

    Raises:
        UsageError: the window is too short, or a quantised operand is strided on its last axis.
    """
    dtype = operand.dtype
    kind, shape = numpy_dtype(dtype), numpy_shape(dtype, operand.shape)
    if 0 in shape:
        return np.empty(shape, kind)
    strides = operand.strides
    if dtype.is_quantized:
        if strides and strides[-1] != dtype.block_nbytes:
            raise UsageError(
                f"blocks {strides[-1]} bytes apart",
                why=f"{dtype} operands are contiguous along the last axis",
                hint="copy the tensor with cont()",
            )
        strides = (*strides[:-1], 1)
    try:
        return np.ndarray(shape, kind, window, 0, strides)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{dtype}{list(operand.shape)} does not fit {window.nbytes} bytes", why=str(error)
        ) from error


def bind_host(operand: Operand) -> Array:
    """Return a numpy view of an operand of a device whose memory is host memory (BUF-4)."""
    memory = operand.buffer.host_view()
    return bind(operand, memory[operand.offset : operand.offset + operand.nbytes])


def aligned_bytes(nbytes: int, alignment: int) -> npt.NDArray[np.uint8]:
    """Return a fresh byte array of undefined content that starts at a multiple of ``alignment``."""
    return _aligned(np.empty(nbytes + alignment, np.uint8), nbytes, alignment)


def aligned_zeros(nbytes: int, alignment: int) -> npt.NDArray[np.uint8]:
    """Return zeros like ``aligned_bytes``; a large range takes no memory until it is touched."""
    return _aligned(np.zeros(nbytes + alignment, np.uint8), nbytes, alignment)


def _aligned(raw: npt.NDArray[np.uint8], nbytes: int, alignment: int) -> npt.NDArray[np.uint8]:
    start = -raw.ctypes.data % alignment
    return raw[start : start + nbytes]
