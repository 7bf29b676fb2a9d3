"""Conversions between plain types of arrays, as ``nd.cast`` defines them."""

from typing import Final

from ggsched_cpu.kernels.emit import Builder, Value, i64, vector_of
from ggsched_cpu.kernels.target import Target
from ggsched_cpu.kernels.vectors import Row, over_rows

ELEMENTS: Final = {
    "f32": "float", "f16": "half", "i64": "i64", "i32": "i32", "i16": "i16", "i8": "i8",
    "u32": "i32", "u16": "i16", "u8": "i8", "bool": "i8",
}  # fmt: skip
"""Types of LLVM by names of element types."""

_BITS: Final = {"i8": 8, "i16": 16, "i32": 32, "i64": 64}


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
        whole = b.binary("and", row.columns, -target.lanes)
        for start, stop, width in ((i64(0), whole, target.lanes), (whole, row.columns, 1)):
            with b.loop(start, stop, width) as k:
                value = b.load(vector_of(width, read), b.offset(source, b.mul(k, _nbytes(read))))
                place = b.offset(result, b.mul(k, _nbytes(write)))
                b.store(_converted(b, value, kind, to), place)

    over_rows(b, 2, row)
    return b


def _nbytes(element: str) -> int:
    return {"float": 4, "half": 2}.get(element) or _BITS[element] // 8


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
        over = [f"v{x.lanes}" * (x.lanes > 1) + t for t in ("i64", "f32")]
        whole = vector_of(x.lanes, "i64")
        wide = b.intrinsic("fptosi.sat", x, type_=whole, suffix=".".join(over))
        return wide if element == "i64" else b.cast("trunc", wide, element)
    signed = kind[0] == "i"
    if element in ("float", "half"):
        return b.cast("sitofp" if signed else "uitofp", x, element)
    more = _BITS[element] - _BITS[x.element]
    how = "trunc" if more < 0 else "sext" if signed else "zext"
    return b.cast(how, x, element) if more else x


__all__ = ["ELEMENTS", "cast", "is_converted"]
