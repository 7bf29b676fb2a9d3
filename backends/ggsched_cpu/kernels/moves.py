"""Kernels that move elements of any type: windows of arrays, and slices chosen by indices."""

from typing import Final

from ggsched_cpu.kernels.emit import Builder, Value
from ggsched_cpu.kernels.target import Target
from ggsched_cpu.kernels.vectors import Chunk, Row, operand_slot, over_chunks, over_rows, own_slot


def move(name: str, target: Target, nbytes: int) -> Builder:
    """Operands x and result, of elements of a given number of bytes, any distance apart."""
    b = Builder(name, target)
    steps = [b.arg(operand_slot(i) + 1) for i in range(2)]
    are_dense = [b.compare("eq", step, nbytes) for step in steps]
    is_dense = b.binary("and", *are_dense)

    def row(row: Row) -> None:
        _copy(b, row.pointers, steps, row.columns, is_dense, nbytes)

    over_rows(b, 2, row)
    return b


def zip_rows(name: str, target: Target) -> Builder:
    """Operands a, b and result, of f32: elements of a and b by turns."""
    b = Builder(name, target)
    lanes = target.lanes
    turns = [i // 2 + (lanes if i % 2 else 0) for i in range(2 * lanes)]

    def row(row: Row) -> None:
        first, second, out = row.pointers

        def chunk(c: Chunk) -> None:
            c.times(2).store(b.shuffle(c.load(first), c.load(second), turns), out)

        over_chunks(b, row.columns, chunk)

    over_rows(b, 3, row)
    return b


REPEATS: Final = range(2, 9)
"""How often ``repeat`` may write an element."""


def repeat(name: str, target: Target, times: int) -> Builder:
    """Operands x and result, of f32: each element of x several times."""
    b = Builder(name, target)
    each = [i // times for i in range(times * target.lanes)]

    def row(row: Row) -> None:
        x, out = row.pointers

        def chunk(c: Chunk) -> None:
            c.times(times).store(b.shuffle(c.load(x), None, each), out)

        over_chunks(b, row.columns, chunk)

    over_rows(b, 2, row)
    return b


def gather(name: str, target: Target, nbytes: int) -> Builder:
    """Operands indices (i64), x and result; slices of x, bytes from one to the next.

    A row is a slice of x, of which its index says which; one below zero counts from the end.
    """
    b = Builder(name, target)
    slices, step = (b.arg(own_slot(3) + i) for i in range(2))
    steps = [b.arg(operand_slot(i) + 1) for i in (1, 2)]
    is_dense = b.binary("and", *(b.compare("eq", s, nbytes) for s in steps))

    def row(row: Row) -> None:
        ids, x, out = row.pointers
        place = b.offset(x, b.mul(_index(b, ids, slices), step))
        _copy(b, (place, out), steps, row.columns, is_dense, nbytes)

    over_rows(b, 3, row)
    return b


def pick(name: str, target: Target, nbytes: int) -> Builder:
    """The same for slices of one element: a row has all indices, and a row of x and the result."""
    b = Builder(name, target)
    slices = b.arg(own_slot(3))

    def row(row: Row) -> None:
        ids, x, out = row.pointers
        with b.loop(0, row.columns) as k:
            place = _index(b, b.offset(ids, b.mul(k, 8)), slices)
            value = b.load(f"i{8 * nbytes}", b.offset(x, b.mul(place, nbytes)), nbytes)
            b.store(value, b.offset(out, b.mul(k, nbytes)), nbytes)

    over_rows(b, 3, row)
    return b


def _index(b: Builder, pointer: Value, count: Value) -> Value:
    """Read an index, or leave the kernel where it is out of range."""
    given = b.load("i64", pointer, 8)
    index = b.select(b.compare("slt", given, 0), b.add(given, count), given)
    with b.when(b.compare("uge", index, count)):
        b.leave(b.add(b.cast("zext", b.cast("trunc", given, "i32"), "i64"), 1))
    return index


def _copy(
    b: Builder,
    places: tuple[Value, ...],
    steps: list[Value],
    count: Value,
    is_dense: Value,
    nbytes: int,
) -> None:
    """Copy elements: whole, if all of them are adjacent."""
    (source, out), element = places, f"i{8 * nbytes}"
    with b.when(is_dense):
        name = "llvm.memcpy.p0.p0.i64"
        b.declared[name] = f"declare void @{name}(ptr, ptr, i64, i1)"
        b.line(f"call void @{name}({out}, {source}, {b.mul(count, nbytes)}, i1 false)")
    is_spread = b.binary("xor", is_dense, Value("true", "i1"))
    with b.when(is_spread), b.loop(0, count) as k:
        value = b.load(element, b.offset(source, b.mul(k, steps[0])), nbytes)
        b.store(value, b.offset(out, b.mul(k, steps[1])), nbytes)


__all__ = ["REPEATS", "gather", "move", "pick", "repeat", "zip_rows"]
