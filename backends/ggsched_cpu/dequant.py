"""Packed element types as f32, vectorised over blocks, by their layouts (``ggsched.ir.blocks``).

Each decoder takes rows of packed elements and a C-contiguous f32 array (rows, n) that it fills.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ggsched.ir.blocks import REAL_NBYTES, Bits, BlockLayout, Integers, Real
from ggsched.ir.dtype import BF16, F16, F32, MXFP4, QUANTIZED_DTYPES, DType

Array = npt.NDArray[Any]
Decoder = Callable[[Array, Array], None]

MXFP4_SCALE: Final = Real(0, "e8m0_half")


def decoder(dtype: DType) -> Decoder:
    """Return the decoder of a float type."""
    return _DECODERS[dtype.name]


def _f16(packed: Array, out: Array) -> None:
    """Move the bits into place and let one product mend the exponent.

    Five times as fast as numpy's conversion. It is exact for all numbers, subnormal ones too, but
    not for infinities, which numpy then does.
    """
    halves = packed.view(np.int16)
    if halves.size and (halves & 0x7FFF).max() >= 0x7C00:
        np.copyto(out, packed)
        return
    bits = out.view(np.int32)
    # Sign extension puts copies of the sign above the exponent; the mask clears all but one.
    np.copyto(bits, halves)
    np.left_shift(bits, 13, bits)
    np.bitwise_and(bits, np.int32(~0x70000000), bits)
    np.multiply(out, np.float32(2.0**112), out)


def _bf16(packed: Array, out: Array) -> None:
    np.left_shift(packed, 16, out.view(np.uint32), dtype=np.uint32)


def _blocks(packed: Array, nbytes: int) -> Array:
    """Return rows of bytes as blocks (rows, blocks, nbytes)."""
    return packed.reshape(packed.shape[0], packed.shape[-1] // nbytes, nbytes)


def reals(blocks: Array, real: Real) -> Array:
    """Return a number of each block as f32 (..., 1)."""
    stored = blocks[..., real.at : real.at + REAL_NBYTES[real.kind]]
    if real.kind == "f16":
        values: Array = stored.view(np.float16).astype(np.float32)
    else:
        values = np.ldexp(np.float32(1.0), stored.astype(np.int32) - 128)
    return values if real.sign > 0 else -values


def unpacked(blocks: Array, integers: Integers) -> Iterator[tuple[Array, slice]]:
    """Yield the integers as they are stored, as small as they are, with their places in the block.

    Integers of one bit field are views and shifts of whole runs of bytes; other fields are put
    together one by one.
    """
    first = integers.parts[0]
    if integers.is_signed and first.width == 8:
        yield blocks[..., first.at : first.at + first.count].view(np.int8), slice(None)
    elif len(integers.parts) == 1 and first.run > 1 and first.low == 0:
        bits = first.width
        each = first.run * (8 // bits)
        for i in range(0, first.count, first.run):
            begin = first.at + i // each * first.run
            stored = blocks[..., begin : begin + first.run]
            shift = i % each // first.run * bits
            low = stored >> shift if shift else stored
            codes = low & ((1 << bits) - 1) if shift + bits < 8 else low
            yield codes, slice(i, i + first.run)
    else:
        yield _gathered(blocks, integers), slice(None)


def numbers(blocks: Array, integers: Integers) -> Array:
    """Return the numbers that integers stand for, as f32 (..., count)."""
    values = np.empty((*blocks.shape[:-1], integers.count), np.float32)
    fill(blocks, integers, values)
    return values


def fill(blocks: Array, integers: Integers, values: Array) -> None:
    """Write the numbers that integers stand for."""
    for codes, place in unpacked(blocks, integers):
        if integers.table:
            values[..., place] = np.array(integers.table, np.float32)[codes]
        else:
            values[..., place] = codes
    if integers.zero:
        np.subtract(values, np.float32(integers.zero), values)


@cache
def _places(part: Bits) -> tuple[Array, Array]:
    where, shift = np.array(list(part.places()), np.uint8).T
    return where, shift


def _gathered(blocks: Array, integers: Integers) -> Array:
    found = np.zeros((*blocks.shape[:-1], integers.count), np.uint8)
    for part in integers.parts:
        where, shift = _places(part)
        bits = blocks[..., where] >> shift & ((1 << part.width) - 1)
        found[..., part.start : part.start + part.count] |= bits << part.up
    return found.view(np.int8) if integers.is_signed else found


def decode_with(layout: BlockLayout) -> Decoder:
    """Return the decoder of a layout."""
    nbytes, elements = layout.nbytes, layout.elements

    def decode(packed: Array, out: Array) -> None:
        blocks = _blocks(packed, nbytes)
        values = out.reshape(*blocks.shape[:2], elements)
        codes = layout.codes
        factors = reals(blocks, layout.scale)
        if layout.sub_scales is not None:
            factors = _each(factors * numbers(blocks, layout.sub_scales), layout)
        if codes.is_signed and not codes.zero:
            for stored, _ in unpacked(blocks, codes):
                np.multiply(stored, factors, values)
        else:
            fill(blocks, codes, values)
            np.multiply(values, factors, values)
        if layout.min is not None:
            added = reals(blocks, layout.min)
            if layout.sub_mins is not None:
                added = _each(added * numbers(blocks, layout.sub_mins), layout)
            np.add(values, added, values)

    return decode


def _each(factors: Array, layout: BlockLayout) -> Array:
    """Return a factor for each element, from one for each of some equal parts of the block."""
    return np.repeat(factors, layout.elements // factors.shape[-1], axis=-1)


def _mxfp4(packed: Array, out: Array) -> None:
    """Decode by bit operations, which are quicker than a table."""
    blocks = _blocks(packed, MXFP4.block_nbytes)
    values = out.reshape(*blocks.shape[:2], MXFP4.block)
    scales = reals(blocks, MXFP4_SCALE)
    for place, codes in ((slice(16), packed << 4), (slice(16, None), packed & 0xF0)):
        doubled = _blocks(e2m1_doubled(codes), MXFP4.block_nbytes)[..., 1:]
        np.multiply(doubled, scales, values[..., place])


def e2m1_doubled(high_halves: Array) -> Array:
    """Return twice the values of the e2m1 numbers in the upper halves of bytes.

    The bits of a number go where an f32 has its sign, the end of its exponent and the start of
    its fraction; one product then mends the exponent, exactly as for f16.
    """
    bits = np.left_shift(high_halves.view(np.int8), 18, dtype=np.int32)
    np.bitwise_and(bits, np.int32(~0x7E3FFFFF), bits)
    values: Array = bits.view(np.float32)
    return np.multiply(values, np.float32(2.0**127), values)


def _plain(packed: Array, out: Array) -> None:
    np.copyto(out, packed)


_DECODERS: Final[Mapping[str, Decoder]] = {
    F32.name: _plain,
    F16.name: _f16,
    BF16.name: _bf16,
    **{t.name: decode_with(t.layout) for t in QUANTIZED_DTYPES if t.layout is not None},
    MXFP4.name: _mxfp4,
}
