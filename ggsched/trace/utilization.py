"""Where the time of a run went: busy, waiting for a copy, for another device, for the host.

Each moment of each device belongs to exactly one of these. A device is busy while one of its
launches runs. Any other moment is charged to what holds back its next launch: the first command of
that launch's stream that is not complete. If that is a wait, it is charged to the first command
that the event stands for and that is not complete, and so on; if it was not enqueued yet, to the
host, or to what the host itself is waiting for. Charging idle time to the command that causes it,
not to the idle device, is called blame shifting (Tallent, Mellor-Crummey and Porterfield 2010).
"""

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from math import inf
from typing import Final

import msgspec

from ggsched.ids import show
from ggsched.plan.bundle import Plan
from ggsched.plan.collectives import collective_of
from ggsched.plan.command import Launch
from ggsched.trace.idle_attribution import Cause, Charge, IdleAttribution
from ggsched.trace.schema import TracedPlan
from ggsched.trace.timeline import COPIES, Span, Timeline, extents

# --- the account of a plan ------------------------------------------------------------------------


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


# --- utilization ----------------------------------------------------------------------------------


MAX_VISITS: Final = 2
"""A stage of a pipeline is visited once by each micro-batch, or twice where the host is one too."""

BY_REFERENCE: Final = ", by reference"

CAUSES: Final[tuple[Cause, ...]] = ("copy", "peer", "host", "done")


class DeviceAccount(msgspec.Struct, frozen=True):
    """How a device spent its time, in seconds. The five parts add up to the window.

    Attributes:
        device: Its name.
        busy_s: One of its launches ran.
        copy_s: Waiting for a copy.
        peer_s: Waiting for what another device computes.
        host_s: Waiting for the host to enqueue, or for what is enqueued to begin.
        done_s: Nothing was left to do.
        through_host_s: Part of ``copy_s`` and ``peer_s`` that the host waited for as well.
        between_s: Part of ``host_s`` that lies between runs, where the host makes plans, prepares
            inputs and looks at outputs.
    """

    device: str
    busy_s: float = 0.0
    copy_s: float = 0.0
    peer_s: float = 0.0
    host_s: float = 0.0
    done_s: float = 0.0
    through_host_s: float = 0.0
    between_s: float = 0.0

    @property
    def window_s(self) -> float:
        """All of its time."""
        return self.busy_s + self.copy_s + self.peer_s + self.host_s + self.done_s

    def shares(self) -> dict[str, float]:
        """Return the parts as shares of the window; they add up to 1."""
        window = self.window_s or 1.0
        parts = {"busy": self.busy_s, "copy": self.copy_s, "peer": self.peer_s}
        parts |= {"host": self.host_s, "done": self.done_s}
        return {name: seconds / window for name, seconds in parts.items()}


class PeerReads(msgspec.Struct, frozen=True):
    """What launches of a device read from memory of another one, without a copy.

    Attributes:
        path: As ``"cpu:0->cpu:1"``: from the owner to the reader.
        launches: Number of launches.
        seconds: Time of the launches, what they compute besides included.
    """

    path: str
    nbytes: int
    launches: int
    seconds: float = 0.0


class PathAccount(msgspec.Struct, frozen=True):
    """What moved from one memory to another.

    Attributes:
        path: As ``"host->opencl:0"``.
        copies: Number of copies.
        seconds: Time of the copies, those that overlap counted each.
    """

    path: str
    nbytes: int
    copies: int
    seconds: float


class OpAccount(msgspec.Struct, frozen=True):
    """Time of the nodes of one op on one device.

    Attributes:
        op: Name of the op, or the pattern of a fusion group, which counts as one node. One that
            adds up or joins what devices have computed says so behind it, and so do nodes that a
            device without a kernel computed by the reference arithmetic (``BY_REFERENCE``).
        device: Name of the device.
        nodes: Nodes that ran, each run counted.
        seconds: Their time.
        expected_s: Their time by the cost model; None where nobody knows.
    """

    op: str
    device: str
    nodes: int
    seconds: float
    expected_s: float | None = None


class Account(msgspec.Struct, frozen=True):
    """Where the time went.

    Attributes:
        name: Of the timeline.
        start_s: Start of the window.
        end_s: End of the window.
        runs: Runs of plans in it.
        batches: Micro-batches of each batch: of runs that were in flight together, of which one
            plan may join several (see ``ggsched.ir.join``). A run that begins when the host has
            the outputs of the one before, as in decoding, begins another batch.
        stages: Devices that compute, one behind the other; 1 where micro-batches come back to them
            again and again, as to devices that share layers.
        devices: A part for each device that did anything, in order of their streams.
        paths: Bytes by path, most first.
        host_syncs: How often the host waited.
        host_sync_s: How long in all.
        commands: Commands that were enqueued.
        bubble: Share of the devices' time in which they did not compute.
        ideal_bubble: ``ideal_bubble`` of that many devices and those batches.
        ops: Measured time by op and device, most first; empty where no node was measured.
        is_estimated: Whether times of some pieces of work were not measured.
        peer_reads: Bytes that launches read from other devices, by path, most first.
        plans: What runs of each plan took and were predicted to take, most time first.
    """

    name: str
    start_s: float
    end_s: float
    runs: int
    batches: tuple[int, ...]
    stages: int
    devices: tuple[DeviceAccount, ...]
    paths: tuple[PathAccount, ...]
    host_syncs: int
    host_sync_s: float
    commands: int
    bubble: float
    ideal_bubble: float
    ops: tuple[OpAccount, ...] = ()
    is_estimated: bool = False
    peer_reads: tuple[PeerReads, ...] = ()
    plans: tuple[PlanAccount, ...] = ()

    @property
    def window_s(self) -> float:
        """Length of the window."""
        return self.end_s - self.start_s

    @property
    def micro_batches(self) -> int:
        """Most micro-batches that were in flight together."""
        return max(self.batches, default=1)


def ideal_bubble(stages: int, batches: Sequence[int]) -> float:
    """Return the idle share of a pipeline of equal stages that drains between batches.

    From GPipe (Huang et al. 2019): a batch of m micro-batches takes m + p - 1 steps, of which each
    of p stages computes in m.
    """
    steps = sum(m + stages - 1 for m in batches)
    if stages < 1 or not steps:
        return 0.0
    return (stages - 1) * len(batches) / steps


def micro_batches(plan: Plan) -> int:
    """Return how many micro-batches a plan runs together: its inputs are called ``name@k``."""
    found = (re.search(r"@(\d+)$", slot.name) for slot in plan.inputs)
    return 1 + max((int(match[1]) for match in found if match), default=0)


def account(timeline: Timeline, traced: Sequence[TracedPlan] = ()) -> Account:
    """Return where the time of the runs of a timeline went; of all of it if it has no runs.

    The window lasts from the start of the first run to the end of the last, or of the last span.

    Args:
        timeline: What happened, or what is expected to.
        traced: What is expected of the timeline's plans, to stand beside what happened.
    """
    spans = [s for s in timeline.spans if s.run >= 0] if timeline.runs else list(timeline.spans)
    start, end = _window(timeline, spans)
    idle = IdleAttribution(timeline, spans)
    used = {s.track for s in spans}
    names = dict.fromkeys(track.device for track in timeline.tracks if track.id in used)
    between = _between(timeline, start, end)
    devices = tuple(_device(idle, name, start, end, between) for name in names if name)
    computing = sum(d.busy_s > 0 for d in devices)
    stages = min(computing, 1) if _is_shared(timeline) else computing
    busy = sum(d.busy_s for d in devices)
    syncs = [s for s in spans if s.kind == "sync"]
    batches = _batches(timeline)
    return Account(
        timeline.name,
        start,
        end,
        len(timeline.runs),
        batches,
        stages,
        devices,
        _paths(spans),
        len(syncs),
        sum(s.end_s - s.start_s for s in syncs),
        sum(s.kind not in ("sync", "host") for s in spans),
        1.0 - busy / (computing * (end - start)) if computing and end > start else 0.0,
        ideal_bubble(stages, batches),
        _ops(timeline, spans, traced),
        any(s.is_estimated for s in spans),
        _peer_reads(timeline, spans),
        plan_accounts(timeline, traced),
    )


def _is_shared(timeline: Timeline) -> bool:
    """Whether a micro-batch comes back to a device again and again, in one plan at least."""
    for plan in timeline.plans:
        splits = plan.splits.splits
        visits = len({s.device for s in splits}) * micro_batches(plan)
        if len(splits) > MAX_VISITS * visits:
            return True
    return False


def _batches(timeline: Timeline) -> tuple[int, ...]:
    """Return the micro-batches of each batch of runs that were in flight together."""
    each = [micro_batches(plan) for plan in timeline.plans]
    found: list[int] = []
    end = 0.0
    ends = [until for _, until in extents(timeline)]
    for number, run in sorted(enumerate(timeline.runs), key=lambda r: r[1].start_s):
        count = each[run.plan] if run.plan < len(each) else 1
        if found and run.start_s < end:
            found[-1] += count
        else:
            found.append(count)
        end = max(end, run.end_s, ends[number])
    return tuple(found) or (1,)


def _ops(
    timeline: Timeline, spans: Sequence[Span], traced: Sequence[TracedPlan]
) -> tuple[OpAccount, ...]:
    """Return the measured time of nodes by op and device, most first."""
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    expected: dict[tuple[str, str], float] = defaultdict(float)
    counts: Counter[tuple[str, str]] = Counter()
    groups = [_groups(plan) for plan in timeline.plans]
    guesses = [{show("node", n): s for n, s in enumerate(plan.nodes)} for plan in traced]
    for span in spans:
        device = timeline.tracks[span.track].device
        plan = timeline.runs[span.run].plan if 0 <= span.run < len(timeline.runs) else -1
        known = groups[plan] if 0 <= plan < len(groups) else {}
        costs = guesses[plan] if 0 <= plan < len(guesses) else {}
        for node in span.nodes:
            number = node.label.split(" ", 1)[0]
            alone = _named(op_of(node.label), [node.label]), (number,)
            what, members = known.get(number) or alone
            what += BY_REFERENCE if node.by_reference else ""
            seconds[what, device] += node.end_s - node.start_s
            if number == members[-1]:
                counts[what, device] += 1
                if costs:
                    expected[what, device] += sum(costs.get(n, 0.0) for n in members)
    ranked = sorted(seconds, key=lambda key: (-seconds[key], key))
    return tuple(OpAccount(*key, counts[key], seconds[key], expected.get(key)) for key in ranked)


def _groups(plan: Plan) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return what the group of a node is called, and its nodes."""
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for fusion in plan.fusions:
        name = _named(fusion.pattern, [plan.nodes[n].label for n in fusion.nodes])
        members = tuple(show("node", n) for n in fusion.nodes)
        found |= dict.fromkeys(members, (name, members))
    return found


def _named(op: str, labels: Iterable[str]) -> str:
    """Return the name of an op, and what its nodes do over devices if they do."""
    over = next(filter(None, map(collective_of, labels)), "")
    return f"{op}, {over}" if over else op


def op_of(label: str) -> str:
    """Return the op of a node by its label, ``n12 mul_mat 'ffn_up'``."""
    return label.split(" ", 2)[1] if " " in label else label


def _window(timeline: Timeline, spans: Sequence[Span]) -> tuple[float, float]:
    starts = [run.start_s for run in timeline.runs] or [s.start_s for s in spans]
    ends = [run.end_s for run in timeline.runs] + [s.end_s for s in spans]
    return min(starts, default=0.0), max(ends, default=0.0)


def _between(timeline: Timeline, start: float, end: float) -> list[tuple[float, float]]:
    """Return the parts of the window that belong to no run; none where nobody knows the runs."""
    if not timeline.runs:
        return []
    found, at = [], start
    for run in sorted(timeline.runs, key=lambda r: r.start_s):
        if run.start_s > at:
            found.append((at, run.start_s))
        at = max(at, run.end_s)
    return [*found, (at, end)] if at < end else found


def _device(
    idle: IdleAttribution,
    device: str,
    start: float,
    end: float,
    between: Sequence[tuple[float, float]],
) -> DeviceAccount:
    """Charge each moment of the window to one cause."""
    seconds: dict[str, float] = defaultdict(float)
    charges: list[Charge] = []
    at = start
    for begin, until, following in idle.busy_of(device):
        begin, until = max(begin, start), min(until, end)
        if begin > at:
            charges += idle.gap_before(following, at, begin)
        seconds["busy"] += max(0.0, until - max(begin, at))
        at = max(at, until)
    charges += idle.tail_of(device, at, end)
    for charge in charges:
        length = charge.end_s - charge.start_s
        seconds[charge.cause] += length
        seconds["through_host"] += length * charge.through_host
        if charge.cause == "host":
            seconds["between"] += _overlap(charge, between)
    names = ("busy", *CAUSES, "through_host", "between")
    return DeviceAccount(device, **{f"{name}_s": seconds[name] for name in names})


def _overlap(charge: Charge, between: Sequence[tuple[float, float]]) -> float:
    """Return how much of a charge lies in sorted intervals that do not overlap."""
    first = max(0, bisect_right(between, (charge.start_s, inf)) - 1)
    total = 0.0
    for start, end in islice(between, first, None):
        if start >= charge.end_s:
            break
        total += max(0.0, min(end, charge.end_s) - max(start, charge.start_s))
    return total


def _by_path(moved: Iterable[tuple[str, int, float]]) -> list[tuple[str, int, int, float]]:
    """Return path, bytes, their number and seconds of what was moved, most bytes first."""
    sums: dict[str, tuple[int, int, float]] = {}
    for path, nbytes, seconds in moved:
        old = sums.get(path, (0, 0, 0.0))
        sums[path] = old[0] + nbytes, old[1] + 1, old[2] + seconds
    return [(p, *sums[p]) for p in sorted(sums, key=lambda p: (-sums[p][0], p))]


def _peer_reads(timeline: Timeline, spans: Sequence[Span]) -> tuple[PeerReads, ...]:
    found = (
        (f"{peer}->{timeline.tracks[s.track].device}", nbytes, s.end_s - s.start_s)
        for s in spans
        for peer, nbytes in s.peers
    )
    return tuple(PeerReads(*path) for path in _by_path(found))


def _paths(spans: Sequence[Span]) -> tuple[PathAccount, ...]:
    copies = (
        (f"{s.src}->{s.dst}", s.nbytes, s.end_s - s.start_s) for s in spans if s.kind in COPIES
    )
    return tuple(PathAccount(*path) for path in _by_path(copies))
