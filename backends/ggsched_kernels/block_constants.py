"""Constants of block layouts for ``weights.h``, from the declarations of the types.

``weights.h`` reads two kinds of blocks. Those of 32 elements with one scale are described by the
places of their fields. Blocks of parts, with a scale for each part or with a table of integers, are
described by C expressions for the integers, which are made here from their bit fields.

A type whose layout is of neither kind has no kernels: devices that use these sources do not declare
it, and placement puts what needs it on a device that does.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ggsched.ir.blocks import Bits, BlockLayout, Integers, Real
from ggsched.ir.dtype import FLOAT_DTYPES, MXFP4, QUANTIZED_DTYPES, DType

_ELEMENTS: Final = 32
_VECTOR: Final = 8  # elements that kernels load at once, at most
_TABLE: Final = 16

Constants = dict[str, int | str]


def block_constants(layout: BlockLayout) -> Constants | None:
    """Return what ``weights.h`` has to know of a layout; None if it cannot read it."""
    plain = _plain_block(layout)
    return _block_of_parts(layout) if plain is None else plain


def _plain_block(layout: BlockLayout) -> Constants | None:
    codes, scale = layout.codes, layout.scale
    first, *rest = codes.parts
    found: Constants = {
        "BLOCK_ELEMENTS": _ELEMENTS,
        "BLOCK_NBYTES": layout.nbytes,
        "CODES_AT": first.at,
        "SCALE_AT": scale.at,
    }
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


# --- blocks of parts ------------------------------------------------------------------------------


def _block_of_parts(layout: BlockLayout) -> Constants | None:
    codes, scale = layout.codes, layout.scale
    parts = layout.sub_scales.count if layout.sub_scales is not None else 1
    part = layout.elements // parts
    if not (_has_vectors(codes) and codes.count % _ELEMENTS == 0 and part % _VECTOR == 0):
        return None
    if scale.kind != "f16" or part > _ELEMENTS or _ELEMENTS % part:
        return None
    if not all(map(_has_like_ranges, (layout.sub_scales, layout.sub_mins))):
        return None
    found: Constants = {
        "BLOCK_ELEMENTS": layout.elements,
        "BLOCK_NBYTES": layout.nbytes,
        "PART_ELEMENTS": part,
        "SCALE_AT": scale.at,
        "CODES(LOAD, block, j)": " | ".join(_vector(bits) for bits in codes.parts),
        "ZERO": codes.zero,
    }
    if codes.table:
        if len(codes.table) != _TABLE or any(not _is_i8(x) for x in codes.table):
            return None
        for i, word in enumerate(_words([int(x) for x in codes.table])):
            found[f"TABLE_{i}"] = f"{word:#x}"
    if layout.sub_scales is not None:
        found["PART_SCALE(block, s)"] = _integer(layout.sub_scales)
    if layout.min is None:
        return found
    if layout.min.kind != "f16" or layout.sub_mins is None or layout.sub_mins.count != parts:
        return None
    found["MIN_AT"] = layout.min.at
    sign = "" if layout.min.sign > 0 else "-"
    return {**found, "PART_MIN(block, s)": f"{sign}({_integer(layout.sub_mins)})"}


def _has_vectors(codes: Integers) -> bool:
    """Whether the bits of neighbouring elements lie in neighbouring bytes, at the same place."""
    whole = all((bits.start, bits.count) == (0, codes.count) for bits in codes.parts)
    return whole and not codes.is_signed and all(bits.run % _VECTOR == 0 for bits in codes.parts)


def _has_like_ranges(integers: Integers | None) -> bool:
    """Whether integers of all ranges are put together from the same bits, wherever these lie."""
    if integers is None:
        return True
    return len({tuple((b.width, b.up) for b in parts) for parts in _ranges(integers)}) == 1


def _ranges(integers: Integers) -> list[list[Bits]]:
    """Return the bit fields of each range of integers, in order."""
    ranges: dict[int, list[Bits]] = {}
    for bits in integers.parts:
        ranges.setdefault(bits.start, []).append(bits)
    return [parts for _, parts in sorted(ranges.items())]


def _vector(bits: Bits) -> str:
    """Return the C expression of some bits of the elements from j on."""
    return _field(bits, "(j)", "LOAD(block + {})")


def _integer(integers: Integers) -> str:
    """Return the C expression of integer s, which depends on where s lies if parts differ."""
    if integers.is_signed:
        (bits,) = integers.parts
        return f"(int)(i8)(block)[{bits.at} + (s)]"
    each = " | ".join(map(_chosen_field, zip(*_ranges(integers), strict=True)))
    return f"(({each}) - {integers.zero})"


def _chosen_field(term: tuple[Bits, ...]) -> str:
    """Return the C expression of some bits of integer s, whose place depends on where s lies.

    Places are chosen, not values: for a lane that reads the same integer of many blocks they are
    constants, and there is nothing to branch on.
    """
    places = [_place(bits, f"((s) - {bits.start})" if bits.start else "(s)") for bits in term]
    where, shift = places[-1]
    for bits, (other, by) in zip(reversed(term[:-1]), reversed(places[:-1]), strict=True):
        stop = bits.start + bits.count
        where, shift = f"((s) < {stop} ? {other} : {where})", f"((s) < {stop} ? {by} : {shift})"
    bits = term[0]
    return _taken(bits, f"(int)(block)[{where}]", shift)


def _field(bits: Bits, index: str, load: str) -> str:
    """Return the C expression of the bits of one integer, by its index; see ``Bits.places``."""
    where, shift = _place(bits, index)
    return _taken(bits, load.format(where), shift)


def _place(bits: Bits, index: str) -> tuple[str, str]:
    """Return the C expressions of the byte of an integer, and of its lowest bit there."""
    each = bits.run * ((8 - bits.low) // bits.width)
    where = f"{bits.at} + {index} / {each} * {bits.run}"
    where += f" + {index} % {bits.run}" if bits.run > 1 else ""
    return where, f"{bits.low} + {index} % {each} / {bits.run} * {bits.width}"


def _taken(bits: Bits, loaded: str, shift: str) -> str:
    mask = (1 << bits.width) - 1
    return f"((({loaded} >> (u8)({shift})) & (u8){mask}) << (u8){bits.up})"


def _is_i8(x: float) -> bool:
    return x == int(x) and -128 <= x <= 127


def _words(table: Sequence[int]) -> Iterator[int]:
    for i in range(0, len(table), 4):
        yield int.from_bytes(bytes(x & 255 for x in table[i : i + 4]), "little")


# --- text -----------------------------------------------------------------------------------------


def constants_text() -> str:
    """Return the constants of every type that kernels can read, as text of a header."""
    return "\n".join(lines_of(_KNOWN)) + "\n"


def lines_of(known: Mapping[DType, Mapping[str, object]]) -> Iterator[str]:
    """Yield the constants of types, of which a kernel's defines choose one."""
    for i, (dtype, constants) in enumerate(known.items()):
        yield f"{'#elif' if i else '#if'} defined(W_{dtype.name.upper()})"
        yield from (f"#define {name} {value}" for name, value in constants.items())
    yield "#endif"


_KNOWN: Final[dict[DType, Constants]] = {
    dtype: constants
    for dtype in QUANTIZED_DTYPES
    if dtype.layout is not None and (constants := block_constants(dtype.layout)) is not None
}

KERNEL_BLOCKS: Final = tuple(_KNOWN)
"""Quantised types that kernels can read."""

KERNEL_DTYPES: Final = tuple(t for t in FLOAT_DTYPES if not t.is_quantized or t in _KNOWN)
"""Float types that kernels can read."""
