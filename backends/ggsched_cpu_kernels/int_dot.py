"""Activations rounded to 8 bits, and products of bytes.

A row of ``k`` activations becomes ``k`` bytes, then a scale (f32) for each block of 32, then the
sum of each block's bytes (i32). The sums serve layouts whose codes have a zero or a minimum.
"""

from typing import Final

from ggsched_cpu_kernels.elements import Coding
from ggsched_cpu_kernels.emit import Builder, Value, f32, vector_of

BLOCK: Final = 32


def rounded_nbytes(k: int) -> int:
    """Bytes of a rounded row; rows start at multiples of 64."""
    nbytes = k + 8 * (k // BLOCK)
    return -(-nbytes // 64) * 64


def round_block(b: Builder, x: Value, codes: Value, scale: Value, total: Value) -> None:
    """Round 32 floats and write bytes, scale and sum; NaN and infinity go into the scale."""
    bits = b.binary("and", b.bitcast(x, f"<{BLOCK} x i32>"), 0x7FFFFFFF)
    top = b.intrinsic("vector.reduce.umax", bits, type_="i32")
    most = b.bitcast(top, "float")
    is_zero = b.compare("eq", top, 0)
    inverse = b.select(is_zero, f32(0.0), b.fdiv(f32(127.0), most))
    scaled = b.fmul(x, b.splat(inverse, BLOCK))
    whole = b.cast("fptosi", b.intrinsic("roundeven", scaled), "i32")
    b.store(b.cast("trunc", whole, "i8"), codes)
    b.store(b.fmul(most, 1.0 / 127.0), scale, 4)
    b.store(b.intrinsic("vector.reduce.add", whole, type_="i32"), total, 4)


def sums_lanes(b: Builder) -> int:
    """Return how many partial sums ``dot`` has."""
    return 8 if b.target.is_x86 else 4


def shift_of(b: Builder, how: Coding) -> int:
    """Return what ``dot`` has added to each byte of the weight, beyond the layout's own zero."""
    return 128 if how.is_signed and b.target.dot in ("vnni", "avxvnni") else 0


def dot(b: Builder, codes: Value, how: Coding, x: Value, start: Value) -> Value:
    """Return ``start`` plus the products of 32 codes and 32 rounded activations.

    ``start`` are partial sums (``sums_lanes``); they have to make up for zero and ``shift_of``.
    """
    match b.target.dot:
        case "vnni" | "avxvnni":
            if how.is_signed:
                codes = b.binary("xor", codes, -128)
            return _vpdpbusd(b, start, codes, x)
        case "pmaddubsw":
            if how.is_signed:
                x = b.intrinsic("x86.avx2.psign.b", x, codes, suffix="-")
                codes = b.intrinsic("abs", codes, Value("false", "i1"))
            pairs = b.intrinsic("x86.avx2.pmadd.ub.sw", codes, x, type_="<16 x i16>", suffix="-")
            ones = b.same(pairs, 1)
            fours = b.intrinsic("x86.avx2.pmadd.wd", pairs, ones, type_="<8 x i32>", suffix="-")
            return b.add(fours, start)
        case "sdot":
            for i in (0, 16):
                start = b.intrinsic(
                    "aarch64.neon.sdot",
                    start,
                    b.piece(codes, i, 16),
                    b.piece(x, i, 16),
                    suffix="v4i32.v16i8",
                )
            return start
        case "none":
            op = "sext" if how.is_signed else "zext"
            for i in range(0, BLOCK, start.lanes):
                a = b.cast(op, b.piece(codes, i, start.lanes), "i32")
                c = b.cast("sext", b.piece(x, i, start.lanes), "i32")
                start = b.add(start, b.mul(a, c))
            return start


def _vpdpbusd(b: Builder, start: Value, codes: Value, x: Value) -> Value:
    # The form of older LLVMs, which newer ones accept.
    wide = vector_of(8, "i32")
    a, c = b.bitcast(codes, wide), b.bitcast(x, wide)
    return b.intrinsic("x86.avx512.vpdpbusd.256", start, a, c, suffix="-")
