"""Gaps of a timeline that the page folds: nothing runs in them for longer than runs take.

Planning, loading and compiling take seconds in front of runs of milliseconds. Drawn to scale they
would leave nothing of the runs to see.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from ggsched.trace.timeline import COPIES, Span, TimedRun, Timeline, extents
from ggsched.units import seconds_text

LONG: Final = 8.0
"""A gap is folded if it is this many times as long as the fastest run."""

OF_RUN: Final = 0.1
"""Width of a folded gap, as a share of the fastest run."""

OF_REST: Final = 1 / 50
"""Least width of a folded gap, as a share of what is not folded."""


class Fold(NamedTuple):
    """A gap that is folded.

    Attributes:
        start_s: Where it begins.
        end_s: Where it ends.
        label: What the host did, as far as the timeline says.
    """

    start_s: float
    end_s: float
    label: str


def timed_runs(timeline: Timeline) -> list[TimedRun]:
    """Return the runs with their work: that of a run without outputs ends behind the run."""
    return [
        TimedRun(run.plan, run.start_s, max(run.end_s, end))
        for run, (_, end) in zip(timeline.runs, extents(timeline), strict=True)
    ]


def opening_run(runs: list[TimedRun]) -> int:
    """Return the fastest run of the plan that ran last, -1 if there are no runs.

    The last plan of a generation is that of a decoding step; its fastest run has no compilation.
    """
    same = [i for i, run in enumerate(runs) if run.plan == runs[-1].plan]
    return min(same, key=lambda i: runs[i].end_s - runs[i].start_s, default=-1)


def find_folds(timeline: Timeline) -> tuple[list[Fold], float]:
    """Return the gaps to fold, and the length of time that stands for each.

    Expected and simulated times have no planning in them, and their gaps are the result: nothing of
    them is folded.
    """
    runs = timed_runs(timeline)
    fastest = min((run.end_s - run.start_s for run in runs), default=0.0)
    if timeline.is_expected or timeline.clock == "simulated" or not fastest > 0:
        return [], 0.0
    gaps = [g for g in _pieces(timeline, runs) if g[1] - g[0] > LONG * fastest]
    rest = timeline.end_s - timeline.start_s - sum(end - start for start, end in gaps)
    width = max(OF_RUN * fastest, OF_REST * rest)
    gaps = [g for g in gaps if g[1] - g[0] > 2 * width]
    return [Fold(start, end, _label(timeline, runs, start, end)) for start, end in gaps], width


def _pieces(timeline: Timeline, runs: list[TimedRun]) -> Iterator[tuple[float, float]]:
    """Yield gaps, cut where runs begin and end: each piece is within a run or between runs."""
    cuts = sorted({at for run in runs for at in (run.start_s, run.end_s)})
    for start, end in _gaps(timeline):
        inside = cuts[bisect_right(cuts, start) : bisect_left(cuts, end)]
        yield from pairwise((start, *inside, end))


def _gaps(timeline: Timeline) -> Iterator[tuple[float, float]]:
    """Yield where no device works, sorted."""
    at = timeline.start_s
    for start, end in sorted(_work(timeline.spans)):
        if start > at:
            yield at, start
        at = max(at, end)
    if timeline.end_s > at:
        yield at, timeline.end_s


def _work(spans: Iterable[Span]) -> Iterator[tuple[float, float]]:
    """Yield when something was computed or copied.

    A launch that compiles its kernels is long; its nodes show when it computes.
    """
    for span in spans:
        if span.nodes:
            yield from ((node.start_s, node.end_s) for node in span.nodes)
        elif span.kind == "launch" or span.kind in COPIES:
            yield span.start_s, span.end_s


def _label(timeline: Timeline, runs: list[TimedRun], start: float, end: float) -> str:
    """Say what the host did in a gap."""
    middle = (start + end) / 2
    inside = next((i for i, r in enumerate(runs) if r.start_s <= middle <= r.end_s), None)
    after = (
        inside
        if inside is not None
        else next((i for i, r in enumerate(runs) if r.start_s >= middle), None)
    )
    if after is None:
        return "after the last run"
    number = runs[after].plan
    is_first = number not in (run.plan for run in runs[:after])
    if inside is not None:
        return f"run {inside}: kernels are compiled" if is_first else f"run {inside}: nothing runs"
    if not is_first:
        return f"the host, between runs {after - 1} and {after}"
    if end < runs[after].start_s:
        return f"loading and compiling, in front of run {after}"
    plan = timeline.plans[number] if number < len(timeline.plans) else None
    planned = f" in {seconds_text(plan.planning_s)}" if plan and plan.planning_s else ""
    return f"plan {number} is made{planned}; memory is allocated, kernels are compiled"
