"""Operators on tensors that a builder made: ``x @ w + 1`` instead of calls.

A tensor knows the builder that made it until ``build``; tensors of a graph have none. Operands of
f32 use built-in ops where shapes allow it, because more devices have them; others use the library
``nd``.
"""

import array
from typing import Any, Final, Protocol, Self

from ggsched.errors import GraphError


class Builder(Protocol):
    """What operators need of a ``GraphBuilder``; its tensors are those that use them."""

    def op(self, op_name: str, /, *operands: Any) -> Any:
        """Add a node by the name of its op."""

    def add(self, a: Any, b: Any) -> Any:
        """Add a tensor or a number."""

    def mul(self, a: Any, b: Any) -> Any:
        """Multiply by a tensor or a number."""

    def scale(self, x: Any, scale: float) -> Any:
        """Multiply by a number."""

    def mul_mat(self, w: Any, x: Any) -> Any:
        """Return ``x @ w.T``."""

    def transpose(self, x: Any) -> Any:
        """Exchange the last two axes."""

    def constant(self, array: Any, dtype: Any = None) -> Any:
        """Return an array as a tensor."""


_BUILT_IN_AXES: Final = 4


class Operators:
    """``+ - * /`` with tensors, arrays and numbers, ``@ < <= > >=`` with tensors and arrays.

    Arrays, on either side, become constants of the type of the tensor where that is exact.

    All raise ``GraphError`` for a tensor of a graph that is built, of another builder, or of a
    shape or type that does not fit, and numbers beside tensors that are not f32.
    """

    __slots__ = ()
    __array_ufunc__ = None  # numpy leaves the operator to the tensor

    def __add__(self, other: Any) -> Self:
        found: Self = _arithmetic("add", self, other)
        return found

    def __sub__(self, other: Any) -> Self:
        found: Self = _arithmetic("sub", self, other)
        return found

    def __mul__(self, other: Any) -> Self:
        found: Self = _arithmetic("mul", self, other)
        return found

    def __truediv__(self, other: Any) -> Self:
        found: Self = _arithmetic("div", self, other)
        return found

    def __radd__(self, other: Any) -> Self:
        found: Self = _arithmetic("add", self, other)
        return found

    def __rmul__(self, other: Any) -> Self:
        found: Self = _arithmetic("mul", self, other)
        return found

    def __rsub__(self, other: Any) -> Self:
        x, g = _own(self)
        if _has_axes(other):
            return _arithmetic("sub", g.constant(other, x.dtype), x)  # type: ignore[no-any-return]
        found: Self = g.add(g.scale(_f32(x), -1.0), other)
        return found

    def __rtruediv__(self, other: Any) -> Self:
        x, g = _own(self)
        if _has_axes(other):
            return _arithmetic("div", g.constant(other, x.dtype), x)  # type: ignore[no-any-return]
        found: Self = g.mul(g.op("nd.reciprocal", _f32(x)), other)
        return found

    def __neg__(self) -> Self:
        x, g = _own(self)
        found: Self = g.scale(x, -1.0) if _is_built_in(x) else g.op("nd.neg", x)
        return found

    def __matmul__(self, other: Any) -> Self:
        x, g = _own(self)
        w = _tensor(x, other, "@")
        if _is_built_in(x, w) and len(w.shape) == 2 and len(x.shape) >= 2:
            return g.mul_mat(g.transpose(w), x)  # type: ignore[no-any-return]
        found: Self = g.op("nd.matmul", x, w)
        return found

    def __rmatmul__(self, other: Any) -> Self:
        x, _ = _own(self)
        found: Self = _tensor(x, other, "@") @ x
        return found

    def __lt__(self, other: Any) -> Self:
        found: Self = _compared("less", self, other)
        return found

    def __le__(self, other: Any) -> Self:
        found: Self = _compared("less_equal", self, other)
        return found

    def __gt__(self, other: Any) -> Self:
        found: Self = _compared("greater", self, other)
        return found

    def __ge__(self, other: Any) -> Self:
        found: Self = _compared("greater_equal", self, other)
        return found


def is_array(value: object) -> bool:
    """Whether a value is an array (or a scalar of numpy), not a tensor or a plain number."""
    return hasattr(type(value), "__array__") or isinstance(value, memoryview | array.array)


def _own(x: Any) -> tuple[Any, Builder]:
    """Return a tensor and its builder."""
    if x.builder is None:
        raise GraphError(
            "a tensor of a graph that is built has no operators",
            where=repr(x.name),
            hint="compute with the tensors that the builder returned",
        )
    return x, x.builder


def _tensor(x: Any, other: Any, sign: str) -> Any:
    """Return the tensor beside ``x``, which an array becomes."""
    if is_array(other):
        return x.builder.constant(other, x.dtype)
    if not isinstance(other, Operators):
        raise GraphError(f"{sign} takes two tensors or arrays, not {other!r}")
    return other


def _has_axes(other: Any) -> bool:
    """Whether this is an array and not a number."""
    return is_array(other) and getattr(other, "shape", None) != ()


def _f32(x: Any) -> Any:
    if x.dtype.name != "f32":
        raise GraphError(
            f"a number beside a tensor of {x.dtype}", where=repr(x.name), hint="numbers need f32"
        )
    return x


def _is_built_in(*tensors: Any) -> bool:
    """Whether built-in ops take these operands."""
    return all(t.dtype.name == "f32" and len(t.shape) <= _BUILT_IN_AXES for t in tensors)


def _arithmetic(name: str, x: Any, other: Any) -> Any:
    a, g = _own(x)
    if not isinstance(other, Operators) and not _has_axes(other):
        return getattr(g, name)(_f32(a), other)
    b = _tensor(a, other, name)
    if _is_built_in(a, b):
        if _fits(b.shape, a.shape):
            return g.op(name, a, b)
        if name in ("add", "mul") and _fits(a.shape, b.shape):
            return g.op(name, b, a)
    return g.op(f"nd.{name}", a, b)


def _compared(name: str, x: Any, other: Any) -> Any:
    a, g = _own(x)
    return g.op(f"nd.{name}", a, _tensor(a, other, name))


def _fits(small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    """Whether numpy broadcasts one shape to another."""
    tail = large[len(large) - len(small) :] if len(small) <= len(large) else ()
    return len(tail) == len(small) and all(n in (1, m) for n, m in zip(small, tail, strict=True))
