"""Conversions between plain types of arrays, as ``nd.cast`` defines them."""

from typing import Final

from ggsched_cpu.kernels.emit import Builder, Value, vector_of
from ggsched_cpu.kernels.target import Target
from ggsched_cpu.kernels.vectors import Row, over_rows, over_widths

ELEMENTS: Final = {
    "f32": "float", "f16": "half", "i64": "i64", "i32": "i32", "i16": "i16", "i8": "i8",
    "u32": "i32", "u16": "i16", "u8": "i8", "bool": "i8",
}  # fmt: skip
"""Types of LLVM by names of element types."""

_NBYTES: Final = {"float": 4, "half": 2, "i8": 1, "i16": 2, "i32": 4, "i64": 8}


def is_converted(kind: str, to: str) -> bool:
    """Whether there is a kernel: integers do not become f16, which would be rounded twice."""
    both_known = kind in ELEMENTS and to in ELEMENTS and kind != to
    return both_known and (to != "f16" or kind in ("f32", "bool"))


def cast(name: str, target: Target, kind: str, to: str) -> Builder:
    """Operand; result: rows of adjacent elements."""
    b = Builder(name, target)
    read, write = ELEMENTS[kind], ELEMENTS[to]

    def row(row: Row) -> None:
        source, result = row.pointers

        def convert(k: Value, width: int) -> None:
            value = b.load(vector_of(width, read), b.offset(source, b.mul(k, _NBYTES[read])))
            place = b.offset(result, b.mul(k, _NBYTES[write]))
            b.store(_converted(b, value, kind, to), place)

        over_widths(b, row.columns, convert)

    over_rows(b, 2, row)
    return b


def _converted(b: Builder, x: Value, kind: str, to: str) -> Value:
    element = ELEMENTS[to]
    if ELEMENTS[kind] == "half":
        x = b.cast("fpext", x, "float")
    if to == "bool":
        is_set = b.compare("une" if x.element == "float" else "ne", x, 0)
        return b.cast("zext", is_set, "i8")
    if x.element == "float":
        if element in ("float", "half"):
            return x if element == "float" else b.cast("fptrunc", x, element)
        return b.saturated(x, "i64") if element == "i64" else _to_integers(b, x, element)
    signed = kind[0] == "i"
    if element in ("float", "half"):
        return b.cast("sitofp" if signed else "uitofp", x, element)
    more = _NBYTES[element] - _NBYTES[x.element]
    how = "trunc" if more < 0 else "sext" if signed else "zext"
    return b.cast(how, x, element) if more else x


def _to_integers(b: Builder, x: Value, element: str) -> Value:
    """Convert f32 by i64 of which the lower bits are kept; by i32 where all of a vector fit."""

    def kept(whole: Value) -> Value:
        return whole if whole.element == element else b.cast("trunc", whole, element)

    if x.lanes == 1:
        return kept(b.saturated(x, "i64"))
    fits = b.compare("olt", b.intrinsic("fabs", x), 2.0**31)
    all_fit = b.intrinsic("vector.reduce.and", fits, type_="i1")
    found = b.var(Value("zeroinitializer", vector_of(x.lanes, element)))
    with b.when(all_fit):
        b.set(found, kept(b.cast("fptosi", x, "i32")))
    with b.when(b.binary("xor", all_fit, Value("true", "i1"))):
        b.set(found, kept(b.saturated(x, "i64")))
    return b.get(found)


__all__ = ["ELEMENTS", "cast", "is_converted"]
