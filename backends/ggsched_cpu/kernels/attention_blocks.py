"""Attention of many queries: blocks of queries meet blocks of keys, without a table of logits.

A part is some rows of queries of one head of keys: rows of all tokens and of all heads that read it
are one matrix. Queries are turned once, so that lanes are rows of queries: logits of a row of keys
are sums of its elements times vectors of queries, and largest logits, sums and bounds are vectors,
too. What a row has added up shrinks whenever a larger logit comes (Milakov and Gimelshein, arXiv
1805.02867; blocks as in Dao et al., arXiv 2205.14135).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ggsched.ir.dtype import F32, DType
from ggsched_cpu.kernels.attention import LEAST, LOWEST, SLOTS, slot
from ggsched_cpu.kernels.emit import SCRATCH_NBYTES, Builder, Value, Variable, f32, i64, vector_of
from ggsched_cpu.kernels.rows import convert_row
from ggsched_cpu.kernels.target import Target
from ggsched_cpu.kernels.vectors import exp, tanh

VECTORS: Final = 4
"""Vectors of rows of queries of a part."""

KEYS: Final = 48
"""Rows of keys that are unpacked at once; a multiple of the rows of a tile."""

_RESULT_ROWS: Final = 4
"""Rows of results of a tile."""

_STATES: Final = 5  # vectors of a part: largest logit, sum, shrinkage, bounds


def query_rows(target: Target) -> int:
    """Return the rows of queries of a part."""
    return VECTORS * target.lanes


def fits(target: Target, width: int, across: int) -> bool:
    """Whether blocks of heads of these widths fit scratch memory."""
    rows = query_rows(target)
    floats = (rows + KEYS) * (width + across) + KEYS * rows + _STATES * rows
    return 4 * floats <= SCRATCH_NBYTES


def attention_blocks(name: str, target: Target, dtype: DType) -> Builder:
    """Return the kernel; arguments are those of ``attention``, a part of tokens is a block."""
    b = Builder(name, target)
    _Part(b, dtype).write()
    return b


class _Part:
    """Writes the code for a part."""

    def __init__(self, b: Builder, dtype: DType) -> None:
        self.b, self.dtype, self.lanes = b, dtype, b.target.lanes
        self.rows = query_rows(b.target)
        self.tile = 3 if b.target.is_x86 and not b.target.has_avx512 else 6
        pointers = ("k", "v", "q", "out", "mask", "sinks", "bounds")
        self.arg = {n: b.arg(i) for i, n in enumerate(SLOTS) if n not in (*pointers, "scale")}
        self.scale, self.cap = b.arg_f32(slot("scale")), b.arg_f32(slot("cap"))
        arg, part, blocks = self.arg, b.parameter("part"), self.arg["token_parts"]
        self.head = b.udiv(part, blocks)
        # The last block, which mostly sees most, comes first.
        self.first = b.mul(b.sub(b.sub(blocks, 1), b.urem(part, blocks)), self.rows)
        left = b.sub(b.mul(arg["tokens"], arg["share"]), self.first)
        self.count = b.umin(left, self.rows)
        k, v = (b.arg_pointer(slot(n)) for n in "kv")
        self.k = b.offset(k, b.mul(self.head, arg["k_head"]))
        self.v = b.offset(v, b.mul(self.head, arg["v_head"]))
        width, across, rows = arg["width"], arg["value_width"], self.rows
        at = b.parameter("scratch")
        self.queries, at = at, b.offset(at, b.mul(width, 4 * rows))
        self.logits, at = at, b.offset(at, 4 * KEYS * rows)
        states = []
        for _ in range(_STATES):
            states.append(at)
            at = b.offset(at, 4 * rows)
        self.top, self.total, self.shrink, self.low, self.high = states
        self.sums, at = at, b.offset(at, b.mul(across, 4 * rows))
        self.keys, at = at, b.offset(at, b.mul(width, 4 * KEYS))
        self.values = at

    def write(self) -> None:
        """Attend."""
        b = self.b
        begin, end = self._prepare()
        with b.loop(0, b.mul(self.arg["value_width"], self.rows), self.lanes) as i:
            b.store(b.zero(self._vector), b.offset(self.sums, b.mul(i, 4)), 4)
        with b.loop(b.get(begin), b.get(end), KEYS) as start:
            left = b.sub(b.get(end), start)
            count = b.select(b.compare("slt", left, KEYS), left, i64(KEYS))
            self._unpack(self.k, "k_row", start, count, self.keys, "width")
            self._unpack(self.v, "v_row", start, count, self.values, "value_width")
            self._multiply(count)
            self._change(start, count)
            self._share(start, count)
            self._add(count)
        self._finish()

    @property
    def _vector(self) -> str:
        return vector_of(self.lanes, "float")

    def _is_given(self, pointer: str) -> Value:
        return self.b.compare("ne", self.b.arg(slot(pointer)), 0)

    def _at(self, start: Value, index: Value, vector: int = 0) -> Value:
        """Return the place of a row of ``rows`` floats, from a vector on."""
        offset = self.b.mul(index, 4 * self.rows)
        return self.b.offset(self.b.offset(start, offset), 4 * self.lanes * vector)

    @contextmanager
    def _each_query(self, *, padded: bool = False) -> Iterator[tuple[Value, Value, Value]]:
        """Go over rows of queries: number in the part, token, head.

        With ``padded`` rows behind the last one are like the last one.
        """
        b = self.b
        stop = i64(self.rows) if padded else self.count
        with b.loop(0, stop) as row:
            own = b.umin(row, b.sub(self.count, 1)) if padded else row
            at = b.add(self.first, own)
            token, member = b.udiv(at, self.arg["share"]), b.urem(at, self.arg["share"])
            yield row, token, b.add(b.mul(self.head, self.arg["share"]), member)

    def _row_of(self, pointer: str, *steps: tuple[Value, str]) -> Value:
        b, start = self.b, self.b.arg_pointer(slot(pointer))
        for index, stride in steps:
            start = b.offset(start, b.mul(index, self.arg[stride]))
        return start

    def _prepare(self) -> tuple[Variable, Variable]:
        """Turn the queries, begin their states; return which rows of keys some of them see."""
        b, arg = self.b, self.arg
        begin, end = b.var(arg["rows"]), b.var(i64(0))
        with self._each_query(padded=True) as (row, token, head):
            line = self._row_of("q", (token, "q_token"), (head, "q_head"))
            to = b.offset(self.queries, b.mul(row, 4))
            with b.loop(0, arg["width"]) as column:
                value = b.load("float", b.offset(line, b.mul(column, 4)), 4)
                b.store(b.fmul(value, self.scale), self._at(to, column), 4)
            low, high = b.var(i64(0)), b.var(arg["rows"])
            with b.when(self._is_given("bounds")):
                pair = b.offset(b.arg_pointer(slot("bounds")), b.mul(token, 8))
                first, last = (
                    b.cast("sext", b.load("i32", b.offset(pair, i), 4), "i64") for i in (0, 4)
                )
                b.set(low, b.select(b.compare("slt", first, 0), i64(0), first))
                b.set(high, b.select(b.compare("slt", last, arg["rows"]), last, arg["rows"]))
            place = b.mul(row, 4)
            for variable, state in ((low, self.low), (high, self.high)):
                narrow = b.cast("trunc", b.get(variable), "i32")
                b.store(narrow, b.offset(state, place), 4)
            with b.when(b.compare("slt", b.get(low), b.get(high))):
                is_less = b.compare("slt", b.get(low), b.get(begin))
                b.set(begin, b.select(is_less, b.get(low), b.get(begin)))
                is_more = b.compare("sgt", b.get(high), b.get(end))
                b.set(end, b.select(is_more, b.get(high), b.get(end)))
            top, total = b.var(f32(LOWEST)), b.var(f32(0.0))
            with b.when(self._is_given("sinks")):
                sink = b.load("float", self._row_of("sinks", (head, "sink")), 4)
                limited = b.fmax(sink, LOWEST)
                b.set(top, limited)
                gone = b.splat(b.fsub(sink, limited), self.lanes)
                b.set(total, b.extract(exp(b, gone), 0))
            b.store(b.get(top), b.offset(self.top, place), 4)
            b.store(b.get(total), b.offset(self.total, place), 4)
        return begin, end

    def _unpack(
        self, rows: Value, stride: str, start: Value, count: Value, to: Value, width: str
    ) -> None:
        """Write rows of keys or values as f32."""
        b, columns = self.b, self.arg[width]
        with b.loop(0, count) as row:
            source = b.offset(rows, b.mul(b.add(start, row), self.arg[stride]))
            convert_row(
                b, self.dtype, F32, source, b.offset(to, b.mul(b.mul(row, 4), columns)), columns
            )

    def _multiply(self, count: Value) -> None:
        """Compute logits; those of rows behind the last one of a tile are never read."""
        b, width = self.b, self.arg["width"]
        with b.loop(0, count, self.tile) as first:
            sums = [[b.var(b.zero(self._vector)) for _ in range(VECTORS)] for _ in range(self.tile)]
            lines = [
                b.offset(self.keys, b.mul(b.mul(b.add(first, i), 4), width))
                for i in range(self.tile)
            ]
            with b.loop(0, width) as column:
                queries = [
                    b.load(self._vector, self._at(self.queries, column, i), 4)
                    for i in range(VECTORS)
                ]
                for line, own in zip(lines, sums, strict=True):
                    key = b.load("float", b.offset(line, b.mul(column, 4)), 4)
                    wide = b.splat(key, self.lanes)
                    for query, total in zip(queries, own, strict=True):
                        b.set(total, b.fma(wide, query, b.get(total)))
            for i, own in enumerate(sums):
                for j, total in enumerate(own):
                    b.store(b.get(total), self._at(self.logits, b.add(first, i), j), 4)

    def _change(self, start: Value, count: Value) -> None:
        """Cap logits, and add the mask to them, where there are such."""
        b = self.b
        with b.when(b.compare("ogt", self.cap, 0.0)), b.loop(0, count) as key:
            cap = b.splat(self.cap, self.lanes)
            for i in range(VECTORS):
                at = self._at(self.logits, key, i)
                value = b.fdiv(b.load(self._vector, at, 4), cap)
                b.store(b.fmul(tanh(b, value), cap), at, 4)
        with b.when(self._is_given("mask")), self._each_query() as (row, token, head):
            line = self._row_of(
                "mask", (head, "mask_head"), (token, "mask_token"), (start, "mask_row")
            )
            with b.loop(0, count) as key:
                at = b.offset(self._at(self.logits, key), b.mul(row, 4))
                mask = b.load("float", b.offset(line, b.mul(key, self.arg["mask_row"])), 4)
                b.store(b.fadd(b.load("float", at, 4), mask), at, 4)

    def _share(self, start: Value, count: Value) -> None:
        """Turn logits into shares, and let the states follow."""
        b, lanes = self.b, self.lanes
        for i in range(VECTORS):
            states = (self.top, self.total, self.shrink)
            top, total, shrink = (b.offset(s, 4 * lanes * i) for s in states)
            low, high = (
                b.load(vector_of(lanes, "i32"), b.offset(s, 4 * lanes * i), 4)
                for s in (self.low, self.high)
            )
            before = b.load(self._vector, top, 4)
            highest = b.var(before)
            with b.loop(0, count) as key:
                at = self._at(self.logits, key, i)
                number = b.splat(b.cast("trunc", b.add(start, key), "i32"), lanes)
                is_seen = b.binary(
                    "and", b.compare("sge", number, low), b.compare("slt", number, high)
                )
                hidden = b.same(before, float("-inf"))
                value = b.select(is_seen, b.load(self._vector, at, 4), hidden)
                b.store(value, at, 4)
                b.set(highest, b.fmax(b.get(highest), value))
            less = exp(b, b.fsub(before, b.get(highest)))
            b.store(less, shrink, 4)
            b.store(b.get(highest), top, 4)
            added = b.var(b.fmul(b.load(self._vector, total, 4), less))
            with b.loop(0, count) as key:
                at = self._at(self.logits, key, i)
                power = exp(b, b.fsub(b.load(self._vector, at, 4), b.get(highest)))
                b.store(power, at, 4)
                b.set(added, b.fadd(b.get(added), power))
            b.store(b.get(added), total, 4)

    def _add(self, count: Value) -> None:
        """Add values by their shares to the sums, which shrink first."""
        b, across = self.b, self.arg["value_width"]
        vectors = VECTORS if self.tile > 3 else 2
        begin: Value = i64(0)
        for pieces, width in ((vectors, self.lanes), (1, self.lanes), (1, 1)):
            step = pieces * width
            left = b.sub(across, begin)
            end = b.sub(across, b.urem(left, step))
            with b.loop(begin, end, step) as column, b.loop(0, self.count, _RESULT_ROWS) as row:
                self._add_tile(count, row, column, pieces, width)
            begin = end

    def _add_tile(self, count: Value, row: Value, column: Value, pieces: int, width: int) -> None:
        b, across = self.b, self.arg["value_width"]
        kind = vector_of(width, "float")
        places, sums = [], []
        for i in range(_RESULT_ROWS):
            own = b.add(row, i)
            factor = b.splat(b.load("float", b.offset(self.shrink, b.mul(own, 4)), 4), width)
            line = b.offset(self.sums, b.mul(b.add(b.mul(own, across), column), 4))
            places.append([b.offset(line, 4 * width * j) for j in range(pieces)])
            sums.append([b.var(b.fmul(b.load(kind, at, 4), factor)) for at in places[-1]])
        with b.loop(0, count) as key:
            line = b.offset(self.values, b.mul(b.add(b.mul(key, across), column), 4))
            values = [b.load(kind, b.offset(line, 4 * width * j), 4) for j in range(pieces)]
            shares = b.offset(self._at(self.logits, key), b.mul(row, 4))
            for i, own_sums in enumerate(sums):
                share = b.splat(b.load("float", b.offset(shares, 4 * i), 4), width)
                for value, total in zip(values, own_sums, strict=True):
                    b.set(total, b.fma(share, value, b.get(total)))
        for own_places, own_sums in zip(places, sums, strict=True):
            for at, total in zip(own_places, own_sums, strict=True):
                b.store(b.get(total), at, 4)

    def _finish(self) -> None:
        """Divide by the sums of shares, and write the results."""
        b, across = self.b, self.arg["value_width"]
        whole = b.binary("and", across, -self.lanes)
        with self._each_query() as (row, token, head):
            out = self._row_of("out", (token, "out_token"), (head, "out_head"))
            total = b.load("float", b.offset(self.total, b.mul(row, 4)), 4)
            inverse = b.fdiv(f32(1.0), b.fmax(total, LEAST))
            line = b.offset(self.sums, b.mul(b.mul(row, across), 4))
            for begin, end, width in ((i64(0), whole, self.lanes), (whole, across, 1)):
                with b.loop(begin, end, width) as column:
                    at = b.mul(column, 4)
                    value = b.load(vector_of(width, "float"), b.offset(line, at), 4)
                    b.store(b.fmul(value, b.splat(inverse, width)), b.offset(out, at), 4)
