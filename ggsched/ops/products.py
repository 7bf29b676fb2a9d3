"""Built-in products of matrices."""

from collections.abc import Sequence
from math import prod
from typing import ClassVar, Protocol

from ggsched.ops.lazy import Array, np
from ggsched.ops.record import PRODUCTS, Method, Operand, Shape, method, need, op
from ggsched.ops.rows import check_ids


def _product(x: Sequence[Operand]) -> tuple[str, Shape]:
    w, a = (t.shape for t in x)
    fits = len(w) >= 2 and len(a) >= 2 and w[-1] == a[-1]
    need(fits, "needs w (.., n, k) and x (.., m, k)")
    batch = (1,) * (len(a) - len(w)) + w[:-2]
    fits = len(batch) == len(a) - 2 and all(
        n and m % n == 0 for n, m in zip(batch, a[:-2], strict=True)
    )
    need(fits, "each batch axis of x must be a multiple of w's")
    return "f32", (*a[:-1], w[-2])


def _mul_mat(w: Array, x: Array) -> Array:
    w = w.reshape((1,) * (x.ndim - w.ndim) + w.shape)
    for axis in range(x.ndim - 2):
        # Batch i of x meets batch i // (Bx / Bw) of w: neighbours share.
        w = np.repeat(w, x.shape[axis] // w.shape[axis], axis=axis)
    return np.asarray(x @ np.swapaxes(w, -1, -2))


def _chosen(x: Sequence[Operand], first: int, of: int) -> tuple[str, Shape]:
    w, a, ids = (t.shape for t in x)
    fits = len(w) == len(a) == 3 and len(ids) == 2 and w[2] == a[2] and a[0] == ids[0]
    need(fits and a[1] in (1, ids[1]), "needs w (E, n, k), x (T, U or 1, k), ids (T, U)")
    need(0 <= first <= of - w[0] if of else not first, "first and of: experts are not there")
    return "f32", (*ids, w[1])


def _mul_mat_id(w: Array, x: Array, ids: Array, first: int, of: int) -> Array:
    check_ids(ids, of or w.shape[0])
    out = np.zeros((*ids.shape, w.shape[1]), x.dtype)
    rows = np.broadcast_to(x, (*ids.shape, x.shape[2]))
    for expert in {*np.unique(ids)} & {*range(first, first + w.shape[0])}:
        out[ids == expert] = rows[ids == expert] @ w[expert - first].T
    return out


def _touched(x: Sequence[Operand], result: Operand, first: int, of: int) -> float:
    """Return the bytes of a product with chosen experts: of the weights those it can take."""
    w, rows, ids = x
    share = min(1.0, max(1, ids.size) / max(1, of or w.shape[0]))
    return result.nbytes + rows.nbytes + ids.nbytes + w.nbytes * share


class Products(Protocol):
    """Methods of builders for products. Examples go on from that of ``GraphBuilder``."""

    mul_mat: ClassVar[Method] = method(
        op("mul_mat", "w:float", "x", rule=_product, reference=_mul_mat, family=PRODUCTS,
           flops=lambda w, x: 2.0 * (prod(x[:-1]) * w[-2]) * w[-1],
           doc="Return ``x @ w.T`` over the last two axes: w (.., n, k), x (.., m, k)."),
        "g.mul_mat(w, x).shape", "(4, 32)",
    )  # fmt: skip
    mul_mat_id: ClassVar[Method] = method(
        op("mul_mat_id", "w:float", "x", "ids:i32", rows=(0, 2), rule=_chosen,
           reference=_mul_mat_id, family=PRODUCTS, nbytes=_touched,
           first=0, of=0,
           flops=lambda w, x, ids, first, of: (
               2.0 * prod(ids) * w[1] * w[-1] * (w[0] / of if of else 1)
           ),
           doc="Return ``x[t, u] @ w[ids[t, u]].T``: w (E, n, k), x (T, U or 1, k) -> (T, U, n). "
               "If w has the experts from ``first`` on, of ``of``, rows of others become 0."),
        'experts, ids = g.weight("experts", (8, 32, 64)), g.input("chosen", (4, 2), "i32")',
        "g.mul_mat_id(experts, g.reshape(x, 4, 1, 64), ids).shape", "(4, 2, 32)",
    )  # fmt: skip
