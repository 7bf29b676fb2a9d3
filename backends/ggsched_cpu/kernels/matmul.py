"""Matrix products. Plain f32 goes to BLAS as it lies; packed weights through bounded scratch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ggsched.backend.arrays import Array
from ggsched.ir.dtype import F32
from ggsched_cpu.dequant import Decoder, decoder
from ggsched_cpu.kernels.gemm import product, run
from ggsched_cpu.lowering_context import Call, CpuLoweringContext, Node, shares
from ggsched_cpu.quant_gemv import VectorProduct, vector_product

SCRATCH_NBYTES: Final = 4 << 20
"""Most decoded weights at a time, for many vectors: few large products."""

CACHED_NBYTES: Final = 512 << 10
"""The same for one vector: each weight is used once, so it should still be in the L2 cache."""


def grouped(w: Array, x: Array, out: Array) -> tuple[Array, Array, Array]:
    """Return views whose batch axes broadcast, for batch i of x against batch i // (Bx / Bw) of w.

    Each batch axis of x and out is cut into (Bw, Bx / Bw), and w gets an axis of one. If there
    is one vector per batch, the last of these groups takes the place of its rows: the vectors of
    grouped-query attention that meet the same keys are then one product.
    """
    batch = x.ndim - 2
    w = w.reshape((1,) * (x.ndim - w.ndim) + w.shape)
    w_shape: list[int] = []
    x_shape: list[int] = []
    for wide, narrow in zip(x.shape[:batch], w.shape[:batch], strict=True):
        if wide == narrow:
            w_shape.append(narrow)
            x_shape.append(narrow)
        else:
            w_shape += [narrow, 1]
            x_shape += [narrow, wide // narrow]
    folds = x.shape[-2] == 1 and batch > 0 and x.shape[batch - 1] != w.shape[batch - 1]
    if folds:
        w_shape.pop()
    else:
        x_shape.append(x.shape[-2])
    return (
        w.reshape(*w_shape, *w.shape[-2:]),
        _cut(x, (*x_shape, x.shape[-1])),
        _cut(out, (*x_shape, out.shape[-1])),
    )


def _cut(a: Array, shape: tuple[int, ...]) -> Array:
    """Reshape without copying: axes are cut in two, and axes of one come and go."""
    view = a.reshape(shape)
    assert shares(a, view)  # a copy would be neither up to date nor looked at
    return view


Piece = tuple[Array, Array, list[Call]]
"""Packed weights, where to decode them, and the product that uses them."""


def packed_products(
    w: Array, x: Array, out: Array, columns: int, site: CpuLoweringContext
) -> Iterator[Piece]:
    """Yield pieces of a product with packed weights, each within the limit of scratch.

    Args:
        w: Packed weights with batch axes; the last axis in whatever the type packs.
        x: Vectors, as ``grouped`` returns them.
        out: Result, the same.
        columns: Elements of a row of w.
        site: Gives the scratch memory, one piece for all.
    """
    limit = CACHED_NBYTES if x.shape[-2] == 1 else SCRATCH_NBYTES
    rows = max(1, min(w.shape[-2], limit // max(1, 4 * columns)))
    room = site.scratch((rows, columns))
    for at in np.ndindex(*w.shape[:-2]):
        # An axis of one in w meets all of x: such an axis stays whole.
        part = tuple(
            slice(None) if n == 1 else slice(i, i + 1)
            for i, n in zip(at, w.shape[:-2], strict=True)
        )
        for start in range(0, w.shape[-2], rows):
            stop = min(start + rows, w.shape[-2])
            decoded = room[: stop - start]
            index: tuple[Any, ...] = (*part, ..., slice(start, stop))
            yield w[at][start:stop], decoded, product(decoded, x[part], out[index])


def _vector_calls(w: Array, x: Array, out: Array, product_of: VectorProduct) -> list[Call]:
    """Return calls for one vector per matrix of quantised weights."""
    rows = max(1, CACHED_NBYTES // (4 * x.shape[-1]))
    return [
        (product_of, (w[at][start : start + rows], x[at][0], out[at][0, start : start + rows]))
        for at in np.ndindex(*w.shape[:-2])
        for start in range(0, w.shape[-2], rows)
    ]


def run_pieces(decode: Decoder, pieces: Sequence[Piece]) -> None:
    """Decode and multiply piece by piece."""
    for packed, decoded, calls in pieces:
        decode(packed, decoded)
        run(calls)


def _mul_mat(node: Node, site: CpuLoweringContext) -> list[Call]:
    x, columns = node.inputs[1], node.inputs[1].shape[-1]
    if columns == 0:
        return [(node.out.fill, (0.0,))]
    w, x, out = grouped(node.inputs[0], x, node.out)
    if node.dtype(0) is F32:
        return product(w, x, out)
    by_vector = vector_product(node.dtype(0))
    if by_vector is not None and x.shape[:-1] == (*w.shape[:-2], 1):
        return _vector_calls(w, x, out, by_vector)
    pieces = list(packed_products(w, x, out, columns, site))
    return [(run_pieces, (decoder(node.dtype(0)), pieces))]


EMITTERS: Final[Mapping[str, Callable[[Node, CpuLoweringContext], list[Call]]]] = {
    "mul_mat": _mul_mat
}
