"""Codes of blocks as signed bytes, four in a word: constants for ``blocks.h``, from the layouts.

Kernels that multiply bytes take a block in pieces of 32 elements. A piece is put together from the
bit fields of its layout, a word for four elements; where codes have a zero, bytes are codes less
that zero, times the power of two that fills the byte. ``q8_0``, ``q4_0`` and ``mxfp4`` have code of
their own in ``blocks.h``, which unpacks less at once.
"""

from math import gcd
from typing import Final

from ggsched.ir.blocks import Bits, BlockLayout
from ggsched.ir.dtype import MXFP4, Q4_0, Q8_0, DType
from ggsched_kernels.block_constants import KERNEL_BLOCKS, lines_of

_PIECE: Final = 32
_HALF: Final = 16
_BYTE: Final = 8
_GRANULES: Final = 16  # bytes that are loaded at once, at most

OWN_CODE: Final = (Q8_0, Q4_0, MXFP4)
"""Types that ``blocks.h`` unpacks by code of their own."""


def byte_constants(layout: BlockLayout) -> dict[str, int | str] | None:
    """Return what ``blocks.h`` has to know to make bytes of a layout; None if it cannot."""
    codes = layout.codes
    parts = layout.elements // (1 if layout.sub_scales is None else layout.sub_scales.count)
    if layout.elements % _PIECE or layout.scale.kind != "f16" or codes.is_signed:
        return None
    if codes.zero not in (0, 1 << codes.width - 1) or codes.width > _BYTE - (not codes.zero):
        return None
    if parts < _HALF or (codes.table and codes.width != 4):
        return None
    up = _BYTE - codes.width if codes.zero else 0
    fields = [_field(bits, up) for bits in codes.parts]
    if None in fields:
        return None
    return {
        "CODE_FIELDS(FIELD, SPREAD, s)": " ".join(str(field) for field in fields),
        "BYTE_FLIP": "0x80808080u" if codes.zero else "0u",
        "BYTE_UNIT": f"{2.0**-up}f",
        "BYTE_LARGEST": int(max(map(abs, codes.range)) * 2**up),
        "PARTS": max(1, _PIECE // parts),
        "GRANULE": granule(layout),
    }


def granule(layout: BlockLayout) -> int:
    """Return how many bytes can be loaded at once from blocks that begin at multiples of that."""
    return gcd(_GRANULES, layout.nbytes, *(bits.at for bits in layout.codes.parts))


def _field(bits: Bits, up: int) -> str | None:
    """Return the use of a macro that adds a bit field of piece s to its words."""
    if bits.start or bits.count % _PIECE:
        return None
    if (bits.run, bits.width, bits.low) == (1, 1, 0):
        return f"SPREAD({bits.at} + (s) * 4, {bits.up + up})"
    each = bits.run * ((_BYTE - bits.low) // bits.width)
    if each % _PIECE or (bits.run != _HALF and bits.run % _PIECE):
        return None  # a piece is not in neighbouring words, or not one or two to a byte
    first = f"(s) * {_PIECE}"
    at = f"{bits.at} + {first} / {each} * {bits.run} + {first} % {bits.run}"
    shift = f"{bits.low} + {first} % {each} / {bits.run} * {bits.width}"
    words, mask = min(bits.run, _PIECE) // 4, ((1 << bits.width) - 1) * 0x01010101
    return f"FIELD({at}, {words}, {shift}, {bits.width}, {mask:#010x}u, {bits.up + up})"


_KNOWN: Final = {
    dtype: constants
    for dtype in KERNEL_BLOCKS
    if dtype not in OWN_CODE
    and dtype.layout is not None
    and (constants := byte_constants(dtype.layout)) is not None
}

BYTE_BLOCKS: Final = (*OWN_CODE, *_KNOWN)
"""Types whose blocks become bytes."""


def alignment_of(dtype: DType) -> int:
    """Return what kernels for bytes want the begins of rows to be multiples of."""
    return int(_KNOWN[dtype]["GRANULE"]) if dtype in _KNOWN else 1


def sums_of_piece(dtype: DType) -> int:
    """Return how many sums of elements of x a piece is multiplied with, for what is added."""
    has_min = dtype.layout is not None and dtype.layout.min is not None
    return int(_KNOWN[dtype]["PARTS"]) if has_min else 0


def byte_constants_text() -> str:
    """Return the constants of all types, as text of a header."""
    return "\n".join(lines_of(_KNOWN)) + "\n"
