"""Products of weights with many rows of activations, bound by computing.

Activations are laid out once in panels: ``lanes * VECTORS`` of them side by side, so that a vector
holds one element of each. A part takes some rows of the weight, ``BLOCK_COLUMNS`` columns at a
time: they are unpacked to f32 in scratch memory, and each tile of rows meets each panel in
registers. Sums of a part stay in scratch memory until all columns are done.
"""

from collections.abc import Callable, Mapping
from typing import Final

from ggsched.ir.blocks import BlockLayout
from ggsched.ir.dtype import DType
from ggsched_cpu_kernels.elements import block_values, load_f32
from ggsched_cpu_kernels.emit import SCRATCH_NBYTES, Builder, Value, f32, i64, vector_of
from ggsched_cpu_kernels.target import Target
from ggsched_cpu_kernels.vectors import Row, over_rows, own_slot

VECTORS: Final = 2
"""Vectors of a panel."""

BLOCK_ROWS: Final = 48
"""Rows of the weight that a part unpacks at a time; whole tiles for every target."""

BLOCK_COLUMNS: Final = 256
"""Columns that are unpacked at a time: a panel's piece stays in the first cache."""

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
assert _UNPACKED_NBYTES + 4 * BLOCK_ROWS * MAX_ACTIVATIONS <= SCRATCH_NBYTES


def slot(name: str) -> int:
    """Return the number of an argument."""
    return SLOTS.index(name)


def panel_width(target: Target) -> int:
    """Return how many activations lie side by side."""
    return VECTORS * target.lanes


def tile_rows(target: Target) -> int:
    """Return how many rows of a weight meet a panel in registers: 16 registers, or 32."""
    return 6 if target.is_x86 and not target.has_avx512 else 12


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
                for k, value in enumerate(_transposed(b, loaded)):
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


def _transposed(b: Builder, rows: list[Value]) -> list[Value]:
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

    See ``SLOTS``. Places of one expert follow each other, in the order of tokens.
    """
    b = Builder(name, target)
    width = panel_width(target)
    ids, by_token, by_use, tokens, used, experts = (
        b.arg_pointer(0),
        *(b.arg(i) for i in range(1, 6)),
    )
    starts = b.arg_pointer(6)
    panels = b.offset(starts, b.mul(b.add(experts, 1), 4))
    pairs = b.offset(starts, b.mul(b.add(experts, 1), 8))
    none, one = Value("0", "i32"), Value("1", "i32")

    def at(pointer: Value, index: Value) -> Value:
        return b.offset(pointer, b.mul(index, 4))

    def id_of(token: Value, use: Value) -> Value:
        place = b.offset(b.offset(ids, b.mul(token, by_token)), b.mul(use, by_use))
        return b.cast("zext", b.load("i32", place, 4), "i64")

    with b.loop(0, b.add(experts, 1)) as expert:
        b.store(none, at(starts, expert), 4)
    with b.loop(0, tokens) as token, b.loop(0, used) as use:
        id_ = id_of(token, use)
        with b.when(b.compare("uge", id_, experts)):
            b.leave(b.add(id_, 1))
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
        start = at(starts, id_of(token, use))
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
    first, last, panel, pairs = _places(b, routes, experts, expert)
    nbytes = b.mul(columns, 4 * width)
    start = b.offset(result, b.mul(panel, nbytes))
    filled = b.mul(b.udiv(b.add(b.sub(last, first), width - 1), width), width)
    with b.loop(0, filled) as number:
        place = b.add(first, number)
        there = b.compare("slt", place, last)
        inside = b.select(there, place, b.sub(last, 1))
        pair = _pair(b, pairs, inside)
        line = b.offset(x, b.mul(b.udiv(pair, used), by_token))
        line = b.offset(line, b.mul(b.urem(pair, used), by_use))
        out = b.offset(start, b.mul(b.udiv(number, width), nbytes))
        out = b.offset(out, b.mul(b.urem(number, width), 4))
        with b.loop(0, columns) as column:
            value = b.load("float", b.offset(line, b.mul(column, 4)), 4)
            value = b.select(there, value, f32(0.0))
            b.store(value, b.offset(out, b.mul(column, 4 * width)), 4)
    return b


def _places(
    b: Builder, routes: Value, experts: Value, expert: Value
) -> tuple[Value, Value, Value, Value]:
    """Return first and last place of an expert, its first panel, and where pairs are."""
    first, last, panel = (
        _pair(b, routes, index)
        for index in (expert, b.add(expert, 1), b.add(b.add(experts, 1), expert))
    )
    return first, last, panel, b.offset(routes, b.mul(b.add(experts, 1), 8))


def _pair(b: Builder, pairs: Value, place: Value) -> Value:
    return b.cast("zext", b.load("i32", b.offset(pairs, b.mul(place, 4)), 4), "i64")


def gemm_routed(name: str, target: Target, dtype: DType) -> Builder:
    """Return the kernel for a type of weights of experts."""
    b = Builder(name, target)
    arg = {n: b.arg(i) for i, n in enumerate(SLOTS) if n not in ("w", "x", "out", "routes")}
    part = b.parameter("part")
    expert, chunk = b.udiv(part, arg["row_chunks"]), b.urem(part, arg["row_chunks"])
    first = b.mul(chunk, arg["chunk_rows"])
    last = b.umin(b.add(first, arg["chunk_rows"]), arg["rows"])
    begin, end, panel, pairs = _places(b, b.arg_pointer(slot("routes")), arg["experts"], expert)
    width = panel_width(target)
    w = b.offset(b.arg_pointer(slot("w")), b.mul(expert, arg["w_expert"]))
    out = b.arg_pointer(slot("out"))
    with b.loop(begin, end, MAX_ACTIVATIONS) as place:
        vectors = b.umin(b.sub(end, place), MAX_ACTIVATIONS)
        skipped = b.add(panel, b.udiv(b.sub(place, begin), width))
        x = b.offset(b.arg_pointer(slot("x")), b.mul(skipped, b.mul(arg["columns"], 4 * width)))

        def line_of(vector: Value, place: Value = place) -> Value:
            pair = _pair(b, pairs, b.add(place, vector))
            line = b.offset(out, b.mul(b.udiv(pair, arg["used"]), arg["out_row"]))
            return b.offset(line, b.mul(b.urem(pair, arg["used"]), arg["out_used"]))

        _rows(b, dtype, arg, w, x, first, last, vectors, line_of)
    return b


def gemm(name: str, target: Target, dtype: DType) -> Builder:
    """Return the kernel for a type of weights."""
    b = Builder(name, target)
    arg = {n: b.arg(i) for i, n in enumerate(SLOTS) if n not in ("w", "x", "out", "routes")}
    width = panel_width(target)
    part = b.parameter("part")
    piece, chunk = b.udiv(part, arg["row_chunks"]), b.urem(part, arg["row_chunks"])
    first = b.mul(chunk, arg["chunk_rows"])
    last = b.umin(b.add(first, arg["chunk_rows"]), arg["rows"])
    vector = b.mul(piece, arg["chunk_vectors"])
    vectors = b.umin(arg["chunk_vectors"], b.sub(arg["vectors"], vector))
    panel_nbytes = b.mul(arg["columns"], 4 * width)
    x = b.offset(b.arg_pointer(slot("x")), b.mul(b.udiv(vector, width), panel_nbytes))
    out = b.offset(b.arg_pointer(slot("out")), b.mul(vector, arg["out_row"]))

    def line_of(vector: Value) -> Value:
        return b.offset(out, b.mul(vector, arg["out_row"]))

    _rows(b, dtype, arg, b.arg_pointer(slot("w")), x, first, last, vectors, line_of)
    return b


def _rows(
    b: Builder,
    dtype: DType,
    arg: Mapping[str, Value],
    w: Value,
    x: Value,
    first: Value,
    last: Value,
    vectors: Value,
    line_of: Callable[[Value], Value],
) -> None:
    """Multiply some rows of a weight with some panels of activations."""
    width, tile = panel_width(b.target), tile_rows(b.target)
    panels = b.udiv(b.add(vectors, width - 1), width)
    panel_nbytes = b.mul(arg["columns"], 4 * width)
    unpacked = b.parameter("scratch")
    sums = b.offset(unpacked, _UNPACKED_NBYTES)
    with b.loop(first, last, BLOCK_ROWS) as row:
        rows = b.umin(b.sub(last, row), BLOCK_ROWS)
        tiles = b.udiv(b.add(rows, tile - 1), tile)
        with b.loop(0, arg["columns"], BLOCK_COLUMNS) as column:
            count = b.umin(b.sub(arg["columns"], column), BLOCK_COLUMNS)
            _unpack(b, dtype, w, row, rows, column, count, unpacked, arg["w_row"])
            with b.loop(0, panels) as panel:
                start = b.offset(x, b.mul(panel, panel_nbytes))
                start = b.offset(start, b.mul(column, 4 * width))
                with b.loop(0, tiles) as number:
                    line = b.mul(number, tile)
                    weights = b.offset(unpacked, b.mul(line, 4 * BLOCK_COLUMNS))
                    place = b.add(b.mul(panel, BLOCK_ROWS), line)
                    into = b.offset(sums, b.mul(place, 4 * width))
                    _tile(b, weights, start, into, count, b.compare("ne", column, 0))
        _write(b, sums, row, rows, vectors, line_of)


def _unpack(
    b: Builder,
    dtype: DType,
    w: Value,
    row: Value,
    rows: Value,
    column: Value,
    count: Value,
    unpacked: Value,
    w_row: Value,
) -> None:
    """Write some columns of some rows as f32."""
    layout = dtype.layout
    skipped = b.mul(b.udiv(column, dtype.block), dtype.block_nbytes)
    w = b.offset(w, skipped)
    with b.loop(0, rows) as line:
        source = b.offset(w, b.mul(b.add(row, line), w_row))
        target = b.offset(unpacked, b.mul(line, 4 * BLOCK_COLUMNS))
        if layout is None:
            _convert_row(b, dtype, source, target, count)
        else:
            _decode_row(b, dtype, layout, source, target, count)


def _convert_row(b: Builder, dtype: DType, source: Value, target: Value, count: Value) -> None:
    lanes = b.target.lanes
    whole = b.binary("and", count, -lanes)
    for begin, end, width in ((i64(0), whole, lanes), (whole, count, 1)):
        with b.loop(begin, end, width) as k:
            at = b.offset(source, b.mul(k, dtype.block_nbytes))
            b.store(load_f32(b, dtype, at, width), b.offset(target, b.mul(k, 4)), 4)


def _decode_row(
    b: Builder, dtype: DType, layout: BlockLayout, source: Value, target: Value, count: Value
) -> None:
    lanes = b.target.lanes
    with b.loop(0, b.udiv(count, dtype.block)) as block:
        place = b.offset(source, b.mul(block, dtype.block_nbytes))
        to = b.offset(target, b.mul(block, 4 * dtype.block))
        for i, value in enumerate(block_values(b, place, layout, lanes)):
            b.store(value, b.offset(to, 4 * lanes * i), 4)


def _tile(
    b: Builder, weights: Value, panel: Value, into: Value, count: Value, goes_on: Value
) -> None:
    """Multiply a tile of rows with a panel; add to what is there if this ``goes_on``."""
    lanes, rows = b.target.lanes, tile_rows(b.target)
    vector = vector_of(lanes, "float")
    width = 4 * panel_width(b.target)
    places = [
        [b.offset(into, width * r + 4 * lanes * v) for v in range(VECTORS)] for r in range(rows)
    ]
    sums = [[b.var(b.zero(vector)) for _ in line] for line in places]
    with b.when(goes_on):
        for line, totals in zip(places, sums, strict=True):
            for place, total in zip(line, totals, strict=True):
                b.set(total, b.load(vector, place, 4))

    def step(k: Value, ahead: int) -> None:
        at = b.offset(b.offset(panel, b.mul(k, width)), width * ahead)
        values = [b.load(vector, b.offset(at, 4 * lanes * v), 4) for v in range(VECTORS)]
        start = b.offset(weights, b.mul(k, 4))
        for r, totals in enumerate(sums):
            weight = b.load("float", b.offset(start, 4 * (BLOCK_COLUMNS * r + ahead)), 4)
            wide = b.splat(weight, lanes)
            for value, total in zip(values, totals, strict=True):
                b.set(total, b.fma(value, wide, b.get(total)))

    unroll = 4
    whole = b.binary("and", count, -unroll)
    with b.loop(0, whole, unroll) as k:
        for ahead in range(unroll):
            step(k, ahead)
    with b.loop(whole, count) as k:
        step(k, 0)
    for line, totals in zip(places, sums, strict=True):
        for place, total in zip(line, totals, strict=True):
            b.store(b.get(total), place, 4)


def _write(
    b: Builder,
    sums: Value,
    row: Value,
    rows: Value,
    vectors: Value,
    line_of: Callable[[Value], Value],
) -> None:
    """Write the sums of a part to where results belong."""
    width = panel_width(b.target)
    with b.loop(0, vectors) as vector:
        panel, lane = b.udiv(vector, width), b.urem(vector, width)
        start = b.offset(sums, b.mul(panel, 4 * width * BLOCK_ROWS))
        start = b.offset(start, b.mul(lane, 4))
        line = b.offset(line_of(vector), b.mul(row, 4))
        with b.loop(0, rows) as number:
            value = b.load("float", b.offset(start, b.mul(number, 4 * width)), 4)
            b.store(value, b.offset(line, b.mul(number, 4)), 4)
