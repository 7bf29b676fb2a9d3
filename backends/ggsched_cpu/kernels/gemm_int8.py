"""Products of packed weights with many rows of activations that are rounded to 8 bits.

A group is what has one scale in the weight: 32 elements, or 16. For each block of 32 columns, a
panel of ``W`` rows of activations holds

* eight times four bytes of each row, side by side, as products of bytes take them;
* the scale of each row (f32);
* for each group of the block the correction of each row (i32, see ``correction_factor``);
* for each group the sum of each row's bytes times the scale (f32), for layouts with a minimum.

Unpacked weights are bytes of ``BLOCK_ROWS`` rows, then their scales, then their minima (f32).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ggsched.ir.blocks import BlockLayout
from ggsched.ir.dtype import DType
from ggsched_cpu.kernels.elements import block_scales, code_bytes, coding
from ggsched_cpu.kernels.emit import Builder, Value, Variable, vector_of
from ggsched_cpu.kernels.gemm import BLOCK_COLUMNS, BLOCK_ROWS
from ggsched_cpu.kernels.int_dot import (
    BLOCK,
    correction_factor,
    dot_fours,
    round_values,
    stored_codes,
    sums_of_four,
)
from ggsched_cpu.kernels.panels import VECTORS, pack_pairs, pack_rows, panel_width, tile_sums
from ggsched_cpu.kernels.target import Target
from ggsched_cpu.kernels.vectors import own_slot

GROUPS: Final = (16, 32)

_FOURS: Final = BLOCK // 4


def group_of(layout: BlockLayout) -> int:
    """Return the elements that have one scale."""
    return layout.elements // (1 if layout.sub_scales is None else layout.sub_scales.count)


def block_nbytes(target: Target, group: int) -> int:
    """Return the bytes of a panel's block."""
    return panel_width(target) * (BLOCK + 4 + 8 * (BLOCK // group))


@dataclass(frozen=True, slots=True)
class _Block:
    """Offsets in a panel's block."""

    target: Target
    group: int

    @property
    def width(self) -> int:
        return 4 * panel_width(self.target)

    @property
    def scales(self) -> int:
        return _FOURS * self.width

    def correction(self, number: int) -> int:
        return self.scales + self.width * (1 + number)

    def total(self, number: int) -> int:
        return self.correction(BLOCK // self.group + number)


def _pack_row(b: Builder, group: int, x: Value, to: Value, blocks: Value, factor: Value) -> None:
    """Write one row of activations into its places of a panel."""
    at = _Block(b.target, group)
    with b.loop(0, blocks) as block:
        values = b.load(vector_of(BLOCK, "float"), b.offset(x, b.mul(block, 4 * BLOCK)), 4)
        place = b.offset(to, b.mul(block, block_nbytes(b.target, group)))
        whole, scale = round_values(b, values)
        fours = b.bitcast(b.cast("trunc", whole, "i8"), vector_of(_FOURS, "i32"))
        for i in range(_FOURS):
            b.store(b.extract(fours, i), b.offset(place, at.width * i), 4)
        b.store(scale, b.offset(place, at.scales), 4)
        sums, each = sums_of_four(b, whole), group // 4
        for i in range(BLOCK // group):
            part = b.piece(sums, i * each, each)
            total = b.intrinsic("vector.reduce.add", part, type_="i32")
            b.store(b.mul(total, factor), b.offset(place, at.correction(i)), 4)
            scaled = b.fmul(b.cast("sitofp", total, "float"), scale)
            b.store(scaled, b.offset(place, at.total(i)), 4)


def pack(name: str, target: Target, group: int) -> Builder:
    """See ``panels.pack_rows``, with the factor of corrections as one more argument."""
    b = Builder(name, target)
    return pack_rows(b, _row_packer(b, group, own_slot(2) + 2))


def pack_routed(name: str, target: Target, group: int) -> Builder:
    """See ``panels.pack_pairs``, with the factor of corrections as one more argument."""
    b = Builder(name, target)
    each = block_nbytes(target, group)
    put = _row_packer(b, group, 8)
    return pack_pairs(b, lambda columns: b.mul(b.udiv(columns, BLOCK), each), put)


def _row_packer(b: Builder, group: int, slot: int) -> Callable[[Value, Value, Value], None]:
    factor = b.cast("trunc", b.arg(slot), "i32")
    return lambda x, to, columns: _pack_row(b, group, x, to, b.udiv(columns, BLOCK), factor)


@dataclass(frozen=True, slots=True)
class Int8Method:
    """A ``Method``.

    Attributes:
        b: Writes the kernel.
        dtype: Of the weight.
    """

    b: Builder
    dtype: DType
    layout: BlockLayout

    @property
    def tile_rows(self) -> int:
        """16 registers, or 32."""
        return 3 if self.b.target.is_x86 and not self.b.target.has_avx512 else 6

    @property
    def _group(self) -> int:
        return group_of(self.layout)

    @property
    def _row_scales(self) -> int:
        return BLOCK_COLUMNS // self._group

    def panel_nbytes(self, columns: Value) -> Value:
        """See ``Method``."""
        each = block_nbytes(self.b.target, self._group)
        return self.b.mul(self.b.udiv(columns, BLOCK), each)

    def _scales(self, unpacked: Value, line: Value) -> tuple[Value, Value]:
        """Return where scales and minima of a row are."""
        b = self.b
        start = b.offset(unpacked, BLOCK_ROWS * BLOCK_COLUMNS)
        scales = b.offset(start, b.mul(line, 4 * self._row_scales))
        return scales, b.offset(scales, 4 * self._row_scales * BLOCK_ROWS)

    def unpack(self, w: Value, columns: Value, count: Value, line: Value, to: Value) -> None:
        """See ``Method``."""
        b, dtype, how = self.b, self.dtype, coding(self.layout)
        source = b.offset(w, b.mul(b.udiv(columns, dtype.block), dtype.block_nbytes))
        codes_at = b.offset(to, b.mul(line, BLOCK_COLUMNS))
        scales_at, mins_at = self._scales(to, line)
        with b.loop(0, b.udiv(count, dtype.block)) as block:
            place = b.offset(source, b.mul(block, dtype.block_nbytes))
            out = b.offset(codes_at, b.mul(block, dtype.block))
            for first in range(0, dtype.block, BLOCK):
                codes = code_bytes(b, (place,), self.layout, first, BLOCK)
                b.store(stored_codes(b, codes, how), b.offset(out, first))
            found = block_scales(b, place, self.layout)
            by = b.mul(block, 4 * (dtype.block // self._group))
            b.store(found.scales, b.offset(scales_at, by), 4)
            if found.mins is not None:
                b.store(found.mins, b.offset(mins_at, by), 4)

    def tile(
        self, unpacked: Value, line: Value, panel: Value, into: Value, count: Value, goes_on: Value
    ) -> None:
        """See ``Method``."""
        b = self.b
        codes = b.offset(unpacked, b.mul(line, BLOCK_COLUMNS))
        scales, mins = self._scales(unpacked, line)
        groups = BLOCK // self._group
        with (
            tile_sums(b, into, self.tile_rows, goes_on) as sums,
            b.loop(0, b.udiv(count, BLOCK)) as block,
        ):
            x = b.offset(panel, b.mul(block, block_nbytes(b.target, self._group)))
            w = b.offset(codes, b.mul(block, BLOCK))
            by = b.mul(block, 4 * groups)
            for number in range(groups):
                products = self._products(w, x, number)
                at = b.offset(scales, by), b.offset(mins, by)
                for r, (line_, totals) in enumerate(zip(products, sums, strict=True)):
                    here = 4 * (r * self._row_scales + number)
                    self._add(line_, totals, x, number, [b.offset(p, here) for p in at])

    def _products(self, w: Value, x: Value, number: int) -> list[list[Value]]:
        """Return the products (i32) of a group."""
        b, at = self.b, _Block(self.b.target, self._group)
        lanes = b.target.lanes
        kind = vector_of(lanes, "i32")
        starts = [Value("zeroinitializer", kind) for _ in range(VECTORS)]
        if correction_factor(b.target, coding(self.layout)):
            place = b.offset(x, at.correction(number))
            starts = [b.load(kind, b.offset(place, 4 * lanes * v), 4) for v in range(VECTORS)]
        found = [list(starts) for _ in range(self.tile_rows)]
        each = self._group // 4
        for four in range(number * each, (number + 1) * each):
            place = b.offset(x, at.width * four)
            values = [b.load(kind, b.offset(place, 4 * lanes * v), 4) for v in range(VECTORS)]
            for r, sums in enumerate(found):
                code = b.load("i32", b.offset(w, r * BLOCK_COLUMNS + 4 * four), 4)
                wide = b.splat(code, lanes)
                sums[:] = [dot_fours(b, s, wide, v) for s, v in zip(sums, values, strict=True)]
        return found

    def _add(
        self,
        products: Sequence[Value],
        sums: Sequence[Variable],
        x: Value,
        number: int,
        places: Sequence[Value],
    ) -> None:
        """Scale the products of a row, and add them."""
        b, at = self.b, _Block(self.b.target, self._group)
        lanes = b.target.lanes
        vector = vector_of(lanes, "float")
        scale = b.splat(b.load("float", places[0], 4), lanes)
        for v, (product, total) in enumerate(zip(products, sums, strict=True)):
            x_scale = b.load(vector, b.offset(x, at.scales + 4 * lanes * v), 4)
            value = b.cast("sitofp", product, "float")
            b.set(total, b.fma(value, b.fmul(x_scale, scale), b.get(total)))
            if self.layout.min is not None:
                least = b.splat(b.load("float", places[1], 4), lanes)
                whole = b.load(vector, b.offset(x, at.total(number) + 4 * lanes * v), 4)
                b.set(total, b.fma(whole, least, b.get(total)))


__all__ = ["GROUPS", "Int8Method", "block_nbytes", "group_of", "pack", "pack_routed"]
