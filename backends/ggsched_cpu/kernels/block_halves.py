"""Products of packed rows with activations of 8 bits, two lanes of a vector for each of 8 blocks.

For codes of 8 bits, as ``block_lanes`` for codes of 4: with two blocks beside each other in a
vector each two cost a conversion of sums, two scales that are spread and converted, and the product
of scales. Here four vectors of two blocks are transposed by four bytes in each quarter, so that the
first half of a block is summed in one lane and its second half in another, and all else is the
business of 8 blocks at once.

A rounded row begins with groups of 8 blocks: four vectors of codes, of which number ``v`` has the
bytes ``4 v`` to ``4 v + 3`` of each half; the scales (f32), twice each; the corrections (i32, as of
``int_dot``) of each half. Blocks that are left follow as ``int_dot`` has them.
"""

from collections.abc import Sequence
from typing import Final

from ggsched.ir.dtype import DType
from ggsched_cpu.kernels.block_lanes import scale_words, transposed
from ggsched_cpu.kernels.elements import coding
from ggsched_cpu.kernels.emit import Builder, Value
from ggsched_cpu.kernels.int_dot import BLOCK, dot_fours, stored_codes
from ggsched_cpu.kernels.round_groups import GroupedBlock, round_groups
from ggsched_cpu.kernels.sums import accumulators, fetch
from ggsched_cpu.kernels.target import Target

GROUP: Final = 8

_QUARTER: Final = 4
_LANES: Final = "<16 x i32>"
_LINE: Final = 64
_SCALES: Final = _QUARTER * _LINE
_CORRECTIONS: Final = _SCALES + _LINE
BLOCK_NBYTES: Final = (_CORRECTIONS + _LINE) // GROUP


def has_halves(target: Target, dtype: DType) -> bool:
    """Whether a processor and a type have these products: AVX-512 with VNNI, bytes as codes."""
    layout = dtype.layout
    if target.dot != "vnni" or layout is None or dtype.block != BLOCK:
        return False
    parts = layout.codes.parts
    is_plain = layout.min is None and layout.sub_scales is None and not layout.codes.table
    is_scaled = layout.scale.kind == "f16" and layout.scale.sign > 0
    return is_plain and is_scaled and len(parts) == 1 and parts[0].width == 8


def half_products(
    b: Builder, dtype: DType, w: Value, x: Sequence[Value], columns: Value
) -> tuple[list[Value], Value]:
    """Return sums over whole groups of blocks, and the number of blocks in these."""
    blocks = b.binary("and", b.udiv(columns, BLOCK), -GROUP)
    sums = accumulators(b, x, 1, "<16 x float>")
    with b.loop(0, blocks, GROUP) as block:
        place = b.offset(w, b.mul(block, dtype.block_nbytes))
        fetch(b, place, GROUP * dtype.block_nbytes, is_fast=True)
        codes, scales = _codes(b, dtype, place), _scales(b, dtype, place)
        for row, (total,) in zip(x, sums, strict=True):
            group = b.offset(row, b.mul(block, BLOCK_NBYTES))
            found = b.load(_LANES, b.offset(group, _CORRECTIONS), _LINE)
            for i, fours in enumerate(codes):
                found = dot_fours(
                    b, found, fours, b.load(_LANES, b.offset(group, _LINE * i), _LINE)
                )
            factors = b.load(scales.type, b.offset(group, _SCALES), _LINE)
            products = b.cast("sitofp", found, "float")
            b.set(total, b.fma(products, b.fmul(scales, factors), b.get(total)))
    return [b.sum(b.get(total)) for (total,) in sums], blocks


def _codes(b: Builder, dtype: DType, place: Value) -> list[Value]:
    """Return vectors of four codes of each half of 8 blocks, as ``dot_fours`` takes them."""
    layout = dtype.layout
    assert layout is not None
    at, how = layout.codes.parts[0].at, coding(layout)
    pairs = []
    for i in range(_QUARTER):  # pair i has the blocks i and 4 + i
        first, second = (
            b.load(f"<{BLOCK} x i8>", b.offset(place, at + dtype.block_nbytes * n))
            for n in (i, _QUARTER + i)
        )
        pairs.append(b.bitcast(stored_codes(b, b.join(first, second), how), _LANES))
    return transposed(b, pairs)


def _scales(b: Builder, dtype: DType, place: Value) -> Value:
    """Return the scales of 8 blocks, twice four of them at a time."""
    low, high = scale_words(b, dtype, place, GROUP)
    words = Value("poison", "<4 x i64>")
    for n, word in enumerate((low, low, high, high)):
        words = b.insert(words, word, n)
    return b.cast("fpext", b.bitcast(words, "<16 x half>"), "float")


def round_halves(name: str, target: Target) -> Builder:
    """Operand x; result, whose rows are rounded ones; ``correction_factor``. Columns are blocks."""
    return round_groups(name, target, GROUP, BLOCK_NBYTES, _store)


def _store(b: Builder, block: GroupedBlock) -> None:
    # Lanes 0 to 3 and 8 to 11 are first halves.
    lane = b.add(block.number, b.binary("and", block.number, _QUARTER))
    for half in range(2):
        place = b.offset(block.group, b.add(b.mul(lane, 4), 4 * _QUARTER * half))
        for i in range(_QUARTER):
            four = b.extract(block.fours, _QUARTER * half + i)
            b.store(four, b.offset(place, _LINE * i), 4)
        b.store(block.scale, b.offset(place, _SCALES), 4)
        own = b.piece(block.integers, BLOCK // 2 * half, BLOCK // 2)
        total = b.intrinsic("vector.reduce.add", own, type_="i32")
        b.store(b.mul(total, block.factor), b.offset(place, _CORRECTIONS), 4)
