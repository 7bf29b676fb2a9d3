"""Who may be writing bytes, and who may be reading them early (LCH-7).

A launch with constants reads them at any time from its enqueueing on. So nobody may be writing them
by then, and nobody may write them before the host knows that the launch is complete.
"""

from collections.abc import Iterable
from typing import NamedTuple

from ggsched.backend.call_log import Call, misuse
from ggsched.backend.checked_parts import CheckedBuffer, Ranges, overlap
from ggsched.backend.program import BoundNode, Operand


class ByteSpan(NamedTuple):
    """Bytes of a buffer that a command uses.

    Attributes:
        name: The same for the same bytes of the same command, so that it is kept once.
        ranges: First byte and the one after the last, of each piece.
    """

    buffer: CheckedBuffer
    name: object
    ranges: Ranges


def require_apart(called: Call, writes: Iterable[ByteSpan], constants: Iterable[ByteSpan]) -> None:
    """Refuse a command that writes constants of others, or has constants that others write.

    Raises:
        UsageError: the host does not know that those others are complete.
    """
    for span in constants:
        other = span.buffer.writes.under_way(span.ranges)
        if other is not None:
            raise _race(span, called, other, "constants are launched while they may be written")
    for span in writes:
        other = span.buffer.constants.under_way(span.ranges)
        if other is not None:
            raise _race(span, called, other, "constants are written while a launch may read them")


def spans_of(
    name: str, nodes: Iterable[BoundNode]
) -> tuple[tuple[ByteSpan, ...], tuple[ByteSpan, ...]]:
    """Return what the nodes of a program write, and its constants, by buffer.

    Raises:
        UsageError: a node writes constants of the same program.
    """
    written, constant = _Grouped(name), _Grouped(name)
    for node in nodes:
        written.add(node.output)
        for operand in node.inputs:
            if operand.is_constant:
                constant.add(operand)
    writes, constants = written.spans(), constant.spans()
    for span in constants:
        for other in writes:
            if other.buffer is span.buffer and overlap(span.ranges, other.ranges):
                raise misuse("LCH-7", "a program writes its own constants", where=span.buffer.name)
    return writes, constants


class _Grouped:
    def __init__(self, name: str) -> None:
        self._name = name
        self._ranges: dict[int, tuple[CheckedBuffer, dict[tuple[int, int], None]]] = {}

    def add(self, operand: Operand) -> None:
        buffer: CheckedBuffer = operand.buffer  # type: ignore[assignment]  # compile has looked
        _, ranges = self._ranges.setdefault(id(buffer), (buffer, {}))
        if operand.nbytes:
            ranges[operand.offset, operand.offset + operand.nbytes] = None

    def spans(self) -> tuple[ByteSpan, ...]:
        found = self._ranges.values()
        return tuple(ByteSpan(buffer, self._name, tuple(ranges)) for buffer, ranges in found)


def _race(span: ByteSpan, called: Call, other: Call, what: str) -> Exception:
    return misuse(
        "LCH-7",
        what,
        where=f"{span.buffer.name}, {called}",
        why=f"the host does not know that {other} is complete",
        hint="sync between the two: no event orders them, as constants may be read early",
        call_log=(other, called),
    )
