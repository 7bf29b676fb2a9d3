"""Times of records while they are being collected, and how they become part of them."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, assert_never

import msgspec

from ggsched.backend.timing import Part, Taken
from ggsched.trace.schema import (
    Alloc,
    Barrier,
    CaptureBegin,
    CaptureEnd,
    Entry,
    Free,
    Record,
    Run,
    Sync,
    Wait,
    Work,
)

Stamp = Sequence[Any]
"""``(before_s, after_s, taken)``: when a call began and had returned, by the recorder's clock, and
what may return when its command ran, or None. A plain tuple: one is made for each call."""


class _Known:
    """When a command ran, or the nodes of a launch, queried in their order."""

    def __init__(self, taken: Taken | None) -> None:
        parts = taken.parts() if taken is not None else None
        self._parts = {part.label: part for part in parts or ()}
        self._at_s = parts[0].start_s if parts else 0.0

    def part(self, label: str) -> Part | None:
        """Return when a node ran, "" for all of a command; None where that is not known.

        One that took no step of its own, being empty or part of a group that ran as one, takes no
        time behind the one before it.
        """
        known = self._parts.get(label) or self._parts.get("")
        if known is None and self._parts:
            known = self._parts[label] = Part(label, self._at_s, self._at_s)
        if known is not None:
            self._at_s = known.end_s
        return known


class OpenRun:
    """A run while it is being recorded; see ``Run``."""

    __slots__ = ("actor", "end", "end_s", "first", "plan", "start_s")

    def __init__(self, plan: int, actor: int, first: int, start_s: float) -> None:
        self.plan, self.actor, self.first, self.start_s = plan, actor, first, start_s
        self.end, self.end_s = first, start_s


class Stamper:
    """Puts times into records, in their order.

    Args:
        origin_s: When the trace began, by the recorder's clock.
    """

    def __init__(self, origin_s: float) -> None:
        self._origin_s = origin_s
        self._of: object = None
        self._known = _Known(None)

    def stamped(self, entry: Entry, stamp: Stamp | None) -> Entry:
        """Return a record with its times, in seconds since the trace began."""
        if stamp is None:
            return entry
        before = self._since(stamp[0])
        match entry:
            case Sync():
                after = self._since(stamp[1])
                return msgspec.structs.replace(entry, start_s=before, end_s=after)
            case Alloc() | Free():
                return msgspec.structs.replace(entry, issued_s=before)
            case Work() | Record() | Wait() | Barrier():
                part = self._part(entry, stamp)
                if part is None:
                    return msgspec.structs.replace(entry, issued_s=before)
                start, end = self._since(part.start_s), self._since(part.end_s)
                return msgspec.structs.replace(entry, issued_s=before, start_s=start, end_s=end)
            case CaptureBegin() | CaptureEnd():
                return entry
            case _:
                assert_never(entry)

    def _part(self, entry: Work | Record | Wait | Barrier, stamp: Stamp) -> Part | None:
        if stamp is not self._of:  # the records of one launch follow each other
            self._of, self._known = stamp, _Known(stamp[2])
        return self._known.part(entry.label if isinstance(entry, Work) else "")

    def _since(self, seconds: float) -> float:
        return round(seconds - self._origin_s, 9)


def closed_runs(runs: Sequence[OpenRun], kept: Sequence[int], origin_s: float) -> tuple[Run, ...]:
    """Return runs by the positions that their records have among those that are kept."""
    return tuple(
        Run(
            run.plan,
            run.actor,
            bisect_left(kept, run.first),
            bisect_left(kept, run.end),
            round(run.start_s - origin_s, 9),
            round(run.end_s - origin_s, 9),
        )
        for run in runs
    )
