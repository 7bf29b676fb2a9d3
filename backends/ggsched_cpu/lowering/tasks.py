"""Tasks: a kernel with its arguments, and how many parts it is cut into."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from ggsched.backend.arrays import Array
from ggsched_cpu.kernels.vectors import AXES

PARTS_PER_THREAD: Final = 4
"""Parts of a task for each thread, so that none waits long for one that was held up."""

PART_NBYTES: Final = 2 << 10
"""Least memory that a part reads and writes. Much of it is in caches of other processors, whence
each line takes a tenth of a microsecond; and all members come to the barrier anyway."""

SHARED_NBYTES: Final = 64 << 10
"""Least memory of a part if there are more parts than threads. Who is done takes the next one from
a counter, whose line goes from processor to processor: 16 of them wait as long as for kilobytes."""

SERIAL_NBYTES: Final = 32 << 10
"""Tasks that read and write less are done by one thread: a barrier costs as much as some of it."""


@dataclass(frozen=True, slots=True)
class Task:
    """An entry of a table.

    Attributes:
        kernel: Address.
        args: Arguments, 64 bits each.
        parts: See ``ggsched_cpu.kernels.walk``.
        is_serial: Whether one thread is as good as several.
        rows: Rows among which its ids choose; 0 if it has none.
        keeps: What has to stay in memory.
        written: The one of ``keeps`` that it writes, if these are all that it touches.
    """

    kernel: int
    args: tuple[int, ...]
    parts: int
    is_serial: bool
    rows: int = 0
    keeps: tuple[Array, ...] = ()
    written: Array | None = None


def address(a: Array) -> int:
    """Return where an array begins."""
    found: int = a.__array_interface__["data"][0]
    return found


def extent(a: Array) -> tuple[int, int]:
    """Return the addresses between which the elements of an array lie."""
    low = high = address(a)
    if a.size == 0:
        return low, low
    for n, stride in zip(a.shape, a.strides, strict=True):
        way = (n - 1) * stride
        low, high = low + min(0, way), high + max(0, way)
    return low, high + a.itemsize


def bits(number: float) -> int:
    """Return an f32 as an argument."""
    found: int = struct.unpack("<I", struct.pack("<f", number))[0]
    return found


def double_bits(number: float) -> int:
    """Return an f64 as an argument."""
    found: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return found


def parts_for(nbytes: int, most: int, threads: int) -> int:
    """Return into how many parts work of some bytes is cut, at most ``most``.

    One for each thread, or as many for each of them.
    """
    if threads == 1 or nbytes < SERIAL_NBYTES:
        return 1
    each = min(nbytes // (SHARED_NBYTES * threads), PARTS_PER_THREAD)
    wanted = each * threads or min(nbytes // PART_NBYTES, threads)
    return max(1, min(wanted, most))


def row_task(
    kernel: int,
    operands: Sequence[Array],
    shape: tuple[int, ...],
    columns: int,
    threads: int,
    own: Sequence[int] = (),
    *,
    rows: int = 0,
    keeps: Sequence[Array] = (),
    work: int = 1,
    together: int = 1,
) -> Task | None:
    """Return the task of a kernel of rows (``ggsched_cpu.kernels.vectors``).

    Args:
        kernel: Its address.
        operands: Each has as many axes as ``shape``, or one more that is a row's own; axes of one
            stand for all indices.
        shape: Extents of the axes that number the rows.
        columns: Length of a row.
        threads: How many there are.
        own: Further arguments.
        rows: See ``Task``.
        keeps: See ``Task``.
        work: How many times as long an element takes as one that is read.
        together: Rows of one part, in order: of each so many that follow each other.

    Returns:
        None if there are too many axes, or an operand is not aligned.
    """
    if len(shape) > AXES or not all(a.flags.aligned for a in operands):
        return None
    extents = (*(1,) * (AXES - len(shape)), *shape)
    count = prod(shape)
    nbytes = 4 * count * columns * len(operands) * work
    parts = parts_for(nbytes, count, threads)
    part_rows = together * -(-count // (parts * together)) if count else 1
    args = [columns, count, part_rows, extents[1], extents[2], count * columns]
    for operand in operands:
        outer = operand.strides[: len(shape)]
        steps = [0 if n == 1 else s for n, s in zip(operand.shape, outer, strict=False)]
        inner = operand.strides[-1] if operand.ndim > len(shape) else 0
        args += [address(operand), inner, *(0,) * (AXES - len(shape)), *steps]
    parts = -(-count // part_rows)
    return Task(kernel, (*args, *own), parts, parts == 1, rows, (*operands, *keeps))


def flat_task(
    kernel: int, operands: Sequence[Array], size: int, threads: int, own: Sequence[int] = ()
) -> Task | None:
    """Return the task of a kernel of rows on contiguous arrays of one size, cut anywhere."""
    if not all(a.flags.aligned for a in operands):
        return None
    parts = parts_for(4 * size * len(operands), size, threads)
    columns = -(-size // parts)
    columns = -(-columns // 16) * 16
    rows = max(1, -(-size // columns))
    args = [columns, rows, 1, 1, rows, size]
    for operand in operands:
        nbytes = operand.itemsize
        args += [address(operand), nbytes, 0, 0, nbytes * columns]
    return Task(kernel, (*args, *own), rows, rows == 1, 0, tuple(operands))
