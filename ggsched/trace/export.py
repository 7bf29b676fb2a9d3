"""The file form of a trace: JSON lines, a header first and then one record on each line.

The encoding is deterministic. ``docs/reference/trace-format.md`` documents it.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from ggsched.errors import UsageError
from ggsched.trace.schema import FORMAT, Actor, Entry, EventRule, Trace


class Header(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first line: everything but the records.

    Attributes:
        format: Version of the file form.
        name: For people.
        actors: All actors, by id.
        events: What may be done with events.
        dropped: Records that were not kept, all later than those that are.
    """

    format: str
    name: str
    actors: tuple[Actor, ...]
    events: EventRule = "once"
    dropped: int = 0


class _Head(msgspec.Struct, frozen=True):
    """The one field that is read before the others are understood."""

    format: str


def trace_to_lines(trace: Trace) -> bytes:
    """Return the trace as JSON lines."""
    header = Header(FORMAT, trace.name, trace.actors, trace.events, trace.dropped)
    return _encode((header, *trace.entries))


def _encode(items: Iterable[msgspec.Struct]) -> bytes:
    return msgspec.json.Encoder(order="deterministic").encode_lines(items)


def trace_from_lines(data: bytes, file: str = "trace") -> Trace:
    """Read a trace back.

    Types and tags are checked here. What the ids mean is checked by the sanitizer.

    Args:
        data: The file's content.
        file: Its name, for messages.

    Raises:
        UsageError: not a trace, or a trace of another format; names the line.
    """
    lines = [(i, line) for i, line in enumerate(data.split(b"\n"), 1) if line.strip()]
    if not lines:
        raise UsageError("the file is empty", where=file)
    header = _header(file, *lines[0])
    decoder = msgspec.json.Decoder(Entry)
    entries = []
    for number, line in lines[1:]:
        try:
            entries.append(decoder.decode(line))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise _bad_line(file, number, error) from error
    return Trace(header.name, header.actors, tuple(entries), header.events, header.dropped)


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace to a file.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        Path(path).write_bytes(trace_to_lines(trace))
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError("cannot write the trace", where=str(path), why=why) from error


def is_trace(data: bytes) -> bool:
    """Whether data begin like a trace of this or another version."""
    first = next((line for line in data.split(b"\n", 64) if line.strip()), b"")
    try:
        return msgspec.json.decode(first, type=_Head).format.startswith("ggsched-trace")
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False


def _header(file: str, number: int, line: bytes) -> Header:
    try:
        found = msgspec.json.decode(line, type=_Head).format
        if found != FORMAT:
            raise UsageError(
                f"format {found!r} instead of {FORMAT!r}",
                where=f"{file}:{number}",
                hint="record the trace again with this version of ggsched",
            )
        return msgspec.json.decode(line, type=Header)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _bad_line(file, number, error) from error


def _bad_line(file: str, number: int, error: Exception) -> UsageError:
    return UsageError("not a trace", where=f"{file}:{number}", why=" ".join(str(error).split()))
