"""Arrows of a timeline: from recorded work to waits, from copies to their readers."""

from functools import cache
from typing import Literal, NamedTuple

from ggsched.trace.live import readers_of
from ggsched.trace.timeline import Span, Timeline

ArrowKind = Literal["wait", "copy"]

_WORK = ("launch", "upload", "download", "copy")


class Arrow(NamedTuple):
    """From one span to another.

    Attributes:
        kind: ``wait``: the first is the last work that an event covers, the second waits for the
            event. ``copy``: the second is the launch that first reads what the first moved.
        src: Id of the first span.
        dst: Id of the second.
    """

    kind: ArrowKind
    src: int
    dst: int


def arrows(timeline: Timeline) -> list[Arrow]:
    """Return all arrows, in the order of the host's calls."""
    found: list[Arrow] = []
    last_work: dict[int, int] = {}
    recorded: dict[int, int] = {}
    for span in timeline.spans:
        if span.kind in _WORK:
            last_work[span.track] = span.id
        elif span.kind == "record" and span.track in last_work:
            recorded[span.event] = last_work[span.track]
        elif span.kind in ("wait", "sync") and span.event in recorded:
            found.append(Arrow("wait", recorded[span.event], span.id))
        elif span.kind == "sync" and span.target in last_work:
            found.append(Arrow("wait", last_work[span.target], span.id))
    return sorted([*found, *_copies(timeline)], key=lambda a: (a.dst, a.src))


def _copies(timeline: Timeline) -> list[Arrow]:
    of_command: dict[tuple[int, int], Span] = {
        (s.run, s.command): s for s in timeline.spans if s.command >= 0 and s.kind == "launch"
    }

    @cache
    def reader(plan: int, command: int) -> int:
        made = timeline.plans[plan]
        return readers_of(made, made.commands[command].effects.writes[-1], command)

    found = []
    for span in timeline.spans:
        if span.kind in ("copy", "upload") and span.command >= 0:
            launch = reader(timeline.runs[span.run].plan, span.command)
            target = of_command.get((span.run, launch))
            if target is not None and target.track != span.track:
                found.append(Arrow("copy", span.id, target.id))
    return found
