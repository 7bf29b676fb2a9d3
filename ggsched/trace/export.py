"""The file forms of a trace: JSON lines, or one object that Perfetto reads as well.

Lines are a header and then one record on each; ``ggsched_commands.perfetto`` makes the other form.
The encoding is deterministic. ``docs/reference/trace-format.md`` documents both.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from ggsched.errors import UsageError
from ggsched.trace.schema import (
    FORMAT,
    NOBODY,
    Actor,
    Alloc,
    ClockKind,
    Entry,
    EventRule,
    Run,
    Sync,
    Trace,
    TracedPlan,
)


class Header(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first line: everything but the records.

    Attributes:
        format: Version of the file form.
        name: For people.
        actors: All actors, by id.
        events: What may be done with events.
        dropped: Records that were not kept, all later than those that are.
        clock: What times are in.
        plans: Plans of which runs were recorded.
    """

    format: str
    name: str
    actors: tuple[Actor, ...]
    events: EventRule = "once"
    dropped: int = 0
    clock: ClockKind = "host"
    plans: tuple[TracedPlan, ...] = ()
    runs: tuple[Run, ...] = ()


class _Head(msgspec.Struct, frozen=True):
    """The one field that is read before the others are understood."""

    format: str


def trace_to_lines(trace: Trace) -> bytes:
    """Return the trace as JSON lines."""
    return _encode((header_fields(trace),)) + _encode(trace.entries)


def header_fields(trace: Trace) -> dict[str, Any]:
    """Return the fields of the header in their order, to be encoded; defaults are left out."""
    header = header_of(trace)
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(Header):
        value = getattr(header, field.name)
        if field.required or value != field.default:
            fields[field.name] = value
    if trace.plans:  # a plan has maps with numbers for keys
        fields["plans"] = msgspec.to_builtins(trace.plans, str_keys=True, order="deterministic")
    return fields


def header_of(trace: Trace) -> Header:
    """Return everything of a trace but its records."""
    return Header(
        FORMAT,
        trace.name,
        trace.actors,
        trace.events,
        trace.dropped,
        trace.clock,
        trace.plans,
        trace.runs,
    )


def _encode(items: Iterable[Any]) -> bytes:
    return msgspec.json.Encoder().encode_lines(items)


class _Whole(Header, frozen=True):
    """The form of one object."""

    entries: tuple[Entry, ...] = ()


def read_trace(data: bytes, file: str = "trace") -> Trace:
    """Read a trace back, whichever of the two forms it has.

    Raises:
        UsageError: not a trace, a trace of another format, or a record of an unknown actor; names
            the line.
    """
    if not is_object(data):
        return trace_from_lines(data, file)
    _header(file, 1, data)
    try:
        whole = msgspec.json.decode(data, type=_Whole)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _bad_line(file, 1, error) from error
    for i, entry in enumerate(whole.entries):
        if problem := _unknown(whole, entry):
            raise UsageError(f"record {i}: {problem}", where=file, hint=_HINT)
    _check_header(whole, len(whole.entries), file)
    return trace_of(whole, whole.entries)


class _Form(msgspec.Struct, frozen=True):
    format: str
    entries: msgspec.Raw


def is_object(data: bytes) -> bool:
    """Whether data are one object with all records in it."""
    try:
        msgspec.json.decode(data, type=_Form)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True


def trace_from_lines(data: bytes, file: str = "trace") -> Trace:
    """Read a trace back.

    Types, tags, actors and runs are checked here; memory and order by the checker.

    Args:
        data: The file's content.
        file: Its name, for messages.

    Raises:
        UsageError: not a trace, a trace of another format, or a record of an unknown actor; names
            the line.
    """
    header, lines = header_and_lines(data, file)
    decode, entries = msgspec.json.Decoder(Entry).decode, []
    for number, _, line in lines:
        try:
            entry: Entry = decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise _bad_line(file, number, error) from error
        if problem := _unknown(header, entry):
            raise UsageError(problem, where=f"{file}:{number}", hint=_HINT)
        entries.append(entry)
    _check_header(header, len(entries), f"{file}:1")
    return trace_of(header, tuple(entries))


def header_and_lines(
    data: bytes, file: str = "trace"
) -> tuple[Header, Iterator[tuple[int, int, bytes]]]:
    """Return the header of a trace in lines, and (number, first byte, content) of each other line.

    Raises:
        UsageError: not a trace, or a trace of another format.
    """
    lines = _lines(data)
    first = next(lines, None)
    if first is None:
        raise UsageError("the file is empty", where=file)
    number, _, line = first
    return _header(file, number, line), lines


def _lines(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield (number, first byte, content) of each line that is not empty."""
    start = number = 0
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        number += 1
        line = data[start:end]
        if line.strip():
            yield number, start, line
        start = end + 1


_HINT: Final = "record the trace again, or repair the line"


def _unknown(header: Header, entry: Entry) -> str:
    """Return which actor a record names that does not exist; empty if all do."""
    count = len(header.actors)
    by = NOBODY if isinstance(entry, Alloc) else entry.by
    if not isinstance(entry, Sync) and 0 <= entry.actor < count and NOBODY <= by < count:
        return ""  # as mostly
    named = [(entry.actor, "is of actor")]
    if not isinstance(entry, Alloc) and entry.by != NOBODY:
        named.append((entry.by, "was enqueued by actor"))
    if isinstance(entry, Sync) and entry.stream is not None:
        named.append((entry.stream, "waits for actor"))
    for actor, verb in named:
        if not 0 <= actor < count:
            return f"the record {verb} {actor}; the header names {count} actors"
    return ""


def _check_header(header: Header, records: int, where: str) -> None:
    """Check the runs and the numbers of the actors.

    Raises:
        UsageError: a number that names nothing.
    """
    for i, actor in enumerate(header.actors):
        if actor.id != i:
            raise UsageError(f"actor {i} has the id {actor.id}", where=where, hint=_HINT)
    for i, traced in enumerate(header.plans):
        count = len(traced.plan.commands)
        for expected in traced.expected:
            if not 0 <= expected.command < count:
                what = f"plan {i} expects command {expected.command} of {count}"
                raise UsageError(what, where=where, hint=_HINT)
    for i, run in enumerate(header.runs):
        named = ((run.plan, len(header.plans), "plan"), (run.actor, len(header.actors), "actor"))
        for number, count, kind in named:
            if not 0 <= number < count:
                what = f"run {i} is of {kind} {number}; the header names {count}"
                raise UsageError(what, where=where, hint=_HINT)
        if not 0 <= run.first <= run.end:
            what = f"run {i} has records [{run.first}, {run.end}) of {records}"
            raise UsageError(what, where=where, hint=_HINT)


def trace_of(header: Header, entries: tuple[Entry, ...]) -> Trace:
    """Return a trace of a header and records."""
    return Trace(
        header.name,
        header.actors,
        entries,
        header.events,
        header.dropped,
        header.clock,
        header.plans,
        header.runs,
    )


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write a trace in one of its forms to a file.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError("cannot write the trace", where=str(path), why=why) from error


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace to a file, as lines.

    Raises:
        UsageError: the file cannot be written.
    """
    write_bytes(path, trace_to_lines(trace))


def is_trace(data: bytes) -> bool:
    """Whether data begin like a trace of this or another version."""
    first = next((line for line in data.split(b"\n", 64) if line.strip()), b"")
    if first.strip() == b"{":  # somebody has made the one object readable
        first = data
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
    except UsageError as error:
        if error.where == f"{file}:{number}":
            raise
        raise _bad_line(file, number, error) from error  # facts that contradict themselves
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _bad_line(file, number, error) from error


def _bad_line(file: str, number: int, error: Exception) -> UsageError:
    return UsageError("not a trace", where=f"{file}:{number}", why=" ".join(str(error).split()))
