"""Kernels that move elements of any type: windows of arrays, and slices chosen by indices."""

from typing import Final

from ggsched_cpu.kernels.emit import Builder, Value, i64, vector_of
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


def slices(name: str, target: Target, nbytes: int, *, indexed: int, adds: bool = False) -> Builder:
    """Operands indices (i64), source and result; number of indices; extent and step of each.

    A row is a slice, whose place in operand ``indexed`` its indices say; those below zero count
    from the end. With ``adds`` the result is f32, and a slice is added to what is there.
    """
    b = Builder(name, target)
    steps = [b.arg(operand_slot(i) + 1) for i in (1, 2)]
    is_dense = b.binary("and", *(b.compare("eq", s, nbytes) for s in steps))
    count, pairs = b.arg(own_slot(3)), b.offset(b.parameter("args"), 8 * (own_slot(3) + 1))

    def row(row: Row) -> None:
        ids, *places = row.pointers
        place = b.var(places[indexed - 1])
        with b.loop(0, count) as k:
            pair = b.offset(pairs, b.mul(k, 16))
            index = _index(b, b.offset(ids, b.mul(k, 8)), b.load("i64", pair, 8))
            step = b.load("i64", b.offset(pair, 8), 8)
            b.set(place, b.offset(b.get(place), b.mul(index, step)))
        places[indexed - 1] = b.get(place)
        source, out = places
        if adds:
            over_chunks(b, row.columns, lambda c: c.store(b.fadd(c.load(out), c.load(source)), out))
        else:
            _copy(b, (source, out), steps, row.columns, is_dense, nbytes)

    over_rows(b, 3, row)
    return b


def each(name: str, target: Target, element: str, *, indexed: int, adds: bool = False) -> Builder:
    """Operands indices (i64), source and result; extent and step of the axis that is indexed.

    Each element of a row has an index of its own, by which the place in operand ``indexed`` is
    further than by its strides. With ``adds`` an element is added to what is there.
    """
    b = Builder(name, target)
    extent, step = (b.arg(own_slot(3) + i) for i in range(2))
    strides = [b.arg(operand_slot(i) + 1) for i in range(3)]

    def row(row: Row) -> None:
        with b.loop(0, row.columns) as k:
            places = [b.offset(p, b.mul(k, s)) for p, s in zip(row.pointers, strides, strict=True)]
            away = b.mul(_index(b, places[0], extent), step)
            places[indexed] = b.offset(places[indexed], away)
            value = b.load(element, places[1])
            if adds:
                before = b.load(element, places[2])
                value = (b.fadd if element == "float" else b.add)(before, value)
            b.store(value, places[2])

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
    """Copy elements: as vectors, if all of them are adjacent."""
    (source, out), element = places, f"i{8 * nbytes}"
    width = 4 * b.target.lanes // nbytes
    whole = b.binary("and", count, -width)
    # Not memcpy: its string instructions take ten times as long where both begin at about the same
    # place of a page.
    with b.when(is_dense):
        for start, stop, n in ((i64(0), whole, width), (whole, count, 1)):
            with b.loop(start, stop, n) as k:
                way = b.mul(k, nbytes)
                value = b.load(vector_of(n, element), b.offset(source, way), nbytes)
                b.store(value, b.offset(out, way), nbytes)
    with b.when(b.binary("xor", is_dense, Value("true", "i1"))):
        whole = b.binary("and", count, -_TOGETHER)
        for start, stop, n in ((i64(0), whole, _TOGETHER), (whole, count, 1)):
            ways = [[b.mul(step, i) for i in range(n)] for step in steps]
            with b.loop(start, stop, n) as k:
                first = [b.offset(p, b.mul(k, step)) for p, step in zip(places, steps, strict=True)]
                values = [b.load(element, b.offset(first[0], way), nbytes) for way in ways[0]]
                for value, way in zip(values, ways[1], strict=True):
                    b.store(value, b.offset(first[1], way), nbytes)


_TOGETHER: Final = 8
"""Elements that are read before they are written, where they are not adjacent."""


__all__ = ["REPEATS", "each", "move", "repeat", "slices", "zip_rows"]
