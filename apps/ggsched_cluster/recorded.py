"""What machines recorded of their runs, put on one time line.

Every machine records what its own devices and its host did, by its own clock. The driver finds out
how far each clock is ahead of its own (``pings``), and subtracts that; how exact that is, it says.
Of messages the sender records when it began to send, the receiver when it had all bytes.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

import msgspec

from ggsched.plan.bundle import Plan
from ggsched.plan.parts import Part, Receive, Send
from ggsched.trace.recorder import Recorder
from ggsched.trace.timeline import Span, TimedRun, Timeline, Track
from ggsched.trace.times import timeline_of
from ggsched.units import nbytes_text, seconds_text
from ggsched_cluster.pings import ClockOffset

_CLOCK_NAMES: Final = 3
"""Machines whose clocks a title names."""


class MessageTime(msgspec.Struct, frozen=True):
    """One half of a message.

    Attributes:
        run: Number of the run, of the session.
        tag: Of the message.
        machine: The other machine.
        nbytes: Of the message.
        is_sent: Whether it is the sender's half.
        start_s: When the host began to send or to wait for it, by its clock.
        end_s: When it went on.
    """

    run: int
    tag: int
    machine: int
    nbytes: int
    is_sent: bool
    start_s: float
    end_s: float


class MachineRecord(msgspec.Struct, frozen=True):
    """What one machine recorded.

    Attributes:
        origin_s: Time of its clock that times of the time line count from.
        timeline: Of its streams and its host; without plans.
        runs: Number in the session of each run of the time line.
        track: Of the host.
        messages: Both halves of its messages.
    """

    origin_s: float
    timeline: Timeline
    runs: tuple[int, ...]
    track: int
    messages: tuple[MessageTime, ...]


class LinkUse(msgspec.Struct, frozen=True):
    """What went over one link.

    Attributes:
        src: Name of the machine that sent.
        dst: Name of the machine that received.
        messages: Their number.
        median_s: Half of them took as long, from the beginning of sending to the last byte.
        waited_s: Time that the host of the receiver has waited for them.
    """

    src: str
    dst: str
    messages: int
    nbytes: int
    median_s: float
    waited_s: float


class Recorded(msgspec.Struct, frozen=True):
    """What several machines did, by one clock: that of the driver.

    Attributes:
        timeline: Everything; tracks have the names of their machines.
        clocks: By machine how far its clock was ahead, which has been subtracted.
        links: What went over each link.
    """

    timeline: Timeline
    clocks: tuple[tuple[str, ClockOffset], ...]
    links: tuple[LinkUse, ...]

    def by_machine(self) -> list[tuple[str, Timeline]]:
        """Return the time line of each machine alone: idle time is accounted for by machine."""
        found = []
        for name, _ in self.clocks:
            own = {t.id for t in self.timeline.tracks if t.name.startswith(f"{name} ")}
            kept = [s for s in self.timeline.spans if s.track in own]
            spans = tuple(msgspec.structs.replace(s, id=i) for i, s in enumerate(kept))
            if spans:
                found.append((name, msgspec.structs.replace(self.timeline, spans=spans)))
        return found

    def to_json(self) -> dict[str, Any]:
        """Return clocks and links as plain data."""
        return {
            "clocks": {name: clock._asdict() for name, clock in self.clocks},
            "links": msgspec.to_builtins(self.links),
        }

    def to_text(self) -> str:
        """Return clocks and links for people."""
        lines = ["clocks, as far as they were ahead of this machine's (subtracted):"]
        lines += [
            f"  {name}  {seconds_text(c.offset_s, signed=True)}, right to {seconds_text(c.error_s)}"
            for name, c in self.clocks
        ]
        lines.append("messages between machines:")
        lines += [
            f"  {u.src} -> {u.dst}  {u.messages} messages, {nbytes_text(u.nbytes)}, "
            f"median {seconds_text(u.median_s)}, {seconds_text(u.waited_s)} waited for"
            for u in self.links
        ] or ["  none"]
        return "\n".join(lines) + "\n"


class WorkerRecord:
    """Records the runs of one machine.

    Args:
        recorder: What its devices were traced with.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._runs: list[int] = []
        self._messages: list[MessageTime] = []
        self._ids: list[list[int]] = []
        self._plans: list[Plan] = []
        self._number: list[int] = []

    def plan_of(self, part: Part, local: Plan) -> Plan:
        """Return what the recorder records of a part: its commands without messages, numbered."""
        own = [c for c in part.commands if not isinstance(c, Send | Receive)]
        commands = tuple(msgspec.structs.replace(c, id=i) for i, c in enumerate(own))
        self._ids.append([c.id for c in own])
        self._plans.append(msgspec.structs.replace(local, commands=commands))
        return self._plans[-1]

    def begins(self, run: int, plan: Plan) -> None:
        """Note that a run of a plan begins."""
        self._runs.append(run)
        self._number.append(next(i for i, p in enumerate(self._plans) if p is plan))

    def message(self, time: MessageTime) -> None:
        """Note half of a message."""
        self._messages.append(time)

    def taken(self) -> MachineRecord | None:
        """Return what was recorded; None where nothing has run."""
        trace = self.recorder.trace("part")
        if not trace.runs:
            return None
        timeline = timeline_of(trace)
        spans = tuple(
            msgspec.structs.replace(s, command=self._ids[self._number[s.run]][s.command])
            if s.run >= 0 and s.command >= 0
            else s
            for s in timeline.spans
        )
        return MachineRecord(
            self.recorder.origin_s,
            msgspec.structs.replace(timeline, spans=spans, plans=()),
            tuple(self._runs),
            self.recorder.thread,
            tuple(self._messages),
        )


def merged(
    name: str,
    found: Mapping[int, MachineRecord],
    names: Sequence[str],
    offsets: Sequence[ClockOffset],
    runs: Mapping[int, int],
    plans: Sequence[Plan],
) -> Recorded:
    """Return what all machines recorded, by the clock of the driver.

    Args:
        name: For people.
        names: Of the machines.
        offsets: How far the clock of each is ahead.
        runs: By its number in the session the plan of each run.
    """
    ahead = {m: r.origin_s - offsets[m].offset_s for m, r in found.items()}
    zero = min(
        (ahead[m] + s.issued_s for m, r in found.items() for s in r.timeline.spans), default=0.0
    )
    every = sorted({n for r in found.values() for n in r.runs if n in runs})  # what failed is not
    order = {run: i for i, run in enumerate(every)}
    tracks: list[Track] = []
    spans: list[Span] = []
    bounds: dict[int, tuple[float, float]] = {}
    events = 0
    for m, record in found.items():
        first, shift = len(tracks), ahead[m] - zero
        for t in record.timeline.tracks:
            device = f"{names[m]}/{t.device}" if t.device else ""
            tracks.append(Track(first + t.id, f"{names[m]} {t.name}", device))
        mine = record.timeline.spans
        spans += [_moved(s, shift, (first, events), names[m], record, order) for s in mine]
        events += 1 + max((s.event for s in mine), default=-1)
        spans += [
            _message(t, shift - record.origin_s, first + record.track, names, m, order)
            for t in record.messages
        ]
        for run, timed in zip(record.runs, record.timeline.runs, strict=True):
            if run not in order:
                continue
            start, end = bounds.get(run, (float("inf"), 0.0))
            bounds[run] = (min(start, timed.start_s + shift), max(end, timed.end_s + shift))
    spans.sort(key=lambda s: s.issued_s)
    clocks = tuple(zip(names, offsets, strict=True))
    said = ", ".join(
        f"{n} {seconds_text(c.offset_s, signed=True)} ± {seconds_text(c.error_s)}"
        for n, c in clocks[:_CLOCK_NAMES]
    )
    timeline = Timeline(
        f"{name} (one clock; subtracted: {said}{', ...' if len(clocks) > _CLOCK_NAMES else ''})",
        tuple(tracks),
        tuple(msgspec.structs.replace(s, id=i) for i, s in enumerate(spans)),
        tuple(TimedRun(runs[n], *bounds[n]) for n in order),
        tuple(plans),
    )
    return Recorded(timeline, clocks, _links(found, names, offsets))


def _moved(
    span: Span,
    shift: float,
    firsts: tuple[int, int],
    name: str,
    record: MachineRecord,
    order: Mapping[int, int],
) -> Span:
    """Return a span of a machine among those of all: numbers of tracks and events go on."""
    first, event = firsts

    def full(device: str) -> str:
        return f"{name}/{device}" if device not in ("", "host") else device

    return msgspec.structs.replace(
        span,
        track=first + span.track,
        issued_s=span.issued_s + shift,
        start_s=span.start_s + shift,
        end_s=span.end_s + shift,
        run=order.get(record.runs[span.run], -1) if span.run >= 0 else -1,
        src=full(span.src),
        dst=full(span.dst),
        event=span.event if span.event < 0 else event + span.event,
        target=span.target if span.target < 0 else first + span.target,
        nodes=tuple(
            n._replace(start_s=n.start_s + shift, end_s=n.end_s + shift) for n in span.nodes
        ),
        peers=tuple((full(device), nbytes) for device, nbytes in span.peers),
    )


def _message(
    half: MessageTime,
    shift: float,
    track: int,
    names: Sequence[str],
    machine: int,
    order: Mapping[int, int],
) -> Span:
    other = names[half.machine]
    label = f"send #{half.tag} to {other}" if half.is_sent else f"receive #{half.tag} from {other}"
    start, end = half.start_s + shift, half.end_s + shift
    ends = (names[machine], other) if half.is_sent else (other, names[machine])
    return Span(
        0,
        track,
        "host",
        label,
        start,
        start,
        end,
        run=order.get(half.run, -1),
        nbytes=half.nbytes,
        src=ends[0],
        dst=ends[1],
    )


def _links(
    found: Mapping[int, MachineRecord], names: Sequence[str], offsets: Sequence[ClockOffset]
) -> tuple[LinkUse, ...]:
    sent: dict[tuple[int, int], float] = {}
    took: dict[tuple[int, int], list[tuple[int, float, float]]] = {}
    for m, record in found.items():
        for half in record.messages:
            if half.is_sent:
                sent[half.run, half.tag] = half.start_s - offsets[m].offset_s
    for m, record in found.items():
        for half in record.messages:
            began = sent.get((half.run, half.tag))
            if not half.is_sent and began is not None:
                seconds = half.end_s - offsets[m].offset_s - began
                times = (half.nbytes, seconds, half.end_s - half.start_s)
                took.setdefault((half.machine, m), []).append(times)
    return tuple(
        LinkUse(
            names[a],
            names[b],
            len(some),
            sum(n for n, _, _ in some),
            median(s for _, s, _ in some),
            sum(w for _, _, w in some),
        )
        for (a, b), some in sorted(took.items())
    )
