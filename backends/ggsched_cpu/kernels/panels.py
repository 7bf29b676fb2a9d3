"""Activations of many rows, laid out in panels for products; and which rows experts get."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ggsched_cpu.kernels.emit import Builder, Value, Variable, f32, i64, vector_of
from ggsched_cpu.kernels.rows import row_here
from ggsched_cpu.kernels.target import Target
from ggsched_cpu.kernels.vectors import Row, over_rows, own_slot

VECTORS: Final = 2
"""Vectors of a panel."""


def panel_width(target: Target) -> int:
    """Return how many activations lie side by side."""
    return VECTORS * target.lanes


def pack(name: str, target: Target) -> Builder:
    """Operand x, a row of which is a panel's; result; activations in all, and their stride.

    Columns are those of a row of activations; those of a panel that are not there become 0.
    """
    b = Builder(name, target)
    total, stride = (b.arg(own_slot(2) + i) for i in range(2))
    width, lanes = panel_width(target), target.lanes

    def row(row: Row) -> None:
        x, out = row.pointers
        first = b.mul(row.number, width)
        last = b.sub(b.sub(total, first), 1)
        whole = b.binary("and", row.columns, -lanes)
        for start in range(0, width, lanes):
            # Of missing activations the last is read, and zeros are written.
            lines, here = [], []
            for i in range(start, start + lanes):
                at = b.select(b.compare("sgt", i64(i), last), last, i64(i))
                lines.append(b.offset(x, b.mul(at, stride)))
                here.append(b.compare("sle", i64(i), last))

            with b.loop(0, whole, lanes) as column:
                by = b.mul(column, 4)
                loaded = []
                for line, there in zip(lines, here, strict=True):
                    value = b.load(vector_of(lanes, "float"), b.offset(line, by), 4)
                    loaded.append(b.select(there, value, b.zero(value.type)))
                for k, value in enumerate(transposed(b, loaded)):
                    place = b.add(b.mul(b.add(column, k), 4 * width), 4 * start)
                    b.store(value, b.offset(out, place), 4)
            with b.loop(whole, row.columns) as column:
                for i, (line, there) in enumerate(zip(lines, here, strict=True)):
                    value = b.load("float", b.offset(line, b.mul(column, 4)), 4)
                    value = b.select(there, value, f32(0.0))
                    place = b.add(b.mul(column, 4 * width), 4 * (start + i))
                    b.store(value, b.offset(out, place), 4)

    over_rows(b, 2, row)
    return b


def transposed(b: Builder, rows: list[Value]) -> list[Value]:
    """Transpose a square of lanes by exchanging halves, quarters, and so on."""
    n = len(rows)
    step = n // 2
    while step:
        turned = list(rows)
        for i in range(n):
            if not i & step:
                low, high = rows[i], rows[i + step]
                first = [k if not k & step else n + k - step for k in range(n)]
                second = [k + step if not k & step else n + k for k in range(n)]
                turned[i] = b.shuffle(low, high, first)
                turned[i + step] = b.shuffle(low, high, second)
        rows = turned
        step //= 2
    return rows


def route(name: str, target: Target) -> Builder:
    """Arguments ids, their two strides, tokens, choices of each, experts, and ``routes``.

    Behind them the first expert, and how many there are with those that are elsewhere and get no
    place. See ``SLOTS``. Places of one expert follow each other, in the order of tokens.
    """
    b = Builder(name, target)
    width = panel_width(target)
    ids, by_token, by_use, tokens, used, experts = (
        b.arg_pointer(0),
        *(b.arg(i) for i in range(1, 6)),
    )
    starts, before_first, of = b.arg_pointer(6), b.arg(7), b.arg(8)
    panels = b.offset(starts, b.mul(b.add(experts, 1), 4))
    pairs = b.offset(starts, b.mul(b.add(experts, 1), 8))
    none, one = Value("0", "i32"), Value("1", "i32")

    def at(pointer: Value, index: Value) -> Value:
        return b.offset(pointer, b.mul(index, 4))

    def id_of(token: Value, use: Value) -> Value:
        place = b.offset(b.offset(ids, b.mul(token, by_token)), b.mul(use, by_use))
        return row_here(b, place, before_first, of)

    with b.loop(0, b.add(experts, 1)) as expert:
        b.store(none, at(starts, expert), 4)
    with b.loop(0, tokens) as token, b.loop(0, used) as use:
        id_ = id_of(token, use)
        with b.when(b.compare("ult", id_, experts)):
            count = at(starts, b.add(id_, 1))
            b.store(b.add(b.load("i32", count, 4), one), count, 4)
    b.store(none, panels, 4)
    with b.loop(0, experts) as expert:
        before, after = at(starts, expert), at(starts, b.add(expert, 1))
        count = b.load("i32", after, 4)
        more = b.udiv(b.add(count, width - 1), width)
        so_far = b.load("i32", at(panels, expert), 4)
        b.store(b.add(so_far, more), at(panels, b.add(expert, 1)), 4)
        b.store(b.add(b.load("i32", before, 4), count), after, 4)
    with b.loop(0, tokens) as token, b.loop(0, used) as use:
        # The start of an expert moves on with each of its places, and back in the end.
        id_ = id_of(token, use)
        with b.when(b.compare("ult", id_, experts)):
            start = at(starts, id_)
            place = b.load("i32", start, 4)
            pair = b.cast("trunc", b.add(b.mul(token, used), use), "i32")
            b.store(pair, at(pairs, b.cast("zext", place, "i64")), 4)
            b.store(b.add(place, one), start, 4)
    with b.loop(0, experts) as number:
        expert = b.sub(b.sub(experts, number), 1)
        b.store(b.load("i32", at(starts, expert), 4), at(starts, b.add(expert, 1)), 4)
    b.store(none, starts, 4)
    return b


def pack_routed(name: str, target: Target) -> Builder:
    """Arguments x, its two strides, columns, choices of each token, experts, ``routes``, result.

    A part is an expert; its panels are filled with the activations of its pairs, and zeros.
    """
    b = Builder(name, target)
    x, routes, result = (b.arg_pointer(i) for i in (0, 6, 7))
    by_token, by_use, columns, used, experts = (b.arg(i) for i in range(1, 6))
    width, expert = panel_width(target), b.parameter("part")
    first, last, panel, pairs = places_of(b, routes, experts, expert)
    nbytes = b.mul(columns, 4 * width)
    start = b.offset(result, b.mul(panel, nbytes))
    filled = b.mul(b.udiv(b.add(b.sub(last, first), width - 1), width), width)
    with b.loop(0, filled) as number:
        place = b.add(first, number)
        there = b.compare("slt", place, last)
        inside = b.select(there, place, b.sub(last, 1))
        pair = pair_of(b, pairs, inside)
        line = b.offset(x, b.mul(b.udiv(pair, used), by_token))
        line = b.offset(line, b.mul(b.urem(pair, used), by_use))
        out = b.offset(start, b.mul(b.udiv(number, width), nbytes))
        out = b.offset(out, b.mul(b.urem(number, width), 4))
        with b.loop(0, columns) as column:
            value = b.load("float", b.offset(line, b.mul(column, 4)), 4)
            value = b.select(there, value, f32(0.0))
            b.store(value, b.offset(out, b.mul(column, 4 * width)), 4)
    return b


def pack_rows(b: Builder, put: Callable[[Value, Value, Value], None]) -> Builder:
    """Like ``pack``, but rows that are not there repeat the last one.

    ``put`` writes a row: it takes where the row is, where its first elements go, and its columns.
    """
    total, stride = (b.arg(own_slot(2) + i) for i in range(2))
    width = panel_width(b.target)

    def row(row: Row) -> None:
        x, out = row.pointers
        left = b.sub(total, b.mul(row.number, width))
        with b.loop(0, i64(width)) as number:
            inside = b.umin(number, b.sub(left, 1))
            put(b.offset(x, b.mul(inside, stride)), b.offset(out, b.mul(number, 4)), row.columns)

    over_rows(b, 2, row)
    return b


def pack_pairs(
    b: Builder, nbytes_of: Callable[[Value], Value], put: Callable[[Value, Value, Value], None]
) -> Builder:
    """Like ``pack_routed``, but rows that are not there are not written.

    ``nbytes_of`` returns the bytes of a panel with some columns; ``put`` is as for ``pack_rows``.
    """
    x, routes, result = (b.arg_pointer(i) for i in (0, 6, 7))
    by_token, by_use, columns, used, experts = (b.arg(i) for i in range(1, 6))
    width, expert = panel_width(b.target), b.parameter("part")
    first, last, panel, pairs = places_of(b, routes, experts, expert)
    nbytes = nbytes_of(columns)
    start = b.offset(result, b.mul(panel, nbytes))
    with b.loop(0, b.sub(last, first)) as number:
        pair = pair_of(b, pairs, b.add(first, number))
        line = b.offset(x, b.mul(b.udiv(pair, used), by_token))
        line = b.offset(line, b.mul(b.urem(pair, used), by_use))
        to = b.offset(start, b.mul(b.udiv(number, width), nbytes))
        put(line, b.offset(to, b.mul(b.urem(number, width), 4)), columns)
    return b


@contextmanager
def tile_sums(b: Builder, into: Value, rows: int, goes_on: Value) -> Iterator[list[list[Variable]]]:
    """Yield sums of a tile in registers, from memory if a product ``goes_on``; store them then."""
    vector, nbytes = vector_of(b.target.lanes, "float"), 4 * b.target.lanes
    places = [b.offset(into, nbytes * i) for i in range(VECTORS * rows)]
    sums = [[b.var(b.zero(vector)) for _ in range(VECTORS)] for _ in range(rows)]
    totals = [total for line in sums for total in line]
    with b.when(goes_on):
        for place, total in zip(places, totals, strict=True):
            b.set(total, b.load(vector, place, 4))
    yield sums
    for place, total in zip(places, totals, strict=True):
        b.store(b.get(total), place, 4)


def places_of(
    b: Builder, routes: Value, experts: Value, expert: Value
) -> tuple[Value, Value, Value, Value]:
    """Return first and last place of an expert, its first panel, and where pairs are."""
    first, last, panel = (
        pair_of(b, routes, index)
        for index in (expert, b.add(expert, 1), b.add(b.add(experts, 1), expert))
    )
    return first, last, panel, b.offset(routes, b.mul(b.add(experts, 1), 8))


def pair_of(b: Builder, pairs: Value, place: Value) -> Value:
    """Return the pair of token and choice of a place."""
    return b.cast("zext", b.load("i32", b.offset(pairs, b.mul(place, 4)), 4), "i64")
