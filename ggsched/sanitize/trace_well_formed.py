"""What can be said about a trace without following the order: ids, ranges, events."""

from collections.abc import Iterator

from ggsched.sanitize.report import Finding
from ggsched.trace.schema import (
    NOBODY,
    Access,
    Alloc,
    CaptureBegin,
    CaptureEnd,
    Entry,
    Free,
    Record,
    Sync,
    Trace,
    Wait,
    Work,
)


def find_unknown_in_trace(trace: Trace) -> list[Finding]:
    """Return what is named but does not exist; after that nothing else can be looked at."""
    findings = [
        Finding("id", f"actor {i} calls itself {actor.id}", -1, "number from zero")
        for i, actor in enumerate(trace.actors)
        if actor.id != i
    ]
    sizes: dict[int, int] = {}
    for i, entry in enumerate(trace.entries):
        if isinstance(entry, Alloc):
            if entry.memory in sizes:
                what = f"#{i} allocates memory {entry.memory} again"
                findings.append(Finding("id", what, i, "give each allocation a number of its own"))
            sizes[entry.memory] = entry.nbytes
    for i, entry in enumerate(trace.entries):
        findings += _unknown_in_entry(trace, i, entry, sizes)
    return findings


def _unknown_in_entry(
    trace: Trace, i: int, entry: Entry, sizes: dict[int, int]
) -> Iterator[Finding]:
    actors = len(trace.actors)
    if not 0 <= entry.actor < actors:
        yield Finding("id", f"#{i} is of unknown actor {entry.actor}", i)
        return
    by = NOBODY if isinstance(entry, Alloc) else entry.by
    if by != NOBODY and not (0 <= by < actors and trace.actors[by].kind == "host"):
        yield Finding("id", f"#{i} was enqueued by {by}, which is no host thread", i)
    if isinstance(entry, Sync) and entry.stream is not None and not 0 <= entry.stream < actors:
        yield Finding("id", f"#{i} waits for unknown actor {entry.stream}", i)
    if isinstance(entry, CaptureBegin | CaptureEnd) and trace.actors[entry.actor].kind == "host":
        yield Finding("id", f"#{i} captures {trace.actors[entry.actor].name}, no stream", i)
    if isinstance(entry, Free) and entry.memory not in sizes:
        yield Finding("id", f"#{i} frees unknown memory {entry.memory}", i)
    if isinstance(entry, Work):
        for access in (*entry.reads, *entry.writes):
            if problem := _bad_access(access, sizes):
                yield Finding("region", f"#{i} {entry.label} {problem}", i, "", *access[:3])


def _bad_access(access: Access, sizes: dict[int, int]) -> str:
    if access.memory not in sizes:
        return f"touches unknown memory {access.memory}"
    if not 0 <= access.start <= access.end <= sizes[access.memory]:
        size = sizes[access.memory]
        return f"touches [{access.start}:{access.end}] of memory of {size} bytes"
    return ""


def find_event_misuse(trace: Trace) -> list[Finding]:
    """Return events that are recorded twice or waited for too early (EVT-3)."""
    if trace.events == "latest":
        return []
    findings: list[Finding] = []
    recorded: set[int | None] = {None}  # who waits for a stream names no event
    for i, entry in enumerate(trace.entries):
        if isinstance(entry, Record):
            if entry.event in recorded:
                what = f"#{i} records e{entry.event} again"
                findings.append(Finding("event", what, i, "use an event of its own (EVT-3)"))
            recorded.add(entry.event)
        elif isinstance(entry, Wait | Sync) and entry.event not in recorded:
            what = f"#{i} waits for e{entry.event}, not recorded so far"
            findings.append(Finding("event", what, i, "record it before (EVT-3)"))
    return findings
