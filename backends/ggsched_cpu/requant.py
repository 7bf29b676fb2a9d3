"""f32 rows in the types of KV caches, by numpy: what ``set_rows`` stores."""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from ggsched.backend.arrays import Array
from ggsched.ir.dtype import BF16, Q8_0

Encoder = Callable[[Array], Array]

_NAN: Final = np.frombuffer(b"\x00\x7e" + bytes(Q8_0.block), np.uint8)
_TOP: Final = np.float32(127)


def _bf16(rows: Array) -> Array:
    """Round to nearest, ties to even."""
    bits = np.ascontiguousarray(rows).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(rows), 0x7FC0, rounded).astype(np.uint16)


def _q8_0(rows: Array) -> Array:
    """Round halves away from zero, on a scale of the largest magnitude of a block."""
    x = np.ascontiguousarray(rows).reshape(rows.shape[0], -1, Q8_0.block)
    scale = np.abs(x).max(-1, keepdims=True) / _TOP
    stored = scale.astype(np.float16)
    is_zero = stored == 0
    exact = np.abs(x) * np.where(is_zero, 0, np.float32(1) / np.where(is_zero, 1, scale))
    whole = np.floor(exact)
    codes = np.copysign(np.minimum(whole + (exact - whole >= 0.5), _TOP), x)
    blocks = np.empty((*x.shape[:-1], Q8_0.block_nbytes), np.uint8)
    blocks[..., :2] = stored.view(np.uint8)
    blocks[..., 2:] = np.nan_to_num(codes, nan=0.0).astype(np.int8).view(np.uint8)
    blocks[~np.isfinite(x).all(-1)] = _NAN
    return blocks.reshape(rows.shape[0], -1)


ENCODERS: Final[Mapping[str, Encoder]] = {BF16.name: _bf16, Q8_0.name: _q8_0}
"""By type; to f32 and f16 numpy converts where it assigns."""
