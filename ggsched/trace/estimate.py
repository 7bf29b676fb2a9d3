"""Times of records that nobody measured, from what came before and who waited afterwards.

A stream runs its commands in order, so a command lies behind the one before it and before the end
of the first wait of the host that covers it. Waits, records and barriers take no time of their own:
a wait ends when its event is done.
"""

from bisect import bisect_right
from collections import defaultdict
from typing import NamedTuple

from ggsched.trace.schema import Barrier, Record, Sync, Trace, Wait, Work


class Times(NamedTuple):
    """When a record was.

    Attributes:
        issued_s: When the host began to enqueue it.
        start_s: When it began.
        end_s: When it had ended.
        is_estimated: Whether a piece of work was not measured.
    """

    issued_s: float
    start_s: float
    end_s: float
    is_estimated: bool = False


class Estimator:
    """Times of all records of a trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._times: dict[int, Times] = {}
        self._event_done: dict[int, float] = {}
        self._last: dict[int, float] = defaultdict(float)
        self._host_s = 0.0
        self._syncs = _syncs(trace)
        self._waiting: dict[int, list[int]] = defaultdict(list)
        for i in range(len(trace.entries)):
            self._place(i)
        for actor in list(self._waiting):
            self._share(actor, self._host_s)

    def of(self, index: int) -> Times:
        """Return the times of a record that is work, a record, a wait, a barrier or a sync."""
        return self._times[index]

    def _place(self, i: int) -> None:
        match self._trace.entries[i]:
            case Sync(start_s=start, end_s=end) as entry:
                begin = self._host_s if start is None else start
                over = begin if end is None else end
                self._times[i] = Times(begin, begin, over)
                self._host_s = max(self._host_s, over)
                self._settle(entry, i)
            case Work() as entry if self._trace.actors[entry.actor].kind == "host":
                known = [t for t in (entry.start_s, entry.issued_s) if t is not None]
                begin = known[0] if known else self._host_s
                self._times[i] = Times(begin, begin, begin if entry.end_s is None else entry.end_s)
            case Work() | Record() | Wait() | Barrier() as entry:
                self._of_stream(i, entry)
            case _:
                pass

    def _of_stream(self, i: int, entry: Work | Record | Wait | Barrier) -> None:
        actor = entry.actor
        issued = self._host_s if entry.issued_s is None else entry.issued_s
        self._host_s = max(self._host_s, issued)
        if entry.start_s is not None and entry.end_s is not None:
            start, end = entry.start_s, entry.end_s
            self._share(actor, start)
        elif isinstance(entry, Work):
            self._waiting[actor].append(i)
            limit = self._end_of_sync(actor, i)
            start, end = max(self._last[actor], issued), limit
            self._times[i] = Times(issued, start, max(start, end), is_estimated=True)
            return
        else:
            start = max(self._last[actor], issued, self._pending_end(actor))
            end = start
            if isinstance(entry, Wait):
                end = max(start, self._event_done.get(entry.event, start))
        self._times[i] = Times(issued, start, end)
        self._last[actor] = max(self._last[actor], end)
        if isinstance(entry, Record):
            self._event_done[entry.event] = end

    def _pending_end(self, actor: int) -> float:
        """Return when the work of a stream that was not measured should be over, placing it."""
        waiting = self._waiting.get(actor)
        if not waiting:
            return 0.0
        end = self._times[waiting[-1]].end_s
        self._share(actor, end)
        return end

    def _share(self, actor: int, until_s: float) -> None:
        """Give pieces of work that follow each other equal shares of the time they had."""
        waiting = self._waiting.pop(actor, [])
        if not waiting:
            return
        at = self._times[waiting[0]].start_s
        until_s = min(until_s, self._times[waiting[-1]].end_s)
        share = max(0.0, until_s - at) / len(waiting)
        for i in waiting:
            issued = self._times[i].issued_s
            start = max(at, issued)
            at = max(start, min(at + share, until_s))
            self._times[i] = Times(issued, start, at, is_estimated=True)
        self._last[actor] = max(self._last[actor], at)

    def _settle(self, entry: Sync, i: int) -> None:
        if entry.event is None:
            actors = list(self._waiting) if entry.stream is None else [entry.stream]
            for actor in actors:
                self._share(actor, self._times[i].end_s)

    def _end_of_sync(self, actor: int, i: int) -> float:
        """Return when the host first knew that a stream's record is complete."""
        ends = self._syncs[actor]
        k = bisect_right(ends, (i, float("inf")))
        return ends[k][1] if k < len(ends) else self._host_s


def _syncs(trace: Trace) -> dict[int, list[tuple[int, float]]]:
    """Return for each stream up to which record the host knew it to be complete, and when."""
    known = _Known([a.id for a in trace.actors if a.kind == "stream"])
    for i, entry in enumerate(trace.entries):
        if isinstance(entry, Record):
            known.recorded[entry.event] = (entry.actor, i)
        elif isinstance(entry, Wait):
            known.waits[entry.actor].append((i, entry.event))
        elif isinstance(entry, Sync) and entry.end_s is not None:
            if entry.event is not None:
                known.learn(*known.recorded.get(entry.event, (-1, i)), entry.end_s)
                continue
            for actor in known.streams if entry.stream is None else [entry.stream]:
                known.learn(actor, i, entry.end_s)
    for ends in known.ends.values():
        ends.sort()
    return known.ends


class _Known:
    """What the host learns by waiting: also of streams that the one it waits for waited for."""

    def __init__(self, streams: list[int]) -> None:
        self.streams = streams
        self.recorded: dict[int, tuple[int, int]] = {}
        self.waits: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.ends: dict[int, list[tuple[int, float]]] = defaultdict(list)
        self._waits_seen: dict[int, int] = defaultdict(int)

    def learn(self, actor: int, at: int, end_s: float) -> None:
        """Note that all before a record was complete at a time, and what that implies."""
        open_ends = [(actor, at)]
        while open_ends:
            actor, at = open_ends.pop()
            self.ends[actor].append((at, end_s))
            waits = self.waits[actor]
            while self._waits_seen[actor] < len(waits) and waits[self._waits_seen[actor]][0] < at:
                event = waits[self._waits_seen[actor]][1]
                self._waits_seen[actor] += 1
                if event in self.recorded:
                    open_ends.append(self.recorded[event])
