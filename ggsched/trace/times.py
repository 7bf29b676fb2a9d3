"""From the records of a trace to a timeline: who did what when, estimated where nobody measured."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from typing import Final

import msgspec

from ggsched.errors import UsageError
from ggsched.plan.text import action_text
from ggsched.trace.commands import Origin, origins
from ggsched.trace.estimate import Estimator
from ggsched.trace.host_memory import HOST_SPACE
from ggsched.trace.schema import Alloc, Barrier, Entry, Record, Sync, Trace, Wait, Work
from ggsched.trace.timeline import NodeSpan, Span, SpanKind, TimedRun, Timeline, Track
from ggsched.units import seconds_text

_HOST: Final = "host"
_Timed = Work | Record | Wait | Barrier | Sync


def timeline_of(trace: Trace, *, is_expected: bool = False) -> Timeline:
    """Return the timeline of a trace.

    Records without times of their own lie between what came before them and the first wait of
    the host that covers them; they are marked as estimated.

    Raises:
        UsageError: no record has a time, so nothing can be said.
    """
    if not any(getattr(e, "issued_s", None) is not None for e in trace.entries):
        raise UsageError(
            "no record of the trace has a time",
            where=trace.name,
            hint="record it with 'ggsched run --trace FILE', which takes times",
        )
    spans = _with_planning(_Spans(trace).all(), trace)
    return Timeline(
        trace.name,
        tuple(Track(a.id, a.name, a.device) for a in trace.actors),
        tuple(msgspec.structs.replace(span, id=i) for i, span in enumerate(spans)),
        tuple(TimedRun(r.plan, r.start_s, r.end_s) for r in trace.runs),
        tuple(traced.plan for traced in trace.plans),
        trace.clock,
        is_expected,
    )


def _with_planning(spans: list[Span], trace: Trace) -> list[Span]:
    """Add to the host's track that plans were made, before the first run of each.

    A plan says how long planning took; when that was is an estimate, for memory is allocated and
    programs are compiled between planning and the run. Simulated time has no part in it.
    """
    found = list(spans)
    if trace.clock == "simulated":
        return found
    for number in reversed(range(len(trace.plans))):
        plan = trace.plans[number].plan
        run = next((i for i, r in enumerate(trace.runs) if r.plan == number), None)
        if run is None or not plan.planning_s:
            continue
        end = trace.runs[run].start_s
        first = max(0.0, end - plan.planning_s)
        at = next((i for i, s in enumerate(found) if s.run >= run), len(found))
        label = f"plan {number} is made: {seconds_text(plan.planning_s)}"
        actor = trace.runs[run].actor
        made = Span(0, actor, "host", label, first, first, end, is_estimated=True)
        found.insert(at, made)
    return found


class _Spans:
    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.origins = origins(trace)
        self.estimate = Estimator(trace)
        self.homes = _homes(trace)

    def all(self) -> list[Span]:
        found: list[Span] = []
        numbered = [(i, e) for i, e in enumerate(self.trace.entries) if isinstance(e, _Timed)]
        for _, group in groupby(numbered, key=lambda pair: self._group(*pair)):
            found.append(self._span(list(group)))
        return found

    def _group(self, i: int, entry: Entry) -> tuple[int, int, int, int]:
        """Return a key that the records of one command have in common, and no other."""
        origin = self.origins[i]
        if origin.command < 0 or not isinstance(entry, Work):
            return (-1, i, 0, 0)
        return (entry.actor, origin.run, origin.command, 0)

    def _span(self, group: list[tuple[int, _Timed]]) -> Span:
        i, entry = group[0]
        times = [self.estimate.of(k) for k, _ in group]
        origin = self.origins[i]
        kind = self._kind(entry)
        src, dst = self._path(entry, kind)
        nodes = tuple(
            NodeSpan(e.label, t.start_s, t.end_s, e.by_reference)
            for (_, e), t in zip(group, times, strict=True)
            if isinstance(e, Work)
        )
        is_split = kind == "launch" and len({n.start_s for n in nodes}) > 1
        return Span(
            0,
            entry.actor,
            kind,
            self._label(entry, origin, kind),
            times[0].issued_s,
            min(t.start_s for t in times),
            max(t.end_s for t in times),
            origin.command,
            origin.run,
            sum(_nbytes(e, kind) for _, e in group),
            src,
            dst,
            -1 if isinstance(entry, Work | Barrier) or entry.event is None else entry.event,
            -1 if not isinstance(entry, Sync) or entry.stream is None else entry.stream,
            self._reason(origin),
            any(t.is_estimated for t in times),
            nodes if is_split else (),
            self._peers(group) if kind == "launch" else (),
        )

    def _peers(self, group: list[tuple[int, _Timed]]) -> tuple[tuple[str, int], ...]:
        """Return the bytes that a launch reads from memory of other devices, by device."""
        own = self.trace.actors[group[0][1].actor].device
        nbytes: dict[str, int] = defaultdict(int)
        for _, entry in group:
            for a in entry.reads if isinstance(entry, Work) else ():
                home = self.homes.get(a.memory, own)
                if home not in (own, _HOST, ""):
                    nbytes[home] += a.end - a.start
        return tuple(sorted(nbytes.items()))

    def _kind(self, entry: _Timed) -> SpanKind:
        match entry:
            case Work(is_copy=True):
                if not entry.reads:  # an upload from a snapshot (CPY-4), or of no source
                    return "upload" if "upload" in entry.label else "copy"
                if {self.homes.get(a.memory, "") == _HOST for a in entry.reads} == {True}:
                    return "upload"
                to_host = {self.homes.get(a.memory, "") == _HOST for a in entry.writes} == {True}
                return "download" if to_host else "copy"
            case Work():
                return "host" if self.trace.actors[entry.actor].kind == _HOST else "launch"
            case Record():
                return "record"
            case Wait():
                return "wait"
            case Barrier():
                return "barrier"
            case Sync():
                return "sync"

    def _path(self, entry: _Timed, kind: SpanKind) -> tuple[str, str]:
        if not isinstance(entry, Work) or not entry.is_copy:
            return "", ""
        own = self.trace.actors[entry.actor].device
        if kind == "copy" and not entry.reads:
            return own, own
        src = next((self.homes.get(a.memory, own) for a in entry.reads), own)
        dst = next((self.homes.get(a.memory, own) for a in entry.writes), own)
        return (_HOST if kind == "upload" else src), (_HOST if kind == "download" else dst)

    def _label(self, entry: _Timed, origin: Origin, kind: SpanKind) -> str:
        if origin.command >= 0:
            plan = self.trace.plans[self.trace.runs[origin.run].plan].plan
            return action_text(plan, plan.commands[origin.command])
        if isinstance(entry, Work):
            return entry.label
        return kind

    def _reason(self, origin: Origin) -> str:
        if origin.command < 0:
            return ""
        plan = self.trace.plans[self.trace.runs[origin.run].plan].plan
        hazard = plan.commands[origin.command].effects.hazard
        return "" if hazard is None else hazard.text


def _homes(trace: Trace) -> dict[int, str]:
    """Return for each memory object the device whose it is, or ``"host"``."""
    devices = {a.device for a in trace.actors}
    homes: dict[int, str] = defaultdict(str)
    for entry in trace.entries:
        if isinstance(entry, Alloc):
            name = _device_in(entry.name, devices)
            homes[entry.memory] = _HOST if entry.space == HOST_SPACE or not name else name
    return homes


def _device_in(name: str, devices: set[str]) -> str:
    return next((word for word in name.split() if word in devices), "")


def _nbytes(entry: Entry, kind: SpanKind) -> int:
    if not isinstance(entry, Work):
        return 0
    accesses = entry.writes if kind in ("upload", "copy") else entry.reads
    if kind in ("launch", "host"):
        accesses = (*entry.reads, *entry.writes)
    return sum(a.end - a.start for a in accesses)


def spans_by_track(timeline: Timeline) -> Iterator[tuple[Track, list[Span]]]:
    """Yield each track with its spans, in the order of the host's calls."""
    of_track: dict[int, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        of_track[span.track].append(span)
    for track in timeline.tracks:
        yield track, of_track[track.id]
