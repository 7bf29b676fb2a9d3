"""Elements of weights as vectors: plain types by conversion, packed types by their layouts."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from ggsched.ir.blocks import Bits, BlockLayout, Integers, Real
from ggsched.ir.dtype import BF16, F16, F32, QUANTIZED_DTYPES, DType
from ggsched_cpu_kernels.emit import Builder, Value, constant, vector_of

PLAIN: Final = (F32, F16, BF16)


E8M0_HALF: Final = tuple(2.0 ** (n - 128) for n in range(256))
"""By byte. Looking them up takes two instructions, computing them eight."""


MAX_UNSIGNED: Final = 128
"""Largest byte of which two products with 127 fit into 16 bits."""


def is_compiled(dtype: DType) -> bool:
    """Whether there are kernels for weights of a type."""
    layout = dtype.layout
    return dtype in PLAIN or (layout is not None and layout.sub_scales is None)


COMPILED: Final = tuple(t for t in (*PLAIN, *QUANTIZED_DTYPES) if is_compiled(t))


def load_f32(b: Builder, dtype: DType, pointer: Value, lanes: int) -> Value:
    """Read elements of a plain type that follow each other, as f32."""
    if dtype is F32:
        return b.load(vector_of(lanes, "float"), pointer, 4)
    if dtype is F16:
        return b.cast("fpext", b.load(vector_of(lanes, "half"), pointer, 2), "float")
    bits = b.cast("zext", b.load(vector_of(lanes, "i16"), pointer, 2), "i32")
    return b.cast("bitcast", b.binary("shl", bits, 16), "float")


def store_f32(b: Builder, dtype: DType, value: Value, pointer: Value) -> None:
    """Write f32 as f32 or f16."""
    if dtype is F16:
        b.store(b.cast("fptrunc", value, "half"), pointer, 2)
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
class _Run:
    """Lanes of a bit field that are shifted alike."""

    shift: int
    lanes: tuple[int, ...]


def _runs(part: Bits) -> Iterator[_Run]:
    places = sorted(enumerate(part.places()), key=lambda found: (found[1][1], found[0]))
    for shift, some in groupby(places, key=lambda found: found[1][1]):
        yield _Run(shift, tuple(i for i, _ in some))


def _field(b: Builder, pointer: Value, part: Bits) -> Value:
    """Read a bit field as bytes (count), shifted to where it belongs."""
    places = list(part.places())
    first = min(byte for byte, _ in places)
    width = max(byte for byte, _ in places) + 1 - first
    stored = b.load(vector_of(width, "i8"), b.offset(pointer, first))
    mask = (1 << part.width) - 1
    if part.width == 1:
        spread = b.shuffle(stored, None, [byte - first for byte, _ in places])
        bit = constant("i8", [1 << low for _, low in places])
        isset = b.compare("ne", b.binary("and", spread, bit), 0)
        value = b.same(spread, 1 << part.up)
        return b.select(isset, value, b.zero(spread.type))
    found: Value | None = None
    for run in _runs(part):
        low = b.binary("lshr", stored, run.shift) if run.shift else stored
        if run.shift + part.width < 8:
            low = b.binary("and", low, mask)
        if part.up:
            low = b.binary("shl", low, part.up)
        lanes = [-1] * part.count
        for i in run.lanes:
            lanes[i] = places[i][0] - first
        spread = b.shuffle(low, None, [max(0, i) for i in lanes])
        if found is None:
            found = spread
        else:
            chosen = [i + part.count if lanes[i] >= 0 else i for i in range(part.count)]
            found = b.shuffle(found, spread, chosen)
    assert found is not None
    return found


def _codes(b: Builder, pointer: Value, integers: Integers) -> Value:
    """Read the integers of a block as they are stored, as bytes."""
    total: Value | None = None
    for part in integers.parts:
        value = _field(b, pointer, part)
        assert part.start == 0  # all parts cover all elements
        assert part.count == integers.count
        total = value if total is None else b.binary("or", total, value)
    assert total is not None
    return total


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


def code_bytes(b: Builder, pointer: Value, layout: BlockLayout) -> Value:
    """Read the codes of a block as bytes, see ``coding``."""
    codes = _codes(b, pointer, layout.codes)
    table = layout.codes.table
    if not table:
        return codes
    zero = coding(layout).zero
    return _look_up(b, constant("i8", [int(n) + zero for n in table]), codes)


def _look_up(b: Builder, table: Value, codes: Value) -> Value:
    """Return table[codes] for a table of 16 bytes."""
    assert table.lanes == 16
    assert codes.lanes == 32
    if b.target.is_x86:
        twice = b.join(table, table)
        return b.intrinsic("x86.avx2.pshuf.b", twice, codes, suffix="-")
    halves = (b.piece(codes, start, 16) for start in (0, 16))
    low, high = (b.intrinsic("aarch64.neon.tbl1", table, half) for half in halves)
    return b.join(low, high)


def block_f32(b: Builder, pointer: Value, layout: BlockLayout, lanes: int) -> list[Value]:
    """Read a block's codes as f32 less the zero, ``lanes`` at a time, not scaled yet."""
    how = coding(layout)
    codes = code_bytes(b, pointer, layout)
    values = []
    for start in range(0, layout.elements, lanes):
        piece = b.piece(codes, start, lanes)
        wide = b.cast("sext" if how.is_signed else "zext", piece, "i32")
        if how.zero:
            wide = b.sub(wide, how.zero)
        values.append(b.cast("sitofp", wide, "float"))
    return values


def block_scale(b: Builder, pointer: Value, layout: BlockLayout) -> Value:
    """Read the scale of a block."""
    return _signed(b, load_real(b, pointer, layout.scale), layout.scale)


def block_min(b: Builder, pointer: Value, layout: BlockLayout) -> Value | None:
    """Read what is added to each element of a block, if there is such a thing."""
    if layout.min is None:
        return None
    return _signed(b, load_real(b, pointer, layout.min), layout.min)


def _signed(b: Builder, value: Value, real: Real) -> Value:
    return value if real.sign > 0 else b.fmul(value, -1.0)
