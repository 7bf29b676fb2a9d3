"""Activations rounded to 8 bits, and products of bytes.

A row of ``k`` activations becomes, with blocks of 32:

* ``k`` bytes;
* for each block its scale (f32), ``SUMS`` times;
* for each block ``SUMS`` corrections (i32), the sums of four bytes each times what kernels have
  added to the codes of weights: products begin with them;
* for each half of a block the sum of its bytes times the scale (f32), for layouts with a minimum.

Repeated scales and partial sums are vectors as products of bytes give them, so that no kernel
has to spread them again for each row of a weight.
"""

from dataclasses import dataclass
from typing import Final

from ggsched_cpu.kernels.elements import Coding
from ggsched_cpu.kernels.emit import Builder, Value, f32, vector_of
from ggsched_cpu.kernels.target import Target

BLOCK: Final = 32

SUMS: Final = 8
"""Partial sums of a block: each of four products."""

_BLOCK_NBYTES: Final = BLOCK + 4 * SUMS + 4 * SUMS + 4 * 2


def rounded_nbytes(k: int) -> int:
    """Bytes of a rounded row; rows start at multiples of 64."""
    return -(-k // BLOCK * _BLOCK_NBYTES // 64) * 64


@dataclass(frozen=True, slots=True)
class Rounded:
    """Where the parts of a rounded row lie, as pointers or as offsets in bytes.

    Attributes:
        codes: Bytes, 32 for each block.
        scales: Likewise 32 bytes for each block.
        corrections: Likewise.
        totals: Eight bytes for each block.
    """

    codes: Value
    scales: Value
    corrections: Value
    totals: Value

    def at(self, b: Builder, block: Value) -> "Rounded":
        """Return where the parts of a block lie."""
        by = b.mul(block, BLOCK)
        codes, scales, corrections = (
            b.offset(p, by) for p in (self.codes, self.scales, self.corrections)
        )
        return Rounded(codes, scales, corrections, b.offset(self.totals, b.mul(block, 8)))


def rounded_at(b: Builder, row: Value, blocks: Value) -> Rounded:
    """Return where the parts of a row of some blocks begin."""
    each = b.mul(blocks, BLOCK)
    scales = b.offset(row, each)
    corrections = b.offset(scales, each)
    return Rounded(row, scales, corrections, b.offset(corrections, each))


def round_values(b: Builder, x: Value) -> tuple[Value, Value]:
    """Return 32 floats as integers (i32) from -127 to 127, and their scale."""
    bits = b.binary("and", b.bitcast(x, f"<{BLOCK} x i32>"), 0x7FFFFFFF)
    top = b.intrinsic("vector.reduce.umax", bits, type_="i32")
    most = b.bitcast(top, "float")
    is_zero = b.compare("eq", top, 0)
    inverse = b.select(is_zero, f32(0.0), b.fdiv(f32(127.0), most))
    scaled = b.fmul(x, b.splat(inverse, BLOCK))
    whole = b.cast("fptosi", b.intrinsic("roundeven", scaled), "i32")
    return whole, b.fmul(most, 1.0 / 127.0)


def sums_of_four(b: Builder, whole: Value) -> Value:
    """Return the sums of adjacent fours of 32 integers."""
    fours = b.shuffle(whole, None, range(0, BLOCK, 4))
    for i in range(1, 4):
        fours = b.add(fours, b.shuffle(whole, None, range(i, BLOCK, 4)))
    return fours


def round_block(b: Builder, x: Value, factor: Value, to: Rounded) -> None:
    """Round 32 floats; NaN and infinity go into the scale.

    Args:
        b: Writes the kernel.
        x: A vector.
        factor: What corrections are multiplied with (i32).
        to: The parts of the block.
    """
    whole, scale = round_values(b, x)
    b.store(b.cast("trunc", whole, "i8"), to.codes)
    b.store(b.splat(scale, SUMS), to.scales, 4)
    fours = sums_of_four(b, whole)
    b.store(b.mul(fours, b.splat(factor, SUMS)), to.corrections, 4)
    half = b.piece(fours, 0, SUMS // 2), b.piece(fours, SUMS // 2, SUMS // 2)
    sums = [b.intrinsic("vector.reduce.add", part, type_="i32") for part in half]
    for i, total in enumerate(sums):
        value = b.fmul(b.cast("sitofp", total, "float"), scale)
        b.store(value, b.offset(to.totals, 4 * i), 4)


def chunk_blocks(target: Target) -> int:
    """Return how many blocks one product of bytes takes."""
    return 2 if target.dot == "vnni" else 1


def correction_factor(target: Target, how: Coding) -> int:
    """Return what the sums of activations are multiplied with to make up for ``dot``."""
    return -(how.zero + _shift_of(target, how))


def _shift_of(target: Target, how: Coding) -> int:
    """Return what ``dot`` adds to each code, beyond the layout's own zero."""
    return 128 if how.is_signed and target.dot in ("vnni", "avxvnni") else 0


def dot(b: Builder, codes: Value, how: Coding, x: Value, start: Value) -> Value:
    """Return ``start`` plus the products of codes and rounded activations, in sums of four.

    Args:
        b: Writes the kernel.
        codes: Of one block of 32, or of two where ``chunk_blocks`` says so.
        how: What the codes are.
        x: As many bytes.
        start: A sum (i32) for each four of them; makes up for ``correction_factor``.
    """
    lanes = codes.lanes // 4
    match b.target.dot:
        case "vnni" | "avxvnni":
            codes, wide = stored_codes(b, codes, how), vector_of(lanes, "i32")
            return dot_fours(b, start, b.bitcast(codes, wide), b.bitcast(x, wide))
        case "pmaddubsw":
            if how.is_signed:
                x = b.intrinsic("x86.avx2.psign.b", x, codes, suffix="-")
                codes = b.intrinsic("abs", codes, Value("false", "i1"))
            pairs = b.intrinsic("x86.avx2.pmadd.ub.sw", codes, x, type_="<16 x i16>", suffix="-")
            ones = b.same(pairs, 1)
            fours = b.intrinsic("x86.avx2.pmadd.wd", pairs, ones, type_="<8 x i32>", suffix="-")
            return b.add(fours, start)
        case "sdot":
            sums = [
                b.intrinsic(
                    "aarch64.neon.sdot",
                    b.piece(start, i // 4, 4),
                    b.piece(codes, i, 16),
                    b.piece(x, i, 16),
                    suffix="v4i32.v16i8",
                )
                for i in (0, 16)
            ]
            return b.join(*sums)
        case "none":
            op = "sext" if how.is_signed else "zext"
            for i in range(4):
                every = range(i, codes.lanes, 4)
                a = b.cast(op, b.shuffle(codes, None, every), "i32")
                c = b.cast("sext", b.shuffle(x, None, every), "i32")
                start = b.add(start, b.mul(a, c))
            return start


def has_fours(target: Target) -> bool:
    """Whether ``dot_fours`` works on whole vectors."""
    return target.dot in ("vnni", "sdot") or (target.dot == "avxvnni" and target.lanes == SUMS)


def stored_codes(b: Builder, codes: Value, how: Coding) -> Value:
    """Return bytes as ``dot_fours`` takes them; ``correction_factor`` counts what this adds."""
    return b.binary("xor", codes, -128) if _shift_of(b.target, how) else codes


def dot_fours(b: Builder, start: Value, codes: Value, x: Value) -> Value:
    """Return sums (i32), each plus the product of four codes and four activations.

    All are vectors of i32; codes come from ``stored_codes``.
    """
    if b.target.is_x86:
        # The form of older LLVMs, which newer ones accept.
        return b.intrinsic(f"x86.avx512.vpdpbusd.{32 * start.lanes}", start, codes, x, suffix="-")
    codes, x = (b.bitcast(v, vector_of(4 * v.lanes, "i8")) for v in (codes, x))
    return b.intrinsic("aarch64.neon.sdot", start, codes, x, suffix="v4i32.v16i8")
