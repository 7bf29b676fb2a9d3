"""Races of a recorded program, looked for while its trace is read, without a copy of its records.

A record is decoded, followed and dropped; one that a finding names is decoded again. In memory are
what is known of bytes and events, the notes of allocations, and eight bytes for each record.
"""

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Generic, Literal, NamedTuple, TypeVar, overload

import msgspec

from ggsched.collector import collector_paused
from ggsched.sanitize import Finding
from ggsched.sanitize.from_trace import memory_of, without_events
from ggsched.sanitize.races import MAX_RACES, Clash
from ggsched.sanitize.screen import Screen
from ggsched.trace.export import Header, header_and_lines
from ggsched.trace.schema import NOBODY, Alloc, Entry, Record, Sync, Trace, Wait, Work
from ggsched_race.live_races import LiveRaces
from ggsched_race.trace_notes import Note, Notes, header_notes, line_at

T = TypeVar("T")


class Lines(Sequence[T], Generic[T]):
    """Records in lines, read and decoded when they are looked at.

    Args:
        read: Returns the line that begins at a byte.
        places: First byte of each line.
        decode: Returns what a line says.
    """

    def __init__(
        self, read: Callable[[int], bytes], places: "array[int]", decode: Callable[[bytes], T]
    ) -> None:
        self._read, self._places, self._decode = read, places, decode

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | slice) -> T | list[T]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        return self._decode(self._read(self._places[at]))


class Streamed(NamedTuple):
    """A trace that was followed.

    Attributes:
        trace: It, with records that are decoded when they are looked at.
        notes: What it says beyond the format, likewise.
        races: Up to ``MAX_RACES``.
    """

    trace: Trace
    notes: Notes
    races: Sequence[Finding]


@collector_paused()
def follow_lines(data: bytes, file: str) -> Streamed | None:
    """Return the races of a trace in lines.

    Returns:
        None of a trace of which more than races is to be decided: it names what is not there, has
        frees, captures or barriers, contents, addresses, devices with an order of their own, or
        lines that are no records; and None of one that does not say who enqueues, since accesses
        are forgotten that all later work of a known thread comes after.

    Raises:
        UsageError: the header is not that of a trace.
    """
    header, lines = header_and_lines(data, file)
    if not _is_simple(header):
        return None
    places, memories = array("q"), dict[int, Note]()
    are_hosts = {actor.id: actor.kind == "host" for actor in header.actors}
    stream = without_events(Trace(header.name, header.actors, (), header.events))
    screen, note_of = Screen(stream), msgspec.json.Decoder(Note).decode
    for _, start, text in lines:
        try:
            entry = _SIMPLE.decode(text)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None
        if isinstance(entry, Alloc):
            if entry.space or entry.address or not entry.is_defined:
                return None
            note = note_of(text)
            if note.place:
                memories[note.memory] = note
            stream.memories[entry.memory] = memory_of(entry, entry.memory)
        elif entry.by == NOBODY and not are_hosts.get(entry.actor):
            return None
        screen.add(len(places), entry)
        if not screen.is_known:
            return None
        places.append(start)
    spaces = screen.racy()
    if not screen.is_known:
        return None
    line = partial(line_at, data)
    entries = Lines(line, places, msgspec.json.Decoder(Entry).decode)
    trace = Trace(header.name, header.actors, entries, header.events)  # type: ignore[arg-type]
    stacks, notices = header_notes(data, file)
    notes = Notes(stacks, Lines(line, places, note_of), memories, notices)
    return Streamed(trace, notes, _races(trace, spaces) if spaces is None or spaces else ())


def _races(trace: Trace, spaces: set[int] | None) -> Sequence[Finding]:
    """Return the races in memory objects, in all of them if none are named."""
    races, clashes = LiveRaces(spaces), list[Clash]()
    for actor in trace.actors:
        races.add_actor(actor)
    for entry in trace.entries:
        clashes += races.add(entry)
        if len(clashes) >= MAX_RACES:
            break
    return [races.finding(clash, trace) for clash in clashes[:MAX_RACES]]


def _is_simple(header: Header) -> bool:
    """Whether actors have numbers and an order as PyTorch's, and events are recorded again."""
    actors = header.actors
    are_plain = all(a.id == i and a.copy_order == "stream" for i, a in enumerate(actors))
    return are_plain and header.events == "latest" and not header.plans and not header.runs


def _noted(kind: type[msgspec.Struct], **fields: object) -> type[msgspec.Struct]:
    """Return a kind of record that has the fields of its note too, so that a line is decoded once.

    Args:
        fields: Types that are narrower than those of the format.
    """
    own = set(kind.__struct_fields__)
    both: list[tuple[str, object, object]] = [
        (f.name, f.type, f.default) for f in msgspec.structs.fields(Note) if f.name not in own
    ]
    both += [(name, type_, ()) for name, type_ in fields.items()]
    tag = kind.__struct_config__.tag
    return msgspec.defstruct(kind.__name__, both, bases=(kind,), tag=tag, frozen=True, gc=False)


class _Untagged(NamedTuple):
    """An access without a tag: contents are not decided here."""

    memory: int
    start: int
    end: int
    tag: Literal[""] = ""


_Bytes = tuple[_Untagged, ...]
_SIMPLE: Final = msgspec.json.Decoder(
    _noted(Work, reads=_Bytes, writes=_Bytes)
    | _noted(Record)
    | _noted(Wait)
    | _noted(Sync)
    | _noted(Alloc)
)
"""Decodes records of which nothing but a race can be wrong, as far as contents go."""
