"""Products of weights with many rows of activations, bound by computing.

Activations are laid out once in panels (``panels``): some of them side by side, so that a vector
holds one element of each. A part takes some rows of the weight, ``BLOCK_COLUMNS`` columns at a
time: they are unpacked in scratch memory, and each tile of rows meets each panel in registers. Sums
of a part stay in scratch memory until all columns are done. ``Method`` says in which numbers.
"""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from ggsched_cpu.kernels.emit import SCRATCH_NBYTES, Builder, Value, i64, vector_of
from ggsched_cpu.kernels.panels import pair_of, panel_width, places_of, transposed
from ggsched_cpu.kernels.target import Target

BLOCK_ROWS: Final = 48
"""Rows of the weight that a part unpacks at a time; whole tiles and vectors for every target."""

BLOCK_COLUMNS: Final = 256
"""Columns that are unpacked at a time: a panel's piece stays in the L1 cache."""

MAX_ACTIVATIONS: Final = 512
"""Rows of activations of a part, which its sums in scratch memory limit."""

SLOTS: Final = (
    "w", "x", "out", "rows", "columns", "w_row", "vectors", "out_row",
    "row_chunks", "chunk_rows", "chunk_vectors",
    "experts", "w_expert", "routes", "used", "out_used",
)  # fmt: skip
"""Arguments; strides are in bytes. A part is a chunk of rows and a chunk of activations.

With chosen experts it is a chunk of rows of one expert. ``routes`` (i32) says, by ``route``: for
each expert and one more the first of its places, likewise the first of its panels, then the pair
of token and choice of each place. A token's results are ``out_used`` apart."""

_UNPACKED_NBYTES: Final = 4 * BLOCK_ROWS * BLOCK_COLUMNS
"""Scratch memory for what a method unpacks."""

assert _UNPACKED_NBYTES + 4 * BLOCK_ROWS * MAX_ACTIVATIONS <= SCRATCH_NBYTES


class Method(Protocol):
    """In which numbers a product is computed."""

    @property
    def tile_rows(self) -> int:
        """Rows of a weight that meet a panel in registers."""

    def panel_nbytes(self, columns: Value) -> Value:
        """Return the bytes of some columns of a panel: whole blocks, unless it is the last."""

    def unpack(self, w: Value, columns: Value, count: Value, line: Value, to: Value) -> None:
        """Write a row.

        Args:
            w: The row in memory.
            columns: Columns before the first that is wanted.
            count: Columns that are wanted.
            line: Number of the row among ``BLOCK_ROWS``.
            to: Where all of these rows are written.
        """

    def tile(
        self, unpacked: Value, line: Value, panel: Value, into: Value, count: Value, goes_on: Value
    ) -> None:
        """Multiply a tile of rows, from a line on, with a panel's columns; add if it goes on."""


MethodOf = Callable[[Builder], Method]


def slot(name: str) -> int:
    """Return the number of an argument."""
    return SLOTS.index(name)


def gemm_routed(name: str, target: Target, method_of: MethodOf) -> Builder:
    """Return the kernel for a type of weights of experts."""
    b = Builder(name, target)
    method = method_of(b)
    arg = {n: b.arg(i) for i, n in enumerate(SLOTS) if n not in ("w", "x", "out", "routes")}
    part = b.parameter("part")
    expert, chunk = b.udiv(part, arg["row_chunks"]), b.urem(part, arg["row_chunks"])
    first = b.mul(chunk, arg["chunk_rows"])
    last = b.umin(b.add(first, arg["chunk_rows"]), arg["rows"])
    begin, end, panel, pairs = places_of(b, b.arg_pointer(slot("routes")), arg["experts"], expert)
    width = panel_width(target)
    w = b.offset(b.arg_pointer(slot("w")), b.mul(expert, arg["w_expert"]))
    out = b.arg_pointer(slot("out"))
    with b.loop(begin, end, MAX_ACTIVATIONS) as place:
        vectors = b.umin(b.sub(end, place), MAX_ACTIVATIONS)
        skipped = b.add(panel, b.udiv(b.sub(place, begin), width))
        x = b.offset(b.arg_pointer(slot("x")), b.mul(skipped, method.panel_nbytes(arg["columns"])))

        def line_of(vector: Value, place: Value = place) -> Value:
            pair = pair_of(b, pairs, b.add(place, vector))
            line = b.offset(out, b.mul(b.udiv(pair, arg["used"]), arg["out_row"]))
            return b.offset(line, b.mul(b.urem(pair, arg["used"]), arg["out_used"]))

        _rows(b, method, arg, w, x, first, last, vectors, line_of)
    return b


def gemm(name: str, target: Target, method_of: MethodOf) -> Builder:
    """Return the kernel for a type of weights."""
    b = Builder(name, target)
    method = method_of(b)
    arg = {n: b.arg(i) for i, n in enumerate(SLOTS) if n not in ("w", "x", "out", "routes")}
    width = panel_width(target)
    part = b.parameter("part")
    piece, chunk = b.udiv(part, arg["row_chunks"]), b.urem(part, arg["row_chunks"])
    first = b.mul(chunk, arg["chunk_rows"])
    last = b.umin(b.add(first, arg["chunk_rows"]), arg["rows"])
    vector = b.mul(piece, arg["chunk_vectors"])
    vectors = b.umin(arg["chunk_vectors"], b.sub(arg["vectors"], vector))
    panel_nbytes = method.panel_nbytes(arg["columns"])
    x = b.offset(b.arg_pointer(slot("x")), b.mul(b.udiv(vector, width), panel_nbytes))
    out = b.offset(b.arg_pointer(slot("out")), b.mul(vector, arg["out_row"]))

    def line_of(vector: Value) -> Value:
        return b.offset(out, b.mul(vector, arg["out_row"]))

    _rows(b, method, arg, b.arg_pointer(slot("w")), x, first, last, vectors, line_of)
    return b


def _rows(
    b: Builder,
    method: Method,
    arg: Mapping[str, Value],
    w: Value,
    x: Value,
    first: Value,
    last: Value,
    vectors: Value,
    line_of: Callable[[Value], Value],
) -> None:
    """Multiply some rows of a weight with some panels of activations."""
    width, tile = panel_width(b.target), method.tile_rows
    panels = b.udiv(b.add(vectors, width - 1), width)
    panel_nbytes = method.panel_nbytes(arg["columns"])
    unpacked = b.parameter("scratch")
    sums = b.offset(unpacked, _UNPACKED_NBYTES)
    with b.loop(first, last, BLOCK_ROWS) as row:
        rows = b.umin(b.sub(last, row), BLOCK_ROWS)
        tiles = b.udiv(b.add(rows, tile - 1), tile)
        with b.loop(0, arg["columns"], BLOCK_COLUMNS) as column:
            count = b.umin(b.sub(arg["columns"], column), BLOCK_COLUMNS)
            with b.loop(0, rows) as line:
                source = b.offset(w, b.mul(b.add(row, line), arg["w_row"]))
                method.unpack(source, column, count, line, unpacked)
            with b.loop(0, panels) as panel:
                start = b.offset(x, b.mul(panel, panel_nbytes))
                start = b.offset(start, method.panel_nbytes(column))
                with b.loop(0, tiles) as number:
                    line = b.mul(number, tile)
                    place = b.add(b.mul(panel, BLOCK_ROWS), line)
                    into = b.offset(sums, b.mul(place, 4 * width))
                    method.tile(unpacked, line, start, into, count, b.compare("ne", column, 0))
        _write(b, sums, row, rows, vectors, line_of)


def _write(
    b: Builder,
    sums: Value,
    row: Value,
    rows: Value,
    vectors: Value,
    line_of: Callable[[Value], Value],
) -> None:
    """Write the sums of a part to where results belong: squares of lanes, then what is left."""
    width, lanes = panel_width(b.target), b.target.lanes
    vector = vector_of(lanes, "float")

    def place(number: Value, at: Value) -> Value:
        panel, lane = b.udiv(at, width), b.urem(at, width)
        start = b.offset(sums, b.mul(b.add(b.mul(panel, BLOCK_ROWS), number), 4 * width))
        return b.offset(start, b.mul(lane, 4))

    def line(at: Value, number: Value) -> Value:
        return b.offset(line_of(at), b.mul(b.add(row, number), 4))

    def single(number: Value, at: Value) -> None:
        b.store(b.load("float", place(number, at), 4), line(at, number), 4)

    whole_rows, whole = b.binary("and", rows, -lanes), b.binary("and", vectors, -lanes)
    with b.loop(0, whole, lanes) as at:
        with b.loop(0, whole_rows, lanes) as number:
            start = place(number, at)
            square = [b.load(vector, b.offset(start, 4 * width * i), 4) for i in range(lanes)]
            for i, value in enumerate(transposed(b, square)):
                b.store(value, line(b.add(at, i), number), 4)
        with b.loop(whole_rows, rows) as number, b.loop(0, i64(lanes)) as lane:
            single(number, b.add(at, lane))
    with b.loop(whole, vectors) as at, b.loop(0, rows) as number:
        single(number, at)
