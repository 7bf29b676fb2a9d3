"""Captures: no call that needs something to run while a stream only collects.

What a capturing stream is given does not run. So nobody may wait for it, for whoever waits for
it, or for the whole device; and memory is neither allocated nor freed meanwhile (CAP-2).
"""

from ggsched.sanitize.events import Event, EventStream
from ggsched.sanitize.report import Finding


def find_capture_misuse(stream: EventStream) -> list[Finding]:
    """Return calls that a capture under way does not stand."""
    if not any(event.kind in ("capture", "capture_end") for event in stream.events):
        return []
    walk = _Walk(stream)
    for event in stream.events:
        walk.follow(event)
    return walk.findings


class _Walk:
    """The walk over the events.

    Attributes:
        findings: What was found so far.
    """

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream
        self._members: dict[int, int] = {}
        """The stream that began the capture, by each stream that has joined it."""
        self._captured: dict[int | None, int] = {}
        """The same by event that was recorded in the capture."""
        self.findings: list[Finding] = []

    def follow(self, event: Event) -> None:
        """Follow one event."""
        kind, actor = event.kind, event.actor
        if kind == "capture":
            if actor in self._members:
                self._add(event, f"begins a capture on {self._name(actor)}, which collects already")
            self._members.setdefault(actor, actor)
        elif kind == "capture_end":
            self._end(event)
        elif kind == "record":
            self._captured.pop(event.event, None)
            if actor in self._members:
                self._captured[event.event] = self._members[actor]
        elif kind == "wait":
            if event.event in self._captured:
                self._members.setdefault(actor, self._captured[event.event])
        elif kind == "sync":
            self._sync(event)
        elif self._members and not event.is_safe:
            if kind == "alloc":
                name = self._stream.memories[event.memory].name
                self._add(event, f"allocates {name}", "allocate before the capture")
            else:
                self._add(event, "frees memory", "free after the capture")

    def _sync(self, event: Event) -> None:
        fix = "wait after the capture, or before it"
        if event.event is not None:
            if event.event in self._captured:
                self._add(event, "waits for an event that was recorded", fix)
        elif event.target is None:
            if self._members:
                self._add(event, "waits for all streams", fix)
        elif event.target in self._members:
            self._add(event, f"waits for {self._name(event.target)}, which collects", fix)

    def _end(self, event: Event) -> None:
        actor = event.actor
        if self._members.get(actor) != actor:
            self._add(event, f"ends a capture of {self._name(actor)}, which has begun none")
        self._members = {s: origin for s, origin in self._members.items() if origin != actor}
        self._captured = {e: origin for e, origin in self._captured.items() if origin != actor}

    def _name(self, actor: int) -> str:
        return self._stream.actors[actor].name

    def _add(self, event: Event, does: str, fix: str = "") -> None:
        origins = sorted({self._name(origin) for origin in self._members.values()})
        during = f" during the capture of {' and '.join(origins)}" if origins else ""
        what = f"{self._stream.names.ref(event)} {self._name(event.actor)} {does}{during}"
        self.findings.append(Finding("capture", what, event.source, fix))
