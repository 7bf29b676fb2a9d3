"""Functions of elements that only frameworks of tensors have."""

import numpy as np

from ggsched.oplib.declare import FLOATS, Array, joined, nd_op, same


@nd_op("log1p", "x", rule=same, types=FLOATS, over=(0,), ufunc=np.log1p)
def log1p(x: Array) -> Array:
    """Return log(1 + x), exact near 0."""
    return np.asarray(np.log1p(x))


@nd_op("expm1", "x", rule=same, types=FLOATS, over=(0,), ufunc=np.expm1)
def expm1(x: Array) -> Array:
    """Return exp(x) - 1, exact near 0."""
    return np.asarray(np.expm1(x))


@nd_op("atan2", "a", "b", rule=joined, types=FLOATS, over=(0, 1), ufunc=np.arctan2)
def atan2(a: Array, b: Array) -> Array:
    """Return the angle of the point (b, a)."""
    return np.asarray(np.arctan2(a, b))
