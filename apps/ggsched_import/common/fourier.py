"""Discrete Fourier transforms as products with matrices.

A complex array is a pair of values, the real and the imaginary parts; None stands for zeros.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ggsched.errors import ModelError
from ggsched_import.common.emit import Const, Emitter, Value

Pair = tuple[Value, Value | None]
Matrix = npt.NDArray[np.float64]

ONE_PRODUCT: Final = 1_024
"""Elements that one product transforms; longer transforms are split into those of two factors."""

MAX_PRIME: Final = 2_048
"""Of the prime factors of a length, whose matrices have four times its square in elements."""

MAX_LENGTH: Final = 1 << 22
"""Of a transform, as many elements as its tables have."""


def fourier(
    emit: Emitter, x: Pair, axis: int, sign: int, scale: float = 1.0, keep: int | None = None
) -> tuple[Value, Value]:
    """Return the sums of ``x[j] * exp(sign * 2 pi i j k / n)`` along an axis.

    Args:
        emit: Makes nodes.
        x: Real and imaginary parts.
        axis: Counted from the front.
        sign: -1 forwards, 1 backwards.
        scale: Of the sums.
        keep: How many of the first frequencies are wanted; None for all.

    Raises:
        ModelError: a length of 0 or above ``MAX_LENGTH``, or with a prime factor above
            ``MAX_PRIME``.
    """
    n = x[0].shape[axis]
    count = n if keep is None else keep
    real, imag = _on_rows(
        emit, x, axis, lambda rows: _transformed(emit, rows, n, sign, scale, count)
    )
    return real, imag


def real_signal(emit: Emitter, x: Pair, axis: int, n: int, scale: float = 1.0) -> Value:
    """Return the real signal of n elements of which the first ``n // 2 + 1`` frequencies are given.

    Args:
        emit: Makes nodes.
        x: Real and imaginary parts.
        axis: Counted from the front.
        n: Elements of the signal.
        scale: Of the sums.

    Raises:
        ModelError: what ``fourier`` raises.
    """
    bins = x[0].shape[axis]
    if 0 < n <= ONE_PRODUCT:
        cosine, sine = _waves(bins, n, n, 1, scale)
        twice = np.where((np.arange(bins) == 0) | (2 * np.arange(bins) == n), 1, 2)[:, None]
        waves = twice * cosine, twice * -sine
        return _on_rows(emit, x, axis, lambda rows: _products(emit, rows, waves))[0]
    mirror = np.arange((n - 1) // 2, 0, -1)

    def full(v: Value, is_imag: bool) -> Value:
        """Return all frequencies: those above the half are conjugates of those below."""
        rest = emit.op("gather", v, Const(mirror), axis=axis)
        return emit.op("concat", v, emit.op("neg", rest) if is_imag else rest, axis=axis)

    pair = full(x[0], False), None if x[1] is None else full(x[1], True)
    return fourier(emit, pair, axis, 1, scale)[0]


def _on_rows(emit: Emitter, x: Pair, axis: int, f: Callable[[Pair], list[Value]]) -> list[Value]:
    """Apply a function of matrices, whose rows are the vectors along an axis."""
    shape = x[0].shape
    order = [*range(axis), *range(axis + 1, len(shape)), axis]
    lead = tuple(shape[a] for a in order[:-1])
    size = (math.prod(lead), shape[axis])
    real, imag = (None if v is None else emit.reshape(_moved(emit, v, order), size) for v in x)
    assert real is not None
    back = [order.index(a) for a in range(len(order))]
    found = f((real, imag))
    return [_moved(emit, emit.reshape(v, (*lead, v.shape[1])), back) for v in found]


def _moved(emit: Emitter, x: Value, order: list[int]) -> Value:
    return x if order == sorted(order) else emit.op("transpose", x, perm=tuple(order))


def _transformed(emit: Emitter, x: Pair, n: int, sign: int, scale: float, keep: int) -> list[Value]:
    """Transform the rows of matrices."""
    small = 1 if n <= ONE_PRODUCT or n > MAX_LENGTH else _factor(n)
    if small == 1:
        if not 0 < n <= MAX_PRIME:
            raise ModelError(
                f"a Fourier transform of {n} elements is not supported",
                why=f"lengths up to {MAX_LENGTH} are, if their primes are up to {MAX_PRIME}",
                hint="pad the signal to a power of two",
            )
        cosine, sine = _waves(n, keep, n, sign, scale)
        return _products(emit, x, (cosine, -sine), (sine, cosine))
    large, rows = n // small, x[0].shape[0]

    def columns(parts: Sequence[Value | None], a: int, b: int) -> Any:
        """Return the columns of matrices (a, b), which are the rows, as rows."""
        shaped = [None if v is None else emit.reshape(v, (rows, a, b)) for v in parts]
        turned = [v if v is None else emit.op("transpose", v, perm=(0, 2, 1)) for v in shaped]
        return [v if v is None else emit.reshape(v, (rows * b, a)) for v in turned]

    # Element large * j + i, frequency k + small * m: over j, turned by i * k, then over i.
    inner = _transformed(emit, columns(x, small, large), small, sign, 1.0, small)
    waves = _waves(large, small, n, sign, scale)
    turn, lift = (Const(w.astype(x[0].dtype.host)) for w in waves)
    a, b = (emit.reshape(v, (rows, large, small)) for v in inner)
    real = emit.op("sub", emit.op("mul", a, turn), emit.op("mul", b, lift))
    imag = emit.op("add", emit.op("mul", a, lift), emit.op("mul", b, turn))
    outer = _transformed(emit, columns((real, imag), large, small), large, sign, 1.0, large)
    made = columns(outer, small, large)
    return [_columns(emit, emit.reshape(v, (rows, n)), 0, keep) for v in made]


def _factor(n: int) -> int:
    """Return the largest divisor up to the square root."""
    return next(d for d in range(math.isqrt(n), 0, -1) if n % d == 0)


def _waves(rows: int, columns: int, n: int, sign: int, scale: float) -> tuple[Matrix, Matrix]:
    """Return ``scale * exp(sign * 2 pi i j k / n)`` for row j and column k, in two parts."""
    turns = np.outer(np.arange(rows), np.arange(columns)) % n * (2 * math.pi / n)
    return scale * np.cos(turns), sign * scale * np.sin(turns)


def _products(emit: Emitter, x: Pair, *matrices: tuple[Matrix, Matrix]) -> list[Value]:
    """Multiply the rows of both parts with a pair of matrices each, and add the two products."""
    both = x[0] if x[1] is None else emit.op("concat", x[0], x[1], axis=1)
    full = (real if x[1] is None else np.vstack((real, imag)) for real, imag in matrices)
    return [emit.op("matmul", both, Const(m.astype(both.dtype.host))) for m in full]


def _columns(emit: Emitter, x: Value, start: int, stop: int) -> Value:
    if (start, stop) == (0, x.shape[1]):
        return x
    return emit.op("slice", x, starts=(0, start), stops=(x.shape[0], stop), steps=(1, 1))


def parts_of(emit: Emitter, x: Value) -> Pair:
    """Return the parts that lie beside each other along the last axis, of extent 1 or 2."""
    rows, n = math.prod(x.shape[:-1]), x.shape[-1]
    flat = emit.reshape(x, (rows, n))
    found = [emit.reshape(_columns(emit, flat, i, i + 1), x.shape[:-1]) for i in range(n)]
    return found[0], found[1] if n > 1 else None


def joined_parts(emit: Emitter, *parts: Value) -> Value:
    """Return parts beside each other along a new last axis."""
    shaped = [emit.reshape(v, (*v.shape, 1)) for v in parts]
    return emit.op("concat", *shaped, axis=len(shaped[0].shape) - 1)
