"""Products of weights with one to a few rows of activations: ``out[i, r] = x[i] . w[r]``.

Bound by memory: each part reads the rows of a weight once, one after the other. Processors fetch
ahead along one stream of addresses; with four rows at a time, each of which ends after some
kilobytes, a third of the rate was measured (rows of 8 KB: ``rows_together``). Which matrix a
part belongs to, and where its rows begin, is decided by ``part_of``: batches by stride (grouped
heads too), or experts chosen by ids.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ggsched.ir.dtype import F32, DType
from ggsched_cpu.kernels.bf16_rows import pair_products
from ggsched_cpu.kernels.elements import load_f32
from ggsched_cpu.kernels.emit import Builder, Value, i64, vector_of
from ggsched_cpu.kernels.packed_rows import exact_products, rounded_products
from ggsched_cpu.kernels.rows import row_here
from ggsched_cpu.kernels.rows_together import (
    TOGETHER,
    products_together,
    takes_rows_together,
    together,
)
from ggsched_cpu.kernels.sums import FAR, Sums, accumulators, added, fetch
from ggsched_cpu.kernels.target import Target

Activations = Literal["f32", "int8", "bf16"]
Choice = Literal["batch", "ids"]

VECTORS: Final = (1, 2, 4)
"""Rows of activations that a kernel takes at a time."""

_LONG: Final = 4096
"""Activations of f32 that take half of a first cache."""

_PAST_CACHES: Final = 10 << 10
"""How far ahead weights are fetched past the caches, in bytes: 8 KB is as fast from memory, but 5 %
slower from the third cache; 14 KB the other way round."""

_IN_CACHE: Final = 38 << 10
"""Bytes that activations and weights on their way may take of a first cache of 48 KB. If they take
more, weights leave it before they are used."""

_NEAREST: Final = 4096
"""How far ahead weights are fetched at least beside activations that take all of that, in bytes."""

_ACTIVATION_HALVES: Final[Mapping[Activations, int]] = {"f32": 8, "bf16": 4, "int8": 3}
"""What an activation takes of the first cache, in halves of a byte."""

SLOTS: Final = (
    "w", "x", "out", "rows", "columns", "w_row", "vectors", "x_row", "out_row",
    "chunks", "chunk_rows",
    "inner", "w_outer", "w_inner", "x_outer", "x_inner", "out_outer", "out_inner",
    "w_outer_share", "w_inner_share",
    "ids", "id_outer", "id_inner", "experts", "first_expert", "all_experts",
)  # fmt: skip
"""Arguments. A part is one of ``chunks`` pieces of ``chunk_rows`` rows of one matrix. Matrices are
numbered over an outer and an inner axis, of which the inner has ``inner``; strides are in bytes. A
matrix of w is used by ``share`` matrices of x that follow each other, or is chosen by an id; it has
``experts`` of ``all_experts``, and nothing is done for others."""


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
        id_ = row_here(b, place("ids", outer, inner), arg["first_expert"], arg["all_experts"])
        with b.when(b.compare("uge", id_, arg["experts"])):
            b.leave(i64(0))
        w = b.offset(b.arg_pointer(slot("w")), b.mul(id_, arg["w_outer"]))
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
    w_row, x_row, out_row = (b.arg(slot(f"{n}_row")) for n in ("w", "x", "out"))
    count, columns = b.arg(slot("vectors")), b.arg(slot("columns"))
    last_vector = b.sub(count, 1)
    b.weights_end = end = b.offset(part.w, b.mul(part.last, w_row))
    far = _distance(b, activations, vectors) if target.fetches_past_caches else None
    first = part.first
    if takes_rows_together(target, dtype, activations, vectors):
        some = together(b, dtype, b.sub(part.last, first), columns)
        first = b.add(first, some)
        with b.loop(part.first, first, TOGETHER) as row:
            rows = [b.offset(part.w, b.mul(b.add(row, r), w_row)) for r in range(TOGETHER)]
            with b.loop(0, count) as vector:
                start = b.offset(part.x, b.mul(vector, x_row))
                out = b.offset(b.offset(part.out, b.mul(vector, out_row)), b.mul(row, 4))
                for r, total in enumerate(products_together(b, dtype, rows, start, columns)):
                    b.store(total, b.offset(out, 4 * r), 4)
    with b.loop(first, part.last) as row:
        w = b.offset(part.w, b.mul(row, w_row))
        if far is not None:
            # Once for a row: for each vector it takes 5 to 20 % where weights come from a cache.
            b.ahead = b.select(b.compare("ult", b.offset(w, far), end), far, i64(0))
        with b.loop(0, count, vectors) as vector:
            # Vectors beyond the last are the last one again.
            which = [b.umin(b.add(vector, i), last_vector) for i in range(vectors)]
            x = [b.offset(part.x, b.mul(v, x_row)) for v in which]
            if activations == "bf16":
                sums = pair_products(b, w, x, columns)
            elif dtype.layout is None:
                sums = _plain(b, dtype, w, x, columns)
            elif activations == "int8":
                sums = rounded_products(b, dtype, w, x, columns)
            else:
                sums = exact_products(b, dtype, w, x, columns)
            for v, total in zip(which, sums, strict=True):
                out = b.offset(part.out, b.mul(v, out_row))
                b.store(total, b.offset(out, b.mul(row, 4)), 4)
    return b


def _distance(b: Builder, activations: Activations, vectors: int) -> Value:
    """Return how far ahead weights are fetched past the caches, in bytes."""
    halves = b.mul(b.arg(slot("columns")), vectors * _ACTIVATION_HALVES[activations])
    rest = b.sub(i64(_IN_CACHE), b.udiv(halves, 2))
    rest = b.select(b.compare("slt", rest, _NEAREST), i64(_NEAREST), rest)
    return b.umin(rest, _PAST_CACHES)


def _plain(b: Builder, dtype: DType, w: Value, x: Sequence[Value], columns: Value) -> list[Value]:
    lanes, size = b.target.lanes, dtype.block_nbytes
    is_streamed, is_one = b.target.fetches_streams, len(x) == 1
    if is_streamed:
        n_sums, unroll = 1, 2 if is_one and dtype is not F32 else 1
    else:
        n_sums = unroll = 4 if len(x) <= 2 else 2
    step = lanes * unroll
    sums = accumulators(b, x, n_sums, vector_of(lanes, "float"))
    rest = accumulators(b, x, 1, "float")
    whole = b.binary("and", columns, -step)

    ahead: Value | None = None
    is_latency_bound = is_streamed and not is_one and dtype is not F32
    if is_latency_bound:
        # Activations that fill the first cache break its fetching: 13 GB/s, and 22 with this.
        ahead = b.select(b.compare("ugt", columns, _LONG), i64(FAR), i64(0))

    def multiply(column: Value, width: int, into: Sums, number: int) -> None:
        weight = load_f32(b, dtype, b.offset(w, b.mul(column, size)), width)
        by_x = b.mul(column, 4)
        for start, totals in zip(x, into, strict=True):
            value = b.load(vector_of(width, "float"), b.offset(start, by_x), 4)
            total = b.get(totals[number])
            # One sum after another: an addition takes three cycles, a fused one four.
            apart = is_latency_bound and width > 1
            product = b.fadd(total, b.fmul(weight, value)) if apart else None
            b.set(totals[number], product or b.fma(weight, value, total))

    with b.loop(0, whole, step) as column:
        place = b.offset(w, b.mul(column, size))
        fetch(b, place, step * size, at_once=dtype is F32, is_fast=True)
        if ahead is not None:
            b.prefetch(b.offset(place, ahead), level=2)
        for u in range(unroll):
            multiply(b.add(column, u * lanes), lanes, sums, u % n_sums)
    near = b.binary("and", columns, -lanes)
    with b.loop(whole, near, lanes) as column:
        multiply(column, lanes, sums, 0)
    with b.loop(near, columns) as column:
        multiply(column, 1, rest, 0)
    return [
        b.fadd(b.sum(added(b, totals)), b.get(single))
        for totals, (single,) in zip(sums, rest, strict=True)
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


__all__ = [
    "SLOTS",
    "VECTORS",
    "Activations",
    "Choice",
    "gemv",
    "gemv_columns",
    "slot",
]
