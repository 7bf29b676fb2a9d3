"""Convolution of few channels at a time: every element of a row is a sum over its window."""

from collections.abc import Sequence
from typing import Final

from ggsched_cpu_kernels.elementwise import FORMULAS
from ggsched_cpu_kernels.emit import Builder, Value, vector_of
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
    own = own_slot(4)
    arg = {slot: b.arg(own + i) for i, slot in enumerate(OWN_SLOTS)}
    lanes = target.lanes
    given = iter(range(own + len(OWN_SLOTS), 2**16))
    numbers = [[b.splat(b.arg_f32(next(given)), lanes) for _ in FORMULAS[op][1]] for op in ops]

    def seen(c: Chunk, place: Value) -> Value:
        if stride == 1:
            return c.load(place)
        at = b.offset(place, b.mul(c.column, 4 * stride))
        both = b.load(vector_of(2 * lanes, "float"), at, 4)
        return b.shuffle(both, None, range(0, 2 * lanes, 2))

    def chunk(c: Chunk, starts: list[Value], w: Value, bias: Value, outs: list[Value]) -> None:
        totals = [b.var(bias) for _ in starts]
        weight = b.var(w)
        with b.loop(0, arg["channels"]) as channel:
            plane = b.mul(channel, arg["plane"])
            with b.loop(0, arg["height"]) as i:
                line = b.add(plane, b.mul(i, arg["row"]))
                with b.loop(0, arg["width"]) as j:
                    at = b.get(weight)
                    factor = b.splat(b.load("float", at, 4), lanes)
                    away = b.add(line, b.mul(j, arg["tap"]))
                    for start, total in zip(starts, totals, strict=True):
                        found = seen(c, b.offset(start, away))
                        b.set(total, b.fma(found, factor, b.get(total)))
                    b.set(weight, b.offset(at, 4))
        for total, out in zip(totals, outs, strict=True):
            value = b.get(total)
            for op, own in zip(ops, numbers, strict=True):
                value = FORMULAS[op][2](b, [value], own)
            c.store(value, out)

    def row(row: Row) -> None:
        x, w, bias, out = row.pointers
        start = b.splat(b.load("float", bias, 4), lanes)
        # Lines that are not there repeat the last one.
        left = b.sub(b.sub(arg["lines"], b.mul(row.at[-1], LINES)), 1)
        lines = [b.umin(left, i) for i in range(LINES)]
        starts = [b.offset(x, b.mul(i, arg["step"])) for i in lines]
        outs = [b.offset(out, b.mul(i, b.mul(row.columns, 4))) for i in lines]
        over_chunks(b, row.columns, lambda c: chunk(c, starts, w, start, outs))

    over_rows(b, 4, row)
    return b
