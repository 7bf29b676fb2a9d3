"""Products of a row of a packed weight with some rows of activations, f32 or of 8 bits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ggsched.ir.dtype import DType
from ggsched_cpu.kernels import block_fours, block_halves, block_lanes
from ggsched_cpu.kernels.elements import (
    block_pieces,
    block_scales,
    code_bytes,
    coding,
    joined_scales,
    spread_scales,
)
from ggsched_cpu.kernels.emit import Builder, Value, Variable, vector_of
from ggsched_cpu.kernels.int_dot import (
    BLOCK,
    SUMS,
    Rounded,
    chunk_blocks,
    correction_factor,
    dot,
    round_block,
    rounded_at,
)
from ggsched_cpu.kernels.sums import accumulators, added, fetch
from ggsched_cpu.kernels.target import Target
from ggsched_cpu.kernels.vectors import Row, over_rows, own_slot


def rounded_family(target: Target, dtype: DType) -> str:
    """Return the family of kernels that round activations for products with a packed type."""
    if block_lanes.has_lanes(target, dtype):
        return "lanes"
    if block_fours.has_fours_of_blocks(target, dtype):
        return "fours"
    return "halves" if block_halves.has_halves(target, dtype) else "rows"


def exact_products(
    b: Builder, dtype: DType, w: Value, x: Sequence[Value], columns: Value
) -> list[Value]:
    """Packed weights and f32 activations."""
    layout = dtype.layout
    assert layout is not None
    lanes = b.target.lanes
    vector = vector_of(lanes, "float")
    sums = accumulators(b, x, 1, vector)
    with b.loop(0, b.udiv(columns, dtype.block)) as block:
        place, at_x = b.offset(w, b.mul(block, dtype.block_nbytes)), b.mul(block, 4 * dtype.block)
        fetch(b, place, dtype.block_nbytes)
        pieces = block_pieces(b, place, layout, lanes)
        for start, (total,) in zip(x, sums, strict=True):
            at = 0
            for piece in pieces:
                values = []
                for _ in piece.codes:
                    values.append(b.load(vector, b.offset(b.offset(start, at_x), at), 4))
                    at += 4 * lanes
                each = b.fmul(piece.codes[0], values[0])
                for codes, value in zip(piece.codes[1:], values[1:], strict=True):
                    each = b.fma(codes, value, each)
                b.set(total, b.fma(each, piece.scale, b.get(total)))
                if piece.least is not None:
                    whole = values[0]
                    for value in values[1:]:
                        whole = b.fadd(whole, value)
                    b.set(total, b.fma(whole, piece.least, b.get(total)))
    return [b.sum(b.get(total)) for (total,) in sums]


def rounded_products(
    b: Builder, dtype: DType, w: Value, x: Sequence[Value], columns: Value
) -> list[Value]:
    """Packed weights and activations that ``round_block`` has written."""
    blocks = b.udiv(columns, BLOCK)
    family = rounded_family(b.target, dtype)
    if family != "rows":
        in_groups, nbytes = _GROUPED[family]
        sums, done = in_groups(b, dtype, w, x, columns)
        totals = [b.var(total) for total in sums]
        left = b.sub(blocks, done)
        with b.when(b.compare("ne", left, 0)):
            starts = [rounded_at(b, b.offset(row, b.mul(done, nbytes)), left) for row in x]
            several = b.udiv(done, dtype.block // BLOCK)
            place = b.offset(w, b.mul(several, dtype.block_nbytes))
            each = _small_blocks if dtype.block == BLOCK else _large_blocks
            rest = each(b, dtype, place, starts, left)
            for variable, more in zip(totals, rest, strict=True):
                b.set(variable, b.fadd(b.get(variable), more))
        return [b.get(variable) for variable in totals]
    starts = [rounded_at(b, row, blocks) for row in x]
    if dtype.block == BLOCK:
        return _small_blocks(b, dtype, w, starts, blocks)
    return _large_blocks(b, dtype, w, starts, blocks)


_GROUPED: Final = {
    "lanes": (block_lanes.lane_products, block_lanes.BLOCK_NBYTES),
    "halves": (block_halves.half_products, block_halves.BLOCK_NBYTES),
    "fours": (block_fours.four_products, block_fours.BLOCK_NBYTES),
}
"""By family: products of groups of blocks, and the bytes of a group for each of its blocks."""


@dataclass(frozen=True, slots=True)
class _Products:
    """Sums of products of bytes, for one or more rows of activations.

    Attributes:
        b: Writes the kernel.
        dtype: Of the weight.
        x: The rows of activations.
    """

    b: Builder
    dtype: DType
    x: Sequence[Rounded]

    def add(self, codes: Value, scales: Value, block: Value, sums: Sequence[Variable]) -> None:
        """Add the products of some codes and the activations from a block on."""
        b, layout = self.b, self.dtype.layout
        assert layout is not None
        how, lanes = coding(layout), codes.lanes // 4
        by = b.mul(block, BLOCK)
        for row, total in zip(self.x, sums, strict=True):
            bytes_ = b.load(codes.type, b.offset(row.codes, by))
            start = Value("zeroinitializer", vector_of(lanes, "i32"))
            if correction_factor(b.target, how):
                start = b.load(start.type, b.offset(row.corrections, by), 4)
            products = b.cast("sitofp", dot(b, codes, how, bytes_, start), "float")
            x_scales = b.load(products.type, b.offset(row.scales, by), 4)
            b.set(total, b.fma(products, b.fmul(scales, x_scales), b.get(total)))

    def add_mins(self, mins: Value, block: Value, sums: Sequence[Variable]) -> None:
        """Add the minima of some halves of blocks."""
        b = self.b
        for row, total in zip(self.x, sums, strict=True):
            totals = b.load(mins.type, b.offset(row.totals, b.mul(block, 8)), 4)
            b.set(total, b.fma(mins, totals, b.get(total)))


def _small_blocks(
    b: Builder, dtype: DType, w: Value, x: Sequence[Rounded], blocks: Value
) -> list[Value]:
    """Blocks of 32: several of them are one product where the processor's vectors allow that."""
    layout = dtype.layout
    assert layout is not None
    together, unroll = chunk_blocks(b.target), 2
    products = _Products(b, dtype, x)
    wide = SUMS * together
    sums = accumulators(b, x, unroll, vector_of(wide, "float"))
    rest = accumulators(b, x, 1, vector_of(SUMS, "float"))
    least = accumulators(b, x, 1, vector_of(2, "float"))

    def some(block: Value, count: int, into: Sequence[Variable]) -> None:
        places = [b.offset(w, b.mul(b.add(block, i), dtype.block_nbytes)) for i in range(count)]
        codes = code_bytes(b, places, layout, 0, BLOCK)
        scales = joined_scales(b, places, layout, SUMS)
        products.add(codes, scales, block, into)
        if layout.min is None:
            return
        for i, place in enumerate(places):
            offset = block_scales(b, place, layout).mins
            assert offset is not None
            products.add_mins(b.splat(offset, 2), b.add(block, i), [line[0] for line in least])

    step = together * unroll
    whole = b.sub(blocks, b.urem(blocks, step))
    with b.loop(0, whole, step) as block:
        fetch(b, b.offset(w, b.mul(block, dtype.block_nbytes)), step * dtype.block_nbytes)
        for u in range(unroll):
            some(b.add(block, together * u), together, [line[u] for line in sums])
    with b.loop(whole, blocks) as block:
        some(block, 1, [line[0] for line in rest])
    found = []
    for totals, (left,), (lowest,) in zip(sums, rest, least, strict=True):
        total = added(b, totals)
        while total.lanes > SUMS:
            half = total.lanes // 2
            total = b.fadd(b.piece(total, 0, half), b.piece(total, half, half))
        result = b.sum(b.fadd(total, b.get(left)))
        found.append(result if layout.min is None else b.fadd(result, b.sum(b.get(lowest))))
    return found


def _large_blocks(
    b: Builder, dtype: DType, w: Value, x: Sequence[Rounded], blocks: Value
) -> list[Value]:
    """Blocks whose parts have scales of their own."""
    layout = dtype.layout
    assert layout is not None
    together, unroll = chunk_blocks(b.target), 2
    products = _Products(b, dtype, x)
    count, wide = BLOCK * together, SUMS * together
    halves = dtype.block // (BLOCK // 2)
    sums = accumulators(b, x, unroll, vector_of(wide, "float"))
    least = accumulators(b, x, 1, vector_of(halves, "float"))
    each = dtype.block // BLOCK
    with b.loop(0, b.udiv(blocks, each)) as number:
        place, block = b.offset(w, b.mul(number, dtype.block_nbytes)), b.mul(number, each)
        fetch(b, place, dtype.block_nbytes)
        scales = block_scales(b, place, layout)
        for u, first in enumerate(range(0, dtype.block, count)):
            codes = code_bytes(b, (place,), layout, first, count)
            factors = spread_scales(b, scales.scales, dtype.block, first, wide, 4)
            into = [line[u % unroll] for line in sums]
            products.add(codes, factors, b.add(block, together * u), into)
        if scales.mins is not None:
            mins = spread_scales(b, scales.mins, dtype.block, 0, halves, BLOCK // 2)
            products.add_mins(mins, block, [line[0] for line in least])
    found = []
    for totals, (lowest,) in zip(sums, least, strict=True):
        result = b.sum(added(b, totals))
        found.append(result if layout.min is None else b.fadd(result, b.sum(b.get(lowest))))
    return found


def round_rows(name: str, target: Target) -> Builder:
    """Operand x; result, whose rows are rounded ones; ``correction_factor``. Columns are blocks."""
    b = Builder(name, target)
    factor = b.cast("trunc", b.arg(own_slot(2)), "i32")

    def row(row: Row) -> None:
        x, out = row.pointers
        to = rounded_at(b, out, row.columns)
        with b.loop(0, row.columns) as block:
            values = b.load(vector_of(BLOCK, "float"), b.offset(x, b.mul(block, 4 * BLOCK)), 4)
            round_block(b, values, factor, to.at(b, block))

    over_rows(b, 2, row)
    return b
