"""Products of weights with one to a few rows of activations: ``out[i, r] = x[i] . w[r]``.

Bound by memory: each part reads rows of the weight once, several rows at a time, so that a load of
activations serves them all. Which matrix a part belongs to, and where its rows begin, is decided by
``Matrices``: batches by stride (grouped heads too), or experts chosen by ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ggsched.ir.dtype import DType
from ggsched_cpu_kernels.elements import (
    block_f32,
    block_min,
    block_scale,
    code_bytes,
    coding,
    load_f32,
)
from ggsched_cpu_kernels.emit import Builder, Value, Variable, f32, vector_of
from ggsched_cpu_kernels.int_dot import BLOCK, dot, round_block, shift_of, sums_lanes
from ggsched_cpu_kernels.target import Target
from ggsched_cpu_kernels.vectors import Row, over_rows

Activations = Literal["f32", "int8"]
Choice = Literal["batch", "ids"]

VECTORS: Final = (1, 2, 4)
"""Rows of activations that a kernel takes at a time."""

SLOTS: Final = (
    "w", "x", "out", "rows", "columns", "w_row", "vectors", "x_row", "out_row",
    "chunks", "chunk_rows",
    "inner", "w_outer", "w_inner", "x_outer", "x_inner", "out_outer", "out_inner",
    "w_outer_share", "w_inner_share",
    "ids", "id_outer", "id_inner", "experts",
)  # fmt: skip
"""Arguments. A part is one of ``chunks`` pieces of ``chunk_rows`` rows of one matrix. Matrices are
numbered over an outer and an inner axis, of which the inner has ``inner``; strides are in bytes. A
matrix of w is used by ``share`` matrices of x that follow each other, or is chosen by an id."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Where a part works."""

    w: Value
    x: Value
    out: Value
    first: Value
    last: Value


def slot(name: str) -> int:
    """Return the number of an argument."""
    return SLOTS.index(name)


def part_of(b: Builder, choice: Choice) -> _Part:
    """Find the matrices and the rows of a part; leave the kernel where an id is out of range."""
    arg = {name: b.arg(i) for i, name in enumerate(SLOTS) if name not in ("w", "x", "out", "ids")}
    part = b.parameter("part")
    matrix = b.udiv(part, arg["chunks"])
    first = b.mul(b.urem(part, arg["chunks"]), arg["chunk_rows"])
    last = b.umin(b.add(first, arg["chunk_rows"]), arg["rows"])
    outer, inner = b.udiv(matrix, arg["inner"]), b.urem(matrix, arg["inner"])

    def place(pointer: str, at_outer: Value, at_inner: Value) -> Value:
        start = b.arg_pointer(slot(pointer))
        name = "id" if pointer == "ids" else pointer
        by = b.add(b.mul(at_outer, arg[f"{name}_outer"]), b.mul(at_inner, arg[f"{name}_inner"]))
        return b.offset(start, by)

    if choice == "ids":
        id_ = b.load("i32", place("ids", outer, inner), 4)
        wide = b.cast("zext", id_, "i64")
        with b.when(b.compare("uge", wide, arg["experts"])):
            b.leave(b.add(wide, 1))
        w = b.offset(b.arg_pointer(slot("w")), b.mul(wide, arg["w_outer"]))
    else:
        shared = (b.udiv(outer, arg["w_outer_share"]), b.udiv(inner, arg["w_inner_share"]))
        w = place("w", *shared)
    return _Part(w, place("x", outer, inner), place("out", outer, inner), first, last)


def gemv(
    name: str, target: Target, dtype: DType, activations: Activations, vectors: int, choice: Choice
) -> Builder:
    """Return a kernel."""
    b = Builder(name, target)
    part = part_of(b, choice)
    rows_at_once = 4 if vectors == 1 or target.has_avx512 else 2
    w_row, x_row, out_row = (b.arg(slot(f"{n}_row")) for n in ("w", "x", "out"))
    count, columns = b.arg(slot("vectors")), b.arg(slot("columns"))
    last_row, last_vector = b.sub(part.last, 1), b.sub(count, 1)
    with b.loop(part.first, part.last, rows_at_once) as row:
        # Rows and vectors beyond the last are the last one again.
        rows = [b.umin(b.add(row, i), last_row) for i in range(rows_at_once)]
        w = [b.offset(part.w, b.mul(r, w_row)) for r in rows]
        with b.loop(0, count, vectors) as vector:
            which = [b.umin(b.add(vector, i), last_vector) for i in range(vectors)]
            x = [b.offset(part.x, b.mul(v, x_row)) for v in which]
            if dtype.layout is None:
                sums = _plain(b, dtype, w, x, columns)
            elif activations == "int8":
                sums = _rounded(b, dtype, w, x, columns)
            else:
                sums = _blocks(b, dtype, w, x, columns)
            for v, line in zip(which, sums, strict=True):
                out = b.offset(part.out, b.mul(v, out_row))
                for r, total in zip(rows, line, strict=True):
                    b.store(total, b.offset(out, b.mul(r, 4)), 4)
    return b


_Sums = list[list[Variable]]


def _accumulators(b: Builder, x: Sequence[Value], w: Sequence[Value], type_: str) -> _Sums:
    return [[b.var(b.zero(type_)) for _ in w] for _ in x]


def _plain(
    b: Builder, dtype: DType, w: Sequence[Value], x: Sequence[Value], columns: Value
) -> list[list[Value]]:
    lanes = b.target.lanes
    unroll = 2 if len(w) * len(x) <= 4 else 1
    step = lanes * unroll
    sums = [_accumulators(b, x, w, vector_of(lanes, "float")) for _ in range(unroll)]
    whole = b.binary("and", columns, -step)
    w_size, size = dtype.block_nbytes, 4

    def multiply(column: Value, width: int, into: _Sums) -> None:
        by_x, by_w = b.mul(column, size), b.mul(column, w_size)
        loaded = [b.load(vector_of(width, "float"), b.offset(p, by_x), 4) for p in x]
        for r, pointer in enumerate(w):
            weight = load_f32(b, dtype, b.offset(pointer, by_w), width)
            for v, values in enumerate(loaded):
                b.set(into[v][r], b.fma(weight, values, b.get(into[v][r])))

    with b.loop(0, whole, step) as column:
        for u in range(unroll):
            multiply(b.add(column, u * lanes), lanes, sums[u])
    rest = _accumulators(b, x, w, "float")
    with b.loop(whole, columns) as column:
        multiply(column, 1, rest)
    found = []
    for v in range(len(x)):
        line = []
        for r in range(len(w)):
            total = b.get(sums[0][v][r])
            for more in sums[1:]:
                total = b.fadd(total, b.get(more[v][r]))
            line.append(b.fadd(b.sum(total), b.get(rest[v][r])))
        found.append(line)
    return found


def _blocks(
    b: Builder, dtype: DType, w: Sequence[Value], x: Sequence[Value], columns: Value
) -> list[list[Value]]:
    """Packed weights and f32 activations."""
    layout = dtype.layout
    assert layout is not None
    lanes = b.target.lanes
    sums = _accumulators(b, x, w, vector_of(lanes, "float"))
    with b.loop(0, b.udiv(columns, dtype.block)) as block:
        at_w, at_x = b.mul(block, dtype.block_nbytes), b.mul(block, 4 * dtype.block)
        pieces = range(dtype.block // lanes)
        values = [
            [
                b.load(vector_of(lanes, "float"), b.offset(b.offset(p, at_x), 4 * lanes * i), 4)
                for i in pieces
            ]
            for p in x
        ]
        whole = [_total(b, some) for some in values] if layout.min is not None else []
        for r, pointer in enumerate(w):
            place = b.offset(pointer, at_w)
            codes = block_f32(b, place, layout, lanes)
            scale = b.splat(block_scale(b, place, layout), lanes)
            least = block_min(b, place, layout)
            for v, some in enumerate(values):
                each = b.fmul(codes[0], some[0])
                for i in pieces[1:]:
                    each = b.fma(codes[i], some[i], each)
                total = b.fma(each, scale, b.get(sums[v][r]))
                if least is not None:
                    total = b.fma(whole[v], b.splat(least, lanes), total)
                b.set(sums[v][r], total)
    return [[b.sum(b.get(total)) for total in line] for line in sums]


def _total(b: Builder, values: Sequence[Value]) -> Value:
    total = values[0]
    for value in values[1:]:
        total = b.fadd(total, value)
    return total


def _rounded(
    b: Builder, dtype: DType, w: Sequence[Value], x: Sequence[Value], columns: Value
) -> list[list[Value]]:
    """Packed weights and activations that ``round_block`` has written."""
    layout = dtype.layout
    assert layout is not None
    how = coding(layout)
    lanes = sums_lanes(b)
    sums = _accumulators(b, x, w, vector_of(lanes, "float"))
    added = _accumulators(b, x, w, "float") if layout.min is not None else None
    zero = how.zero + shift_of(b, how)
    blocks = b.udiv(columns, dtype.block)
    scales, totals = columns, b.add(columns, b.mul(blocks, 4))
    starts = [(p, b.offset(p, scales), b.offset(p, totals)) for p in x]
    none = Value("zeroinitializer", vector_of(lanes, "i32"))
    with b.loop(0, blocks) as block:
        at_w, at_x, by_four = (b.mul(block, n) for n in (dtype.block_nbytes, BLOCK, 4))
        loaded = []
        for codes, scale_at, total_at in starts:
            bytes_ = b.load(vector_of(BLOCK, "i8"), b.offset(codes, at_x))
            x_scale = b.load("float", b.offset(scale_at, by_four), 4)
            start, whole = none, f32(0.0)
            if zero or added is not None:
                total = b.load("i32", b.offset(total_at, by_four), 4)
                if zero:
                    start = b.insert(none, b.mul(total, -zero), 0)
                if added is not None:
                    whole = b.fmul(b.cast("sitofp", total, "float"), x_scale)
            loaded.append((bytes_, x_scale, start, whole))
        for r, pointer in enumerate(w):
            place = b.offset(pointer, at_w)
            codes = code_bytes(b, place, layout)
            scale = block_scale(b, place, layout)
            least = block_min(b, place, layout)
            for v, (bytes_, x_scale, start, whole) in enumerate(loaded):
                products = b.cast("sitofp", dot(b, codes, how, bytes_, start), "float")
                factor = b.splat(b.fmul(scale, x_scale), lanes)
                b.set(sums[v][r], b.fma(products, factor, b.get(sums[v][r])))
                if added is not None and least is not None:
                    b.set(added[v][r], b.fma(least, whole, b.get(added[v][r])))
    found = [[b.sum(b.get(total)) for total in line] for line in sums]
    if added is None:
        return found
    return [
        [b.fadd(a, b.get(more)) for a, more in zip(line, mores, strict=True)]
        for line, mores in zip(found, added, strict=True)
    ]


def gemv_columns(name: str, target: Target, dtype: DType, vectors: int) -> Builder:
    """Return a kernel for a weight whose rows are interleaved: ``w_row`` is the stride of a column.

    So are the values of a cache, of which attention needs sums over the rows.
    """
    b = Builder(name, target)
    part = part_of(b, "batch")
    w_column, x_row, out_row = (b.arg(slot(f"{n}_row")) for n in ("w", "x", "out"))
    count, columns = b.arg(slot("vectors")), b.arg(slot("columns"))
    last_vector = b.sub(count, 1)

    def tile(first: Value, pieces: int, lanes: int) -> None:
        start = b.offset(part.w, b.mul(first, dtype.block_nbytes))
        with b.loop(0, count, vectors) as vector:
            which = [b.umin(b.add(vector, i), last_vector) for i in range(vectors)]
            x = [b.offset(part.x, b.mul(v, x_row)) for v in which]
            sums = [[b.var(b.zero(vector_of(lanes, "float"))) for _ in range(pieces)] for _ in x]
            with b.loop(0, columns) as column:
                line = b.offset(start, b.mul(column, w_column))
                factors = [
                    b.splat(b.load("float", b.offset(p, b.mul(column, 4)), 4), lanes) for p in x
                ]
                for i in range(pieces):
                    weight = load_f32(
                        b, dtype, b.offset(line, i * lanes * dtype.block_nbytes), lanes
                    )
                    for factor, totals in zip(factors, sums, strict=True):
                        b.set(totals[i], b.fma(weight, factor, b.get(totals[i])))
            for v, totals in zip(which, sums, strict=True):
                out = b.offset(b.offset(part.out, b.mul(v, out_row)), b.mul(first, 4))
                for i, total in enumerate(totals):
                    b.store(b.get(total), b.offset(out, 4 * lanes * i), 4)

    lanes, pieces = target.lanes, 8 // vectors
    begin = part.first
    for width, count_of in ((lanes * pieces, pieces), (lanes, 1), (1, 1)):
        end = b.sub(part.last, b.urem(b.sub(part.last, begin), width))
        with b.loop(begin, end, width) as first:
            tile(first, count_of, width // count_of)
        begin = end
    return b


def round_rows(name: str, target: Target) -> Builder:
    """Operand x; result, whose rows are rounded ones (``int_dot``). Columns are blocks."""
    b = Builder(name, target)

    def row(row: Row) -> None:
        x, out = row.pointers
        blocks = row.columns
        scales = b.offset(out, b.mul(blocks, BLOCK))
        totals = b.offset(scales, b.mul(blocks, 4))
        with b.loop(0, blocks) as block:
            values = b.load(vector_of(BLOCK, "float"), b.offset(x, b.mul(block, 4 * BLOCK)), 4)
            codes = b.offset(out, b.mul(block, BLOCK))
            by_four = b.mul(block, 4)
            round_block(b, values, codes, b.offset(scales, by_four), b.offset(totals, by_four))

    over_rows(b, 2, row)
    return b


__all__ = [
    "SLOTS",
    "VECTORS",
    "Activations",
    "Choice",
    "gemv",
    "gemv_columns",
    "round_rows",
    "slot",
]
