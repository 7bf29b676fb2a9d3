"""Windows of few channels at a time: every element of a row is a sum, or the largest, of one."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from ggsched_cpu_kernels.elementwise import FORMULAS
from ggsched_cpu_kernels.emit import Builder, Value, f32, vector_of
from ggsched_cpu_kernels.target import Target
from ggsched_cpu_kernels.vectors import Chunk, Row, over_chunks, over_rows, own_slot

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
    first = own_slot(4) + len(OWN_SLOTS)
    lanes = target.lanes
    given = iter(range(first, 2**16))
    numbers = [[b.splat(b.arg_f32(next(given)), lanes) for _ in FORMULAS[op][1]] for op in ops]

    def row(row: Row) -> None:
        x, w, bias, out = row.pointers
        start = b.splat(b.load("float", bias, 4), lanes)
        weight = b.var(w)

        def begin() -> None:
            b.set(weight, w)

        def tap() -> Value:
            at = b.get(weight)
            b.set(weight, b.offset(at, 4))
            return b.splat(b.load("float", at, 4), lanes)

        def end(value: Value) -> Value:
            for op, own in zip(ops, numbers, strict=True):
                value = FORMULAS[op][2](b, [value], own)
            return value

        window = _Window(begin, tap, lambda total, x, factor: b.fma(x, factor, total), end)
        _lines(b, row, own_slot(4), stride, x, out, start, window)

    over_rows(b, 4, row)
    return b


def max_rows(name: str, target: Target, *, stride: int) -> Builder:
    """Operands x and result; then ``OWN_SLOTS``: the largest element of each window."""
    b = Builder(name, target)

    def largest(total: Value, x: Value, _: None) -> Value:
        return b.intrinsic("maximum", total, x)  # NaN if one of them is

    def row(row: Row) -> None:
        x, out = row.pointers
        start = b.splat(f32(-math.inf), target.lanes)
        window = _Window(lambda: None, lambda: None, largest, lambda value: value)
        _lines(b, row, own_slot(2), stride, x, out, start, window)

    over_rows(b, 2, row)
    return b


def average_rows(name: str, target: Target, *, stride: int) -> Builder:
    """Operands x and result; then ``OWN_SLOTS`` and a factor: the sum of each window times it."""
    b = Builder(name, target)
    factor = b.splat(b.arg_f32(own_slot(2) + len(OWN_SLOTS)), target.lanes)

    def row(row: Row) -> None:
        x, out = row.pointers
        start = b.splat(f32(0.0), target.lanes)
        window = _Window(
            lambda: None, lambda: None, lambda a, x, _: b.fadd(a, x), lambda a: b.fmul(a, factor)
        )
        _lines(b, row, own_slot(2), stride, x, out, start, window)

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
    b: Builder, row: Row, own: int, stride: int, x: Value, out: Value, start: Value, window: _Window
) -> None:
    """Compute ``LINES`` lines of results."""
    arg = {slot: b.arg(own + i) for i, slot in enumerate(OWN_SLOTS)}
    lanes = b.target.lanes
    # Lines that are not there repeat the last one.
    left = b.sub(b.sub(arg["lines"], b.mul(row.at[-1], LINES)), 1)
    lines = [b.umin(left, i) for i in range(LINES)]
    starts = [b.offset(x, b.mul(i, arg["step"])) for i in lines]
    outs = [b.offset(out, b.mul(i, b.mul(row.columns, 4))) for i in lines]

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

    over_chunks(b, row.columns, chunk)


__all__ = ["LINES", "OWN_SLOTS", "SLACK", "average_rows", "conv_rows", "max_rows"]
