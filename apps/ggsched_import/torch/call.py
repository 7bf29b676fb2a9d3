"""A call of an ATen op, as converters see it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from ggsched.errors import GgschedError, GraphError, ModelError
from ggsched.ir.dtype import dtype_by_name
from ggsched.ir.tensor import Tensor
from ggsched.ir.user_ops import user_ops
from ggsched_import.common.emit import Const, Emitter, Value, misfit
from ggsched_import.torch.types import FLOATS, PART, Complex, Scalar, promoted

Operand = Value | Scalar
"""A tensor, a constant, or a number of Python."""


class Layout(NamedTuple):
    """Where a tensor lay in memory when the program was traced.

    Attributes:
        extents: Of its axes.
        strides: In elements.
        offset: Of its first element in its storage, in elements.
    """

    extents: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Call:
    """One node of an exported program.

    Attributes:
        op: Name of the op with its overload, such as ``add.Tensor``.
        where: For messages.
        emit: Makes nodes.
        used: Which of several results are used; None for all.
        layout: Of the first operand, for ops that read memory; None where it is contiguous.
    """

    op: str
    where: str
    emit: Emitter
    used: frozenset[int] | None = None
    layout: Layout | None = None

    @property
    def name(self) -> str:
        """Name of the op without its overload."""
        return self.op.partition(".")[0]

    def nd(self, name: str, *values: Value, **params: Any) -> Value:
        """Apply an op of the library."""
        return self.emit.op(name, *values, **params)

    def wants(self, i: int) -> bool:
        """Whether a result is used."""
        return self.used is None or i in self.used

    def bad(self, what: str, hint: str = "") -> ModelError:
        """Return an error about this call."""
        return ModelError(what, where=self.where, hint=hint)

    def axis(self, axis: int, rank: int) -> int:
        """Return an axis counted from the front; a tensor without axes counts as having one.

        Raises:
            ModelError: there is no such axis.
        """
        n = max(rank, 1)
        if not -n <= axis < n:
            raise self.bad(f"axis {axis} of {rank}")
        return axis % n

    def axes(self, dim: Any, rank: int) -> tuple[int, ...]:
        """Return axes counted from the front; all for None and for an empty list."""
        if dim is None or dim == []:
            return tuple(range(rank))
        given = [dim] if isinstance(dim, int) else dim
        return tuple(self.axis(d, rank) for d in given) if rank else ()

    def const(self, value: Operand, kind: str) -> Const:
        """Return a number as a constant of a type."""
        return Const(np.asarray(value, dtype_by_name(kind).host))

    def value(self, x: Operand, kind: str) -> Value:
        """Return an operand in a type."""
        return self.cast(x, kind) if isinstance(x, (Const, Tensor)) else self.const(x, kind)

    def cast(self, x: Value, to: str) -> Value:
        """Convert, if the type is another one."""
        return x if x.dtype.name == to else self.nd("cast", x, to=to)

    def floating(self, x: Operand) -> Value:
        """Return an operand as floats: integers and bools become f32."""
        kind = promoted(kind_of(x), 1.0)
        return self.value(x, kind)

    def joined(self, *x: Operand) -> list[Value]:
        """Return operands in the type that PyTorch joins them in."""
        kind = promoted(*map(kind_of, x))
        return [self.value(v, kind) for v in x]

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """Return the same elements in another shape; one extent may be -1."""
        full = list(shape)
        if full.count(-1) == 1:
            known = -prod(full)
            full[full.index(-1)] = prod(x.shape) // known if known else 0
        return self.emit.reshape(x, full)

    def expand(self, x: Value, shape: Sequence[int]) -> Value:
        """Repeat elements along axes of extent 1, up to a shape."""
        return x if tuple(shape) == x.shape else self.nd("expand", x, shape=tuple(shape))

    def permute(self, x: Value, perm: Sequence[int]) -> Value:
        """Reorder axes; without a node where the elements keep their order."""
        moved = [a for a in perm if x.shape[a] != 1]
        if moved == sorted(moved):
            return self.emit.reshape(x, [x.shape[a] for a in perm])
        if isinstance(x, Tensor) and _may_be_view(x):
            return self.emit.g.permute(x, *perm)
        return self.nd("transpose", x, perm=tuple(perm))

    def swap(self, x: Value, a: int = -2, b: int = -1) -> Value:
        """Exchange two axes."""
        perm = list(range(len(x.shape)))
        perm[a], perm[b] = perm[b], perm[a]
        return self.permute(x, perm)

    def slice(self, x: Value, axis: int, start: int, stop: int, step: int = 1) -> Value:
        """Take a range of one axis; -1 as stop of a negative step is before the first."""
        if (start, stop, step) == (0, x.shape[axis], 1):
            return x
        if isinstance(x, Tensor) and _may_be_view(x) and 0 <= start < stop and step > 0:
            shape, strides = list(x.shape), list(x.strides)
            shape[axis] = len(range(start, stop, step))
            offset = start * strides[axis]
            strides[axis] *= step
            return self.emit.g.view(x, shape, strides, offset)
        full = [(0, n, 1) for n in x.shape]
        full[axis] = (start, stop, step)
        starts, stops, steps = zip(*full, strict=True)
        return self.nd("slice", x, starts=starts, stops=stops, steps=steps)

    def concat(self, x: Sequence[Value], axis: int) -> Value:
        """Join along an axis."""
        return x[0] if len(x) == 1 else self.nd("concat", *x, axis=axis)


def _may_be_view(x: Tensor) -> bool:
    """Whether x can be copied, strided, where its elements must lie together."""
    return x.dtype.name == "f32" and 0 not in x.shape


def kind_of(x: Operand) -> str | Scalar:
    """Return the name of a type, or the number, as ``promoted`` takes them."""
    return x.dtype.name if isinstance(x, (Const, Tensor)) else x


def is_float(x: Value) -> bool:
    """Whether elements are floats."""
    return x.dtype.name in FLOATS


Results = Any
"""A value, a number, None, or a list of them."""

Converter = Callable[..., Results]
"""``converter(call, *args, **kwargs)`` with the arguments of the op's schema."""

CONVERTERS: Final[dict[str, Converter]] = {}
"""By name, with the overload (``max.dim``) or without; ops of others with their namespace."""

OF_COMPLEX: Final[dict[str, Converter]] = {}
"""Those for calls that have complex numbers among their operands, or make them by a ``dtype``."""


F = TypeVar("F", bound=Converter)


def converts(*names: str, table: dict[str, Converter] = CONVERTERS) -> Callable[[F], F]:
    """Register a converter for ops.

    Args:
        names: Such as ``add`` (all overloads), ``max.dim`` (one), ``mylib.op`` (of a library).
        table: ``OF_COMPLEX`` for complex numbers.

    Examples:
        >>> from ggsched_import.torch import converts
        >>> @converts("mylib.twice")
        ... def twice(call, x):
        ...     return call.nd("add", x, x)
    """

    def register(converter: F) -> F:
        table.update(dict.fromkeys(names, converter))
        return converter

    return register


def is_complex(value: Any) -> bool:
    """Whether there are complex numbers among arguments, or the name of a type of them."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return any(map(is_complex, value))
    return isinstance(value, (Complex, complex)) or (isinstance(value, str) and value in PART)


def plain(target: str) -> str:
    """Return the name of an op as converters are registered: ``aten.`` is left out."""
    return target.removeprefix("aten.")


def convert(
    target: str,
    emit: Emitter,
    where: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    used: frozenset[int] | None = None,
    names: Sequence[str] = (),
    layout: Layout | None = None,
) -> Results:
    """Convert one call.

    Args:
        target: Name of the op, such as ``aten.add.Tensor``.
        emit: Makes nodes.
        where: For messages.
        args: Values, numbers, lists of them; types by their names.
        kwargs: More of them.
        used: Which results are used; None for all.
        names: Of the arguments in the op's schema.
        layout: Of the first operand in memory; None where it is contiguous.

    Raises:
        ModelError: an op that is not supported, or arguments that do not fit.
    """
    op = plain(target)
    of_complex = is_complex(args) or is_complex(kwargs)
    table = OF_COMPLEX if of_complex else CONVERTERS
    converter = table.get(op) or table.get(op.rpartition(".")[0])
    call = Call(op, where, emit, used, layout)
    if of_complex and converter is None:
        raise call.bad(
            f"the op {op!r} on complex numbers is not supported",
            hint="compute it of the parts that torch.view_as_real returns",
        )
    try:
        if converter is not None:
            return converter(call, *args, **kwargs)
        return _registered(call, args, kwargs, names)
    except ModelError:
        raise
    except GraphError as error:
        raise misfit(error, where) from error
    except GgschedError:
        raise
    except (ValueError, IndexError, TypeError, KeyError, ArithmeticError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ModelError("its arguments do not fit", where=where, why=why) from error


def _registered(
    c: Call, args: Sequence[Any], kwargs: dict[str, Any], names: Sequence[str]
) -> Results:
    """Convert an op of another library by the op of the same name of ``register_op``."""
    parts = c.op.split(".")
    base = parts[-2] if len(parts) > 1 else parts[0]
    if base not in {op.name for op in user_ops()} or len(parts) < 3:
        target = c.op if len(parts) > 2 else f"aten.{c.op}"
        raise ModelError(
            f"the op {target!r} is not supported",
            where=c.where,
            hint=(
                "give it a converter with ggsched_import.torch.converts; if no op computes the"
                " same, define one with ggsched.register_op"
            ),
        )
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    values = [v for v in given.values() if isinstance(v, (Const, Tensor))]
    params = {n: v for n, v in given.items() if not isinstance(v, (Const, Tensor))}
    return c.emit.g.op(base, *[c.emit.tensor(v) for v in values], **params)
