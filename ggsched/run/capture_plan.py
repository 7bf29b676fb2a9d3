"""Which commands of a plan can be captured together, and what keeps the others out.

Legality is decided here, from the plan alone and before any capture begins (CAP-2). A segment is a
run of consecutive commands on streams of one device that offers capture, or of several that are
peers (COL-4), without

- a wait of the host, which a graph cannot hold;
- an upload whose source a device reads while it is enqueued (``snapshots_uploads``), since a graph
  reads it when it is replayed (CAP-3);
- a wait for an event that was recorded outside, for a graph waits only for the stream that it is
  replayed on;
- the record of an event that is used outside, since such an event would never be done. Where only
  the next run waits for it (``following.first_at_end``) an event behind the graph does as well.

All streams of a segment fork from one of them, its origin, and are joined to it, so the others are
tied to the origin by events where they have commands that are not captured, and where the run
before was another plan's or enqueued the commands one by one.

Peers whose streams wait for each other's events are captured together where they exchange so often
that a graph of each would be short, as devices do that share layers: an event between graphs costs
the host two calls and the devices the start of a graph. The stages of a pipeline are not: a graph
begins when all of its streams have come so far, so the next batch would wait for the last stage of
this one.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ggsched.ids import show
from ggsched.plan.bundle import Plan
from ggsched.plan.command import Command
from ggsched.run.following import first_at_end
from ggsched.topology.caps import reads_peer

WORTH: Final = 2
"""A segment has at least this many nodes and transfers, else a replay saves nothing."""

SHORT: Final = 32
"""Peers are captured together if their segments have fewer nodes and transfers on average."""


@dataclass(frozen=True, slots=True)
class CaptureSegment:
    """Commands that are captured together.

    Attributes:
        start: First command.
        stop: One past the last.
        device: Index of the origin's device.
        streams: Streams of the plan that they use, the origin first.
        tied: Of these, the ones that also have commands elsewhere: they wait for the origin
            behind each replay, and the origin for them before it.
        renewed: Events that are recorded in the graph, and for the next run again behind it.
    """

    start: int
    stop: int
    device: int
    streams: tuple[int, ...]
    tied: tuple[int, ...] = ()
    renewed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Commands that are enqueued one by one in each run.

    Attributes:
        start: First command.
        stop: One past the last.
        reason: Why they are not captured.
    """

    start: int
    stop: int
    reason: str


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """How the commands of a plan are run: segments and obstacles cover all of them.

    Attributes:
        segments: What is captured, in order.
        obstacles: What is not, in order.
    """

    segments: tuple[CaptureSegment, ...]
    obstacles: tuple[Obstacle, ...]

    def text(self) -> str:
        """Return one line for each segment and obstacle, in the order of commands."""
        lines = [(s.start, _line(s.start, s.stop, "captured")) for s in self.segments]
        lines += [(o.start, _line(o.start, o.stop, o.reason)) for o in self.obstacles]
        return "\n".join(line for _, line in sorted(lines))


def plan_capture(
    plan: Plan,
    able: Collection[int],
    *,
    together: bool = True,
    unordered: Collection[tuple[int, int]] = (),
) -> CapturePlan:
    """Find the segments of a plan.

    Args:
        able: Indices of the devices that offer capture.
        together: Whether peers may be captured together.
        unordered: Pairs of devices of which the first has streams that cannot wait for events of
            the second: they are not captured together, since events order the streams of a graph.
    """
    alone = _capture(plan, {device: device for device in able})
    peers: dict[int, int] = {}
    for device in sorted(able):
        groups = [[e for e in peers if peers[e] == first] for first in sorted({*peers.values()})]
        fitting = (g for g in groups if all(_are_peers(plan, device, e, unordered) for e in g))
        peers[device] = min(next(fitting, [device]))
    shared = {s.device for s in plan.streams.streams if s.device in peers}
    if not together or len({peers[d] for d in shared}) == len(shared):
        return alone
    weights = [_weight(plan.commands[s.start : s.stop]) for s in alone.segments]
    return _capture(plan, peers) if sum(weights) < SHORT * len(weights) else alone


def _are_peers(plan: Plan, a: int, b: int, unordered: Collection[tuple[int, int]]) -> bool:
    """Whether streams of two devices may be in one graph, and events order them outside of it."""
    first, second = plan.devices[a], plan.devices[b]
    have_events = first.has_events and second.has_events
    is_ordered = (a, b) not in unordered and (b, a) not in unordered
    return reads_peer(first, second) and have_events and is_ordered


def _capture(plan: Plan, groups: Mapping[int, int]) -> CapturePlan:
    """Find the segments of a plan; ``groups`` has the devices that offer capture."""
    commands = plan.commands
    device_of = [s.device for s in plan.streams.streams]
    group_of = [groups.get(device, -1) for device in device_of]
    snapshots = [plan.devices[device].snapshots_uploads for device in device_of]
    users = _users(commands[: first_at_end(plan)])
    outside: set[int] = set()  # records that are not captured, since their event is used outside
    while True:
        found, reasons = _cut(commands, group_of, snapshots, outside)
        more = _used_outside(commands, users, found) - outside
        if not more:
            return _result(plan, device_of, found, reasons)
        outside |= more


def _users(commands: Iterable[Command]) -> dict[int, list[int]]:
    """Return the commands that wait for each event."""
    users: dict[int, list[int]] = {}
    for number, command in enumerate(commands):
        for event in command.effects.waits:
            users.setdefault(event, []).append(number)
    return users


def _cut(
    commands: Sequence[Command],
    group_of: Sequence[int],
    snapshots: Sequence[bool],
    outside: set[int],
) -> tuple[list[range], dict[int, str]]:
    """Cut the commands into the longest segments; say of each other command why it is out."""
    found: list[range] = []
    reasons: dict[int, str] = {}
    start, group = 0, -1
    recorded: set[int] = set()

    def close(stop: int) -> None:
        nonlocal group
        if group >= 0 and _weight(commands[start:stop]) >= WORTH:
            found.append(range(start, stop))
        elif group >= 0:
            for number in range(start, stop):
                reasons[number] = "too little for a graph"
        group = -1
        recorded.clear()

    for number, command in enumerate(commands):
        # Events of a segment on another device are recorded outside.
        known = recorded if group_of[command.stream] == group else set()
        reason = _refusal(number, command, group_of, snapshots, known, outside)
        if reason:
            close(number)
            reasons[number] = reason
            continue
        if group_of[command.stream] != group:
            close(number)
            start, group = number, group_of[command.stream]
        recorded.update(command.effects.records)
    close(len(commands))
    return found, reasons


def _refusal(
    number: int,
    command: Command,
    group_of: Sequence[int],
    snapshots: Sequence[bool],
    recorded: set[int],
    outside: set[int],
) -> str:
    """Return why a command cannot be in a segment, or an empty text."""
    if group_of[command.stream] < 0:
        return "its device offers no capture"
    effects = command.effects
    if effects.blocks_host:
        return "the host waits"
    if effects.host_writes:
        return "the host waits for another machine"
    if effects.host_reads:
        return "the host reads bytes while it enqueues"
    if effects.reads_at_enqueue and snapshots[command.stream]:
        return "its source is read while it is enqueued"
    for event in effects.waits:
        if event not in recorded:
            return f"it waits for {show('event', event)}, which is recorded outside"
    if effects.records and number in outside:
        return f"{show('event', effects.records[0])} is waited for outside"
    return ""


def _used_outside(
    commands: Sequence[Command], users: dict[int, list[int]], segments: Collection[range]
) -> set[int]:
    """Return the records within segments whose event is used outside of them."""
    return {
        number
        for inside in segments
        for number in inside
        for event in commands[number].effects.records
        if not all(user in inside for user in users.get(event, ()))
    }


def _weight(commands: Sequence[Command]) -> int:
    return sum(len(c.effects.steps) for c in commands)


def _result(
    plan: Plan,
    device_of: Sequence[int],
    found: Sequence[range],
    reasons: dict[int, str],
) -> CapturePlan:
    commands = plan.commands
    later = _users(commands[number] for number in reasons)
    eager = {commands[number].stream for number in reasons}
    origins: dict[int, set[int]] = {}
    used = []
    for inside in found:
        counts = Counter(commands[number].stream for number in inside)
        # The origin need not be tied, so it is one that has commands elsewhere, if one has.
        own = sorted(counts, key=lambda s: (s not in eager, -counts[s]))
        used.append(own)
        for stream in own:
            origins.setdefault(stream, set()).add(own[0])
    segments = []
    for inside, (origin, *others) in zip(found, used, strict=True):
        tied = tuple(t for t in others if t in eager or len(origins[t]) > 1)
        streams = (origin, *others)
        events = (event for n in inside for event in commands[n].effects.records)
        renewed = tuple(event for event in events if event in later)
        where = (inside.start, inside.stop, device_of[origin])
        segments.append(CaptureSegment(*where, streams, tied, renewed))
    obstacles: list[Obstacle] = []
    for number, reason in sorted(reasons.items()):
        last = obstacles[-1] if obstacles else None
        if last is not None and (last.stop, last.reason) == (number, reason):
            obstacles[-1] = Obstacle(last.start, number + 1, reason)
        else:
            obstacles.append(Obstacle(number, number + 1, reason))
    return CapturePlan(tuple(segments), tuple(obstacles))


def _line(start: int, stop: int, what: str) -> str:
    ids = show("command", start)
    if stop - start > 1:
        ids += f"..{show('command', stop - 1)}"
    return f"{ids}: {what}"
