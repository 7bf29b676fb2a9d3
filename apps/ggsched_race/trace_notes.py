"""What a recorded trace says beyond the trace format: stacks, tensors, views.

These are fields that readers of plain traces ignore; ``docs/reference/trace-format.md`` lists them.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import msgspec

from ggsched.errors import UsageError
from ggsched_race.call_sites import Frame, Stack

View = tuple[int, str, tuple[int, ...], int]
"""(memory, shape and type, strides, first element)."""


class Note(msgspec.Struct, frozen=True, gc=False):
    """Fields of a record.

    Attributes:
        at: Number of the stack of the call; -1 if it is unknown.
        captured: Of a replay, the stack of the call that was captured.
        takes: Memories of freed blocks that may be those of the tensors of the record.
        views: Tensors that are a part of their memory.
        is_inherent: Whether a wait is a part of an op, such as ``item()``.
        is_possible: Whether work may touch only a part of the bytes that it names.
        memory: Of an allocation the memory, and what is known of it.
        text: Shape and type, e.g. ``(8, 4) int64``.
        place: ``cuda``, ``pinned``, ``graph``, or ``shadow``: what other streams have done with a
            tensor, counted against who gets its block.
    """

    at: int = -1
    captured: int = -1
    takes: tuple[int, ...] = ()
    views: tuple[View, ...] = ()
    memory: int = -1
    name: str = ""
    nbytes: int = 0
    text: str = ""
    place: str = ""
    is_inherent: bool = False
    is_possible: bool = False

    def part(self, start: int, end: int) -> str:
        """Return bytes of a memory as rows or elements if they are such, e.g. ``table[2:3]``."""
        if (start, end) == (0, self.nbytes):
            return self.name
        inside = self.text.partition("(")[2].partition(")")[0]
        shape = tuple(int(n) for n in inside.split(",") if n.strip().isdigit())
        count = prod(shape)
        if not shape or not count or self.nbytes % count:
            return f"bytes {start}:{end} of {self.name}"
        size = self.nbytes // count
        row = self.nbytes // shape[0]
        if start % row == 0 and end % row == 0:
            return f"{self.name}[{start // row}:{end // row}]"
        is_in_row = start // row == (end - 1) // row and len(shape) == 2
        if is_in_row and start % size == 0 and end % size == 0:
            first, last = start % row // size, (end - 1) % row // size + 1
            return f"{self.name}[{start // row}, {first}:{last}]"
        return f"elements {start // size}:{-(-end // size)} of {self.name}"


class _Actor(msgspec.Struct, frozen=True):
    name: str
    at: int = -1


class _Header(msgspec.Struct, frozen=True):
    actors: tuple[_Actor, ...]
    sites: tuple[Stack, ...] = ()
    notices: tuple[str, ...] = ()


class Notes(NamedTuple):
    """All of a trace.

    Attributes:
        stacks: By number.
        records: For each record of the trace, in order.
        memories: Allocations by memory.
        notices: What of the program is not recorded, or otherwise than it is.
    """

    stacks: tuple[Stack, ...]
    records: Sequence[Note]
    memories: dict[int, Note]
    notices: tuple[str, ...] = ()

    def stack(self, record: int, captured: bool = False) -> Stack:
        """Return the program's frames at a record, the innermost first."""
        note = self.records[record]
        return self._numbered(note.captured if captured else note.at)

    def made_at(self, memory: int) -> Frame | None:
        """Return the line that made a memory object."""
        found = self._numbered(self.memories.get(memory, Note()).at)
        return found[0] if found else None

    def _numbered(self, number: int) -> Stack:
        return self.stacks[number] if 0 <= number < len(self.stacks) else ()


def read_notes(trace: bytes, file: str = "trace") -> Notes:
    """Return the notes of a trace in lines; of one that was recorded otherwise they are empty.

    Raises:
        UsageError: a field of the wrong type.
    """
    stacks, notices = header_notes(trace, file)
    decode, records = msgspec.json.Decoder(Note).decode, list[Note]()
    for line in [line for line in trace.split(b"\n") if line.strip()][1:]:
        try:
            records.append(decode(line))
        except msgspec.MsgspecError as error:
            raise _bad_note(file, len(records), error) from error
    memories = {n.memory: n for n in records if n.place}
    return Notes(stacks, records, memories, notices)


def line_at(trace: bytes, start: int) -> bytes:
    """Return the line that begins at a byte."""
    end = trace.find(b"\n", start)
    return trace[start : end if end >= 0 else len(trace)]


def header_notes(trace: bytes, file: str) -> tuple[tuple[Stack, ...], tuple[str, ...]]:
    """Return stacks and notices of a trace in lines.

    Raises:
        UsageError: a field of the wrong type.
    """
    first = next(i for i, byte in enumerate(trace) if not chr(byte).isspace())
    try:
        head = msgspec.json.decode(line_at(trace, first), type=_Header)
    except msgspec.MsgspecError as error:
        raise _bad_note(file, 0, error) from error
    return head.sites, head.notices


def _bad_note(file: str, record: int, error: Exception) -> UsageError:
    where = f"{file}: record {record}"
    return UsageError("not a trace of 'ggsched race'", where=where, why=str(error))
