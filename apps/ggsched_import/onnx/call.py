"""A call of an ONNX op, as converters see it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np

from ggsched.errors import ModelError
from ggsched_import.common.emit import Array, Const, Emitter, Value

Results = Value | Sequence[Value | None]


@dataclass(frozen=True, slots=True)
class Call:
    """One node of a file with the values of its inputs.

    Attributes:
        op: Name of the op.
        opset: Version of the op set of its domain.
        inputs: Values; None for those left out.
        attrs: Attributes by name: int, float, str, lists of them, arrays, graphs.
        outputs: Number of outputs that are named, up to the last.
        where: For messages.
        emit: Makes nodes.
    """

    op: str
    opset: int
    inputs: tuple[Value | None, ...]
    attrs: dict[str, Any]
    outputs: int
    where: str
    emit: Emitter

    def nd(self, name: str, *values: Value, **params: Any) -> Value:
        """Apply an op of the library."""
        return self.emit.op(name, *values, **params)

    def has(self, i: int) -> bool:
        """Whether an input is there."""
        return i < len(self.inputs) and self.inputs[i] is not None

    def x(self, i: int = 0) -> Value:
        """Return an input.

        Raises:
            ModelError: it is not there.
        """
        value = self.inputs[i] if i < len(self.inputs) else None
        if value is None:
            raise self.bad(f"input {i} is missing")
        return value

    def maybe(self, i: int) -> Value | None:
        """Return an input, or None."""
        return self.inputs[i] if self.has(i) else None

    def const(self, i: int) -> Array:
        """Return the elements of an input that must be a constant.

        Raises:
            ModelError: it is not one.
        """
        value = self.x(i)
        if not isinstance(value, Const):
            raise ModelError(
                f"input {i} must be a constant",
                where=self.where,
                why="the shapes of a plan are known before it runs",
                hint="if it depends on an input of the model, give that as a constant",
            )
        return value.array

    def ints_at(self, i: int) -> tuple[int, ...]:
        """Return a constant input as integers."""
        return tuple(int(n) for n in self.const(i).reshape(-1))

    def attr(self, name: str, default: Any) -> Any:
        """Return an attribute of the type of its default.

        Raises:
            ModelError: it has another type.
        """
        value = self.attrs.get(name)
        if value is None:
            return default
        kinds: dict[type, Any] = {bool: int, tuple: (list, tuple), float: (int, float)}
        if not isinstance(value, kinds.get(type(default), type(default))):
            raise self.bad(f"attribute {name!r} has the wrong type")
        return type(default)(value) if isinstance(default, (bool, tuple)) else value

    def need(self, name: str, kind: type) -> Any:
        """Return an attribute that must be there.

        Raises:
            ModelError: it is not, or has another type.
        """
        value = self.attrs.get(name)
        if not isinstance(value, kind):
            raise self.bad(f"attribute {name!r} is missing or has the wrong type")
        return value

    def axis(self, default: int, rank: int, name: str = "axis") -> int:
        """Return an attribute that is an axis, counted from the front."""
        return self.normal_axis(self.attr(name, default), rank)

    def normal_axis(self, axis: int, rank: int) -> int:
        """Return an axis counted from the front.

        Raises:
            ModelError: there is no such axis.
        """
        if not -rank <= axis < rank:
            raise self.bad(f"axis {axis} of {rank}")
        return axis % rank

    def bad(self, what: str) -> ModelError:
        """Return an error about this call."""
        return ModelError(what, where=self.where)

    def like(self, value: Any, other: Value) -> Const:
        """Return a constant of the type of another value."""
        return Const(np.asarray(value, other.dtype.host))


Converter = Callable[[Call], Results]
F = TypeVar("F", bound=Converter)

CONVERTERS: Final[dict[str, Converter]] = {}
"""By name of the op; those of other domains than the standard one begin with theirs."""


def converts(*names: str) -> Callable[[F], F]:
    """Register a converter for ops."""

    def register(converter: F) -> F:
        CONVERTERS.update(dict.fromkeys(names, converter))
        return converter

    return register
