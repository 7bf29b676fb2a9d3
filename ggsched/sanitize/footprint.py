"""Which bytes each command touches, from its copies and steps, not from what it declares."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ggsched.ids import show
from ggsched.plan.bundle import Plan
from ggsched.plan.command import Launch
from ggsched.plan.memory import Region
from ggsched.sanitize.report import Finding

Span = tuple[int, int, int]
"""(arena, first byte, one past the last)."""


class Footprint(NamedTuple):
    """Bytes that a command touches, merged and sorted.

    Attributes:
        reads: Spans that it reads and does not write.
        writes: Spans that it writes, whether or not it reads them too.
        host: Spans that the host reads while it enqueues the command.
    """

    reads: Sequence[Span]
    writes: Sequence[Span]
    host: Sequence[Span] = ()


def find_footprints(plan: Plan) -> tuple[list[Footprint | None], list[Finding]]:
    """Return the footprint of each command, and launches that declare less than they touch."""
    footprints: list[Footprint | None] = []
    findings: list[Finding] = []
    for command in plan.commands:
        if isinstance(command, Launch):
            reads, writes = _touched(command)
            for mode, touched, declared in (
                ("reads", reads, command.reads),
                ("writes", writes, command.writes),
            ):
                if missing := _undeclared(touched, declared):
                    findings.append(_undeclared_finding(command, mode, missing))
            footprints.append(Footprint(subtract(reads, writes), writes))
        else:
            e = command.effects
            spans = (_spans(e.reads), _spans(e.writes), _spans(e.host_reads))
            footprints.append(Footprint(*spans) if e.engine else None)
    return footprints, findings


def _spans(regions: Iterable[Region]) -> list[Span]:
    return merge((r.arena, r.offset, r.end) for r in regions)


def _touched(command: Launch) -> tuple[list[Span], list[Span]]:
    reads: list[Span] = []
    writes: list[Span] = []
    for step in command.steps:
        for (arena, offset, nbytes), mode in zip(step.operands, step.modes, strict=False):
            if mode == "r":
                reads.append((arena, offset, offset + nbytes))
            elif mode != "-":
                writes.append((arena, offset, offset + nbytes))
    return merge(reads), merge(writes)


def merge(spans: Iterable[Span]) -> list[Span]:
    """Return the same bytes as sorted spans that do not touch each other."""
    merged: list[Span] = []
    current, begin, until = -1, 0, 0
    for span in sorted(spans):
        arena, start, end = span
        if merged and arena == current and start <= until:
            if end > until:
                until = end
                merged[-1] = (arena, begin, end)
        elif end > start:
            merged.append(span)
            current, begin, until = span
    return merged


def subtract(spans: Sequence[Span], holes: Sequence[Span]) -> list[Span]:
    """Return the bytes of ``spans`` that are not in ``holes``; both merged."""
    left: list[Span] = []
    k = 0
    for arena, start, end in spans:
        at = start
        while k < len(holes) and (holes[k][0], holes[k][2]) <= (arena, at):
            k += 1
        j = k
        while j < len(holes) and holes[j][0] == arena and holes[j][1] < end:
            if holes[j][1] > at:
                left.append((arena, at, holes[j][1]))
            at = max(at, holes[j][2])
            j += 1
        if at < end:
            left.append((arena, at, end))
    return left


def _undeclared(touched: list[Span], declared: Sequence[Region]) -> list[Span]:
    if len(touched) == len(declared) and all(
        span[0] == r[0] and span[1] == r[1] and span[2] == r[1] + r[2]
        for span, r in zip(touched, declared, strict=True)
    ):
        return []
    return subtract(touched, merge((r.arena, r.offset, r.end) for r in declared))


def _undeclared_finding(command: Launch, mode: str, missing: list[Span]) -> Finding:
    arena, start, end = missing[0]
    where = f"{show('arena', arena)}[{start}:{end}]"
    what = f"{show('command', command.id)} {mode} {where} without declaring it"
    fix = "declare the union of what the steps touch"
    return Finding("declared", what, command.id, fix, arena, start, end)
