"""Products of f32 matrices, cut so that BLAS is at its best.

OpenBLAS has kernels for small products that read a matrix where it lies. For larger products it
copies the whole matrix into panels first, which pays from about a hundred vectors on; with 2 to 64
it made products of this kind 3 to 15 times slower than the memory allows. So these are cut
into tiles that are small enough, all of them in one call of ``np.matmul``. Measured with numpy
2.4 (OpenBLAS 0.3.31, Zen 4); where there are no such kernels, tiles cost a few per cent.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np

from ggsched.backend.arrays import Array
from ggsched_cpu.lowering_context import F32, Call

_MAX_ELEMENTS: Final = 1200
"""Largest result of a small product of rows with rows."""

_MAX_PRODUCTS: Final = 1_000_000
"""Most multiplications of a small product."""

_LEAST_COLUMNS: Final = 32
"""Shortest rows of a small product."""

_PANELS_PAY: Final = 96
"""From this many vectors on one large product is faster."""

_UNCACHED_NBYTES: Final = 256 << 10
"""Matrices of this size are not in the nearest caches when a token comes to them."""

Tile = tuple[int, int]
"""Vectors and rows of w that meet in one small product."""


def product(w: Array, x: Array, out: Array) -> list[Call]:
    """Return calls for ``out = x @ w.T`` on views whose batch axes broadcast, without copies."""
    if out.ndim > 2 and out.size == out.shape[-1] * out.shape[-2] and w.size == _matrix_size(w):
        head = (0,) * (out.ndim - 2)
        w, x, out = w[(0,) * (w.ndim - 2)], x[head], out[head]
    plain = w.flags.c_contiguous and out.flags.carray  # np.dot takes no other result
    if out.ndim == 2 and out.shape[0] == 1 and plain:
        return [(np.dot, (w, x[0], out[0]))]
    if _is_interleaved(w, out):
        # Row by row through memory, not matrix by matrix: half the time when it is not cached.
        return [(np.vecdot, (w.swapaxes(0, 1), x[:, 0], out[:, 0].swapaxes(0, 1)))]
    tile = _tile(w, x, out)
    if tile is None:
        return [(np.matmul, (x, w.swapaxes(-1, -2), out))]
    vectors, rows = tile
    m, n = out.shape[-2] // vectors * vectors, out.shape[-1] // rows * rows
    calls = [_tiled(w[..., :n, :], x[..., :m, :], out[..., :m, :n], tile)]
    if n < out.shape[-1]:
        calls += product(w[..., n:, :], x[..., :m, :], out[..., :m, n:])
    if m < out.shape[-2]:
        calls += product(w, x[..., m:, :], out[..., m:, :])
    return calls


def multiply(w: Array, x: Array, out: Array) -> None:
    """Compute ``out = x @ w.T`` now."""
    run(product(w, x, out))


def run(calls: Iterable[Call]) -> None:
    """Make calls in order."""
    for function, arguments in calls:
        function(*arguments)


def _matrix_size(w: Array) -> int:
    rows, columns = w.shape[-2:]
    return int(rows * columns)


def _is_interleaved(w: Array, out: Array) -> bool:
    """Whether each matrix meets one vector, and their rows take turns, as heads in a cache do."""
    return (
        out.ndim == 3
        and out.shape[1] == 1
        and w.shape[0] == out.shape[0]
        and w.strides[0] < w.strides[1]
        and w.strides[2] == F32.itemsize
        and w.nbytes >= _UNCACHED_NBYTES
    )


def _tile(w: Array, x: Array, out: Array) -> Tile | None:
    """Return the tile to cut into, or None if one product is as well."""
    (m, n), k = out.shape[-2:], x.shape[-1]
    small = m * n <= _MAX_ELEMENTS and m * n * k <= _MAX_PRODUCTS
    if m < 2 or m >= _PANELS_PAY or small or k < _LEAST_COLUMNS:
        return None
    if any(a.strides[-1] != F32.itemsize for a in (w, x, out)):
        return None  # w transposed: rows meet columns, for which other limits hold
    for vectors in (16, 8, 4) if m >= 16 else (m, m // 2):
        most = min(_MAX_ELEMENTS // max(1, vectors), _MAX_PRODUCTS // max(1, vectors * k), n)
        if most >= 8:
            return vectors, 1 << (most.bit_length() - 1)
    return None


def _tiled(w: Array, x: Array, out: Array, tile: Tile) -> Call:
    """Return one call for all tiles. Cutting an axis in two never copies.

    The axis over the rows of w is the outermost, so that a tile of w is read from memory once.
    """
    vectors, rows = tile
    m, n, k = out.shape[-2] // vectors, out.shape[-1] // rows, x.shape[-1]
    w_tiles = w.reshape(*w.shape[:-2], n, 1, rows, k)
    x_tiles = x.reshape(*x.shape[:-2], 1, m, vectors, k)
    out_tiles = out.reshape(*out.shape[:-2], m, vectors, n, rows)
    axes = out_tiles.ndim
    order = (*range(axes - 4), axes - 2, axes - 4, axes - 3, axes - 1)
    return np.matmul, (x_tiles, w_tiles.swapaxes(-1, -2), out_tiles.transpose(order))
