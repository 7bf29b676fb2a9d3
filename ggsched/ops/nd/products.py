"""Products of matrices and sums over named axes."""

from collections.abc import Sequence
from math import prod

import numpy as np

from ggsched.ops.nd.declare import ANY, FLOATS, Array, broadcast, nd_op, wide
from ggsched.ops.record import Operand, Param, Shape


def _product(x: Sequence[Operand], **_: Param) -> tuple[str, Shape]:
    a, b = x[0].shape, x[1].shape
    if x[0].dtype is not x[1].dtype:
        raise ValueError("operands must have one type")
    return x[0].dtype.name, product_shape(a, b)


def product_shape(a: Shape, b: Shape) -> Shape:
    """Return the shape of ``numpy.matmul``."""
    if not a or not b:
        raise ValueError("operands need an axis")
    inner = b[-2] if len(b) > 1 else b[0]
    if a[-1] != inner:
        raise ValueError(f"{a[-1]} columns do not meet {inner} rows")
    rows = a[-2:-1]
    columns = b[-1:] if len(b) > 1 else ()
    return (*broadcast(a[:-2], b[:-2], ()), *rows, *columns)


def _work(a: Shape, b: Shape, **_: Param) -> float:
    return 2.0 * prod(product_shape(a, b)) * a[-1]


@nd_op("matmul", "a", "b", rule=_product, types=ANY, family="matmul", flops=_work)
def matmul(a: Array, b: Array) -> Array:
    """Multiply matrices as ``numpy.matmul`` does, batch axes broadcast."""
    return np.asarray(np.matmul(wide(a), wide(b)))


def _integer_product(x: Sequence[Operand], **_: Param) -> tuple[str, Shape]:
    if any(t.dtype.name not in ("i8", "u8") for t in x[:2]):
        raise ValueError("operands must be i8 or u8")
    return "i32", product_shape(x[0].shape, x[1].shape)


@nd_op(
    "matmul_i32", "a", "b", rule=_integer_product, types=("i8", "u8"), family="matmul", flops=_work
)
def matmul_i32(a: Array, b: Array) -> Array:
    """Multiply 8-bit matrices into i32; in f64, whose sums are exact here."""
    found = np.matmul(a.astype(np.float64), b.astype(np.float64))
    return np.asarray(found).astype(np.int32)


def _terms(equation: str, shapes: Sequence[Shape]) -> tuple[list[str], str, dict[str, int]]:
    """Return the subscripts of operands and result without ellipses, and the extents."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise ValueError(f"{equation!r} is for {len(terms)} operands")
    spare = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in text]
    dots = max(
        (
            len(s) - len(t.replace("...", ""))
            for t, s in zip(terms, shapes, strict=True)
            if "..." in t
        ),
        default=0,
    )
    if dots < 0:
        raise ValueError(f"{equation!r} has more letters than axes")
    names = "".join(spare[:dots])
    full = []
    for term, shape in zip(terms, shapes, strict=True):
        here = len(shape) - len(term.replace("...", ""))
        full.append(term.replace("...", names[dots - here :] if here else ""))
    if not arrow:
        letters = sorted({c for c in left if c.isalpha()})
        once = [c for c in letters if left.count(c) == 1]
        right = ("..." if dots else "") + "".join(once)
    right = right.replace("...", names)
    extents: dict[str, int] = {}
    for term, shape in zip(full, shapes, strict=True):
        if len(term) != len(shape):
            raise ValueError(f"{term!r} for {len(shape)} axes")
        for c, n in zip(term, shape, strict=True):
            if extents.setdefault(c, n) != n:
                if 1 not in (extents[c], n):
                    raise ValueError(f"axis {c!r} has {extents[c]} and {n} elements")
                extents[c] = max(extents[c], n)
    return full, right, extents


def _einsum(x: Sequence[Operand], equation: str) -> tuple[str, Sequence[int]]:
    _, right, extents = _terms(equation, [t.shape for t in x])
    if any(c not in extents for c in right):
        raise ValueError(f"{equation!r} makes an axis out of nothing")
    return x[0].dtype.name, [extents[c] for c in right]


def _einsum_work(*shapes: Shape, equation: str) -> float:
    return 2.0 * prod(_terms(equation, shapes)[2].values())


@nd_op(
    "einsum",
    "x*",
    rule=_einsum,
    types=(*FLOATS, "i64", "i32"),
    family="matmul",
    flops=_einsum_work,
    equation="",
)
def einsum(*x: Array, equation: str) -> Array:
    """Sum products of elements over the axes that the result does not name."""
    terms, right, _ = _terms(equation, [a.shape for a in x])
    work = [wide(a) for a in x]
    return np.asarray(np.einsum(f"{','.join(terms)}->{right}", *work, optimize=len(x) > 1))


def _determinant(x: Sequence[Operand], **_: Param) -> tuple[str, Shape]:
    shape = x[0].shape
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError("needs square matrices")
    return x[0].dtype.name, shape[:-2]


@nd_op("det", "x", rule=_determinant, types=FLOATS)
def det(x: Array) -> Array:
    """Return the determinant of matrices."""
    return np.asarray(np.linalg.det(wide(x)))


def _along(x: Sequence[Operand], axis: int) -> tuple[str, Shape]:
    shape, m = x[0].shape, x[1].shape
    if len(m) != 2 or not 0 <= axis < len(shape) or m[1] != shape[axis]:
        raise ValueError("needs a matrix with as many columns as the axis has elements")
    return x[0].dtype.name, (*shape[:axis], m[0], *shape[axis + 1 :])


def _along_work(x: Shape, m: Shape, axis: int) -> float:
    return 2.0 * prod(x) * m[0]


@nd_op(
    "along", "x", "matrix", rule=_along, types=FLOATS, family="matmul", flops=_along_work, axis=0
)
def along(x: Array, matrix: Array, axis: int) -> Array:
    """Multiply the vectors along an axis with a matrix."""
    if axis == x.ndim - 1:
        return np.asarray(wide(x) @ wide(matrix).T)
    rows = wide(x).reshape(*x.shape[: axis + 1], -1)
    return np.asarray(wide(matrix) @ rows).reshape(
        *x.shape[:axis], len(matrix), *x.shape[axis + 1 :]
    )
