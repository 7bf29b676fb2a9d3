"""Convolution as a product of matrices that are never laid out whole.

A part computes some windows for some channels of the result. It lays a panel of windows side by
side in scratch memory, a line for each element of a window, and multiplies them with one tile of
rows of the weight after the other, sums in registers. Activations are applied to the sums before
they are written. This is the implicit GEMM of cuDNN (Chetlur et al., arXiv 1410.0759), with the
packed panels and register tiles of BLIS (Van Zee and van de Geijn, ACM TOMS 41(3), 2015).
"""

from collections.abc import Callable, Sequence
from typing import Final

from ggsched_cpu.kernels.elementwise import FORMULAS, TESTS
from ggsched_cpu.kernels.emit import SCRATCH_NBYTES, Builder, Value, constant, i64, vector_of
from ggsched_cpu.kernels.target import Target
from ggsched_cpu.kernels.vectors import AXES, Row, over_chunks, over_rows, own_slot

SLOTS: Final = (
    "x", "w", "bias", "out",
    "channels", "plane", "height", "tap_row", "width", "tap",
    "across", "line", "step", "windows",
    "rows", "w_row", "out_row",
    "chunk", "chunks", "tile_rows", "row_chunks", "groups",
    "x_image", "x_group", "out_image", "out_group", "w_group", "bias_group",
    "is_direct", "panel",
)  # fmt: skip
"""Arguments; steps are in bytes. Parameters of activations follow.

A window has ``channels`` planes of ``height`` rows of ``width`` taps, which are ``plane``,
``tap_row`` and ``tap`` apart. ``across`` windows of a line of results begin ``step`` apart, and
lines ``line`` apart; there are ``windows`` in all. Each of ``groups`` has ``rows`` rows of weights.
A part is ``chunk`` windows and ``tile_rows`` rows of a group of an image. ``is_direct`` says that
elements of neighbouring windows are adjacent, and windows have one tap, so that they lie as in a
panel. A panel has ``panel`` windows."""


def _tile_shape(target: Target) -> tuple[int, int]:
    """Return rows and vectors of a tile, whose sums and operands fit the registers."""
    return (6, 2) if target.is_x86 and not target.has_avx512 else (8, 3)


def panel_width(target: Target, elements: int) -> int:
    """Return how many windows of that many elements lie side by side and fit scratch memory.

    A line of a panel is longer by a vector, since copies may be longer by a part of one. 0 where
    not even a vector of windows fits.
    """
    for vectors in range(_tile_shape(target)[1], 0, -1):
        if (elements + 1) * 4 * target.lanes * (vectors + 1) <= SCRATCH_NBYTES:
            return vectors * target.lanes
    return 0


ACTIVATIONS: Final = tuple(op for op, (n, _, _) in FORMULAS.items() if n == 1 and op not in TESTS)
"""Ops that a convolution can apply to its results."""


class _Kernel:
    """Writes the kernel that applies some ops, one after the other, to each result."""

    def __init__(self, b: Builder, ops: Sequence[str]) -> None:
        self.b, self._ops = b, ops
        self.arg = {name: b.arg(i) for i, name in enumerate(SLOTS)}
        self.lanes = b.target.lanes
        self.line_nbytes = b.mul(b.add(self.arg["panel"], self.lanes), 4)
        self._vector = vector_of(self.lanes, "float")
        given = iter(range(len(SLOTS), 2**16))
        self._given = [
            [b.splat(b.arg_f32(next(given)), self.lanes) for _ in FORMULAS[op][1]] for op in ops
        ]

    def write(self) -> None:
        """Write it."""
        b, arg = self.b, self.arg
        part = b.parameter("part")
        rest, chunk = b.udiv(part, arg["chunks"]), b.urem(part, arg["chunks"])
        rest, rows = b.udiv(rest, arg["row_chunks"]), b.urem(rest, arg["row_chunks"])
        image, group = b.udiv(rest, arg["groups"]), b.urem(rest, arg["groups"])

        def at(name: str, image_step: Value | None, group_step: Value) -> Value:
            place = b.offset(b.arg_pointer(SLOTS.index(name)), b.mul(group, group_step))
            return place if image_step is None else b.offset(place, b.mul(image, image_step))

        x = at("x", arg["x_image"], arg["x_group"])
        out = at("out", arg["out_image"], arg["out_group"])
        w, bias = at("w", None, arg["w_group"]), at("bias", None, arg["bias_group"])
        first = b.mul(rows, arg["tile_rows"])
        last = b.umin(b.add(first, arg["tile_rows"]), arg["rows"])
        begin = b.mul(chunk, arg["chunk"])
        end = b.umin(b.add(begin, arg["chunk"]), arg["windows"])
        with b.loop(begin, end, arg["panel"]) as window:
            count = b.umin(b.sub(end, window), arg["panel"])
            lies = b.binary("and", arg["is_direct"], self._is_whole(count))
            is_direct = b.compare("ne", lies, 0)
            with b.when(b.binary("xor", is_direct, Value("true", "i1"))):
                self._fill(x, window, count)
            there = b.offset(x, b.mul(window, 4))
            panel = b.select(is_direct, there, b.parameter("scratch"))
            line = b.select(is_direct, arg["plane"], self.line_nbytes)
            self._tiles(panel, line, w, bias, b.offset(out, b.mul(window, 4)), count, first, last)

    def _is_whole(self, count: Value) -> Value:
        return self.b.cast("zext", self.b.compare("eq", count, self.arg["panel"]), "i64")

    # --- panels -------------------------------------------------------------------------------

    def _fill(self, x: Value, window: Value, count: Value) -> None:
        """Lay windows side by side: runs of those that are in one line of results."""
        b, arg = self.b, self.arg
        across = arg["across"]
        line, column = b.var(b.udiv(window, across)), b.var(b.urem(window, across))
        done = b.var(i64(0))
        head, body, end = (b.fresh(n) for n in ("runs", "run", "ran"))
        b.label(head)
        more = b.compare("ult", b.get(done), count)
        b.line(f"br {more}, label %{body}, label %{end}")
        b.begin(body)
        length = b.umin(b.sub(across, b.get(column)), b.sub(count, b.get(done)))
        start = b.offset(x, b.mul(b.get(line), arg["line"]))
        start = b.offset(start, b.mul(b.get(column), arg["step"]))
        to = b.offset(b.parameter("scratch"), b.mul(b.get(done), 4))
        self._run(start, to, length)
        b.set(done, b.add(b.get(done), length))
        b.set(line, b.add(b.get(line), 1))
        b.set(column, i64(0))
        b.line(f"br label %{head}")
        b.begin(end)

    def _run(self, start: Value, to: Value, length: Value) -> None:
        """Copy the elements of some windows of one line, by how far windows are apart."""
        b = self.b
        step = self.arg["step"]
        whole = b.binary("and", b.sub(length, 1), -self.lanes)
        rest = b.sub(length, whole)
        one, two = b.compare("eq", step, 4), b.compare("eq", step, 8)
        with b.when(one):
            mask = self._mask(rest, 0)

            def dense(source: Value, to: Value) -> None:
                with b.loop(0, whole, self.lanes) as k:
                    value = b.load(self._vector, b.offset(source, b.mul(k, 4)), 4)
                    b.store(value, b.offset(to, b.mul(k, 4)), 4)
                at = b.mul(whole, 4)
                b.store(self._masked(b.offset(source, at), mask), b.offset(to, at), 4)

            self._elements(start, to, dense)
        with b.when(two):
            wanted = b.sub(b.mul(rest, 2), 1)
            masks = [self._mask(wanted, first) for first in (0, self.lanes)]

            def every_second(source: Value, to: Value) -> None:
                def put(k: Value, masks: Sequence[Value | None]) -> None:
                    place = b.offset(source, b.mul(k, 8))
                    halves = [
                        self._masked(b.offset(place, 4 * self.lanes * i), mask)
                        for i, mask in enumerate(masks)
                    ]
                    chosen = b.shuffle(halves[0], halves[1], range(0, 2 * self.lanes, 2))
                    b.store(chosen, b.offset(to, b.mul(k, 4)), 4)

                with b.loop(0, whole, self.lanes) as k:
                    put(k, [None, None])
                put(whole, masks)

            self._elements(start, to, every_second)
        with b.when(b.binary("xor", b.binary("or", one, two), Value("true", "i1"))):

            def single(source: Value, to: Value) -> None:
                with b.loop(0, length) as k:
                    value = b.load("float", b.offset(source, b.mul(k, step)), 4)
                    b.store(value, b.offset(to, b.mul(k, 4)), 4)

            self._elements(start, to, single)

    def _elements(self, start: Value, to: Value, copy: Callable[[Value, Value], None]) -> None:
        """Do something for each element of a window: its place in x, and its line of the panel."""
        b, arg = self.b, self.arg
        target = b.var(to)
        with b.loop(0, arg["channels"]) as channel:
            plane = b.offset(start, b.mul(channel, arg["plane"]))
            with b.loop(0, arg["height"]) as i:
                row = b.offset(plane, b.mul(i, arg["tap_row"]))
                with b.loop(0, arg["width"]) as j:
                    place = b.get(target)
                    copy(b.offset(row, b.mul(j, arg["tap"])), place)
                    b.set(target, b.offset(place, self.line_nbytes))

    def _mask(self, count: Value, first: int) -> Value:
        """Return which lanes are below a count, if they are counted from ``first``."""
        b = self.b
        numbers = constant("i64", range(first, first + self.lanes))
        return b.compare("slt", numbers, b.splat(count, self.lanes))

    def _masked(self, pointer: Value, mask: Value | None) -> Value:
        b, type_ = self.b, self._vector
        if mask is None:
            return b.load(type_, pointer, 4)
        name = f"llvm.masked.load.v{self.lanes}f32.p0"
        b.declared[name] = f"declare {type_} @{name}(ptr, i32, {mask.type}, {type_})"
        text = f"call {type_} @{name}({pointer}, i32 4, {mask}, {type_} zeroinitializer)"
        return b.value(type_, text)

    # --- tiles --------------------------------------------------------------------------------

    def _tiles(
        self,
        panel: Value,
        line: Value,
        w: Value,
        bias: Value,
        out: Value,
        count: Value,
        first: Value,
        last: Value,
    ) -> None:
        """Multiply all rows of a part with a panel, by as many vectors as it needs."""
        b = self.b
        tile, most = _tile_shape(b.target)
        vectors = b.udiv(b.add(count, self.lanes - 1), self.lanes)
        for n in range(1, most + 1):
            with b.when(b.compare("eq", vectors, n)):
                mask = self._mask(b.sub(count, self.lanes * (n - 1)), 0)
                rest = b.sub(last, b.urem(b.sub(last, first), tile))
                whole = b.select(b.compare("ule", b.sub(last, rest), tile // 2), rest, last)
                for rows, begin, end in ((tile, first, whole), (tile // 2, whole, last)):
                    with b.loop(begin, end, rows) as row:
                        self._tile(panel, line, w, bias, out, mask, row, last, rows, n)

    def _tile(
        self,
        panel: Value,
        line: Value,
        w: Value,
        bias: Value,
        out: Value,
        mask: Value,
        row: Value,
        last: Value,
        rows: int,
        vectors: int,
    ) -> None:
        """Multiply a tile of rows with a panel. Rows that are not there repeat the last one."""
        b, arg = self.b, self.arg
        numbers = [b.umin(b.add(row, i), b.sub(last, 1)) for i in range(rows)]
        lines = [b.offset(w, b.mul(n, arg["w_row"])) for n in numbers]
        starts = [
            b.splat(b.load("float", b.offset(bias, b.mul(n, 4)), 4), self.lanes) for n in numbers
        ]
        sums = [[b.var(start) for _ in range(vectors)] for start in starts]
        place = b.var(panel)
        size = b.mul(b.mul(arg["channels"], arg["height"]), arg["width"])
        with b.loop(0, size) as k:
            here = b.get(place)
            seen = [
                b.load(self._vector, b.offset(here, 4 * self.lanes * v), 4) for v in range(vectors)
            ]
            for source, totals in zip(lines, sums, strict=True):
                factor = b.splat(b.load("float", b.offset(source, b.mul(k, 4)), 4), self.lanes)
                for value, total in zip(seen, totals, strict=True):
                    b.set(total, b.fma(factor, value, b.get(total)))
            b.set(place, b.offset(here, line))
        for n, totals in zip(numbers, sums, strict=True):
            to = b.offset(out, b.mul(n, arg["out_row"]))
            for v, total in enumerate(totals):
                value = self._activated(b.get(total))
                at = b.offset(to, 4 * self.lanes * v)
                if v < vectors - 1:
                    b.store(value, at, 4)
                else:
                    self._store(value, at, mask)

    def _activated(self, value: Value) -> Value:
        for op, given in zip(self._ops, self._given, strict=True):
            value = FORMULAS[op][2](self.b, [value], given)
        return value

    def _store(self, value: Value, pointer: Value, mask: Value) -> None:
        b = self.b
        name = f"llvm.masked.store.v{self.lanes}f32.p0"
        b.declared[name] = f"declare void @{name}({value.type}, ptr, i32, {mask.type})"
        b.line(f"call void @{name}({value}, {pointer}, i32 4, {mask})")


def conv(name: str, target: Target, ops: Sequence[str] = ()) -> Builder:
    """Return the kernel that applies some of ``ACTIVATIONS`` to each result; see ``SLOTS``."""
    b = Builder(name, target)
    _Kernel(b, ops).write()
    return b


PAD_SLOTS: Final = ("x", "image", "plane", "line", "step", "top", "height", "left", "width", "fill")
"""Arguments of ``pad`` behind its operand: where x is, its steps, where it lies inside, and what is
around it."""


def pad(name: str, target: Target) -> Builder:
    """Operand result (images, channels, lines): x with a number around; a row is a line of it."""
    b = Builder(name, target)
    first = own_slot(1)
    x = b.arg_pointer(first)
    arg = {name: b.arg(first + i) for i, name in enumerate(PAD_SLOTS)}
    fill = b.splat(b.arg_f32(first + PAD_SLOTS.index("fill")), target.lanes)

    def row(row: Row) -> None:
        (out,) = row.pointers
        over_chunks(b, row.columns, lambda c: c.store(fill, out))
        place = x
        line = b.sub(row.at[AXES - 1], arg["top"])
        for index, name in zip((*row.at[:-1], line), ("image", "plane", "line"), strict=True):
            place = b.offset(place, b.mul(index, arg[name]))
        inside = b.offset(out, b.mul(arg["left"], 4))
        is_dense = b.compare("eq", arg["step"], 4)
        there = b.compare("ult", line, arg["height"])
        with b.when(b.binary("and", there, is_dense)):
            over_chunks(b, arg["width"], lambda c: c.store(c.load(place), inside))
        is_spread = b.binary("xor", is_dense, Value("true", "i1"))
        with b.when(b.binary("and", there, is_spread)), b.loop(0, arg["width"]) as k:
            value = b.load("float", b.offset(place, b.mul(k, arg["step"])), 4)
            b.store(value, b.offset(inside, b.mul(k, 4)), 4)

    over_rows(b, 1, row)
    return b


__all__ = [
    "ACTIVATIONS",
    "PAD_SLOTS",
    "SLOTS",
    "conv",
    "pad",
    "panel_width",
]
