"""Products of bf16 weights with many rows of activations that are rounded to bf16.

For processors with products of pairs of bf16 (AVX-512 BF16). For each pair of columns a panel holds
the two elements of each row of activations, side by side. Weights are used as they are stored.
"""

from dataclasses import dataclass
from typing import Final

from ggsched_cpu_kernels.emit import Builder, Value, i64, vector_of
from ggsched_cpu_kernels.gemm import BLOCK_COLUMNS
from ggsched_cpu_kernels.panels import VECTORS, pair_of, panel_width, places_of
from ggsched_cpu_kernels.target import Target
from ggsched_cpu_kernels.vectors import Row, over_rows, own_slot

COLUMNS: Final = 16
"""Rows of weights have a multiple of this number of columns."""

_TILE_ROWS: Final = 12


def has_pairs(target: Target) -> bool:
    """Whether there are products of pairs of bf16."""
    return target.has_avx512 and target.has("avx512bf16")


def panel_nbytes(target: Target, columns: int) -> int:
    """Return the bytes of a panel."""
    return 2 * panel_width(target) * columns


def _pack_row(b: Builder, x: Value, to: Value, columns: Value) -> None:
    """Write one row of activations into its places of a panel."""
    width = 4 * panel_width(b.target)
    with b.loop(0, columns, COLUMNS) as column:
        values = b.load(vector_of(COLUMNS, "float"), b.offset(x, b.mul(column, 4)), 4)
        rounded = b.cast("fptrunc", values, "bfloat")
        pairs = b.bitcast(rounded, vector_of(COLUMNS // 2, "i32"))
        place = b.offset(to, b.mul(column, width // 2))
        for i in range(COLUMNS // 2):
            b.store(b.extract(pairs, i), b.offset(place, width * i), 4)


def pack(name: str, target: Target) -> Builder:
    """Operand x, a row of which is a panel's; result; activations in all, and their stride.

    Rows of a panel that are not there repeat the last one.
    """
    b = Builder(name, target)
    total, stride = (b.arg(own_slot(2) + i) for i in range(2))
    width = panel_width(target)

    def row(row: Row) -> None:
        x, out = row.pointers
        left = b.sub(total, b.mul(row.number, width))
        with b.loop(0, i64(width)) as number:
            inside = b.umin(number, b.sub(left, 1))
            line = b.offset(x, b.mul(inside, stride))
            _pack_row(b, line, b.offset(out, b.mul(number, 4)), row.columns)

    over_rows(b, 2, row)
    return b


def pack_routed(name: str, target: Target) -> Builder:
    """Like ``panels.pack_routed``; rows of a panel that are not there are not written."""
    b = Builder(name, target)
    x, routes, result = (b.arg_pointer(i) for i in (0, 6, 7))
    by_token, by_use, columns, used, experts = (b.arg(i) for i in range(1, 6))
    width, expert = panel_width(target), b.parameter("part")
    first, last, panel, pairs = places_of(b, routes, experts, expert)
    nbytes = b.mul(columns, panel_nbytes(target, 1))
    start = b.offset(result, b.mul(panel, nbytes))
    with b.loop(0, b.sub(last, first)) as number:
        pair = pair_of(b, pairs, b.add(first, number))
        line = b.offset(x, b.mul(b.udiv(pair, used), by_token))
        line = b.offset(line, b.mul(b.urem(pair, used), by_use))
        to = b.offset(start, b.mul(b.udiv(number, width), nbytes))
        _pack_row(b, line, b.offset(to, b.mul(b.urem(number, width), 4)), columns)
    return b


@dataclass(frozen=True, slots=True)
class BF16Method:
    """A ``Method``.

    Attributes:
        b: Writes the kernel.
    """

    b: Builder

    @property
    def tile_rows(self) -> int:
        """See ``Method``."""
        return _TILE_ROWS

    def panel_nbytes(self, columns: Value) -> Value:
        """See ``Method``."""
        return self.b.mul(columns, panel_nbytes(self.b.target, 1))

    def unpack(self, w: Value, columns: Value, count: Value, line: Value, to: Value) -> None:
        """See ``Method``."""
        b = self.b
        source = b.offset(w, b.mul(columns, 2))
        target = b.offset(to, b.mul(line, 2 * BLOCK_COLUMNS))
        with b.loop(0, count, COLUMNS) as column:
            by = b.mul(column, 2)
            stored = b.load(vector_of(COLUMNS, "i16"), b.offset(source, by), 2)
            b.store(stored, b.offset(target, by), 2)

    def tile(
        self, unpacked: Value, line: Value, panel: Value, into: Value, count: Value, goes_on: Value
    ) -> None:
        """See ``Method``."""
        b = self.b
        lanes, width = b.target.lanes, 4 * panel_width(b.target)
        vector, pairs = vector_of(lanes, "float"), vector_of(2 * lanes, "bfloat")
        places = [
            [b.offset(into, width * r + 4 * lanes * v) for v in range(VECTORS)]
            for r in range(_TILE_ROWS)
        ]
        sums = [[b.var(b.zero(vector)) for _ in row] for row in places]
        with b.when(goes_on):
            for row, totals in zip(places, sums, strict=True):
                for place, total in zip(row, totals, strict=True):
                    b.set(total, b.load(vector, place, 4))
        weights = b.offset(unpacked, b.mul(line, 2 * BLOCK_COLUMNS))
        ahead = range(0, COLUMNS, 2)
        with b.loop(0, count, COLUMNS) as column:
            w = b.offset(weights, b.mul(column, 2))
            x = b.offset(panel, b.mul(column, width // 2))
            for k in ahead:
                at = b.offset(x, width * k // 2)
                values = [b.load(pairs, b.offset(at, 4 * lanes * v), 4) for v in range(VECTORS)]
                for r, totals in enumerate(sums):
                    pair = b.load("i32", b.offset(w, 2 * (BLOCK_COLUMNS * r + k)), 4)
                    wide = b.bitcast(b.splat(pair, lanes), pairs)
                    for value, total in zip(values, totals, strict=True):
                        b.set(total, self._added(b.get(total), value, wide))
        for row, totals in zip(places, sums, strict=True):
            for place, total in zip(row, totals, strict=True):
                b.store(b.get(total), place, 4)

    def _added(self, total: Value, x: Value, w: Value) -> Value:
        return self.b.intrinsic("x86.avx512bf16.dpbf16ps.512", total, x, w, suffix="-")


__all__ = ["COLUMNS", "BF16Method", "has_pairs", "pack", "pack_routed", "panel_nbytes"]
