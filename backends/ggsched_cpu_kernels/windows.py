"""Convolution of few channels at a time: every element of a row is a sum over its window."""

from typing import Final

from ggsched_cpu_kernels.emit import Builder, Value, vector_of
from ggsched_cpu_kernels.target import Target
from ggsched_cpu_kernels.vectors import Chunk, over_chunks, over_rows, own_slot

SLACK: Final = 32
"""Elements behind an operand that may be read, and do not matter, where windows skip elements."""


def conv_rows(name: str, target: Target, *, stride: int) -> Builder:
    """Operands x, w, bias, result; then six arguments.

    They are channels of a window, bytes from one to the next, rows of the kernel, bytes from one to
    the next, its columns, bytes from one to the next. A row of x begins where the first window
    does; a row of w is one kernel, contiguous. The result is contiguous along a row, and windows
    lie ``stride`` elements (1 or 2) apart.
    """
    b = Builder(name, target)
    own = own_slot(4)
    channels, plane_step, height, row_step, width, tap_step = (b.arg(own + i) for i in range(6))
    lanes = target.lanes

    def seen(c: Chunk, place: Value) -> Value:
        if stride == 1:
            return c.load(place)
        at = b.offset(place, b.mul(c.column, 4 * stride))
        both = b.load(vector_of(2 * lanes, "float"), at, 4)
        return b.shuffle(both, None, range(0, 2 * lanes, 2))

    def chunk(c: Chunk, x: Value, w: Value, bias: Value, out: Value) -> None:
        total = b.var(bias)
        weight = b.var(w)
        with b.loop(0, channels) as channel:
            plane = b.offset(x, b.mul(channel, plane_step))
            with b.loop(0, height) as i:
                line = b.offset(plane, b.mul(i, row_step))
                with b.loop(0, width) as j:
                    at = b.get(weight)
                    factor = b.splat(b.load("float", at, 4), lanes)
                    found = seen(c, b.offset(line, b.mul(j, tap_step)))
                    b.set(total, b.fma(found, factor, b.get(total)))
                    b.set(weight, b.offset(at, 4))
        c.store(b.get(total), out)

    def row(pointers: tuple[Value, ...], columns: Value) -> None:
        x, w, bias, out = pointers
        start = b.splat(b.load("float", bias, 4), lanes)
        over_chunks(b, columns, lambda c: chunk(c, x, w, start, out))

    over_rows(b, 4, lambda r: row(r.pointers, r.columns))
    return b
