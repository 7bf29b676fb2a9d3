"""A trace for Perfetto (ui.perfetto.dev) and whatever else reads Chrome's trace events.

The format is "Trace Event Format" (Duca and Sinclair, the Chromium project). A file is both at
once: its object has all fields of our own header and ``entries``, which Perfetto passes over, and
``traceEvents``, which a reader of ours passes over.

A device is a process, a stream a thread of it, the host the first process. Launches, copies, waits
and host syncs are slices, the nodes of a launch slices within it. Flows lead from what an event
stands for to who waits for it, and from copies to who reads them. Counters show the live bytes of
each arena and the allocated bytes of each device.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from ggsched.ids import show
from ggsched.plan.stats import device_name
from ggsched.trace.arrows import arrows
from ggsched.trace.export import header_fields
from ggsched.trace.live import blocks, live_bytes
from ggsched.trace.rows import rows
from ggsched.trace.schema import Alloc, Free, Trace
from ggsched.trace.timeline import Span, Timeline, us
from ggsched.trace.times import spans_by_track, timeline_of

Event = dict[str, Any]

_HOST: Final = 1
_ROWS: Final = 16
"""Thread ids for one stream: one for each of its rows."""


def trace_to_perfetto(trace: Trace) -> bytes:
    """Return a trace as one JSON object that Perfetto and ``ggsched`` both read.

    Raises:
        UsageError: no record of the trace has a time.
    """
    timeline = timeline_of(trace)
    fields = header_fields(trace) | {"entries": trace.entries}
    events = [*timeline_events(timeline), *_allocations(trace)]
    return msgspec.json.encode({**fields, "displayTimeUnit": "ns", "traceEvents": events})


def timeline_to_perfetto(timeline: Timeline) -> bytes:
    """Return a timeline as a JSON object that Perfetto reads; it holds no trace to be checked."""
    return msgspec.json.encode({"displayTimeUnit": "ns", "traceEvents": timeline_events(timeline)})


def timeline_events(timeline: Timeline) -> list[Event]:
    """Return the trace events of a timeline."""
    return list(_Events(timeline).all())


class _Events:
    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        devices = dict.fromkeys(track.device for track in timeline.tracks if track.device)
        self.pids = {"": _HOST} | {name: _HOST + 1 + i for i, name in enumerate(devices)}
        self.tids: dict[int, int] = {}

    def all(self) -> Iterator[Event]:
        for name, pid in self.pids.items():
            yield _named("process_name", pid, 0, name or "host")
            yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
        for track, spans in spans_by_track(self.timeline):
            pid = self.pids[track.device]
            placed = rows(spans)
            for row in sorted({0, *placed.values()}):
                name = track.name if not row else f"{track.name} ({row + 1})"
                yield _named("thread_name", pid, self._tid(track.id, row), name)
            for span in spans:
                self.tids[span.id] = self._tid(track.id, placed[span.id])
                yield from self._slices(span, pid)
        yield from self._runs()
        yield from self._flows()
        yield from self._counters()

    def _tid(self, track: int, row: int) -> int:
        return 1 + track * _ROWS + min(row, _ROWS - 1)

    def _slices(self, span: Span, pid: int) -> Iterator[Event]:
        place = {"pid": pid, "tid": self.tids[span.id], "cat": span.kind}
        base = {**place, "name": span.label, "ts": us(span.start_s), "args": _args(span)}
        if span.kind == "record" or span.end_s <= span.start_s:
            if span.run >= 0 or span.kind != "sync":  # without a wait it shows nothing
                yield {"ph": "i", "s": "t", **base}
            return
        yield {"ph": "X", "dur": us(span.end_s - span.start_s), **base}
        for node in span.nodes:
            dur = us(node.end_s - node.start_s)
            yield {
                "ph": "X",
                **place,
                "cat": "node",
                "name": node.label,
                "ts": us(node.start_s),
                "dur": dur,
            }

    def _runs(self) -> Iterator[Event]:
        tid = self._tid(len(self.timeline.tracks), 0)
        if self.timeline.runs:
            yield _named("thread_name", _HOST, tid, "runs")
        for i, run in enumerate(self.timeline.runs):
            yield {
                "ph": "X",
                "pid": _HOST,
                "tid": tid,
                "cat": "run",
                "name": f"run {i}: {self.timeline.plans[run.plan].name}",
                "ts": us(run.start_s),
                "dur": us(run.end_s - run.start_s),
            }

    def _flows(self) -> Iterator[Event]:
        """Yield the arrows, and for each wait that has one a slice at its end that it leads to.

        A flow belongs to the innermost slice around its moment, and Perfetto turns it around if the
        slice that it leads to began earlier, as a wait often does.
        """
        spans = self.timeline.spans
        for number, arrow in enumerate(arrows(self.timeline)):
            src, dst = spans[arrow.src], spans[arrow.dst]
            if min(src.end_s - src.start_s, dst.end_s - dst.start_s) <= 0:
                continue
            base = {"id": number, "cat": arrow.kind, "name": arrow.kind}
            yield {"ph": "s", **base, **self._inside(src, src.end_s)}
            if arrow.kind == "wait":
                place = self._inside(dst, dst.end_s)
                yield {"ph": "X", "cat": "done", "name": f"{dst.label} done", "dur": 1e-3, **place}
            else:
                place = self._inside(dst, dst.start_s)
            yield {"ph": "f", "bp": "e", **base, **place}

    def _inside(self, span: Span, at_s: float) -> Event:
        start, end = us(span.start_s), us(span.end_s)
        at = round(min(max(us(at_s), start), max(start, end - 0.001)), 3)
        device = self.timeline.tracks[span.track].device
        return {"pid": self.pids[device], "tid": self.tids[span.id], "ts": at}

    def _counters(self) -> Iterator[Event]:
        for number, arena, at_s, nbytes in live_bytes(blocks(self.timeline)):
            plan = self.timeline.plans[number]
            facts = plan.memory.arenas[arena]
            device = device_name(plan, facts.device)
            pid = self.pids.get("" if device == "host" else device, _HOST)
            several = f" of plan {number}" if len(self.timeline.plans) > 1 else ""
            name = f"live in {facts.kind} {show('arena', arena)}{several}"
            yield _counter(pid, name, at_s, nbytes)


def _allocations(trace: Trace) -> Iterator[Event]:
    """Yield the bytes of each device's buffers over time."""
    names = list(dict.fromkeys(a.device for a in trace.actors if a.device))
    pids = {name: _HOST + 1 + i for i, name in enumerate(names)}
    sizes: dict[int, tuple[str, int]] = {}
    total: dict[str, int] = defaultdict(int)
    for entry in trace.entries:
        if isinstance(entry, Alloc) and entry.issued_s is not None:
            device = next((word for word in entry.name.split() if word in pids), "")
            if device:
                sizes[entry.memory] = device, entry.nbytes
                total[device] += entry.nbytes
                yield _counter(pids[device], "allocated", entry.issued_s, total[device])
        elif isinstance(entry, Free) and entry.memory in sizes and entry.issued_s is not None:
            device, nbytes = sizes.pop(entry.memory)
            total[device] -= nbytes
            yield _counter(pids[device], "allocated", entry.issued_s, total[device])


def _args(span: Span) -> Event:
    """Return what is shown of a slice when it is selected; what does not apply is left out."""
    args: Event = {"issued_us": us(span.issued_s)}
    if span.command >= 0:
        args["command"] = show("command", span.command)
    if span.run >= 0:
        args["run"] = span.run
    if span.reason:
        args["reason"] = span.reason
    if span.nbytes:
        args["bytes"] = span.nbytes
    if span.src:
        args["path"] = f"{span.src} -> {span.dst}"
    if span.is_estimated:
        args["times"] = "estimated"
    return args


def _named(what: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _counter(pid: int, name: str, at_s: float, nbytes: int) -> Event:
    return {"ph": "C", "pid": pid, "name": name, "ts": us(at_s), "args": {"bytes": nbytes}}
