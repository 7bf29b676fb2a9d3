"""Times of records while they are being collected, and how they become part of them."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import assert_never

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


class Stamp:
    """When a call was made, and what may tell when its command ran.

    Attributes:
        before_s: When the call began, by the recorder's clock.
        after_s: When it had returned.
        taken: Times of the device, to be looked at when they are known.
    """

    __slots__ = ("_at_s", "_parts", "after_s", "before_s", "taken")

    def __init__(self, before_s: float, after_s: float = 0.0, taken: Taken | None = None) -> None:
        self.before_s = before_s
        self.after_s = after_s
        self.taken = taken
        self._parts: dict[str, Part] | None = None
        self._at_s = 0.0

    def part(self, label: str) -> Part | None:
        """Return when the command ran, or a node of it; None where that is not known.

        Nodes are asked for in their order. One that took no step of its own, being empty or part
        of a group that ran as one, takes no time behind the one before it.
        """
        if self._parts is None:
            parts = self.taken.parts() if self.taken is not None else ()
            if parts is None:
                return None
            self._parts = {part.label: part for part in parts}
            self._at_s = parts[0].start_s if parts else 0.0
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


def stamped(entry: Entry, stamp: Stamp | None, origin_s: float) -> Entry:
    """Return a record with its times, in seconds since ``origin_s``."""
    if stamp is None:
        return entry
    before = round(stamp.before_s - origin_s, 9)
    match entry:
        case Sync():
            after = round(stamp.after_s - origin_s, 9)
            return msgspec.structs.replace(entry, start_s=before, end_s=after)
        case Alloc() | Free():
            return msgspec.structs.replace(entry, issued_s=before)
        case Work() | Record() | Wait() | Barrier():
            part = stamp.part(entry.label if isinstance(entry, Work) else "")
            if part is None:
                return msgspec.structs.replace(entry, issued_s=before)
            start, end = (round(t - origin_s, 9) for t in (part.start_s, part.end_s))
            return msgspec.structs.replace(entry, issued_s=before, start_s=start, end_s=end)
        case CaptureBegin() | CaptureEnd():
            return entry
        case _:
            assert_never(entry)


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
