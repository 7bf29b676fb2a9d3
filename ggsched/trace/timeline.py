"""A timeline: what each stream and each host thread did when, measured or expected.

It is what pictures and accounts are made from. A launch is one span, with its nodes as parts.
"""

from typing import Literal, NamedTuple

import msgspec

from ggsched.plan.bundle import Plan
from ggsched.trace.schema import ClockKind

SpanKind = Literal[
    "launch", "upload", "download", "copy", "record", "wait", "barrier", "sync", "host"
]

COPIES: frozenset[SpanKind] = frozenset(("upload", "download", "copy"))


class NodeSpan(NamedTuple):
    """One node of a launch.

    Attributes:
        label: Of the node.
        start_s: When it began.
        end_s: When it had ended.
        by_reference: See ``Work``.
    """

    label: str
    start_s: float
    end_s: float
    by_reference: bool = False


class Span(msgspec.Struct, frozen=True, omit_defaults=True):
    """A command, or something that the host did.

    Attributes:
        id: Index in ``Timeline.spans``, which is the order of the host's calls.
        track: Index of the track in ``Timeline.tracks``.
        kind: What sort of thing.
        label: What it is, for people.
        issued_s: When the host began to enqueue it.
        start_s: When it began; a wait begins when its stream comes to it.
        end_s: When it had ended.
        command: Id of the plan's command, or -1.
        run: Index in ``Timeline.runs``, or -1.
        nbytes: Bytes that a copy moves, or that a launch touches.
        src: Where a copy's bytes come from: name of a device, or ``"host"``.
        dst: Where they go.
        event: Event that is recorded or waited for, or -1.
        target: Track that a sync waits for; -1 for all, or for none.
        reason: The hazard that a wait discharges, for people.
        is_estimated: Whether nobody measured when it ran.
        nodes: The nodes of a launch, where they were measured.
        peers: Of a launch that reads memory of other devices, their names and how many bytes.
    """

    id: int
    track: int
    kind: SpanKind
    label: str
    issued_s: float
    start_s: float
    end_s: float
    command: int = -1
    run: int = -1
    nbytes: int = 0
    src: str = ""
    dst: str = ""
    event: int = -1
    target: int = -1
    reason: str = ""
    is_estimated: bool = False
    nodes: tuple[NodeSpan, ...] = ()
    peers: tuple[tuple[str, int], ...] = ()


class Track(msgspec.Struct, frozen=True):
    """A stream or a host thread.

    Attributes:
        id: Index in ``Timeline.tracks``.
        name: For people.
        device: Name of a stream's device; ``""`` for a host thread.
    """

    id: int
    name: str
    device: str = ""


class TimedRun(msgspec.Struct, frozen=True):
    """A run of a plan.

    Attributes:
        plan: Index in ``Timeline.plans``.
        start_s: When the host began it.
        end_s: When the host had its outputs.
    """

    plan: int
    start_s: float
    end_s: float


class Timeline(msgspec.Struct, frozen=True):
    """What happened when.

    Attributes:
        name: For people.
        tracks: All tracks, by id.
        spans: All spans, by id.
        runs: Runs of plans.
        clock: What times are in.
        is_expected: Whether nothing has run, and the times come from a cost model.
    """

    name: str
    tracks: tuple[Track, ...]
    spans: tuple[Span, ...]
    runs: tuple[TimedRun, ...] = ()
    plans: tuple[Plan, ...] = ()
    clock: ClockKind = "host"
    is_expected: bool = False

    @property
    def start_s(self) -> float:
        """When the first span begins; 0 where there is none."""
        return min((s.start_s for s in self.spans), default=0.0)

    @property
    def end_s(self) -> float:
        """When the last span ends; 0 where there is none."""
        return max((s.end_s for s in self.spans), default=0.0)


def extents(timeline: Timeline) -> list[tuple[float, float]]:
    """Return when the work of each run began and ended.

    As the host saw it where it waited for outputs. Where there are none it goes on when all is
    enqueued, and the next run may be under way before: there it is from the first launch to the
    last.
    """
    found = [(run.start_s, run.end_s) for run in timeline.runs]
    is_open = [bool(p.commands) and not p.outputs for p in timeline.plans]
    launches: dict[int, list[Span]] = {}
    for span in timeline.spans:
        if span.kind == "launch" and 0 <= span.run < len(found):
            launches.setdefault(span.run, []).append(span)
    for number, spans in launches.items():
        plan = timeline.runs[number].plan
        if plan < len(is_open) and is_open[plan]:
            found[number] = min(s.start_s for s in spans), max(s.end_s for s in spans)
    return found


def only_runs(timeline: Timeline, first: int = 0, end: int | None = None) -> Timeline:
    """Return a timeline with the spans of some runs only, ids made dense."""
    wanted = range(len(timeline.runs))[first:end]
    kept = [s for s in timeline.spans if s.run in wanted]
    spans = tuple(
        msgspec.structs.replace(s, id=i, run=s.run - wanted.start) for i, s in enumerate(kept)
    )
    runs = timeline.runs[wanted.start : wanted.stop]
    return msgspec.structs.replace(timeline, spans=spans, runs=runs)


def us(seconds: float) -> float:
    """Return microseconds, to the nanosecond."""
    return round(1e6 * seconds, 3)
