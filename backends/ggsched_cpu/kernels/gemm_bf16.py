"""Products of bf16 weights with many rows of activations that are rounded to bf16.

For processors with products of pairs of bf16 (AVX-512 BF16). For each pair of columns a panel holds
the two elements of each row of activations, side by side. Weights are used as they are stored.
"""

from dataclasses import dataclass
from functools import partial
from typing import Final

from ggsched_cpu.kernels.emit import Builder, Value, vector_of
from ggsched_cpu.kernels.gemm import BLOCK_COLUMNS
from ggsched_cpu.kernels.panels import VECTORS, pack_pairs, pack_rows, panel_width, tile_sums
from ggsched_cpu.kernels.target import Target

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
    """See ``panels.pack_rows``."""
    b = Builder(name, target)
    return pack_rows(b, partial(_pack_row, b))


def pack_routed(name: str, target: Target) -> Builder:
    """See ``panels.pack_pairs``."""
    b = Builder(name, target)
    each = panel_nbytes(target, 1)
    return pack_pairs(b, lambda columns: b.mul(columns, each), partial(_pack_row, b))


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
        pairs = vector_of(2 * lanes, "bfloat")
        weights = b.offset(unpacked, b.mul(line, 2 * BLOCK_COLUMNS))
        with (
            tile_sums(b, into, _TILE_ROWS, goes_on) as sums,
            b.loop(0, count, COLUMNS) as column,
        ):
            w = b.offset(weights, b.mul(column, 2))
            x = b.offset(panel, b.mul(column, width // 2))
            for k in range(0, COLUMNS, 2):
                at = b.offset(x, width * k // 2)
                values = [b.load(pairs, b.offset(at, 4 * lanes * v), 4) for v in range(VECTORS)]
                for r, totals in enumerate(sums):
                    pair = b.load("i32", b.offset(w, 2 * (BLOCK_COLUMNS * r + k)), 4)
                    wide = b.bitcast(b.splat(pair, lanes), pairs)
                    for value, total in zip(values, totals, strict=True):
                        b.set(total, self._added(b.get(total), value, wide))

    def _added(self, total: Value, x: Value, w: Value) -> Value:
        return self.b.intrinsic("x86.avx512bf16.dpbf16ps.512", total, x, w, suffix="-")


__all__ = ["COLUMNS", "BF16Method", "has_pairs", "pack", "pack_routed", "panel_nbytes"]
