"""Products with many rows of activations in f32: unpacked weights times spread activations."""

from dataclasses import dataclass
from itertools import chain

from ggsched.ir.blocks import BlockLayout
from ggsched.ir.dtype import DType
from ggsched_cpu.kernels.elements import block_values, load_f32
from ggsched_cpu.kernels.emit import Builder, Value, i64, vector_of
from ggsched_cpu.kernels.gemm import BLOCK_COLUMNS
from ggsched_cpu.kernels.panels import VECTORS, panel_width
from ggsched_cpu.kernels.target import Target
from ggsched_cpu.kernels.vectors import over_widths

TERMS, SHORT_TERMS = 32, 8
"""Products that are added up before their sum is added to the others, and the same if a block has
fewer than ``SHORT`` columns. Rounding is least with chains of about the root of the columns;
llama.cpp's chains of K products are 32 of K / 32."""
SHORT = 128


@dataclass(frozen=True, slots=True)
class F32Method:
    """A ``Method``.

    Attributes:
        b: Writes the kernel.
        dtype: Of the weight.
    """

    b: Builder
    dtype: DType

    @property
    def tile_rows(self) -> int:
        """See ``Method``."""
        return _tile_rows(self.b.target)

    def panel_nbytes(self, columns: Value) -> Value:
        """See ``Method``."""
        return self.b.mul(columns, 4 * panel_width(self.b.target))

    def unpack(self, w: Value, columns: Value, count: Value, line: Value, to: Value) -> None:
        """See ``Method``."""
        b, dtype = self.b, self.dtype
        source = b.offset(w, b.mul(b.udiv(columns, dtype.block), dtype.block_nbytes))
        target = b.offset(to, b.mul(line, 4 * BLOCK_COLUMNS))
        if dtype.layout is None:
            _convert_row(b, dtype, source, target, count)
        else:
            _decode_row(b, dtype, dtype.layout, source, target, count)

    def tile(
        self, unpacked: Value, line: Value, panel: Value, into: Value, count: Value, goes_on: Value
    ) -> None:
        """See ``Method``."""
        weights = self.b.offset(unpacked, self.b.mul(line, 4 * BLOCK_COLUMNS))
        _tile(self.b, weights, panel, into, count, goes_on)


def _tile_rows(target: Target) -> int:
    """16 registers, or 32."""
    return 6 if target.is_x86 and not target.has_avx512 else 12


def _convert_row(b: Builder, dtype: DType, source: Value, target: Value, count: Value) -> None:
    def convert(k: Value, width: int) -> None:
        at = b.offset(source, b.mul(k, dtype.block_nbytes))
        b.store(load_f32(b, dtype, at, width), b.offset(target, b.mul(k, 4)), 4)

    over_widths(b, count, convert)


def _decode_row(
    b: Builder, dtype: DType, layout: BlockLayout, source: Value, target: Value, count: Value
) -> None:
    lanes = b.target.lanes
    with b.loop(0, b.udiv(count, dtype.block)) as block:
        place = b.offset(source, b.mul(block, dtype.block_nbytes))
        to = b.offset(target, b.mul(block, 4 * dtype.block))
        for i, value in enumerate(block_values(b, place, layout, lanes)):
            b.store(value, b.offset(to, 4 * lanes * i), 4)


def _tile(
    b: Builder, weights: Value, panel: Value, into: Value, count: Value, goes_on: Value
) -> None:
    """Multiply a tile of rows with a panel; add to what is there if this ``goes_on``."""
    lanes, rows = b.target.lanes, _tile_rows(b.target)
    vector = vector_of(lanes, "float")
    width = 4 * panel_width(b.target)
    places = [
        [b.offset(into, width * r + 4 * lanes * v) for v in range(VECTORS)] for r in range(rows)
    ]
    nothing = b.zero(vector)
    with b.when(b.compare("eq", goes_on, 0)):
        for place in chain.from_iterable(places):
            b.store(nothing, place, 4)
    sums = [[b.var(nothing) for _ in line] for line in places]

    def step(k: Value, ahead: int) -> None:
        at = b.offset(b.offset(panel, b.mul(k, width)), width * ahead)
        values = [b.load(vector, b.offset(at, 4 * lanes * v), 4) for v in range(VECTORS)]
        start = b.offset(weights, b.mul(k, 4))
        for r, totals in enumerate(sums):
            weight = b.load("float", b.offset(start, 4 * (BLOCK_COLUMNS * r + ahead)), 4)
            wide = b.splat(weight, lanes)
            for value, total in zip(values, totals, strict=True):
                b.set(total, b.fma(value, wide, b.get(total)))

    unroll = 4
    terms = b.select(b.compare("slt", count, SHORT), i64(SHORT_TERMS), i64(TERMS))
    with b.loop(0, count, terms) as first:
        for total in chain.from_iterable(sums):
            b.set(total, nothing)
        end = b.umin(b.add(first, terms), count)
        whole = b.binary("and", end, -unroll)
        with b.loop(first, whole, unroll) as k:
            for ahead in range(unroll):
                step(k, ahead)
        with b.loop(whole, end) as k:
            step(k, 0)
        for line, totals in zip(places, sums, strict=True):
            for place, total in zip(line, totals, strict=True):
                b.store(b.fadd(b.load(vector, place, 4), b.get(total)), place, 4)
