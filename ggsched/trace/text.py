"""Records for people, one on each line."""

from collections.abc import Sequence
from typing import assert_never

from ggsched.ids import show
from ggsched.trace.schema import (
    Actor,
    Alloc,
    Barrier,
    CaptureBegin,
    CaptureEnd,
    Entry,
    Free,
    Record,
    Sync,
    Wait,
    Work,
)


def entries_text(entries: Sequence[Entry], actors: Sequence[Actor]) -> str:
    """Return records that were made by one call, e.g. ``cpu:0 q0  launch n3 add (5 nodes)``."""
    first = entries[0]
    return f"{actors[first.actor].name}  {_action(first, len(entries), actors)}"


def _action(entry: Entry, count: int, actors: Sequence[Actor]) -> str:
    match entry:
        case Work():
            return _work(entry, count, actors)
        case Sync():
            return f"has waited for {_awaited(entry, actors)}"
        case Record(event=event):
            return f"record {show('event', event)}"
        case Wait(event=event):
            return f"wait {show('event', event)}"
        case Barrier():
            return "barrier"
        case Alloc():
            return f"allocates {entry.nbytes} B: {entry.name}"
        case Free():
            return f"frees memory {entry.memory}"
        case CaptureBegin():
            return "begins a capture"
        case CaptureEnd():
            return "ends a capture"
        case _:
            assert_never(entry)


def _work(entry: Work, count: int, actors: Sequence[Actor]) -> str:
    if entry.is_copy:
        ends = (entry.reads, entry.writes)
        return f"{entry.label} {max(sum(a.end - a.start for a in end) for end in ends)} B"
    if actors[entry.actor].kind == "host":
        return entry.label
    return f"launch {entry.label}" + (f" ({count} nodes)" if count > 1 else "")


def _awaited(entry: Sync, actors: Sequence[Actor]) -> str:
    if entry.event is not None:
        return show("event", entry.event)
    return "all streams" if entry.stream is None else actors[entry.stream].name
