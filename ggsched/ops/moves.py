"""Built-in ops that move and convert elements."""

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from ggsched.ops.lazy import Array, np
from ggsched.ops.record import Method, Operand, Shape, method, need, op


def _castable(source: Operand, to: str) -> None:
    is_float = source.dtype.kind == "float" and source.dtype.name != "f64"
    fits = (is_float and to in ("f32", "f16")) or source.dtype.name == to
    need(fits, f"{source.dtype} cannot be converted to {to}")
    can_be_read = not source.dtype.is_quantized or (
        source.is_contiguous and source.dtype.name != to
    )
    need(can_be_read, "quantised tensors can only be read, contiguously")


def _written(x: Sequence[Operand]) -> tuple[str, Shape]:
    source, to = x
    need(source.shape == to.shape, "source and destination must have one shape")
    _castable(source, to.dtype.name)
    return to.dtype.name, to.shape


def _copied(x: Sequence[Operand], dtype: str) -> tuple[str, Shape]:
    to = dtype or x[0].dtype.name
    _castable(x[0], to)
    return to, x[0].shape


def _joined(x: Sequence[Operand], axis: int) -> tuple[str, Shape]:
    a, b = (t.shape for t in x)
    need(0 <= axis < len(a) and len(a) == len(b), f"axis={axis} is not an axis of both")
    need(x[0].dtype is x[1].dtype, "both operands must be f32 or both i32")
    rest = (*a[:axis], *a[axis + 1 :]), (*b[:axis], *b[axis + 1 :])
    need(rest[0] == rest[1], "the other axes must agree")
    return x[0].dtype.name, (*a[:axis], a[axis] + b[axis], *a[axis + 1 :])


def _tiled(x: Sequence[Operand], shape: Shape) -> tuple[str, Shape]:
    own = x[0].shape
    need(len(shape) == len(own), "the target shape needs as many axes as the operand")
    fits = all(n and m % n == 0 for m, n in zip(shape, own, strict=True))
    need(fits, f"{shape} is not a whole number of copies on each axis")
    return "f32", shape


def _repeat(x: Array, shape: Shape) -> Array:
    return np.tile(x, [m // n for m, n in zip(shape, x.shape, strict=True)])


def _itself(x: Array, **_: Any) -> Array:
    return x


CONT = op("cont", "x:float|i32|...", rule=_copied, reference=_itself, family="moves", dtype="",
          doc="A contiguous copy, converted if a type is given.")  # fmt: skip
"""Its method in builders takes element types too."""


class Moves(Protocol):
    """Methods of builders for copies. Examples go on from that of ``GraphBuilder``."""

    cpy: ClassVar[Method] = method(
        op("cpy", "src:float|i32|...", "dst:float|i32|...", through=1, rule=_written,
           family="moves", reference=_itself,
           doc="Copy ``src`` into the bytes of ``dst``, converting; the result is ``dst``."),
        'half = g.state("half", (4, 64), "f16")', "g.cpy(x, half).dtype.name", "'f16'",
    )  # fmt: skip
    concat: ClassVar[Method] = method(
        op("concat", "a:f32|i32", "b:f32|i32", rule=_joined, family="moves", axis=0,
           reference=lambda a, b, axis: np.concatenate([a, b], axis),
           doc="Join two tensors along an axis."),
        "g.concat(x, x, axis=1).shape", "(4, 128)",
    )  # fmt: skip
    repeat: ClassVar[Method] = method(
        op("repeat", "x", rule=_tiled, reference=_repeat, family="moves", shape=(),
           doc="Tile ``x`` to ``shape``, a multiple of its own on each axis."),
        "g.repeat(x, (8, 64)).shape", "(8, 64)",
    )  # fmt: skip
