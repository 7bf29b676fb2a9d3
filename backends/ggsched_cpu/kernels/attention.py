"""Attention of queries to rows of a cache, without a table of logits.

A part is some queries of one head of keys: all heads of queries that read it, for some tokens. Rows
of keys come in blocks; each query keeps its largest logit and its sum so far, and what it has added
up shrinks whenever a larger logit comes (Milakov and Gimelshein, arXiv 1805.02867).
"""

from collections.abc import Callable
from typing import Final

from ggsched.ir.dtype import DType
from ggsched_cpu.kernels.elements import load_f32, load_real
from ggsched_cpu.kernels.emit import Builder, Value, f32, i64, vector_of
from ggsched_cpu.kernels.target import Target
from ggsched_cpu.kernels.vectors import exp, over_widths, tanh

SLOTS: Final = (
    "k", "v", "q", "out", "mask", "sinks", "bounds",
    "rows", "tokens", "share", "width", "value_width", "part_tokens", "token_parts",
    "k_row", "k_head", "v_row", "v_head", "q_token", "q_head", "out_token", "out_head",
    "mask_head", "mask_token", "mask_row", "sink", "scale", "cap",
)  # fmt: skip
"""Arguments; strides are in bytes. Pointers to mask, sinks and bounds may be 0, and so may the cap.
Bounds are pairs of adjacent i32."""

BLOCK: Final = 128
"""Rows of keys at a time; their logits are in scratch memory."""

LOWEST: Final = -3.4028234663852886e38
"""Where maxima begin: exp(-inf - LOWEST) is 0, where exp(-inf + inf) would be NaN."""

LEAST: Final = 1e-30
"""Where sums end that have seen nothing; others are at least 1, by their largest logit."""


def slot(name: str) -> int:
    """Return the number of an argument."""
    return SLOTS.index(name)


class Elements:
    """Elements of rows of keys or values, as f32.

    Args:
        b: Writes the kernel.
        dtype: A plain type, or one whose blocks are a scale and signed bytes; a vector of elements
            begins at a multiple of its length, so it lies in one block.
    """

    def __init__(self, b: Builder, dtype: DType) -> None:
        self.b, self.dtype = b, dtype

    def place(self, column: Value) -> tuple[Value, Value | None]:
        """Return the bytes to an element, and to its block, from the beginning of a row."""
        b, dtype, layout = self.b, self.dtype, self.dtype.layout
        if layout is None:
            return b.mul(column, dtype.block_nbytes), None
        block = b.mul(b.udiv(column, dtype.block), dtype.block_nbytes)
        inside = b.add(b.urem(column, dtype.block), layout.codes.parts[0].at)
        return b.add(block, inside), block

    def load(self, row: Value, place: tuple[Value, Value | None], width: int) -> Value:
        """Read elements from a place on."""
        b, layout, (at, block) = self.b, self.dtype.layout, place
        if layout is None or block is None:
            return load_f32(b, self.dtype, b.offset(row, at), width)
        codes = b.load(vector_of(width, "i8"), b.offset(row, at))
        scale = load_real(b, b.offset(row, block), layout.scale)
        return b.fmul(
            b.cast("sitofp", b.cast("sext", codes, "i32"), "float"), b.splat(scale, width)
        )


def attention(name: str, target: Target, dtype: DType) -> Builder:
    """Return the kernel for keys and values of a type whose rows are dense."""
    b = Builder(name, target)
    pointers = ("k", "v", "q", "out", "mask", "sinks", "bounds")
    arg = {n: b.arg(i) for i, n in enumerate(SLOTS) if n not in (*pointers, "scale", "cap")}
    part = b.parameter("part")
    head, piece = b.udiv(part, arg["token_parts"]), b.urem(part, arg["token_parts"])
    first = b.mul(piece, arg["part_tokens"])
    last = b.umin(b.add(first, arg["part_tokens"]), arg["tokens"])
    k = b.offset(b.arg_pointer(slot("k")), b.mul(head, arg["k_head"]))
    v = b.offset(b.arg_pointer(slot("v")), b.mul(head, arg["v_head"]))
    with b.loop(first, last) as token, b.loop(0, arg["share"]) as member:
        query = b.add(b.mul(head, arg["share"]), member)
        _Query(b, dtype, arg, k, v, query, token).write()
    return b


class _Query:
    """Writes the code for one query."""

    def __init__(
        self,
        b: Builder,
        dtype: DType,
        arg: dict[str, Value],
        k: Value,
        v: Value,
        head: Value,
        token: Value,
    ) -> None:
        self.b, self.arg, self.k, self.v = b, arg, k, v
        self.elements = Elements(b, dtype)
        self.token = token

        def place(pointer: str, *steps: tuple[Value, str]) -> Value:
            start = b.arg_pointer(slot(pointer))
            for index, stride in steps:
                start = b.offset(start, b.mul(index, arg[stride]))
            return start

        self.q = place("q", (token, "q_token"), (head, "q_head"))
        self.out = place("out", (token, "out_token"), (head, "out_head"))
        self.mask = place("mask", (head, "mask_head"), (token, "mask_token"))
        self.sink = place("sinks", (head, "sink"))
        self.logits = b.parameter("scratch")
        self.scale, self.cap = b.arg_f32(slot("scale")), b.arg_f32(slot("cap"))

    def _is_given(self, pointer: str) -> Value:
        return self.b.compare("ne", self.b.arg(slot(pointer)), 0)

    def write(self) -> None:
        """Attend."""
        b, arg = self.b, self.arg
        top, total = b.var(f32(LOWEST)), b.var(f32(0.0))
        with b.when(self._is_given("sinks")):
            sink = b.fmax(b.load("float", self.sink, 4), LOWEST)
            gone = b.fsub(b.load("float", self.sink, 4), sink)
            b.set(top, sink)
            b.set(total, self._exp(gone))
        low, high = b.var(i64(0)), b.var(arg["rows"])
        with b.when(self._is_given("bounds")):
            pair = b.offset(b.arg_pointer(slot("bounds")), b.mul(self.token, 8))
            begin, end = (
                b.cast("sext", b.load("i32", b.offset(pair, i), 4), "i64") for i in (0, 4)
            )
            b.set(low, b.select(b.compare("slt", begin, 0), i64(0), begin))
            b.set(high, b.select(b.compare("slt", end, arg["rows"]), end, arg["rows"]))
        self._over_values(lambda at, width: b.store(b.zero(vector_of(width, "float")), at, 4))
        with b.loop(b.get(low), b.get(high), BLOCK) as start:
            left = b.sub(b.get(high), start)
            count = b.select(b.compare("slt", left, BLOCK), left, i64(BLOCK))
            highest = self._logits(start, count, b.get(top))
            shrink = self._exp(b.fsub(b.get(top), highest))
            b.set(top, highest)
            b.set(total, b.fma(b.get(total), shrink, self._powers(count, highest)))
            self._add(start, count, shrink)
        inverse = b.fdiv(f32(1.0), b.fmax(b.get(total), LEAST))

        def finish(at: Value, width: int) -> None:
            value = b.load(vector_of(width, "float"), at, 4)
            b.store(b.fmul(value, b.splat(inverse, width)), at, 4)

        self._over_values(finish)

    def _exp(self, x: Value) -> Value:
        return self.b.extract(exp(self.b, self.b.splat(x, self.b.target.lanes)), 0)

    def _over_values(self, body: Callable[[Value, int], None]) -> None:
        """Go over the result in vectors, then element by element."""
        b = self.b
        width = self.arg["value_width"]
        over_widths(b, width, lambda k, lanes: body(b.offset(self.out, b.mul(k, 4)), lanes))

    def _logits(self, start: Value, count: Value, top: Value) -> Value:
        """Compute the logits of a block; return the largest so far."""
        b, arg = self.b, self.arg
        lanes = b.target.lanes
        together = 4
        last = b.sub(count, 1)
        whole = b.binary("and", arg["width"], -lanes)
        with b.loop(0, count, together) as row:
            rows = [b.umin(b.add(row, i), last) for i in range(together)]
            keys = [b.offset(self.k, b.mul(b.add(start, r), arg["k_row"])) for r in rows]
            sums = [b.var(b.zero(vector_of(lanes, "float"))) for _ in rows]
            rest = [b.var(f32(0.0)) for _ in rows]
            passes = (i64(0), whole, lanes, sums), (whole, arg["width"], 1, rest)
            for begin, end, width, into in passes:
                with b.loop(begin, end, width) as column:
                    q = b.load(vector_of(width, "float"), b.offset(self.q, b.mul(column, 4)), 4)
                    place = self.elements.place(column)
                    for key, total in zip(keys, into, strict=True):
                        value = self.elements.load(key, place, width)
                        b.set(total, b.fma(q, value, b.get(total)))
            for r, total, single in zip(rows, sums, rest, strict=True):
                value = b.fadd(b.sum(b.get(total)), b.get(single))
                b.store(b.fmul(value, self.scale), b.offset(self.logits, b.mul(r, 4)), 4)
        has_cap = b.compare("ogt", self.cap, 0.0)
        has_mask = self._is_given("mask")
        with b.when(has_cap):
            self._over_logits(count, self._capped)
        with b.when(has_mask), b.loop(0, count) as row:
            at = b.offset(self.logits, b.mul(row, 4))
            mask = b.offset(self.mask, b.mul(b.add(start, row), arg["mask_row"]))
            b.store(b.fadd(b.load("float", at, 4), b.load("float", mask, 4)), at, 4)
        tops = b.var(b.splat(top, lanes))

        def look(at: Value) -> None:
            value = b.load(vector_of(lanes, "float"), at, 4)
            b.set(tops, b.fmax(b.get(tops), value))

        self._pad(count)
        self._over_logits(count, look)
        return b.largest(b.get(tops))

    def _pad(self, count: Value) -> None:
        """Let the last vector of logits end in -inf."""
        b = self.b
        lanes = b.target.lanes
        up = b.binary("and", b.add(count, lanes - 1), -lanes)
        with b.loop(count, up) as row:
            b.store(f32(float("-inf")), b.offset(self.logits, b.mul(row, 4)), 4)

    def _over_logits(self, count: Value, body: Callable[[Value], None]) -> None:
        """Go over the logits in vectors; the last one may be partly undefined."""
        b = self.b
        with b.loop(0, count, b.target.lanes) as row:
            body(b.offset(self.logits, b.mul(row, 4)))

    def _capped(self, at: Value) -> None:
        b = self.b
        lanes = b.target.lanes
        cap = b.splat(self.cap, lanes)
        value = b.load(vector_of(lanes, "float"), at, 4)
        b.store(b.fmul(tanh(b, b.fdiv(value, cap)), cap), at, 4)

    def _powers(self, count: Value, highest: Value) -> Value:
        """Turn logits into weights; return their sum."""
        b = self.b
        lanes = b.target.lanes
        wide = b.splat(highest, lanes)
        total = b.var(b.zero(vector_of(lanes, "float")))

        def power(at: Value) -> None:
            value = exp(b, b.fsub(b.load(vector_of(lanes, "float"), at, 4), wide))
            b.store(value, at, 4)
            b.set(total, b.fadd(b.get(total), value))

        self._over_logits(count, power)
        return b.sum(b.get(total))

    def _add(self, start: Value, count: Value, shrink: Value) -> None:
        """Add the values of a block to the result, which shrinks first."""
        b, arg = self.b, self.arg
        lanes = b.target.lanes
        begin: Value = i64(0)
        for pieces, width in ((8, lanes), (1, lanes), (1, 1)):
            step = pieces * width
            left = b.sub(arg["value_width"], begin)
            end = b.sub(arg["value_width"], b.urem(left, step))
            with b.loop(begin, end, step) as column:
                out = b.offset(self.out, b.mul(column, 4))
                factor = b.splat(shrink, width)
                sums = []
                for i in range(pieces):
                    at = b.offset(out, 4 * width * i)
                    old = b.load(vector_of(width, "float"), at, 4)
                    sums.append(b.var(b.fmul(old, factor)))
                places = [self.elements.place(b.add(column, i * width)) for i in range(pieces)]
                with b.loop(0, count) as row:
                    share = b.load("float", b.offset(self.logits, b.mul(row, 4)), 4)
                    line = b.offset(self.v, b.mul(b.add(start, row), arg["v_row"]))
                    weight = b.splat(share, width)
                    for place, total in zip(places, sums, strict=True):
                        value = self.elements.load(line, place, width)
                        b.set(total, b.fma(weight, value, b.get(total)))
                for i, total in enumerate(sums):
                    b.store(b.get(total), b.offset(out, 4 * width * i), 4)
            begin = end
