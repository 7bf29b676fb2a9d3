"""Products of packed rows with activations of 8 bits, a lane of a vector for each of 16 blocks.

With a block beside a block in a vector (``packed_rows``) each pair of blocks of 4-bit codes costs
a conversion of sums, two of scales and their product: arithmetic takes longer than reading 18 bytes
from memory. Here the codes of 16 blocks are transposed by four bytes, so that products of one block
are summed in one lane, and conversions and scales are the business of 16 blocks at once.

A rounded row begins with groups of 16 blocks: eight vectors of codes, of which number ``v`` has the
bytes ``4 v`` to ``4 v + 3`` of each block; the scales (f32); the corrections (i32, as of
``int_dot``). Blocks that are left follow as ``int_dot`` has them.
"""

from collections.abc import Sequence
from typing import Final

from ggsched.ir.dtype import DType
from ggsched_cpu.kernels.elements import coding, look_up
from ggsched_cpu.kernels.emit import Builder, Value, constant
from ggsched_cpu.kernels.int_dot import BLOCK, dot_fours, stored_codes
from ggsched_cpu.kernels.round_groups import GroupedBlock, round_groups
from ggsched_cpu.kernels.sums import accumulators, fetch
from ggsched_cpu.kernels.target import Target

GROUP: Final = 16

_LANES: Final = f"<{GROUP} x i32>"
_LINE: Final = 4 * GROUP
_FOURS: Final = BLOCK // 4
_SCALES: Final = _FOURS * _LINE
_CORRECTIONS: Final = _SCALES + _LINE
BLOCK_NBYTES: Final = (_CORRECTIONS + _LINE) // GROUP

_LOW_FOURS: Final = 0x0F0F0F0F


def has_lanes(target: Target, dtype: DType) -> bool:
    """Whether a processor and a type have these products: AVX-512 with VNNI, codes of 4 bits."""
    layout = dtype.layout
    if target.dot != "vnni" or layout is None or dtype.block != BLOCK:
        return False
    parts = layout.codes.parts
    is_plain = layout.min is None and layout.sub_scales is None and layout.scale.sign > 0
    return is_plain and len(parts) == 1 and (parts[0].width, parts[0].run) == (4, GROUP)


def lane_products(
    b: Builder, dtype: DType, w: Value, x: Sequence[Value], columns: Value
) -> tuple[list[Value], Value]:
    """Return sums over whole groups of blocks, and the number of blocks in these."""
    blocks = b.binary("and", b.udiv(columns, BLOCK), -GROUP)
    are_high = _are_high(dtype)
    sums = accumulators(b, x, 1, f"<{GROUP} x float>")
    with b.loop(0, blocks, GROUP) as block:
        place = b.offset(w, b.mul(block, dtype.block_nbytes))
        fetch(b, place, GROUP * dtype.block_nbytes)
        codes, scales = _codes(b, dtype, place), _scales(b, dtype, place)
        for row, (total,) in zip(x, sums, strict=True):
            group = b.offset(row, b.mul(block, BLOCK_NBYTES))
            found = b.load(_LANES, b.offset(group, _CORRECTIONS), 64)
            upper = Value("zeroinitializer", _LANES) if are_high else found
            for i, fours in enumerate(codes):
                values = b.load(_LANES, b.offset(group, _LINE * i), 64)
                if are_high and i >= _FOURS // 2:
                    upper = dot_fours(b, upper, fours, values)
                else:
                    found = dot_fours(b, found, fours, values)
            if are_high:
                found = b.add(found, b.binary("ashr", upper, 4))
            factors = b.load(scales.type, b.offset(group, _SCALES), 64)
            products = b.cast("sitofp", found, "float")
            b.set(total, b.fma(products, b.fmul(scales, factors), b.get(total)))
    return [b.sum(b.get(total)) for (total,) in sums], blocks


def _are_high(dtype: DType) -> bool:
    """Whether codes of upper halves of bytes are multiplied where they are, as 16 times a code.

    Their sum is divided by 16, which is exact, and no vector has to be shifted.
    """
    layout = dtype.layout
    assert layout is not None
    return not layout.codes.table and not coding(layout).is_signed


def _codes(b: Builder, dtype: DType, place: Value) -> list[Value]:
    """Return vectors of four codes of each of 16 blocks, as ``dot_fours`` takes them.

    The last four are 16 times the codes if ``_are_high``.
    """
    layout = dtype.layout
    assert layout is not None
    at = layout.codes.parts[0].at
    quarters = []
    for i in range(4):  # quarter i has the blocks i, 4 + i, 8 + i, 12 + i
        each = [
            b.load("<4 x i32>", b.offset(place, at + dtype.block_nbytes * (4 * n + i)))
            for n in range(4)
        ]
        quarters.append(b.join(b.join(each[0], each[1]), b.join(each[2], each[3])))
    stored = transposed(b, quarters)
    if _are_high(dtype):
        return [b.binary("and", v, mask) for mask in (_LOW_FOURS, ~_LOW_FOURS) for v in stored]
    halves = [
        *(b.binary("and", v, _LOW_FOURS) for v in stored),
        *(b.binary("and", b.binary("lshr", v, 4), _LOW_FOURS) for v in stored),
    ]
    how, table = coding(layout), layout.codes.table
    bytes_ = [b.bitcast(v, f"<{4 * GROUP} x i8>") for v in halves]
    if table:
        bytes_ = [look_up(b, [int(n) + how.zero for n in table], v) for v in bytes_]
    return [b.bitcast(stored_codes(b, v, how), _LANES) for v in bytes_]


def transposed(b: Builder, quarters: Sequence[Value]) -> list[Value]:
    """Transpose 4 x 4 elements in each 128 bits of four vectors."""

    def mixed(a: Value, c: Value, lanes: Sequence[int]) -> Value:
        picks = [4 * n + i % 4 + (GROUP if i > 3 else 0) for n in range(4) for i in lanes]
        return b.shuffle(a, c, picks)

    first, second, third, fourth = quarters
    low, high = mixed(first, second, (0, 4, 1, 5)), mixed(first, second, (2, 6, 3, 7))
    low_2, high_2 = mixed(third, fourth, (0, 4, 1, 5)), mixed(third, fourth, (2, 6, 3, 7))
    return [
        mixed(low, low_2, (0, 1, 4, 5)),
        mixed(low, low_2, (2, 3, 6, 7)),
        mixed(high, high_2, (0, 1, 4, 5)),
        mixed(high, high_2, (2, 3, 6, 7)),
    ]


def scale_words(b: Builder, dtype: DType, place: Value, count: int) -> list[Value]:
    """Return the scales of some blocks as they are stored, joined to words of 64 bits."""
    layout = dtype.layout
    assert layout is not None
    bits = 16 if layout.scale.kind == "f16" else 8
    each = 64 // bits
    words = []
    for n in range(count // each):
        word: Value | None = None
        for i in range(each):
            at = layout.scale.at + dtype.block_nbytes * (each * n + i)
            one = b.cast("zext", b.load(f"i{bits}", b.offset(place, at)), "i64")
            one = b.binary("shl", one, bits * i) if i else one
            word = one if word is None else b.binary("or", word, one)
        assert word is not None
        words.append(word)
    return words


def _scales(b: Builder, dtype: DType, place: Value) -> Value:
    """Return the scales of 16 blocks."""
    joined = scale_words(b, dtype, place, GROUP)
    words = Value("poison", f"<{len(joined)} x i64>")
    for n, word in enumerate(joined):
        words = b.insert(words, word, n)
    bits = 64 * len(joined) // GROUP
    if bits == 16:
        return b.cast("fpext", b.bitcast(words, f"<{GROUP} x half>"), "float")
    # A byte n is 2^(n - 128), of which the first two are not normal.
    power = b.cast("zext", b.bitcast(words, f"<{GROUP} x i8>"), "i32")
    small = b.binary("shl", constant("i32", [1 << 21] * GROUP), power)
    normal = b.binary("shl", b.sub(power, 1), 23)
    return b.bitcast(b.select(b.compare("ult", power, 2), small, normal), f"<{GROUP} x float>")


def round_lanes(name: str, target: Target) -> Builder:
    """Operand x; result, whose rows are rounded ones; ``correction_factor``. Columns are blocks."""
    return round_groups(name, target, GROUP, BLOCK_NBYTES, _store)


def _store(b: Builder, block: GroupedBlock) -> None:
    place = b.offset(block.group, b.mul(block.number, 4))
    for i in range(_FOURS):
        b.store(b.extract(block.fours, i), b.offset(place, _LINE * i), 4)
    b.store(block.scale, b.offset(place, _SCALES), 4)
    total = b.intrinsic("vector.reduce.add", block.integers, type_="i32")
    b.store(b.mul(total, block.factor), b.offset(place, _CORRECTIONS), 4)
