"""Products of rows of q4_k with activations of 8 bits, four blocks of 256 at a time.

With two parts of 32 in a vector (``packed_rows``) each two parts cost a conversion of sums and two
scales that are spread, and each block some shuffles of its packed scales: 50 instructions of
vectors for 144 bytes. Here the codes of four blocks are transposed by four bytes in each quarter of
a vector, so that number ``s`` of a quarter belongs to block ``s``: its quarters are the two halves
of one part and the two halves of another. Scales of 16 parts are taken out of their bits at once.

A rounded row begins with groups of four blocks of 256: for each of four sums 256 bytes of codes in
the order of the transposed ones; for each of them the scales (f32, a 16th of them where codes are
in the upper halves of bytes, which are multiplied where they are); for parts 0 to 3 and 4 to 7 of
each block the sum of codes times the scale (f32), negative. Blocks that are left follow as
``int_dot`` has them.
"""

from collections.abc import Sequence
from typing import Final

from ggsched.ir.dtype import Q4_K, DType
from ggsched_cpu.kernels.block_lanes import transposed
from ggsched_cpu.kernels.emit import Builder, Value, constant
from ggsched_cpu.kernels.int_dot import BLOCK, dot_fours
from ggsched_cpu.kernels.round_groups import GroupedBlock, round_groups
from ggsched_cpu.kernels.sums import accumulators, fetch
from ggsched_cpu.kernels.target import Target

GROUP: Final = 32
"""Blocks of 32 activations."""

_PARTS: Final = 8
_TOGETHER: Final = GROUP // _PARTS
_CODES_AT: Final = 16
_LINE: Final = 64
_LANES: Final = "<16 x i32>"
_SUMS: Final = 4
_SCALES: Final = _SUMS * 4 * _LINE
_TOTALS: Final = _SCALES + _SUMS * _LINE
BLOCK_NBYTES: Final = (_TOTALS + 2 * _LINE) // GROUP


def has_fours_of_blocks(target: Target, dtype: DType) -> bool:
    """Whether a processor and a type have these products: AVX-512 with VNNI and VBMI, q4_k."""
    return dtype == Q4_K and target.dot == "vnni" and target.has("avx512vbmi")


def four_products(
    b: Builder, dtype: DType, w: Value, x: Sequence[Value], columns: Value
) -> tuple[list[Value], Value]:
    """Return sums over whole groups, and the number of blocks of 32 in these."""
    blocks = b.binary("and", b.udiv(columns, BLOCK), -GROUP)
    sums = accumulators(b, x, 1, "<16 x float>")
    with b.loop(0, blocks, GROUP) as block:
        place = b.offset(w, b.mul(b.udiv(block, _PARTS), dtype.block_nbytes))
        fetch(b, place, _TOGETHER * dtype.block_nbytes)
        places = [b.offset(place, dtype.block_nbytes * i) for i in range(_TOGETHER)]
        scales, mins, scale, least = _scales(b, places)
        codes = [c for half in (0, 1) for c in _codes(b, places, half)]
        for row, (total,) in zip(x, sums, strict=True):
            group = b.offset(row, b.mul(block, BLOCK_NBYTES))
            products: Value | None = None
            for i in range(_SUMS):
                found = Value("zeroinitializer", _LANES)
                for v in range(4):
                    values = b.load(_LANES, b.offset(group, _LINE * (4 * i + v)), 64)
                    found = dot_fours(b, found, codes[i][v], values)
                given = b.load("<16 x float>", b.offset(group, _SCALES + _LINE * i), 64)
                factors, whole = b.fmul(scales[i], given), b.cast("sitofp", found, "float")
                if products is None:
                    products = b.fmul(whole, factors)
                else:
                    products = b.fma(whole, factors, products)
            assert products is not None
            below = [
                b.load("<16 x float>", b.offset(group, _TOTALS + _LINE * i), 64) for i in (0, 1)
            ]
            lowest = b.fma(mins[1], below[1], b.fmul(mins[0], below[0]))
            b.set(total, b.fma(lowest, least, b.fma(products, scale, b.get(total))))
    return [b.sum(b.get(total)) for (total,) in sums], blocks


def _codes(b: Builder, places: Sequence[Value], half: int) -> list[list[Value]]:
    """Return for the lower and the upper halves of bytes four vectors of four codes each.

    Args:
        b: Writes the kernel.
        places: Four blocks.
        half: Of their bytes.
    """
    at = _CODES_AT + _LINE * half
    stored = transposed(b, [b.load(_LANES, b.offset(place, at)) for place in places])
    return [[b.binary("and", v, mask) for v in stored] for mask in (0x0F0F0F0F, ~0x0F0F0F0F)]


def _scales(b: Builder, places: Sequence[Value]) -> tuple[list[Value], list[Value], Value, Value]:
    """Return scales for each sum, mins of parts 0 to 3 and 4 to 7, and what both are times.

    Before the codes a block has two f16 and twelve bytes: of parts 0 to 3 the scales, then the
    mins, of six bits each; then of parts 4 to 7 four bits of a scale and four of a min. The upper
    two bits of these are those of the first eight bytes.
    """
    heads = [b.load("<4 x i32>", place) for place in places]
    head = b.join(b.join(heads[0], heads[1]), b.join(heads[2], heads[3]))
    first = b.binary("and", head, 0x3F3F3F3F)
    upper = b.binary("and", b.binary("lshr", head, 2), 0x30303030)
    last = b.shuffle(head, None, [4 * (lane // 4) + 3 for lane in range(16)])
    lower = b.binary("lshr", last, constant("i32", [0, 0, 4, 0] * 4))
    second = b.binary("or", b.binary("and", lower, 0x0F0F0F0F), upper)

    def picked(words: Value, order: Sequence[int]) -> Value:
        """Return bytes of 64 in another order: one instruction."""
        which, bytes_ = constant("i8", order), b.bitcast(words, "<64 x i8>")
        return b.intrinsic("x86.avx512.permvar.qi.512", bytes_, which, suffix="-")

    def taken(words: Value, at: Sequence[int]) -> Value:
        """Return a byte of each block for each quarter, as floats."""
        picks = [16 * block + byte for byte in at for block in range(_TOGETHER)]
        found = picked(words, [pick for pick in picks for _ in range(4)])
        return b.cast("sitofp", b.binary("and", b.bitcast(found, _LANES), 0xFF), "float")

    both = [16 * (lane % 4) + 2 * n + i for n in (0, 1) for lane in range(16) for i in (0, 1)]
    reals = b.bitcast(picked(head, both), "<32 x half>")
    scale, least = (b.cast("fpext", b.piece(reals, 16 * n, 16), "float") for n in (0, 1))
    scales = [
        taken(words, [4 + odd, 4 + odd, 6 + odd, 6 + odd])
        for words in (first, second)
        for odd in (0, 1)
    ]
    mins = [taken(words, [8, 9, 10, 11]) for words in (first, second)]
    return scales, mins, scale, least


def round_fours(name: str, target: Target) -> Builder:
    """Operand x; result, whose rows are rounded ones; ``correction_factor``. Columns are blocks."""
    return round_groups(name, target, GROUP, BLOCK_NBYTES, _store)


def _store(b: Builder, block: GroupedBlock) -> None:
    number, part = b.binary("lshr", block.number, 3), b.binary("and", block.number, _PARTS - 1)
    half, odd = b.binary("lshr", part, 2), b.binary("and", part, 1)
    which = b.add(b.mul(half, 2), odd)
    lane = b.add(b.mul(b.binary("and", part, 2), 4), number)
    place = b.offset(block.group, b.add(b.mul(which, 4 * _LINE), b.mul(lane, 4)))
    for v in range(BLOCK // 4):
        at = _LINE * (v % 4) + 16 * (v // 4)
        b.store(b.extract(block.fours, v), b.offset(place, at), 4)
    sixteenth = b.select(b.compare("ne", odd, 0), b.fmul(block.scale, 1 / 16), block.scale)
    scale_at = b.offset(block.group, b.add(b.mul(which, _LINE), b.mul(lane, 4)))
    for i in (0, 1):
        b.store(sixteenth, b.offset(scale_at, _SCALES + 16 * i), 4)
    total = b.intrinsic("vector.reduce.add", block.integers, type_="i32")
    below = b.fmul(b.fmul(b.cast("sitofp", total, "float"), block.scale), -1.0)
    order = b.add(b.mul(b.binary("and", part, 3), 16), b.mul(number, 4))
    b.store(below, b.offset(b.offset(block.group, b.add(b.mul(half, _LINE), order)), _TOTALS), 4)
