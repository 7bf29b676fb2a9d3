"""How an op of the library is declared."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ggsched.ops.record import ARRAY_AXES, ELEMENTS, OpDef, Operand, Param, Rule, Shape

Array = npt.NDArray[Any]

PREFIX: Final = "nd."
VERSION: Final = "1"
MAX_ELEMENTS: Final = 1 << 56

FLOATS: Final = ("f32", "f16", "f64")
INTS: Final = ("i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8")
NUMBERS: Final = (*FLOATS, *INTS)
BOOLS: Final = ("bool",)
ANY: Final = (*NUMBERS, *BOOLS)

DEFINED: Final[dict[str, OpDef]] = {}


def nd_op(
    name: str,
    *operands: str,
    rule: Rule,
    types: Sequence[str] = ANY,
    over: tuple[int, ...] = (),
    family: str | Callable[..., str] = ELEMENTS,
    flops: Callable[..., float] | None = None,
    sequential: Callable[..., float] | None = None,
    nbytes: Callable[[Sequence[Operand], Operand], float] | None = None,
    writes_out: bool = False,
    shared: Mapping[str, Param] | None = None,
    onnx: str = "",
    aten: str = "",
    **defaults: Param,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare an op by its reference, ``reference(*arrays, **params)``.

    Args:
        name: Without the prefix.
        operands: As in ``OpDef``.
        rule: Type and shape of the result.
        types: Of the first operand.
        over: Operands that the result may take over.
        family: As in ``OpDef``, and so ``sequential`` and ``nbytes``.
        flops: ``flops(*shapes, **params)``; default: two for each element.
        sequential: See ``family``.
        nbytes: See ``family``.
        writes_out: Whether the reference takes ``out``, to write to instead of a new array.
        onnx: As in ``OpDef``, and so ``aten``.
        aten: See ``onnx``.
        shared: Parameters that several ops have.
        defaults: Parameters.
    """

    def declare(reference: Callable[..., Any]) -> Callable[..., Any]:
        full = PREFIX + name
        DEFINED[full] = OpDef(
            full,
            operands,
            _checked(rule),
            reference,
            types=(tuple(types),),
            may_overwrite=over,
            defaults={**(shared or {}), **defaults},
            max_axes=ARRAY_AXES,
            family=family,
            flops=flops,
            sequential=sequential,
            nbytes=nbytes,
            onnx=onnx,
            aten=aten,
            version=VERSION,
            kernels={"cpu": _into(reference, writes_out)},
        )
        return reference

    return declare


def _into(reference: Callable[..., Any], writes_out: bool) -> Callable[..., None]:
    """Return the kernel of ``cpu`` made from a reference."""

    def kernel(*arrays: Array, out: Array, **params: Param) -> None:
        if isinstance(reference, np.ufunc) and all(a.dtype == out.dtype for a in arrays):
            reference(*arrays, out=out)
        elif writes_out and out.flags.c_contiguous and out.dtype != np.float16:
            with np.errstate(all="ignore"):
                reference(*arrays, out=out, **params)
        else:
            with np.errstate(all="ignore"):
                out[...] = reference(*map(wide, arrays), **params)

    return kernel


def _checked(rule: Rule) -> Rule:
    """Return a rule that refuses other operands than arrays, and results that are too large."""

    def checked(x: Sequence[Operand], **params: Param) -> tuple[str, Shape]:
        if any(t.dtype.name not in ANY for t in x):
            raise ValueError("an operand has a type that the op does not take")
        kind, found = rule(x, **params)
        shape = tuple(int(n) for n in found)
        if any(n < 0 for n in shape) or prod(shape) > MAX_ELEMENTS:
            raise ValueError(f"the result would have shape {shape}")
        if len(shape) > ARRAY_AXES:
            raise ValueError(f"the result would have {len(shape)} axes")
        return kind, shape

    return checked


# --- rules that several ops share ---------------------------------------------------------------


def broadcast(*shapes: Shape) -> Shape:
    """Return the shape that operands of numpy's functions are broadcast to."""
    n = max(map(len, shapes))
    out: list[int] = []
    for axis in range(-n, 0):
        extents = {s[axis] for s in shapes if len(s) >= -axis} - {1}
        if len(extents) > 1:
            raise ValueError(f"shapes {', '.join(map(str, shapes))} do not broadcast")
        out.append(extents.pop() if extents else 1)
    return tuple(out)


def joined(x: Sequence[Operand], **_: Param) -> tuple[str, Shape]:
    """Operands of one type are broadcast."""
    if len({t.dtype for t in x}) > 1:
        raise ValueError("operands must have one type")
    return x[0].dtype.name, broadcast(*(t.shape for t in x))


def compared(x: Sequence[Operand], **_: Param) -> tuple[str, Shape]:
    """Operands of one type are broadcast; the result is bool."""
    return "bool", joined(x)[1]


def tested(x: Sequence[Operand], **_: Param) -> tuple[str, Shape]:
    """A bool for each element."""
    return "bool", x[0].shape


def axis_of(axis: Param, n: int) -> int:
    """Return an axis counted from the front.

    Raises:
        ValueError: there is no such axis.
    """
    assert isinstance(axis, int)
    if not -n <= axis < n:
        raise ValueError(f"axis {axis} of {n}")
    return axis % n


def numpy_type(name: str) -> np.dtype[Any]:
    """Return numpy's type for a name of an element type."""
    return np.dtype("?" if name == "bool" else f"{name[0]}{int(name[1:]) // 8}")


def whole(x: Array, kind: np.dtype[Any]) -> Array:
    """Return floats as integers: towards zero, limited to i64, of which ``kind`` has the low bits.

    NaN is 0. For u64 numbers from 0 on are limited to u64 instead. numpy leaves numbers out of
    range to the processor.
    """
    edge = 2.0**63
    if x.size and x.min() > -edge and x.max() < edge:  # the usual, with fewer passes; not NaN
        return x.astype(np.int64).astype(kind)
    x = np.where(np.isnan(x), 0, np.trunc(x)).astype(np.float64)
    inside = (x >= -edge) & (x < edge)
    limits = np.where(x < 0, np.iinfo(np.int64).min, np.iinfo(np.int64).max)
    found = np.where(inside, np.where(inside, x, 0).astype(np.int64), limits)
    if kind != np.uint64:
        return found.astype(kind)
    is_narrow = x < 2 * edge
    above = np.where(is_narrow & (x >= 0), x, 0).astype(kind)
    above = np.where(is_narrow, above, ~kind.type(0))
    return np.where(x < edge, found.astype(kind), above)


def wide(x: Array) -> Array:
    """Return f16 as f32, in which sums are made."""
    return x.astype(np.float32) if x.dtype == np.float16 else x
