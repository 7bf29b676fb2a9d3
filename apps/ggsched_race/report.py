"""Findings about a recorded program, in words of PyTorch."""

from collections.abc import Sequence
from fnmatch import fnmatch
from textwrap import fill
from typing import Final, Literal

import msgspec

from ggsched.errors import UsageError
from ggsched.sanitize import Finding, check_trace
from ggsched.sanitize.from_trace import from_trace
from ggsched.sanitize.races import MAX_RACES
from ggsched.sanitize.redundant_sync import advise
from ggsched.sanitize.report import Touch
from ggsched.trace.export import is_object, read_trace
from ggsched.trace.schema import Record, Sync, Trace, Wait
from ggsched.units import seconds_text
from ggsched_race.call_sites import Stack
from ggsched_race.streamed import follow_lines
from ggsched_race.trace_notes import Notes, read_notes

WIDTH: Final = 100
_FRAMES: Final = 6
_ORDERS: Final = {
    "RAW": ("read after write", "the read", "the write"),
    "WAR": ("write after read", "the write", "the read"),
    "WAW": ("write after write", "the second write", "the first write"),
}

POSSIBLE: Final = "possible: all bytes of a kernel's tensors count, and it may touch only some"
_KINDS: Final = {Sync: "wait of the host", Record: "event recorded", Wait: "wait"}


class Side(msgspec.Struct, frozen=True):
    """One of the two accesses of a race.

    Attributes:
        record: Number of the record in the trace.
        stream: Who does it: a stream, by the name of the variable it was assigned to, or ``host``.
        op: What is called.
        mode: Whether the bytes are read or written.
        stack: The program's frames, the innermost first.
        captured: For a replay of a graph, the frames of the call that was captured.
        view: Shape and type of a tensor that is a part of the memory, or "".
    """

    record: int
    stream: str
    op: str
    mode: Literal["read", "write"]
    stack: Stack
    captured: Stack = ()
    view: str = ""

    def to_lines(self) -> list[str]:
        """Return the side with its frames."""
        view = f" as {self.view}" if self.view else ""
        lines = [f"{self.mode}: {self.op} on {self.stream}{view}"]
        lines += [f"    {frame.to_text()}" for frame in self.stack[:_FRAMES]]
        if self.captured:
            lines += ["    captured at", *(f"    {f.to_text()}" for f in self.captured[:_FRAMES])]
        return lines


class RaceFinding(msgspec.Struct, frozen=True):
    """A defect of the program.

    Attributes:
        kind: ``race``; ``freed`` for a graph that uses memory which has been freed; else a kind of
            the checker.
        hazard: For a race ``RAW``, ``WAR`` or ``WAW``.
        what: What is wrong, in a sentence.
        tensor: What the bytes belong to, and where that was made.
        mend: The smallest change that mends it.
        sides: The earlier and the later access.
        times: How often the same two calls race.
        is_possible: Whether a side is a kernel that may touch only a part of what it is given.
    """

    kind: str
    hazard: str
    what: str
    tensor: str
    mend: str
    sides: tuple[Side, ...] = ()
    times: int = 1
    is_possible: bool = False

    def to_text(self, number: int, least: str = "") -> str:
        """Return the finding for people; words before a count say that there may be more."""
        lines = [f"{number} {self.kind}: {self.what}"]
        lines += [f"  {self.tensor}"] if self.tensor else []
        lines += [f"  {line}" for side in self.sides for line in side.to_lines()]
        lines += [f"  {POSSIBLE}"] if self.is_possible else []
        lines += [f"  mend: {self.mend}"] if self.mend else []
        lines += [f"  the same two calls race {least}{self.times} times"] if self.times > 1 else []
        return "\n".join(fill(line, WIDTH, subsequent_indent="      ") for line in lines)

    def is_suppressed(self, patterns: Sequence[str]) -> bool:
        """Whether a frame of either side is like one of some patterns."""
        frames = [f.to_text() for s in self.sides for f in (*s.stack, *s.captured)]
        return any(fnmatch(frame, pattern) for frame in frames for pattern in patterns)


class Advice(msgspec.Struct, frozen=True):
    """What nobody needs: a wait or an event, by the line that makes it.

    Attributes:
        what: What is not needed.
        times: How often.
        seconds: What the host has waited there in sum; None where it does not wait.
    """

    what: str
    times: int
    seconds: float | None = None


class RaceReport(msgspec.Struct, frozen=True):
    """What is wrong with a recorded program.

    Attributes:
        records: Number of records.
        findings: What is wrong, each pair of calls once.
        suppressed: Number of findings that patterns exclude.
        advice: What is not wrong and not needed, where that was requested.
        failure: How a program that failed has ended, e.g. ``exit code 1``.
        is_cut_off: Whether the search stopped at ``MAX_RACES`` racing pairs; there may be more.
        notices: What of the program is not recorded, or otherwise than it is.
    """

    name: str
    records: int
    findings: tuple[RaceFinding, ...] = ()
    suppressed: int = 0
    advice: tuple[Advice, ...] = ()
    failure: str = ""
    is_cut_off: bool = False
    notices: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    @property
    def least(self) -> str:
        """Words before the number of findings."""
        return "at least " if self.is_cut_off else ""

    @property
    def verdict(self) -> str:
        """How much was judged, and how many findings there are."""
        until = f" until the program ended with {self.failure}" if self.failure else ""
        if not self.records:
            return f"nothing was recorded{until}"
        count = len(self.findings)
        verdict = f"{self.least}{count} finding{'s' if count > 1 else ''}" if count else "clean"
        if self.is_cut_off:
            verdict = verdict if count else "no other finding"
            verdict += f" until the search stopped at {MAX_RACES} racing pairs"
        verdict += f", {self.suppressed} suppressed" if self.suppressed else ""
        return f"{self.records} record{'s' if self.records > 1 else ''}{until}: {verdict}"

    def to_text(self) -> str:
        """Return the report for people."""
        parts = [f"{self.name}: {self.verdict}"]
        parts += [finding.to_text(i, self.least) for i, finding in enumerate(self.findings, 1)]
        for advice in self.advice:
            cost = f", {seconds_text(advice.seconds)}" if advice.seconds is not None else ""
            parts.append(f"advice: {advice.what}; {advice.times} times{cost}")
        parts += [f"note: {notice}" for notice in self.notices]
        return "\n".join(parts) + "\n"


def check_program(
    data: bytes,
    file: str = "trace",
    *,
    advice: bool = False,
    suppressions: Sequence[str] = (),
    failure: str = "",
) -> RaceReport:
    """Return what is wrong with a recorded program.

    Args:
        data: Its trace, in lines.
        file: Its name, for messages.
        advice: Whether to name waits and events that nobody needs, if nothing is wrong.
        suppressions: Patterns of frames (``train.py:* in step``) of findings to leave out.
        failure: How the program has ended, if it failed.

    Raises:
        UsageError: not a trace.
    """
    followed = None if is_object(data) else follow_lines(data, file)
    if followed is None or (advice and not followed.races):
        trace = read_trace(data, file)
        notes = read_notes(data, file)
        if len(notes.records) != len(trace.entries):
            raise UsageError("the trace is one object", where=file, hint="write it as FILE.jsonl")
        findings: Sequence[Finding] = check_trace(trace).findings
    else:
        trace, notes, findings = followed
    words = Words(trace, notes)
    merged: dict[object, RaceFinding] = {}
    for finding in findings:
        found = words.finding(finding)
        key = found.kind, found.hazard, found.tensor, *((s.stack, s.captured) for s in found.sides)
        times = merged[key].times + 1 if key in merged else 1
        merged[key] = msgspec.structs.replace(merged.get(key, found), times=times)
    kept = [f for f in merged.values() if not f.is_suppressed(suppressions)]
    return RaceReport(
        trace.name,
        len(trace.entries),
        tuple(kept),
        len(merged) - len(kept),
        tuple(words.advice()) if advice and not findings else (),
        failure,
        sum(finding.kind == "race" for finding in findings) >= MAX_RACES,
        notes.notices,
    )


class Words:
    """Says in terms of the program what a finding is about."""

    def __init__(self, trace: Trace, notes: Notes) -> None:
        self._trace = trace
        self._notes = notes

    def finding(self, finding: Finding) -> RaceFinding:
        """Return a finding of the checker with stacks and tensors."""
        if finding.earlier is None or finding.later is None:
            return self._other(finding)
        first, second = self._side(finding.earlier, finding), self._side(finding.later, finding)
        kind, late, early = _ORDERS[finding.hazard]
        part = self._part(finding)
        is_taken = finding.arena in self._notes.records[second.record].takes
        what = f"{kind}: nothing orders {late} of {part} on {second.stream}"
        what += f" after {early} on {first.stream}"
        if is_taken:
            what = f"{part} was freed and its memory is used again on {second.stream}"
            what += f"; nothing orders that after its last {first.mode} on {first.stream}"
        return RaceFinding(
            "race",
            finding.hazard,
            what,
            self._tensor(finding.arena),
            self._mend(first, second, part, is_taken),
            (first, second),
            is_possible=any(self._notes.records[s.record].is_possible for s in (first, second)),
        )

    def _other(self, finding: Finding) -> RaceFinding:
        """Return what is no race: a graph that uses freed memory, or a misuse."""
        side = self._side(Touch(max(finding.command, 0), -1, "", "", "read"), finding)
        if finding.kind != "freed":
            return RaceFinding(finding.kind, "", finding.what, "", finding.fix, (side,))
        name = self._part(finding)
        what = f"a graph is replayed that uses {name}, which the program has let go of"
        mend = f"keep {name} as long as the graph may be replayed"
        return RaceFinding("freed", "", what, self._tensor(finding.arena), mend, (side,))

    def _side(self, touch: Touch, finding: Finding) -> Side:
        entry = self._trace.entries[touch.command]
        note = self._notes.records[touch.command]
        views = [text for memory, text, _, _ in note.views if memory == finding.arena]
        return Side(
            touch.command,
            self._trace.actors[entry.actor].name,
            touch.action or getattr(entry, "label", ""),
            touch.mode,
            self._notes.stack(touch.command),
            self._notes.stack(touch.command, captured=True),
            views[0] if views else "",
        )

    def _part(self, finding: Finding) -> str:
        note = self._notes.memories.get(finding.arena)
        return note.part(finding.start, finding.end) if note else f"memory {finding.arena}"

    def _tensor(self, memory: int) -> str:
        note, made = self._notes.memories.get(memory), self._notes.made_at(memory)
        if note is None:
            return ""
        where = f", made at {made.to_text()}" if made else ""
        place = f", {note.place}" if note.place in ("pinned", "graph") else ""
        return f"{note.name}: {note.text}{place}{where}"

    def _mend(self, first: Side, second: Side, part: str, is_taken: bool) -> str:
        """Return the smallest wait that orders two accesses."""
        before = f"before {_place(second)}"
        if self._is_host(first):
            by = getattr(self._trace.entries[second.record], "by", -1)
            other = self._trace.actors[by].name if by >= 0 else second.stream
            how = "by a queue, a lock or an event of threading, or by join()"
            return f"hand over from {first.stream} to {other}, {how}, {before}"
        if first.op.startswith("c10d."):
            return f"call wait() of what {_place(first)} returns with async_op=True, {before}"
        event = self._event_between(first, second)
        if self._is_host(second):
            if event:
                return f"call synchronize() of {event}, {before}"
            after = f"after {_place(first)}"
            return f"e = {_variable(first)}.record_event() {after}, and e.synchronize() {before}"
        wait = f"{_variable(second)}.wait_stream({_variable(first)})"
        if event:
            wait = f"{_variable(second)}.wait_event() of {event}"
        mend = f"{wait}, {before}"
        if is_taken:
            name = part.partition("[")[0]
            stream = _variable(first)
            return f"{name}.record_stream({stream}) after {_place(first)}; or {mend}"
        return mend

    def _is_host(self, side: Side) -> bool:
        return self._trace.actors[self._trace.entries[side.record].actor].kind == "host"

    def _event_between(self, first: Side, second: Side) -> str:
        """Return the event that is recorded behind the first access anyway, or ""."""
        actor = self._trace.entries[first.record].actor
        for i in range(first.record + 1, second.record):
            entry = self._trace.entries[i]
            if isinstance(entry, Record) and entry.actor == actor:
                stack = self._notes.stack(i)
                return f"the event recorded at {stack[0].to_text()}" if stack else ""
        return ""

    def advice(self) -> list[Advice]:
        """Return advice by the line that it concerns; waits that are parts of ops stay."""
        kept = {i for i, note in enumerate(self._notes.records) if note.is_inherent}
        merged: dict[str, Advice] = {}
        for finding in advise(from_trace(self._trace), kept):
            entry, stack = self._trace.entries[finding.command], self._notes.stack(finding.command)
            is_copy = finding.what.endswith("copies")
            kind = "copy" if is_copy else _KINDS.get(type(entry), "work")
            where = f" at {stack[0].to_text()}" if stack else ""
            who = "" if isinstance(entry, Sync) else f" on {self._trace.actors[entry.actor].name}"
            what = f"nobody needs the {kind}{who}{where}"
            before = merged.get(what, Advice(what, 0))
            seconds = before.seconds
            if isinstance(entry, Sync) and entry.start_s is not None and entry.end_s is not None:
                seconds = (seconds or 0.0) + entry.end_s - entry.start_s
            merged[what] = Advice(what, before.times + 1, seconds)
        return list(merged.values())


def _variable(side: Side) -> str:
    return "torch.cuda.default_stream()" if side.stream == "default stream" else side.stream


def _place(side: Side) -> str:
    return side.stack[0].to_text() if side.stack else f"record {side.record}"
