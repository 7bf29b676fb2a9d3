"""Windows of few channels at a time: every element of a row is a sum, or the largest, of one."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from ggsched_cpu.kernels.elementwise import FORMULAS
from ggsched_cpu.kernels.emit import Builder, Value, f32, vector_of
from ggsched_cpu.kernels.target import Target
from ggsched_cpu.kernels.vectors import Chunk, Row, over_chunks, over_rows, own_slot

SLACK: Final = 32
"""Elements behind an operand that may be read, and do not matter, where windows skip elements."""

LINES: Final = 4
"""Lines of results that are computed together, so that sums do not wait for each other."""

OWN_SLOTS: Final = ("channels", "plane", "height", "row", "width", "tap", "lines", "step")


def conv_rows(name: str, target: Target, ops: Sequence[str] = (), *, stride: int) -> Builder:
    """Operands x, w, bias, result; then ``OWN_SLOTS`` and the parameters of ``ops``.

    Own arguments are channels of a window, bytes from one to the next, rows of the kernel, bytes
    from one to the next, its columns, bytes from one to the next, lines of results of a channel,
    and bytes between windows of neighbouring lines. A row is ``LINES`` lines, or what is left of
    them. A row of x begins where its first window does; a row of w is one kernel, contiguous. The
    result is contiguous along a line, and its windows lie ``stride`` elements (1 or 2) apart.
    """
    b = Builder(name, target)
    own = own_slot(4)
    sums = _Sums(b, ops, own + len(OWN_SLOTS))

    def row(row: Row) -> None:
        x, w, bias, out = row.pointers
        _lines(b, row.at[-1], row.columns, own, stride, x, out, *sums.of(w, bias))

    over_rows(b, 4, row)
    return b


PLANE_SLOTS: Final = (
    *OWN_SLOTS, "x_plane", "x_line", "x_lines", "x_columns", "line", "inside", "filled",
    "each", "w_each", "out_each",
)  # fmt: skip
"""Of ``conv_planes``: bytes between planes and between lines of x, their lines and columns, bytes
between padded lines, from a padded plane to the first element inside, and of all padded planes with
``SLACK``; results of a group, and bytes between their kernels and planes."""


def conv_planes(name: str, target: Target, ops: Sequence[str] = (), *, stride: int) -> Builder:
    """The same with the pads: a row is a group of an image, which is copied to scratch memory.

    Operands x, w, bias, result; then ``PLANE_SLOTS`` and the parameters of ``ops``. ``row``,
    ``plane`` and ``step`` are those of the padded copy.
    """
    b = Builder(name, target)
    own = own_slot(4)
    arg = {slot: b.arg(own + i) for i, slot in enumerate(PLANE_SLOTS)}
    sums = _Sums(b, ops, own + len(PLANE_SLOTS))
    scratch = b.parameter("scratch")
    zeros = b.splat(f32(0.0), target.lanes)
    with b.loop(0, arg["filled"], 4 * target.lanes) as at:
        b.store(zeros, b.offset(scratch, at), 4)

    def row(row: Row) -> None:
        x, w, bias, out = row.pointers
        with b.loop(0, arg["channels"]) as channel:
            source = b.offset(x, b.mul(channel, arg["x_plane"]))
            inside = b.offset(scratch, b.add(b.mul(channel, arg["plane"]), arg["inside"]))
            with b.loop(0, arg["x_lines"]) as i:
                line = b.offset(source, b.mul(i, arg["x_line"]))
                place = b.offset(inside, b.mul(i, arg["line"]))
                _copy(b, line, place, arg["x_columns"])
        with b.loop(0, arg["each"]) as k:
            window = sums.of(b.offset(w, b.mul(k, arg["w_each"])), b.offset(bias, b.mul(k, 4)))
            result = b.offset(out, b.mul(k, arg["out_each"]))
            with b.loop(0, b.udiv(b.add(arg["lines"], LINES - 1), LINES)) as block:
                first = b.mul(block, LINES)
                start = b.offset(scratch, b.mul(first, arg["step"]))
                to = b.offset(result, b.mul(first, b.mul(row.columns, 4)))
                _lines(b, block, row.columns, own, stride, start, to, *window)

    over_rows(b, 4, row)
    return b


def _copy(b: Builder, source: Value, to: Value, columns: Value) -> None:
    over_chunks(b, columns, lambda c: c.store(c.load(source), to))


class _Sums:
    """What becomes of windows of a convolution.

    Args:
        b: Writes the kernel.
        ops: Applied to results.
        first: Slot of the first parameter of these.
    """

    def __init__(self, b: Builder, ops: Sequence[str], first: int) -> None:
        self._b, self._ops, lanes = b, ops, b.target.lanes
        given = iter(range(first, 2**16))
        self._numbers = [
            [b.splat(b.arg_f32(next(given)), lanes) for _ in FORMULAS[op][1]] for op in ops
        ]

    def of(self, w: Value, bias: Value) -> "tuple[Value, _Window]":
        """Return where sums start, and the window of a kernel."""
        b, lanes = self._b, self._b.target.lanes
        weight = b.var(w)

        def tap() -> Value:
            at = b.get(weight)
            b.set(weight, b.offset(at, 4))
            return b.splat(b.load("float", at, 4), lanes)

        def end(value: Value) -> Value:
            for op, own in zip(self._ops, self._numbers, strict=True):
                value = FORMULAS[op][2](b, [value], own)
            return value

        window = _Window(
            lambda: b.set(weight, w), tap, lambda total, x, factor: b.fma(x, factor, total), end
        )
        return b.splat(b.load("float", bias, 4), lanes), window


def max_rows(name: str, target: Target, *, stride: int) -> Builder:
    """Operands x and result; then ``OWN_SLOTS``: the largest element of each window."""
    b = Builder(name, target)

    def largest(total: Value, x: Value, _: None) -> Value:
        return b.intrinsic("maximum", total, x)  # NaN if one of them is

    return _pool(b, stride, -math.inf, largest, lambda value: value)


def average_rows(name: str, target: Target, *, stride: int) -> Builder:
    """Operands x and result; then ``OWN_SLOTS`` and a factor: the sum of each window times it."""
    b = Builder(name, target)
    factor = b.splat(b.arg_f32(own_slot(2) + len(OWN_SLOTS)), target.lanes)
    return _pool(b, stride, 0.0, lambda a, x, _: b.fadd(a, x), lambda a: b.fmul(a, factor))


def _pool(
    b: Builder,
    stride: int,
    first: float,
    join: Callable[[Value, Value, Any], Value],
    end: Callable[[Value], Value],
) -> Builder:
    window = _Window(lambda: None, lambda: None, join, end)

    def row(row: Row) -> None:
        x, out = row.pointers
        start = b.splat(f32(first), b.target.lanes)
        _lines(b, row.at[-1], row.columns, own_slot(2), stride, x, out, start, window)

    over_rows(b, 2, row)
    return b


class _Window(NamedTuple):
    """What becomes of the elements of windows.

    Attributes:
        begin: Called before the first tap.
        tap: Called for each; what it returns is handed to ``join``.
        join: Returns a total with another element.
        end: Returns the result from a total.
    """

    begin: Callable[[], None]
    tap: Callable[[], Any]
    join: Callable[[Value, Value, Any], Value]
    end: Callable[[Value], Value]


def _lines(
    b: Builder,
    block: Value,
    columns: Value,
    own: int,
    stride: int,
    x: Value,
    out: Value,
    start: Value,
    window: _Window,
) -> None:
    """Compute a block of ``LINES`` lines of results."""
    arg = {slot: b.arg(own + i) for i, slot in enumerate(OWN_SLOTS)}
    lanes = b.target.lanes
    # Lines that are not there repeat the last one.
    left = b.sub(b.sub(arg["lines"], b.mul(block, LINES)), 1)
    lines = [b.umin(left, i) for i in range(LINES)]
    starts = [b.offset(x, b.mul(i, arg["step"])) for i in lines]
    outs = [b.offset(out, b.mul(i, b.mul(columns, 4))) for i in lines]

    def seen(c: Chunk, place: Value) -> Value:
        if stride == 1:
            return c.load(place)
        at = b.offset(place, b.mul(c.column, 4 * stride))
        both = b.load(vector_of(2 * lanes, "float"), at, 4)
        return b.shuffle(both, None, range(0, 2 * lanes, 2))

    def chunk(c: Chunk) -> None:
        totals = [b.var(start) for _ in starts]
        window.begin()
        with b.loop(0, arg["channels"]) as channel:
            plane = b.mul(channel, arg["plane"])
            with b.loop(0, arg["height"]) as i:
                line = b.add(plane, b.mul(i, arg["row"]))
                with b.loop(0, arg["width"]) as j:
                    away = b.add(line, b.mul(j, arg["tap"]))
                    factor = window.tap()
                    for place, total in zip(starts, totals, strict=True):
                        found = seen(c, b.offset(place, away))
                        b.set(total, window.join(b.get(total), found, factor))
        for total, place in zip(totals, outs, strict=True):
            c.store(window.end(b.get(total)), place)

    over_chunks(b, columns, chunk)


__all__ = [
    "LINES",
    "OWN_SLOTS",
    "PLANE_SLOTS",
    "SLACK",
    "average_rows",
    "conv_planes",
    "conv_rows",
    "max_rows",
]
