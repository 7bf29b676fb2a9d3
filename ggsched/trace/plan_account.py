"""What runs of each plan took and how much of that devices were idle, beside what was predicted."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from ggsched.plan.bundle import Plan
from ggsched.plan.command import Launch
from ggsched.trace.schema import TracedPlan
from ggsched.trace.timeline import Timeline, extents


class PlanAccount(msgspec.Struct, frozen=True):
    """Runs of one plan; all of the same work, so the fastest one says what it takes.

    Attributes:
        name: Of the plan's graph.
        runs: How often it ran.
        best_s: Seconds of the fastest run, as the host saw it; from the first launch to the last
            where no host waits for outputs.
        idle: Share of the time of devices that launched anything in which they did not, in it.
        expected_s: Seconds that the cost model predicts; 0 where nobody knows.
        expected_idle: The idle share that it predicts.
    """

    name: str
    runs: int
    best_s: float
    idle: float
    expected_s: float = 0.0
    expected_idle: float = 0.0


def plan_accounts(timeline: Timeline, traced: Sequence[TracedPlan] = ()) -> tuple[PlanAccount, ...]:
    """Return the plans that ran, those first whose runs took longest in all.

    Args:
        timeline: What happened.
        traced: What is expected of the timeline's plans, if that is known.
    """
    runs_of: dict[int, list[int]] = defaultdict(list)
    for number, run in enumerate(timeline.runs):
        runs_of[run.plan].append(number)
    launches: dict[int, list[tuple[str, float, float]]] = defaultdict(list)
    for span in timeline.spans:
        if span.kind == "launch" and span.run >= 0:
            device = timeline.tracks[span.track].device
            launches[span.run].append((device, span.start_s, span.end_s))
    found, ends = [], extents(timeline)
    for plan, numbers in runs_of.items():
        if plan >= len(timeline.plans):
            continue
        seconds = {n: ends[n][1] - ends[n][0] for n in numbers}
        best = min(numbers, key=seconds.__getitem__)
        guess = traced[plan] if plan < len(traced) and not timeline.is_expected else None
        expected_s, expected_idle = _expected(guess) if guess is not None else (0.0, 0.0)
        made = PlanAccount(
            timeline.plans[plan].name,
            len(numbers),
            seconds[best],
            _idle(launches[best], seconds[best]),
            expected_s,
            expected_idle,
        )
        found.append((sum(seconds.values()), made))
    return tuple([made for _, made in sorted(found, key=lambda f: -f[0])])


def _expected(traced: TracedPlan) -> tuple[float, float]:
    """Return the seconds of a run and the idle share in it."""
    plan: Plan = traced.plan
    if not traced.expected:
        return 0.0, 0.0
    start = min(e.start_s for e in traced.expected)
    seconds = max(e.end_s for e in traced.expected) - start
    devices = [plan.devices[s.device].name for s in plan.streams.streams]
    launched = [
        (devices[plan.commands[e.command].stream], e.start_s, e.end_s)
        for e in traced.expected
        if isinstance(plan.commands[e.command], Launch)
    ]
    return seconds, _idle(launched, seconds)


def _idle(launches: Iterable[tuple[str, float, float]], seconds: float) -> float:
    """Return the share of time in which devices have no launch; launches of one may overlap."""
    busy: dict[str, float] = defaultdict(float)
    until: dict[str, float] = {}
    for device, start, end in sorted(launches):
        busy[device] += max(0.0, end - max(start, until.get(device, start)))
        until[device] = max(end, until.get(device, end))
    if not busy or seconds <= 0:
        return 0.0
    return max(0.0, 1.0 - sum(busy.values()) / (len(busy) * seconds))
