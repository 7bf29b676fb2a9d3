"""Packed element types as f32. The layouts are those of GGUF files."""

import torch
from torch import Tensor

from ggsched.ir.dtype import MXFP4, Q4_0, Q8_0, DType

BLOCKS = (Q8_0, Q4_0, MXFP4)
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def decode(packed: Tensor, dtype: DType) -> Tensor:
    """Return f32 elements; the tensor itself if it has them."""
    if not dtype.is_quantized:
        return packed.float()
    blocks = packed.reshape(*packed.shape[:-1], -1, dtype.block_nbytes)
    if dtype is Q8_0:
        values = blocks[..., 2:].view(torch.int8).float() * _scales(blocks)
    elif dtype is Q4_0:
        values = (_halves(blocks[..., 2:]).float() - 8.0) * _scales(blocks)
    else:
        assert dtype is MXFP4
        numbers = torch.tensor(_E2M1)[_halves(blocks[..., 1:]).int()]
        # In two steps: the smallest and the largest power of two are not f32 by themselves.
        exponents = blocks[..., :1].int() - 127
        half = exponents // 2
        values = torch.ldexp(torch.ldexp(numbers, half), exponents - half)
    return values.reshape(*packed.shape[:-1], -1)


def _scales(blocks: Tensor) -> Tensor:
    return blocks[..., :2].contiguous().view(torch.float16).float()


def _halves(codes: Tensor) -> Tensor:
    """Spread the bytes of a block: low halves are elements 0..15, high halves 16..31."""
    return torch.cat([codes & 0x0F, codes >> 4], dim=-1)
