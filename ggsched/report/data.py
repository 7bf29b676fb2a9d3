"""The data of a page: a timeline and all that belongs to it, as columns of numbers.

Columns instead of objects, and each text once, keep the page of 20,000 commands at a few megabytes
and quick to read. Times are microseconds.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import to_builtins

from ggsched.report.folds import find_folds, opening_run, timed_runs
from ggsched.report.splits import plan_data
from ggsched.report.summary import limit_text, places_data
from ggsched.report.text import batches_text
from ggsched.trace.advice import advise
from ggsched.trace.arrows import arrows
from ggsched.trace.live import blocks, live_bytes, value_labels
from ggsched.trace.rows import rows
from ggsched.trace.schema import TracedPlan
from ggsched.trace.timeline import Span, Timeline, only_runs, us
from ggsched.trace.times import spans_by_track
from ggsched.trace.utilization import Account, account

Data = dict[str, Any]


class Texts:
    """A table that holds each text once."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def of(self, text: str) -> int:
        """Return the place of a text."""
        return self._index.setdefault(text, len(self._index))

    def all(self) -> list[str]:
        """Return the table."""
        return list(self._index)


def page_data(timeline: Timeline, traced: Sequence[TracedPlan] = ()) -> Data:
    """Return all that the page shows, as plain JSON data.

    Args:
        timeline: What happened, or what is expected to.
        traced: What is expected of the timeline's plans, to be shown beside what happened.
    """
    texts = Texts()
    made = account(timeline, traced)
    runs = timed_runs(timeline)
    folds, fold_s = find_folds(timeline)
    data: Data = {
        "title": timeline.name,
        "clock": timeline.clock,
        "isExpected": timeline.is_expected,
        "begin": us(min([timeline.start_s, *(r.start_s for r in runs)])),
        "end": us(max([timeline.end_s, *(r.end_s for r in runs)])),
        **_tracks_and_spans(timeline, texts),
        "arrows": [[int(a.kind == "copy"), a.src, a.dst] for a in arrows(timeline)],
        "runs": [[r.plan, us(r.start_s), us(r.end_s)] for r in runs],
        "folds": [[us(f.start_s), us(f.end_s), f.label] for f in folds],
        "fold": us(fold_s),
        "opening": _opening(timeline, traced, opening_run(runs)),
        "plans": [plan_data(plan) for plan in timeline.plans],
        "expected": _expected(timeline, traced),
        **_memory(timeline, texts),
        "account": account_data(made),
        "advice": _advice(made),
    }
    return data | {"texts": texts.all()}


def _opening(timeline: Timeline, traced: Sequence[TracedPlan], run: int) -> Data:
    """Return the account of the run that the page opens on; of everything if there is no run."""
    shown = timeline if run < 0 else only_runs(timeline, run, run + 1)
    made = account(shown, traced)
    plan = timeline.runs[run].plan if run >= 0 else 0
    return {
        "run": run,
        "places": places_data(timeline.plans[plan]) if plan < len(timeline.plans) else [],
        "limit": limit_text(made),
        "account": account_data(made),
        "advice": _advice(made),
    }


def _advice(made: Account) -> list[list[Any]]:
    return [[a.what, a.why, us(a.saves_s)] for a in advise(made)]


def account_data(made: Account) -> Data:
    """Return an account as plain JSON data, with the shares of each device."""
    return {
        "window_s": made.window_s,
        "runs": made.runs,
        "micro_batches": made.micro_batches,
        "in_flight": batches_text(made),
        "stages": made.stages,
        "commands": made.commands,
        "host_syncs": made.host_syncs,
        "host_sync_s": made.host_sync_s,
        "bubble": made.bubble,
        "ideal_bubble": made.ideal_bubble,
        "estimated": made.is_estimated,
        "devices": [{**to_builtins(d), "shares": d.shares()} for d in made.devices],
        "ops": to_builtins(made.ops),
        "plans": to_builtins(made.plans),
        "paths": [
            {"path": p.path, "bytes": p.nbytes, "copies": p.copies, "seconds": p.seconds}
            for p in made.paths
        ],
        "reads": [
            {"path": r.path, "bytes": r.nbytes, "launches": r.launches, "seconds": r.seconds}
            for r in made.peer_reads
        ],
    }


def _tracks_and_spans(timeline: Timeline, texts: Texts) -> Data:
    tracks = []
    row_of: dict[int, int] = {}
    for track, spans in spans_by_track(timeline):
        placed = rows(spans)
        row_of |= placed
        count = 1 + max(placed.values(), default=0)
        tracks.append({"name": track.name, "device": track.device, "rows": count})
    return {
        "tracks": tracks,
        "spans": {
            "track": [s.track for s in timeline.spans],
            "row": [row_of[s.id] for s in timeline.spans],
            "kind": [s.kind for s in timeline.spans],
            "start": [us(s.start_s) for s in timeline.spans],
            "end": [us(s.end_s) for s in timeline.spans],
            "issued": [us(s.issued_s) for s in timeline.spans],
            "label": [texts.of(s.label) for s in timeline.spans],
            "reason": [texts.of(s.reason) for s in timeline.spans],
            "path": [texts.of(f"{s.src} -> {s.dst}" if s.src else "") for s in timeline.spans],
            "command": [s.command for s in timeline.spans],
            "run": [s.run for s in timeline.spans],
            "bytes": [s.nbytes for s in timeline.spans],
            "estimated": [int(s.is_estimated) for s in timeline.spans],
        },
        "nodes": _nodes(timeline.spans, texts),
    }


def _nodes(spans: Iterable[Span], texts: Texts) -> Data:
    """Return the nodes of launches; those of one span stand next to each other."""
    found = [(s.id, node) for s in spans for node in s.nodes]
    return {
        "span": [i for i, _ in found],
        "label": [texts.of(node.label) for _, node in found],
        "start": [us(node.start_s) for _, node in found],
        "end": [us(node.end_s) for _, node in found],
    }


def _expected(timeline: Timeline, traced: Sequence[TracedPlan]) -> list[Data]:
    """Return for each plan when its commands should run, from the start of a run."""
    track_of = {
        (timeline.runs[s.run].plan, s.command): s.track
        for s in timeline.spans
        if s.run >= 0 and s.command >= 0 and timeline.tracks[s.track].device
    }
    found = []
    for number, plan in enumerate(traced):
        # Of what has not run all times are expected ones, so nothing stands beside them.
        shown = () if timeline.is_expected else plan.expected
        known = [e for e in shown if (number, e.command) in track_of]
        found.append(
            {
                "rates": plan.rates,
                "command": [e.command for e in known],
                "track": [track_of[number, e.command] for e in known],
                "start": [us(e.start_s) for e in known],
                "end": [us(e.end_s) for e in known],
            }
        )
    return found


def _memory(timeline: Timeline, texts: Texts) -> Data:
    found = blocks(timeline)
    labels = [value_labels(plan) for plan in timeline.plans]
    live: dict[str, list[list[float]]] = {}
    for plan, arena, at_s, nbytes in live_bytes(found):
        live.setdefault(f"{plan}.{arena}", []).append([us(at_s), nbytes])
    return {
        "blocks": {
            "plan": [b.plan for b in found],
            "run": [b.run for b in found],
            "arena": [b.arena for b in found],
            "label": [texts.of(labels[b.plan][b.value]) for b in found],
            "start": [us(b.start_s) for b in found],
            "end": [us(b.end_s) for b in found],
            "offset": [b.offset for b in found],
            "bytes": [b.nbytes for b in found],
        },
        "live": live,
    }
