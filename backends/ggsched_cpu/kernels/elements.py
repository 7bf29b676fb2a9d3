"""Elements of weights as vectors: plain types by conversion, packed types by their layouts."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from ggsched.ir.blocks import Bits, BlockLayout, Integers, Real
from ggsched.ir.dtype import BF16, F16, F32, QUANTIZED_DTYPES, DType
from ggsched_cpu.kernels.emit import Builder, Value, constant, vector_of

PLAIN: Final = (F32, F16, BF16)
COMPILED: Final = (*PLAIN, *QUANTIZED_DTYPES)
"""Types of weights with kernels."""


_GROUP: Final = 8
"""Bytes that are shifted together."""

E8M0_HALF: Final = tuple(2.0 ** (n - 128) for n in range(256))
"""By byte. Looking them up takes two instructions, computing them eight."""


MAX_UNSIGNED: Final = 128
"""Largest byte of which two products with 127 fit into 16 bits."""


def is_compiled(dtype: DType) -> bool:
    """Whether there are kernels for weights of a type."""
    return dtype in COMPILED


def load_f32(b: Builder, dtype: DType, pointer: Value, lanes: int) -> Value:
    """Read elements of a plain type that follow each other, as f32."""
    if dtype is F32:
        return b.load(vector_of(lanes, "float"), pointer, 4)
    if dtype is F16:
        return b.cast("fpext", b.load(vector_of(lanes, "half"), pointer, 2), "float")
    bits = b.cast("zext", b.load(vector_of(lanes, "i16"), pointer, 2), "i32")
    return b.cast("bitcast", b.binary("shl", bits, 16), "float")


def store_f32(b: Builder, dtype: DType, value: Value, pointer: Value) -> None:
    """Write f32 as a plain type."""
    if dtype is F16:
        b.store(b.cast("fptrunc", value, "half"), pointer, 2)
    elif dtype is BF16:
        bits = b.cast("bitcast", value, "i32")
        odd = b.binary("and", b.binary("lshr", bits, 16), 1)
        rounded = b.binary("lshr", b.add(bits, b.add(odd, 0x7FFF)), 16)
        is_nan = b.compare("uno", value, value)
        kept = b.select(is_nan, b.same(rounded, 0x7FC0), rounded)
        b.store(b.cast("trunc", kept, "i16"), pointer, 2)
    else:
        b.store(value, pointer, 4)


def load_real(b: Builder, pointer: Value, real: Real) -> Value:
    """Read a number of a block as f32, without its sign."""
    at = b.offset(pointer, real.at)
    if real.kind == "f16":
        return b.cast("fpext", b.load("half", at), "float")
    n = b.cast("zext", b.load("i8", at), "i64")
    return b.load("float", b.offset(b.table("e8m0_half", E8M0_HALF), b.mul(n, 4)), 4)


@dataclass(frozen=True, slots=True)
class Coding:
    """How the codes of a layout become bytes: value = byte - zero.

    Attributes:
        zero: What is subtracted.
        is_signed: Whether the bytes are signed; if not, they are 0 to ``top``.
        top: The largest byte.
    """

    zero: int
    is_signed: bool
    top: int


def coding(layout: BlockLayout) -> Coding:
    """Return how ``code_bytes`` gives the codes of a layout.

    Tables with negative numbers are shifted, so that the bytes are unsigned, unless products of two
    of them with activations would then leave 16 bits.
    """
    codes = layout.codes
    if codes.table:
        low = -int(min(codes.table))
        top = int(max(codes.table)) + low
        return Coding(0, True, 127) if top > MAX_UNSIGNED else Coding(low, False, top)
    if codes.is_signed:
        return Coding(codes.zero, True, 127)
    return Coding(codes.zero, False, (1 << codes.width) - 1)


def code_bytes(
    b: Builder, places: Sequence[Value], layout: BlockLayout, first: int, count: int
) -> Value:
    """Read codes ``first`` to ``first + count`` of some blocks as bytes, see ``coding``."""
    total: Value | None = None
    for part in layout.codes.parts:
        value = _field(b, places, part, first, count)
        total = value if total is None else b.binary("or", total, value)
    assert total is not None
    table = layout.codes.table
    if not table:
        return total
    zero = coding(layout).zero
    return look_up(b, [int(n) + zero for n in table], total)


def _field(b: Builder, places: Sequence[Value], part: Bits, first: int, count: int) -> Value:
    """Read a part of some codes as bytes, shifted to where it belongs."""
    assert part.start == 0
    wanted = list(part.places())[first : first + count]
    assert len(wanted) == count  # each part covers all elements
    begin = min(byte for byte, _ in wanted)
    width = max(byte for byte, _ in wanted) + 1 - begin
    stored = [b.load(vector_of(width, "i8"), b.offset(place, begin)) for place in places]
    bytes_ = [i * width + byte - begin for i in range(len(places)) for byte, _ in wanted]
    shifts = [low for _ in places for _, low in wanted]
    whole = _joined(b, stored)
    spread = whole if bytes_ == list(range(whole.lanes)) else b.shuffle(whole, None, bytes_)
    groups = [set(shifts[i : i + _GROUP]) for i in range(0, len(shifts), _GROUP)]
    if all(len(group) == 1 for group in groups):
        return _shifted(b, spread, part, [low for group in groups for low in group])
    if part.width == 1:
        isset = b.compare(
            "ne", b.binary("and", spread, constant("i8", [1 << s for s in shifts])), 0
        )
        return b.select(isset, b.same(spread, 1 << part.up), b.zero(spread.type))
    wide = b.binary("lshr", b.cast("zext", spread, "i16"), constant("i16", shifts))
    low_bits = b.binary("and", b.cast("trunc", wide, "i8"), (1 << part.width) - 1)
    return b.binary("shl", low_bits, part.up) if part.up else low_bits


def _shifted(b: Builder, spread: Value, part: Bits, shifts: Sequence[int]) -> Value:
    """Shift groups of bytes, and keep the bits of the part."""
    if part.width == 8:
        return spread
    moves = [low - part.up for low in shifts]
    groups = b.bitcast(spread, f"<{len(shifts)} x i64>")
    if any(move > 0 for move in moves):
        groups = b.binary("lshr", groups, constant("i64", [max(0, move) for move in moves]))
    if any(move < 0 for move in moves):
        groups = b.binary("shl", groups, constant("i64", [max(0, -move) for move in moves]))
    mask = ((1 << part.width) - 1) << part.up
    return b.binary("and", b.bitcast(groups, spread.type), mask)


def _joined(b: Builder, values: Sequence[Value]) -> Value:
    found = values[0]
    for value in values[1:]:
        found = b.join(found, value)
    return found


def look_up(b: Builder, table: Sequence[int], codes: Value) -> Value:
    """Return table[codes] for a table of 16 bytes."""
    assert len(table) == 16
    if b.target.is_x86:
        tables = constant("i8", list(table) * (codes.lanes // 16))
        name = "x86.avx512.pshuf.b.512" if codes.lanes == 64 else "x86.avx2.pshuf.b"
        return b.intrinsic(name, tables, codes, suffix="-")
    numbers = constant("i8", table)
    pieces = (b.piece(codes, start, 16) for start in range(0, codes.lanes, 16))
    return _joined(b, [b.intrinsic("aarch64.neon.tbl1", numbers, piece) for piece in pieces])


@dataclass(frozen=True, slots=True)
class Scales:
    """What the codes of a block are multiplied with, and what is added.

    Attributes:
        scales: One f32, or one for each part of the block.
        mins: Likewise, if anything is added.
    """

    scales: Value
    mins: Value | None


def block_scales(b: Builder, place: Value, layout: BlockLayout) -> Scales:
    """Read the scales of a block."""
    scale = _signed(b, load_real(b, place, layout.scale), layout.scale)
    least = None
    if layout.min is not None:
        least = _signed(b, load_real(b, place, layout.min), layout.min)
    if layout.sub_scales is None:
        return Scales(scale, least)
    if layout.sub_mins is None or least is None:
        subs = _integers(b, place, (layout.sub_scales,))
        return Scales(b.fmul(subs, b.splat(scale, subs.lanes)), None)
    subs = _integers(b, place, (layout.sub_scales, layout.sub_mins))
    half = layout.sub_scales.count
    scales, mins = b.piece(subs, 0, half), b.piece(subs, half, half)
    return Scales(b.fmul(scales, b.splat(scale, half)), b.fmul(mins, b.splat(least, half)))


def _signed(b: Builder, value: Value, real: Real) -> Value:
    return value if real.sign > 0 else b.fmul(value, -1.0)


def _integers(b: Builder, place: Value, arrays: Sequence[Integers]) -> Value:
    """Read small arrays of a block, one after the other, as f32."""
    fields: list[list[tuple[int, int, int, int]]] = []
    for integers in arrays:
        own: list[list[tuple[int, int, int, int]]] = [[] for _ in range(integers.count)]
        for part in integers.parts:
            for i, (byte, low) in enumerate(part.places(), part.start):
                own[i].append((byte, low, (1 << part.width) - 1, part.up))
        fields += own
    begin = min(byte for lane in fields for byte, *_ in lane)
    width = max(byte for lane in fields for byte, *_ in lane) + 1 - begin
    stored = b.load(vector_of(width, "i8"), b.offset(place, begin))
    total: Value | None = None
    for pieces in zip_longest(*fields, fillvalue=(begin, 0, 0, 0)):
        spread = b.shuffle(stored, None, [byte - begin for byte, *_ in pieces])
        value = b.cast("zext", spread, "i32")
        value = b.binary("lshr", value, constant("i32", [low for _, low, _, _ in pieces]))
        value = b.binary("and", value, constant("i32", [mask for _, _, mask, _ in pieces]))
        value = b.binary("shl", value, constant("i32", [up for *_, up in pieces]))
        total = value if total is None else b.binary("or", total, value)
    assert total is not None
    # Two's complement: the highest bit counts negative.
    tops = [1 << (a.width - 1) if a.is_signed else 0 for a in arrays for _ in range(a.count)]
    zeros = [a.zero for a in arrays for _ in range(a.count)]
    if any(tops):
        total = b.sub(b.binary("xor", total, constant("i32", tops)), constant("i32", tops))
    if any(zeros):
        total = b.sub(total, constant("i32", zeros))
    return b.cast("sitofp", total, "float")


def spread_scales(
    b: Builder, scales: Value, elements: int, first: int, lanes: int, per: int
) -> Value:
    """Return for each of some lanes the scale of its elements.

    Args:
        b: Writes the kernel.
        scales: Of a block (``Scales``).
        elements: Of the block.
        first: The first element of the first lane.
        lanes: How many.
        per: Elements of a lane.
    """
    if scales.lanes == 1:
        return b.splat(scales, lanes)
    each = elements // scales.lanes
    return b.shuffle(scales, None, [(first + per * lane) // each for lane in range(lanes)])


def joined_scales(b: Builder, places: Sequence[Value], layout: BlockLayout, lanes: int) -> Value:
    """Return the scales of blocks without scales of parts, ``lanes`` times each."""
    if layout.scale.kind != "f16" or len(places) == 1:
        found = [_signed(b, load_real(b, p, layout.scale), layout.scale) for p in places]
        return _joined(b, [b.splat(scale, lanes) for scale in found])
    # Spreading halves and converting them together takes fewer instructions.
    halves = [b.load("half", b.offset(place, layout.scale.at)) for place in places]
    value = b.cast("fpext", _joined(b, [b.splat(half, lanes) for half in halves]), "float")
    return value if layout.scale.sign > 0 else b.fmul(value, -1.0)


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements of a block that have one scale.

    Attributes:
        codes: Vectors of codes less the zero, as f32.
        scale: A vector, all lanes alike.
        least: What is added likewise.
    """

    codes: tuple[Value, ...]
    scale: Value
    least: Value | None


def block_pieces(b: Builder, place: Value, layout: BlockLayout, lanes: int) -> list[Piece]:
    """Read a block as f32, not scaled yet."""
    how, scales = coding(layout), block_scales(b, place, layout)
    each = layout.elements // scales.scales.lanes
    found = []
    for first in range(0, layout.elements, 32):
        bytes_ = code_bytes(b, (place,), layout, first, 32)
        for start in range(0, 32, min(32, each)):
            codes = []
            for at in range(start, start + min(32, each), lanes):
                op = "sext" if how.is_signed else "zext"
                wide = b.cast(op, b.piece(bytes_, at, lanes), "i32")
                codes.append(b.cast("sitofp", b.sub(wide, how.zero) if how.zero else wide, "float"))
            scale, least = (
                None if s is None else spread_scales(b, s, layout.elements, first + start, lanes, 0)
                for s in (scales.scales, scales.mins)
            )
            assert scale is not None
            found.append(Piece(tuple(codes), scale, least))
    return found


def block_values(b: Builder, place: Value, layout: BlockLayout, lanes: int) -> list[Value]:
    """Read the elements of a block as f32."""
    found = []
    for piece in block_pieces(b, place, layout, lanes):
        for codes in piece.codes:
            value = b.fmul(codes, piece.scale)
            found.append(value if piece.least is None else b.fadd(value, piece.least))
    return found
