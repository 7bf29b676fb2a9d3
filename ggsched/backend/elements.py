"""Elements of operands as the references of ops take them, and results as storages hold them.

The oracle, the simulator and devices that compute by references share these conversions.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ggsched.backend.arrays import numpy_dtype
from ggsched.backend.packed import decode_blocks, quantize
from ggsched.errors import UsageError
from ggsched.ir.dtype import BF16, F16, F32, I32, Q8_0, DType
from ggsched.ops.record import OpDef, Params
from ggsched.ops.rows import check_ids

Array = npt.NDArray[Any]


def computed(op: OpDef, operands: Sequence[Array], params: Params) -> Array:
    """Return what the reference of an op makes of operands and all of its parameters.

    Raises:
        UsageError: an id out of range, or the reference of a user-defined op changes its operands.
    """
    if not op.version:
        return np.asarray(op.reference(*operands, **params))
    copies = [array.copy() for array in operands]
    result = np.asarray(op.reference(*copies, **params))
    if any((a != b).any() for a, b in zip(copies, operands, strict=True) if not np.isnan(a).any()):
        raise UsageError("the reference writes to its operands", where=f"op {op.name!r}")
    return result


def set_rows(place: Array, source: Array, ids: Array, dtype: DType) -> None:
    """Write rows to where ids say: what ``set_rows`` does.

    Args:
        place: The storage, as ``decoded`` takes it.
        source: float64 rows.
        ids: int64, one for each row.
        dtype: Element type of ``place``.

    Raises:
        UsageError: an id is out of range or occurs twice.
    """
    check_ids(ids, place.shape[0])
    if len(set(ids.tolist())) != ids.size:
        raise UsageError("set_rows was given one row twice", why=f"ids {ids.tolist()}")
    place[ids] = encode(source, dtype)


def decoded(stored: Array, dtype: DType) -> Array:
    """Return stored elements as a fresh C-contiguous array of type ``wide``.

    Args:
        stored: Elements in the type of ``numpy_dtype``; blocks as rows of bytes. Any strides.
        dtype: Element type.
    """
    shape = stored.shape
    if dtype.is_quantized:
        shape = (*shape[:-1], shape[-1] // dtype.block_nbytes * dtype.block)
    if 0 in shape or not (dtype.is_quantized or dtype is BF16):
        return stored.astype(wide(dtype), order="C").reshape(shape)
    raw = np.frombuffer(stored.tobytes(), np.uint8).reshape(-1, dtype.block_nbytes)
    return decode_blocks(raw, dtype).reshape(shape)


def wide(dtype: DType) -> np.dtype[Any]:
    """Return the type that the oracle computes in: float64, int64 for i32, others as they are."""
    if dtype.kind == "float":
        return np.dtype(np.float64)
    return np.dtype(np.int64) if dtype is I32 else numpy_dtype(dtype)


def as_library_has_them(op: str, loaded: Sequence[Array], dtypes: Sequence[DType]) -> list[Array]:
    """Return i32 operands of ops of a library in 32 bits, in which these compute and wrap."""
    is_narrow = [dtype is I32 and "." in op for dtype in dtypes]
    return [a.astype(np.int32) if n else a for a, n in zip(loaded, is_narrow, strict=True)]


def encode(value: Array, dtype: DType) -> Array:
    """Round to the type of a storage: floats to f32 first, as a device's arithmetic would.

    Blocks of q8_0 are those of GGUF files, but for two kinds: one that holds a number that is not
    finite is NaN throughout, and one whose scale f16 rounds to zero holds zeros.
    """
    if dtype.kind != "float" or dtype.name == "f64":
        return value.astype(numpy_dtype(dtype))
    single = value.astype(np.float32)
    if dtype is F32:
        return single
    if dtype is F16:
        return single.astype(np.float16)
    if dtype is Q8_0:
        return _blocks_of(single)
    assert dtype is BF16  # other quantised tensors are never written
    bits = single.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to nearest, ties to even
    return np.where(np.isnan(single), 0x7FC0, rounded).astype(np.uint16)


def _blocks_of(values: Array) -> Array:
    """Return rows of f32 as rows of q8_0."""
    rows = quantize(values, Q8_0).reshape(*values.shape[:-1], -1, Q8_0.block_nbytes)
    parts = values.reshape(*values.shape[:-1], -1, Q8_0.block)
    rows[..., 2:][rows[..., :2].copy().view("<f2")[..., 0] == 0] = 0
    rows[~np.isfinite(parts).all(-1)] = (0, 0x7E, *(0,) * Q8_0.block)
    return rows.reshape(*values.shape[:-1], -1)
