"""Captures in a trace: no call that needs something to run while a stream only collects.

What a capturing stream is given does not run. So nobody may wait for it, for whoever waits for
it, or for the whole device; and memory is neither allocated nor freed meanwhile (CAP-2).
"""

from typing import assert_never

from ggsched.sanitize.report import Finding
from ggsched.trace.schema import (
    Alloc,
    Barrier,
    CaptureBegin,
    CaptureEnd,
    Free,
    Record,
    Sync,
    Trace,
    Wait,
    Work,
)


def find_capture_misuse(trace: Trace) -> list[Finding]:
    """Return calls that a capture under way does not stand."""
    if not any(isinstance(e, CaptureBegin | CaptureEnd) for e in trace.entries):
        return []
    walk = _Walk(trace)
    for i in range(len(trace.entries)):
        walk.look_at(i)
    return walk.findings


class _Walk:
    """The walk over the records.

    Attributes:
        findings: What was found so far.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._members: dict[int, int] = {}
        """The stream that began the capture, by each stream that has joined it."""
        self._captured: dict[int, int] = {}
        """The same by event that was recorded in the capture."""
        self.findings: list[Finding] = []

    def look_at(self, i: int) -> None:
        """Look at one record."""
        entry = self._trace.entries[i]
        match entry:
            case CaptureBegin(actor=actor):
                self._begin(i, actor)
            case CaptureEnd(actor=actor):
                self._end(i, actor)
            case Record():
                self._record(entry)
            case Wait(actor=actor, event=event):
                if event in self._captured:
                    self._members.setdefault(actor, self._captured[event])
            case Sync():
                self._sync(i, entry)
            case Alloc(is_unsafe=True) if self._members:
                self._add(i, f"allocates {entry.name}", "allocate before the capture")
            case Free() if self._members:
                self._add(i, "frees memory", "free after the capture")
            case Work() | Barrier() | Alloc() | Free():
                pass
            case _:
                assert_never(entry)

    def _begin(self, i: int, actor: int) -> None:
        if actor in self._members:
            self._add(i, f"begins a capture on {self._name(actor)}, which collects already")
        self._members.setdefault(actor, actor)

    def _record(self, entry: Record) -> None:
        self._captured.pop(entry.event, None)
        if entry.actor in self._members:
            self._captured[entry.event] = self._members[entry.actor]

    def _sync(self, i: int, entry: Sync) -> None:
        fix = "wait after the capture, or before it"
        if entry.event is not None:
            if entry.event in self._captured:
                self._add(i, "waits for an event that was recorded", fix)
        elif entry.stream is None:
            if self._members:
                self._add(i, "waits for all streams", fix)
        elif entry.stream in self._members:
            self._add(i, f"waits for {self._name(entry.stream)}, which collects", fix)

    def _end(self, i: int, actor: int) -> None:
        if self._members.get(actor) != actor:
            self._add(i, f"ends a capture of {self._name(actor)}, which has begun none")
        self._members = {s: origin for s, origin in self._members.items() if origin != actor}
        self._captured = {e: origin for e, origin in self._captured.items() if origin != actor}

    def _name(self, actor: int) -> str:
        return self._trace.actors[actor].name

    def _add(self, i: int, does: str, fix: str = "") -> None:
        who = self._name(self._trace.entries[i].actor)
        origins = sorted({self._name(origin) for origin in self._members.values()})
        during = f" during the capture of {' and '.join(origins)}" if origins else ""
        self.findings.append(Finding("capture", f"#{i} {who} {does}{during}", i, fix))
