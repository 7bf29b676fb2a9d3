"""What kernels of rows share: where rows lie, loops over their elements, functions of vectors."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ggsched_cpu.kernels.emit import Builder, Value, constant, i64, vector_of

AXES: Final = 3
"""Axes before the rows' own."""

HEAD: Final = ("columns", "rows", "part_rows", "axis1", "axis2", "elements")
"""Arguments of every kernel of rows: length of a row, number of rows, rows of a part, extents of
two of the three axes that number the rows, and elements in all (the last row may be shorter)."""

OPERAND_SLOTS: Final = 2 + AXES
"""Of an operand: pointer, stride of an element, strides of the axes, all in bytes."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the operands.

    Attributes:
        number: Which row.
        columns: Its length.
        at: The index on each axis.
        pointers: Its start in each operand.
    """

    number: Value
    columns: Value
    at: tuple[Value, ...]
    pointers: tuple[Value, ...]


def operand_slot(operand: int) -> int:
    """Return the first slot of an operand."""
    return len(HEAD) + OPERAND_SLOTS * operand


def own_slot(operands: int) -> int:
    """Return the first slot behind the operands, for arguments of the kernel's own."""
    return operand_slot(operands)


def over_rows(b: Builder, operands: int, body: Callable[[Row], None]) -> None:
    """Write the loop over the rows of a part."""
    columns, rows, part_rows, axis1, axis2, elements = (b.arg(i) for i in range(len(HEAD)))
    starts = [b.arg_pointer(operand_slot(i)) for i in range(operands)]
    strides = [[b.arg(operand_slot(i) + 2 + k) for k in range(AXES)] for i in range(operands)]
    first = b.mul(b.parameter("part"), part_rows)
    last = b.umin(b.add(first, part_rows), rows)
    with b.loop(first, last) as number:
        rest, k = b.udiv(number, axis2), b.urem(number, axis2)
        at = (b.udiv(rest, axis1), b.urem(rest, axis1), k)
        pointers = []
        for start, steps in zip(starts, strides, strict=True):
            place = start
            for i, step in zip(at, steps, strict=True):
                place = b.offset(place, b.mul(i, step))
            pointers.append(place)
        length = b.umin(columns, b.sub(elements, b.mul(number, columns)))
        body(Row(number, length, at, tuple(pointers)))


_ELEMENTS: Final = {"float": ("f32", 4), "i16": ("i16", 2), "i8": ("i8", 1)}


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some elements of a row that are handled together.

    Attributes:
        b: Writes the kernel.
        column: Index of the first.
        lanes: How many.
        mask: Which of them are there; None for all.
    """

    b: Builder
    column: Value
    lanes: int
    mask: Value | None

    def load(self, pointer: Value, element: str = "float", step: Value | None = None) -> Value:
        """Read elements of a row; 0 where there are none.

        Args:
            pointer: The start of the row.
            element: Their type.
            step: Bytes between elements, 0 where the row is a vector that stands for all chunks;
                those of adjacent elements without it.
        """
        short, nbytes = _ELEMENTS[element]
        at = self.b.offset(pointer, self.b.mul(self.column, nbytes if step is None else step))
        type_ = vector_of(self.lanes, element)
        if self.mask is None:
            return self.b.load(type_, at, nbytes)
        name = f"llvm.masked.load.v{self.lanes}{short}.p0"
        self.b.declared[name] = f"declare {type_} @{name}(ptr, i32, {self.mask.type}, {type_})"
        text = f"call {type_} @{name}({at}, i32 {nbytes}, {self.mask}, {type_} zeroinitializer)"
        return self.b.value(type_, text)

    def store(self, value: Value, pointer: Value) -> None:
        """Write elements of a row, which are adjacent."""
        short, nbytes = _ELEMENTS[value.element]
        at = self.b.offset(pointer, self.b.mul(self.column, nbytes))
        if self.mask is None:
            self.b.store(value, at, nbytes)
            return
        name = f"llvm.masked.store.v{self.lanes}{short}.p0"
        self.b.declared[name] = f"declare void @{name}({value.type}, ptr, i32, {self.mask.type})"
        self.b.line(f"call void @{name}({value}, {at}, i32 {nbytes}, {self.mask})")

    def times(self, n: int) -> "Chunk":
        """Return the same elements of a row in which each is several."""
        b, each = self.b, [i // n for i in range(n * self.lanes)]
        mask = None if self.mask is None else b.shuffle(self.mask, None, each)
        return Chunk(b, b.mul(self.column, n), n * self.lanes, mask)

    def keep(self, value: Value, otherwise: Value | float) -> Value:
        """Return a value, or another one in lanes that are not there."""
        if self.mask is None:
            return value
        return self.b.select(self.mask, value, self.b.same(value, otherwise))


def over_chunks(b: Builder, columns: Value, body: Callable[[Chunk], None]) -> None:
    """Write a loop over vectors of a row, and the rest of the row as a part of a vector."""
    lanes = b.target.lanes
    whole = b.binary("and", columns, -lanes)
    with b.loop(0, whole, lanes) as column:
        body(Chunk(b, column, lanes, None))
    rest = b.sub(columns, whole)
    with b.when(b.compare("ne", rest, 0)):
        numbers = constant("i32", range(lanes))
        count = b.splat(b.cast("trunc", rest, "i32"), lanes)
        body(Chunk(b, whole, lanes, b.compare("slt", numbers, count)))


def over_widths(b: Builder, columns: Value, body: Callable[[Value, int], None]) -> None:
    """Write a loop over vectors of a row, and one over the elements that are left.

    ``body`` takes a column and a number of lanes, which is 1 in the second loop.
    """
    whole = b.binary("and", columns, -b.target.lanes)
    for start, stop, lanes in ((i64(0), whole, b.target.lanes), (whole, columns, 1)):
        with b.loop(start, stop, lanes) as column:
            body(column, lanes)


_LOG2_E: Final = 1.0 / math.log(2.0)
_LN2_HIGH: Final = 0.693145751953125
_LN2_LOW: Final = math.log(2.0) - _LN2_HIGH
_EXP_LOW: Final = -87.3
_EXP_HIGH: Final = 88.72
# Taylor coefficients of (exp(r) - 1 - r) / r^2; |r| <= ln(2)/2 makes the rest smaller than 1e-8.
_EXP_TERMS: Final = tuple(1.0 / math.factorial(n) for n in (7, 6, 5, 4, 3, 2))


def exp(b: Builder, x: Value) -> Value:
    """Return e^x: 0 below -87.3, infinity above 88.72, NaN of NaN."""
    part, powers = _reduced(b, x)
    value = b.fadd(part, 1.0)
    for power in powers:
        value = b.fmul(value, power)
    return _at_ends(b, x, value, 0.0)


def expm1(b: Builder, x: Value) -> Value:
    """Return ``e^x - 1`` without cancellation near 0."""
    part, (half, rest) = _reduced(b, x)
    # 2^n * part + (2^n - 1), in two steps as there.
    value = b.fmul(b.fma(part, half, b.fsub(half, b.fdiv(b.same(x, 1.0), rest))), rest)
    return _at_ends(b, x, value, -1.0)


def _reduced(b: Builder, x: Value) -> tuple[Value, tuple[Value, Value]]:
    """Return ``e^r - 1`` and two powers of 2 whose product makes ``e^r`` to ``e^x``."""
    safe = b.fmin(b.fmax(x, _EXP_LOW), _EXP_HIGH)
    n = b.intrinsic("roundeven", b.fmul(safe, _LOG2_E))
    r = b.fma(n, -_LN2_LOW, b.fma(n, -_LN2_HIGH, safe))
    poly = b.same(x, _EXP_TERMS[0])
    for term in _EXP_TERMS[1:]:
        poly = b.fma(poly, r, term)
    # In two steps: 2^128 is no f32, but e^88.72 is.
    whole = b.cast("fptosi", n, "i32")
    half = b.binary("ashr", whole, 1)
    first, second = (
        b.cast("bitcast", b.binary("shl", b.add(power, 127), 23), "float")
        for power in (half, b.sub(whole, half))
    )
    return b.fma(b.fmul(r, r), poly, r), (first, second)


def _at_ends(b: Builder, x: Value, value: Value, low: float) -> Value:
    value = b.select(b.compare("olt", x, _EXP_LOW), b.same(x, low), value)
    value = b.select(b.compare("ogt", x, _EXP_HIGH), b.same(x, math.inf), value)
    return b.select(b.compare("uno", x, x), x, value)


def sigmoid_times(b: Builder, x: Value, factor: float | Value = 1.0) -> Value:
    """Return ``x / (1 + exp(-factor x))``."""
    scaled = x if isinstance(factor, float) and factor == 1.0 else b.fmul(x, factor)
    return b.fdiv(x, one_plus_exp(b, scaled))


def one_plus_exp(b: Builder, x: Value) -> Value:
    """Return ``1 + exp(-x)``."""
    return b.fadd(exp(b, b.fmul(x, -1.0)), 1.0)


def log(b: Builder, x: Value) -> Value:
    """Return the natural logarithm, by ``log(1 + f) = 2 atanh(f / (2 + f))``."""
    is_denormal = b.compare("olt", x, _LEAST_NORMAL)
    bits = b.cast("bitcast", b.select(is_denormal, b.fmul(x, 2.0**23), x), "i32")
    power = b.binary("ashr", b.sub(bits, _ROOT_HALF_BITS), 23)
    f = b.fsub(b.cast("bitcast", b.sub(bits, b.binary("shl", power, 23)), "float"), 1.0)
    n = b.cast("sitofp", power, "float")
    n = b.select(is_denormal, b.fsub(n, 23.0), n)
    value = b.fma(n, _LN2_HIGH, b.fma(n, _LN2_LOW, _twice_atanh(b, b.fdiv(f, b.fadd(f, 2.0)))))
    value = b.select(b.compare("ult", x, 0.0), b.same(x, math.nan), value)
    value = b.select(b.compare("oeq", x, 0.0), b.same(x, -math.inf), value)
    return b.select(b.compare("oeq", x, math.inf), x, value)


_LEAST_NORMAL: Final = 2.0**-126
_ROOT_HALF_BITS: Final = 0x3F3504F3


def log1p(b: Builder, x: Value) -> Value:
    """Return ``log(1 + x)`` without cancellation near 0."""
    whole = b.fadd(x, 1.0)
    lost = b.fdiv(b.fsub(x, b.fsub(whole, 1.0)), whole)
    value = log(b, whole)
    is_end = b.compare("oeq", b.intrinsic("fabs", value), math.inf)
    return b.select(is_end, value, b.fadd(value, lost))


def _twice_atanh(b: Builder, z: Value) -> Value:
    """Return ``2 atanh(z)`` for ``|z| <= 1/3``."""
    square, poly = b.fmul(z, z), b.same(z, _LOG_TERMS[0])
    for term in _LOG_TERMS[1:-1]:
        poly = b.fma(poly, square, term)
    return b.fma(b.fmul(poly, square), z, b.fmul(z, 2.0))


_LOG_TERMS: Final = tuple(2.0 / n for n in (15, 13, 11, 9, 7, 5, 3, 1))


def softplus(b: Builder, x: Value) -> Value:
    """Return ``log(1 + exp(x))``, by ``log(1 + e) = 2 atanh(e / (2 + e))`` for e <= 1."""
    e = exp(b, b.fmin(x, b.fmul(x, -1.0)))
    return b.fadd(_twice_atanh(b, b.fdiv(e, b.fadd(e, 2.0))), b.fmax(x, 0.0))


def tanh(b: Builder, x: Value) -> Value:
    """Return the hyperbolic tangent."""
    ratio = b.fdiv(b.same(x, 2.0), b.fadd(exp(b, b.fmul(x, 2.0)), 1.0))
    return b.fsub(b.same(x, 1.0), ratio)
