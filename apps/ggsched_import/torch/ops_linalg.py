"""Converters of equations and factorisations of small matrices, whose columns become nodes.

Matrices may have batch axes in front. A singular matrix, for which PyTorch raises, gives infinities
and NaN: a plan cannot stop for a number that it computes.
"""

from typing import Any, Final, NamedTuple

import numpy as np

from ggsched.ops.nd.declare import broadcast
from ggsched_import.common.emit import Const, Value
from ggsched_import.torch.call import Call, converts

MAX_ORDER: Final = 256
"""Of a matrix: each column becomes about ten nodes."""


def _order(c: Call, x: Value) -> int:
    """Return the order of square matrices.

    Raises:
        ModelError: it is above ``MAX_ORDER``.
    """
    n = x.shape[-1]
    if n > MAX_ORDER:
        raise c.bad(
            f"a factorisation of a matrix of order {n} is not supported",
            hint=f"up to {MAX_ORDER} are, since each column becomes nodes",
        )
    return n


def _from(c: Call, x: Value, row: int, column: int) -> Value:
    """Return a matrix without its first rows and columns."""
    rank = len(x.shape)
    made = c.slice(x, rank - 2, row, x.shape[-2])
    return c.slice(made, rank - 1, column, x.shape[-1])


def _first(c: Call, x: Value, axis: int) -> Value:
    """Return the first row (-2) or column (-1) of matrices, as a matrix."""
    return c.slice(x, len(x.shape) + axis, 0, 1)


def _flipped(c: Call, x: Value, *axes: int) -> Value:
    """Return rows (-2) or columns (-1) in reverse order."""
    for axis in axes:
        x = c.slice(x, len(x.shape) + axis, x.shape[axis] - 1, -1, -1)
    return x


def _batched(c: Call, a: Value, b: Value) -> tuple[Value, Value]:
    """Return matrices whose batch axes are broadcast against each other."""
    batch = broadcast(a.shape[:-2], b.shape[:-2], ())
    a, b = (c.expand(v, (*batch, *v.shape[-2:])) for v in (a, b))
    return a, b


class _Eliminated(NamedTuple):
    """What elimination makes of matrices.

    Attributes:
        rest: The columns behind the square matrix, in the order of its rows.
        places: The pivot's row of each column, (..., n, 1).
        pivots: The pivots in their order.
    """

    rest: Value
    places: Value
    pivots: list[Value]


def _eliminated(c: Call, work: Value, n: int) -> _Eliminated:
    """Make the first n columns units, each by the largest element as its pivot (Gauss, Jordan)."""
    rank, kind = len(work.shape), work.dtype.name
    rows = Const(np.arange(n).reshape(n, 1))
    zero, is_used = c.const(0, kind), None
    places, pivots = [], []
    for _ in range(n):
        column = _first(c, work, -1)
        size = c.nd("abs", column)
        size = size if is_used is None else c.nd("where", is_used, c.const(-1, kind), size)
        at = c.nd("arg_max", size, axis=rank - 2, keepdims=True)
        is_pivot = c.nd("equal", rows, at)
        is_used = is_pivot if is_used is None else c.nd("or", is_used, is_pivot)
        # The pivot's row is a sum with one term, which is exact, unlike a product by TF32.
        row = c.nd("where", is_pivot, work, zero)
        row = c.nd("reduce_sum", row, axes=(rank - 2,), keepdims=True)
        pivots.append(_first(c, row, -1))
        row = c.nd("div", _from(c, row, 0, 1), pivots[-1])
        # The pivot's own row becomes the quotient; the others lose their part of it.
        factor = c.nd("sub", column, c.cast(is_pivot, kind))
        work = c.nd("sub", _from(c, work, 0, 1), c.nd("mul", factor, row))
        places.append(at)
    return _Eliminated(work, c.concat(places, rank - 2), pivots)


def _solved(c: Call, a: Value, b: Value) -> Value:
    """Return x of ``a @ x = b``."""
    n, (a, b) = _order(c, a), _batched(c, a, b)
    if not n:
        return b
    axis = len(a.shape) - 2
    found = _eliminated(c, c.concat([a, b], axis + 1), n)
    return c.nd("gather_elements", found.rest, c.expand(found.places, b.shape), axis=axis)


def _solved_lower(c: Call, a: Value, b: Value, unit: bool = False) -> Value:
    """Return x of ``a @ x = b``, where a is a lower triangular matrix; unit: of diagonal 1."""
    n, (a, b) = _order(c, a), _batched(c, a, b)
    found = []
    for _ in range(n):
        row = _first(c, b, -2)
        row = row if unit else c.nd("div", row, _first(c, _first(c, a, -2), -1))
        below = _first(c, _from(c, a, 1, 0), -1)
        b = c.nd("sub", _from(c, b, 1, 0), c.nd("mul", below, row))
        a = _from(c, a, 1, 1)
        found.append(row)
    return c.concat(found, len(b.shape) - 2) if n else b


def _solved_triangle(c: Call, a: Value, b: Value, upper: bool, unit: bool = False) -> Value:
    if not upper:
        return _solved_lower(c, a, b, unit)
    made = _solved_lower(c, _flipped(c, a, -2, -1), _flipped(c, b, -2), unit)
    return _flipped(c, made, -2)


def _factored(c: Call, a: Value) -> Value:
    """Return the lower Cholesky factor of matrices, of which the lower triangle is read."""
    n, rank = _order(c, a), len(a.shape)
    columns = []
    for k in range(n):
        column = _first(c, a, -1)
        column = c.nd("div", column, c.nd("sqrt", _first(c, column, -2)))
        below = _from(c, column, 1, 0)
        a = c.nd("sub", _from(c, a, 1, 1), c.nd("mul", below, c.swap(below)))
        pads = [0] * 2 * rank
        pads[rank - 2] = k
        zero = c.const(0, a.dtype.name)
        columns.append(c.nd("pad", column, zero, pads=tuple(pads), value=True))
    return c.concat(columns, rank - 1) if n else a


def _info(c: Call, found: Value) -> Value:
    """Return 1 for each matrix with elements that are not finite, as PyTorch's codes of errors."""
    is_good = c.nd("less", c.nd("abs", found), c.const(np.inf, found.dtype.name))
    is_bad = c.cast(c.nd("not", is_good), "f32")
    rank = len(found.shape)
    return c.cast(c.nd("reduce_max", is_bad, axes=(rank - 2, rank - 1), keepdims=False), "i32")


# --- converters -----------------------------------------------------------------------------------


@converts("_linalg_solve_ex")
def _solve(
    c: Call, A: Value, B: Value, *, left: bool = True, check_errors: bool = False
) -> list[Any]:
    if c.used is not None and c.used & {1, 2}:
        raise c.bad("the factors of a solution are not supported")
    is_vector = len(B.shape) == 1 or (len(B.shape) < len(A.shape) and B.shape == A.shape[:-1])
    b = c.reshape(B, (*B.shape, 1)) if is_vector else B
    made = _solved(c, A, b) if left else c.swap(_solved(c, c.swap(A), c.swap(b)))
    info = _info(c, made) if c.wants(3) else None
    return [c.reshape(made, made.shape[:-1]) if is_vector else made, None, None, info]


@converts("linalg_inv_ex", "linalg_inv", "inverse")
def _inverse(c: Call, A: Value, check_errors: bool = False) -> Any:
    made = _solved(c, A, Const(np.eye(A.shape[-1], dtype=A.dtype.host)))
    return [made, _info(c, made) if c.wants(1) else None] if c.name.endswith("ex") else made


@converts("linalg_cholesky_ex", "linalg_cholesky", "cholesky")
def _cholesky(c: Call, self: Value, upper: bool = False, check_errors: bool = False) -> Any:
    made = _factored(c, c.swap(self) if upper else self)
    made = c.swap(made) if upper else made
    return [made, _info(c, made) if c.wants(1) else None] if c.name.endswith("ex") else made


@converts("linalg_solve_triangular")
def _solve_triangular(
    c: Call, self: Value, B: Value, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Value:
    if left:
        return _solved_triangle(c, self, B, upper, unitriangular)
    return c.swap(_solved_triangle(c, c.swap(self), c.swap(B), not upper, unitriangular))


@converts("triangular_solve")
def _triangular_solve(
    c: Call, self: Value, A: Value, upper: bool = True, transpose: bool = False,
    unitriangular: bool = False,
) -> list[Any]:  # fmt: skip
    a = c.swap(A) if transpose else A
    return [_solved_triangle(c, a, self, upper != transpose, unitriangular), A]


@converts("cholesky_solve")
def _cholesky_solve(c: Call, self: Value, input2: Value, upper: bool = False) -> Value:
    lower = c.swap(input2) if upper else input2
    return _solved_triangle(c, c.swap(lower), _solved_lower(c, lower, self), True)


@converts("cholesky_inverse")
def _cholesky_inverse(c: Call, self: Value, upper: bool = False) -> Value:
    unit = Const(np.eye(self.shape[-1], dtype=self.dtype.host))
    return _cholesky_solve(c, unit, self, upper)


@converts("_linalg_slogdet", "linalg_slogdet", "slogdet")
def _slogdet(c: Call, A: Value) -> list[Any]:
    """Return sign and logarithm of the absolute value of determinants."""
    if c.used is not None and c.used & {2, 3}:
        raise c.bad("the factors of a determinant are not supported")
    n, batch, rank, kind = _order(c, A), A.shape[:-2], len(A.shape), A.dtype.name
    found = _eliminated(c, A, n)
    pivots = c.concat(found.pivots, rank - 2)
    size = c.nd("reduce_sum", c.nd("log", c.nd("abs", pivots)), axes=(rank - 2,), keepdims=False)
    # Each pair of rows in the wrong order, and each negative pivot, changes the sign.
    places = c.cast(found.places, kind)
    wrong = c.nd("greater", places, c.swap(places))
    wrong = c.nd("and", wrong, Const(np.triu(np.ones((n, n), bool))))
    swaps = c.nd("reduce_sum", c.cast(wrong, kind), axes=(rank - 2, rank - 1), keepdims=False)
    odd = c.nd("mod", swaps, c.const(2, kind))
    turn = c.nd("sub", c.const(1, kind), c.nd("mul", odd, c.const(2, kind)))
    signs = c.nd("reduce_prod", c.nd("sign", pivots), axes=(rank - 2,), keepdims=False)
    sign = c.nd("mul", turn, c.reshape(signs, batch))
    return [sign, c.reshape(size, batch), None, None]
