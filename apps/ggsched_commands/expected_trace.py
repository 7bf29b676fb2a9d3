"""A plan as the timeline of a run that has not happened, by what a cost model says of its work."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from ggsched.plan.bundle import Plan
from ggsched.trace.schema import Entry, Expected, Record, Run, Sync, Trace, TracedPlan, Wait, Work
from ggsched.trace.timeline import Timeline
from ggsched.trace.times import timeline_of
from ggsched.trace.unroll import HOST, unroll

ENQUEUE_S: Final = 2e-6
"""Seconds that the host takes for each command, if nothing else is known."""


def expected_timeline(
    plan: Plan, expected: Iterable[Expected], *, enqueue_s: float = ENQUEUE_S
) -> Timeline:
    """Return the timeline of one run of a plan.

    Args:
        expected: When each command that does work runs; from any moment on.
        enqueue_s: Seconds that the host takes for each command.
    """
    return timeline_of(expected_trace(plan, tuple(expected), enqueue_s), is_expected=True)


def expected_trace(plan: Plan, expected: Sequence[Expected], enqueue_s: float) -> Trace:
    """Return the trace that one run would leave, with the times that are expected."""
    unrolled = unroll(plan, 1)
    begin = min((e.start_s for e in expected), default=enqueue_s) - enqueue_s
    spans = {e.command: (e.start_s - begin, e.end_s - begin) for e in expected}
    writer = _Writer(spans, enqueue_s)
    pairs = list(zip(unrolled.trace.entries, unrolled.origins, strict=True))
    first = _first_of_run(unrolled.origins, unrolled.trace.entries)
    entries = [entry for entry, _ in pairs[:first]]
    entries += [writer.entry(entry, origin) for entry, origin in pairs[first:]]
    run = Run(0, HOST, first, len(entries), 0.0, max(writer.host_s, writer.end_s))
    return msgspec.structs.replace(
        unrolled.trace, entries=tuple(entries), plans=(TracedPlan(plan),), runs=(run,)
    )


def _first_of_run(commands: Sequence[int], entries: Sequence[Entry]) -> int:
    """Return the first record of the run itself; before it memory is made and filled."""
    for i, (command, entry) in enumerate(zip(commands, entries, strict=True)):
        if command >= 0 or (isinstance(entry, Work) and entry.label == "write inputs"):
            return i
    return len(entries)


class _Writer:
    def __init__(self, spans: dict[int, tuple[float, float]], enqueue_s: float) -> None:
        self._spans = spans
        self._enqueue_s = enqueue_s
        self._last: dict[int, float] = defaultdict(float)
        self._done: dict[int, float] = {}
        self._present = -1
        self.host_s = 0.0
        self.end_s = 0.0

    def entry(self, entry: Entry, command: int) -> Entry:
        """Return a record with its times."""
        if isinstance(entry, Sync):
            begin, self.host_s = self.host_s, max(self.host_s, self._until(entry))
            return msgspec.structs.replace(entry, start_s=begin, end_s=self.host_s)
        if command != self._present and command >= 0:
            self._present = command
            self.host_s += self._enqueue_s
        if isinstance(entry, Work):
            if entry.actor == HOST:
                return msgspec.structs.replace(entry, start_s=self.host_s, end_s=self.host_s)
            start, end = self._spans.get(command, (self.host_s, self.host_s))
            start, end = max(start, self.host_s), max(end, self.host_s)
            self._last[entry.actor] = max(self._last[entry.actor], end)
            self.end_s = max(self.end_s, end)
            return msgspec.structs.replace(entry, issued_s=self.host_s, start_s=start, end_s=end)
        if isinstance(entry, Record):
            self._done[entry.event] = self._last[entry.actor] = max(
                self._last[entry.actor], self.host_s
            )
            return msgspec.structs.replace(entry, issued_s=self.host_s)
        if isinstance(entry, Wait):
            done = self._done.get(entry.event, 0.0)
            self._last[entry.actor] = max(self._last[entry.actor], done, self.host_s)
            return msgspec.structs.replace(entry, issued_s=self.host_s)
        return entry

    def _until(self, entry: Sync) -> float:
        if entry.event is not None:
            return self._done.get(entry.event, 0.0)
        ends = self._last.values() if entry.stream is None else [self._last[entry.stream]]
        return max(ends, default=0.0)
