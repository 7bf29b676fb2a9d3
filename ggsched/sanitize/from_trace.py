"""A trace as a stream of events.

What the trace names must exist (see ``references``).
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Literal, assert_never

from ggsched.sanitize.events import (
    UNDEFINED,
    UNKNOWN,
    Access,
    Actor,
    Content,
    Event,
    EventStream,
    Found,
    Held,
    Memory,
    Span,
    Step,
)
from ggsched.sanitize.report import Touch
from ggsched.sanitize.spans import merge
from ggsched.trace import schema
from ggsched.trace.schema import Entry, Trace


def from_trace(trace: Trace, spaces: Collection[int] | None = None) -> EventStream:
    """Return the events of a trace.

    Args:
        spaces: Those of which accesses are listed; all if not given.
    """
    stream = without_events(trace)
    memories, entries = stream.memories, enumerate(trace.entries)
    return stream._replace(events=[event_of(i, entry, memories, spaces) for i, entry in entries])


def without_events(trace: Trace) -> EventStream:
    """Return who and what the events of a trace are about."""
    memories = _memories(trace)
    return EventStream(
        name=trace.name,
        size=len(trace.entries),
        actors=[Actor(a.name, a.device, a.kind == "host", a.copy_order) for a in trace.actors],
        memories=memories,
        events=(),
        runs=1,
        is_renewable=trace.events == "latest",
        names=TraceNames(trace, memories),
    )


def _memories(trace: Trace) -> dict[int, Memory]:
    spaces: dict[str, int] = {}
    memories: dict[int, Memory] = {}
    for entry in trace.entries:
        if isinstance(entry, schema.Alloc):
            space = spaces.setdefault(entry.space or f"\0{entry.memory}", len(spaces))
            memories[entry.memory] = memory_of(entry, space)
    return memories


def memory_of(entry: schema.Alloc, space: int) -> Memory:
    """Return what an allocation makes, in a space."""
    return Memory(
        entry.name,
        entry.nbytes,
        space,
        entry.address,
        UNKNOWN if entry.is_defined else UNDEFINED,
        is_shared=entry.space != "",
    )


def event_of(
    i: int, entry: Entry, memories: dict[int, Memory], spaces: Collection[int] | None = None
) -> Event:
    """Return a record as an event.

    Args:
        spaces: Those of which accesses are listed; all if not given.
    """
    actor = entry.actor
    match entry:
        case schema.Work(by=by, reads=reads, writes=writes):
            return Event(
                i,
                "work",
                actor,
                by,
                is_copy=entry.is_copy,
                is_partial=entry.is_partial,
                reads=_spans(reads, memories, spaces),
                writes=_spans(writes, memories, spaces),
                steps=_OneStep(entry),
            )
        case schema.Record(by=by, event=event):
            return Event(i, "record", actor, by, event=event)
        case schema.Wait(by=by, event=event):
            return Event(i, "wait", actor, by, event=event)
        case schema.Sync(by=by):
            return Event(i, "sync", actor, by, event=entry.event, target=entry.stream)
        case schema.Barrier(by=by):
            return Event(i, "barrier", actor, by)
        case schema.Alloc(memory=memory):
            return Event(i, "alloc", actor, memory=memory, is_safe=not entry.is_unsafe)
        case schema.Free(by=by, memory=memory):
            m = memories[memory]
            is_listed = m.nbytes and (spaces is None or m.space in spaces)
            whole = ((m.space, m.address, m.address + m.nbytes),) if is_listed else ()
            return Event(i, "free", actor, by, writes=whole, memory=memory, is_safe=False)
        case schema.CaptureBegin(by=by):
            return Event(i, "capture", actor, by)
        case schema.CaptureEnd(by=by):
            return Event(i, "capture_end", actor, by)
        case _:
            assert_never(entry)


class _OneStep:
    """The step of a piece of work, made when it is looked at: a trace has many."""

    __slots__ = ("_work",)

    def __init__(self, work: schema.Work) -> None:
        self._work = work

    def __iter__(self) -> Iterator[Step]:
        reads, writes = self._work.reads, self._work.writes
        accesses = reads + writes
        regions = [(memory, start, end - start) for memory, start, end, _ in accesses]
        contents: list[Held] = [UNKNOWN] * len(accesses)
        if any(access.tag for access in accesses):
            contents = [Content(a.tag) if a.tag else UNKNOWN for a in accesses]
        yield Step(-1, None, regions, "r" * len(reads) + "w" * len(writes), contents)


def _spans(
    accesses: Sequence[schema.Access],
    memories: dict[int, Memory],
    spaces: Collection[int] | None,
) -> Sequence[Span]:
    spans = []
    for memory, start, end, _ in accesses if spaces is None or spaces else ():
        m = memories[memory]
        if start < end and (spaces is None or m.space in spaces):
            if m.address:
                start, end = m.address + start, m.address + end
            spans.append((m.space, start, end))
    return merge(spans) if len(spans) > 1 else spans


class TraceNames:
    """What things are called in findings about a trace."""

    def __init__(self, trace: Trace, memories: dict[int, Memory]) -> None:
        self._trace = trace
        self._memories = memories

    def ref(self, event: Event) -> str:
        """Return e.g. ``#3``."""
        return f"#{event.source}"

    def who(self, event: Event) -> str:
        """Return e.g. ``#3 A write``."""
        return f"#{event.source} {self._trace.actors[event.actor].name} {self._label(event)}"

    def step(self, event: Event, step: Step) -> str:
        """Return e.g. ``#3 write``."""
        del step
        return f"#{event.source} {self._label(event)}"

    def bytes_of(self, memory: int, start: int, end: int) -> str:
        """Return e.g. ``m0[0:64]``."""
        return f"{self._memories[memory].name}[{start}:{end}]"

    def wanted(self, access: Access) -> str:
        """Return e.g. ``m0[0:64]``."""
        return self.bytes_of(access.memory, access.start, access.end)

    def touch(self, event: Event, run: int, access: Access) -> Touch:
        """Return one side of a race."""
        del run
        actor = self._trace.actors[event.actor]
        who = f"{actor.name} {actor.device}".strip()
        mode: Literal["read", "write"] = "read" if access.mode == "r" else "write"
        return Touch(event.source, -1, who, self._label(event), mode)

    def wrong_content(
        self, event: Event, step: Step, access: Access, there: Found
    ) -> tuple[Literal["content", "reuse", "stale"], str, str]:
        """Say which other content is there."""
        need, found = access.content.owner, there.content.owner
        where = self.bytes_of(access.memory, there.start, there.end)
        state, fix = "which nothing has written", f"let {need!r} be there before {self.ref(event)}"
        if there.writer is not None:
            writer = self.ref(there.writer)
            fix += f", and {writer} write elsewhere or later"
            state = f"but finds {found!r} of {writer}"
            if there.content == UNKNOWN:
                state = f"but finds what {writer} has written"
        return "content", f"{self.step(event, step)} needs {need!r} in {where}, {state}", fix

    def sync(self, event: Event) -> str:
        """Return e.g. ``#3, the wait of A``."""
        what = {"work": "copy", "sync": "wait"}.get(event.kind, event.kind)
        return f"#{event.source}, the {what} of {self._trace.actors[event.actor].name}"

    def _label(self, event: Event) -> str:
        entry = self._trace.entries[event.source]
        return entry.label if isinstance(entry, schema.Work) else event.kind
