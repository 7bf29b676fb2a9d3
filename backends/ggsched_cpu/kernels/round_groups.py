"""Rows of activations rounded to 8 bit by blocks, several of which are laid out as a group."""

from collections.abc import Callable
from dataclasses import dataclass

from ggsched_cpu.kernels.emit import Builder, Value
from ggsched_cpu.kernels.int_dot import BLOCK, round_block, round_values, rounded_at
from ggsched_cpu.kernels.target import Target
from ggsched_cpu.kernels.vectors import Row, over_rows, own_slot


@dataclass(frozen=True, slots=True)
class GroupedBlock:
    """A block of a group.

    Attributes:
        group: Where its group begins.
        number: Of the block in its group.
        integers: Its elements, i32.
        fours: The same as bytes, four in each i32.
        factor: What sums of elements are multiplied with for corrections, i32.
    """

    group: Value
    number: Value
    integers: Value
    fours: Value
    scale: Value
    factor: Value


def round_groups(
    name: str,
    target: Target,
    size: int,
    nbytes: int,
    store: Callable[[Builder, GroupedBlock], None],
) -> Builder:
    """Return a kernel: operand x; result, whose rows are rounded ones; ``correction_factor``.

    Args:
        name: Of the kernel.
        target: The processor.
        size: Blocks of a group, a power of two. Columns are blocks.
        nbytes: Of a group, for each of its blocks.
        store: Stores a block of a group.
    """
    b = Builder(name, target)
    factor = b.cast("trunc", b.arg(own_slot(2)), "i32")

    def row(row: Row) -> None:
        x, out = row.pointers
        whole = b.binary("and", row.columns, -size)

        def values(block: Value) -> Value:
            return b.load(f"<{BLOCK} x float>", b.offset(x, b.mul(block, 4 * BLOCK)), 4)

        with b.loop(0, whole) as block:
            number = b.binary("and", block, size - 1)
            group = b.offset(out, b.mul(b.sub(block, number), nbytes))
            integers, scale = round_values(b, values(block))
            fours = b.bitcast(b.cast("trunc", integers, "i8"), f"<{BLOCK // 4} x i32>")
            store(b, GroupedBlock(group, number, integers, fours, scale, factor))
        to = rounded_at(b, b.offset(out, b.mul(whole, nbytes)), b.sub(row.columns, whole))
        with b.loop(whole, row.columns) as block:
            round_block(b, values(block), factor, to.at(b, b.sub(block, whole)))

    over_rows(b, 2, row)
    return b


__all__ = ["GroupedBlock", "round_groups"]
