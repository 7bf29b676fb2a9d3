"""Constants of block layouts for ``weights.h``, from the declarations of the types.

A type whose layout is not one of those that ``weights.h`` can read has no kernels: devices that use
these sources do not declare it, and placement puts what needs it on a device that does.
"""

from collections.abc import Iterator
from typing import Final

from ggsched.ir.blocks import Bits, BlockLayout, Real
from ggsched.ir.dtype import FLOAT_DTYPES, MXFP4, QUANTIZED_DTYPES, DType

_ELEMENTS: Final = 32


def block_constants(layout: BlockLayout) -> dict[str, int] | None:
    """Return what ``weights.h`` has to know of a layout; None if it cannot read it."""
    codes, scale = layout.codes, layout.scale
    first, *rest = codes.parts
    found = {"BLOCK_NBYTES": layout.nbytes, "CODES_AT": first.at, "SCALE_AT": scale.at}
    if layout.elements != _ELEMENTS or layout.sub_scales or layout.sub_mins:
        return None
    if codes.is_signed:
        if rest or codes.zero or first != Bits(first.at, _ELEMENTS, width=8):
            return None
        found["CODES_I8"] = 1
    elif first != Bits(first.at, _ELEMENTS, width=4, run=16):
        return None
    if rest:
        (fifth,) = rest
        if fifth != Bits(fifth.at, _ELEMENTS, width=1, up=4):
            return None
        found["FIFTH_AT"] = fifth.at
    if codes.table or scale.kind == "e8m0_half":
        assert MXFP4.layout is not None
        if (codes.table, scale.kind) != (MXFP4.layout.codes.table, "e8m0_half"):
            return None
        found["CODES_E2M1"] = 1
    if layout.min is not None:
        if layout.min != Real(layout.min.at):
            return None
        found["MIN_AT"] = layout.min.at
    return {**found, "ZERO": codes.zero}


def constants_text() -> str:
    """Return the constants of every type that kernels can read, as text of a header."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    for i, (dtype, constants) in enumerate(_KNOWN.items()):
        yield f"{'#elif' if i else '#if'} defined(W_{dtype.name.upper()})"
        yield from (f"#define {name} {value}" for name, value in constants.items())
    yield "#endif"


_KNOWN: Final[dict[DType, dict[str, int]]] = {
    dtype: constants
    for dtype in QUANTIZED_DTYPES
    if dtype.layout is not None and (constants := block_constants(dtype.layout)) is not None
}

KERNEL_BLOCKS: Final = tuple(_KNOWN)
"""Quantised types that kernels can read."""

KERNEL_DTYPES: Final = tuple(t for t in FLOAT_DTYPES if not t.is_quantized or t in _KNOWN)
"""Float types that kernels can read."""
