"""Simulate: when each command of a plan would run, given what commands cost. Nothing is run.

A discrete-event pass over the command list. A command starts when everything that it comes after
has ended and the host has enqueued it, and takes as long as the costs say. What comes after what is
the contract's order and nothing else: streams, in lanes where the device does not order copies
against launches (STR-1), events (EVT-1, EVT-2), barriers, the host waiting.
"""

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ggsched.plan.bundle import Plan
from ggsched.plan.command import Command
from ggsched.plan.effects import Effects


class CommandCosts(Protocol):
    """What commands cost, in seconds."""

    def enqueue_s(self, device: int) -> float:
        """Time of the host for one command of a device."""

    def work_s(self, command: Command) -> float:
        """Time of a command that does work."""

    def record_s(self, device: int) -> float:
        """From the end of the work to the event."""

    def notice_s(self, waiter: int, recorder: int) -> float | None:
        """Time of a thread that waits for the event; None where none is needed."""

    def wait_s(self, waiter: int, recorder: int) -> float:
        """From the event, or from the thread's notice, to the stream that waits."""


@dataclass(frozen=True, slots=True)
class PredictedSpan:
    """When a command runs, in seconds from the start of the first step."""

    command: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class PredictedTimeline:
    """When everything would happen.

    Attributes:
        spans: Of the commands of the last step that do work, in the order of the plan.
        step_s: Seconds of the host from the start of the last step to the end of its last command;
            what orders the next step behind it counts to that one.
        period_s: Seconds from the end of the step before the last one to the end of the last, for
            the host and all streams. Steps that the host does not wait for overlap.
        busy_s: By device the seconds of the last step in which one of its launches runs.
    """

    spans: tuple[PredictedSpan, ...]
    step_s: float
    period_s: float
    busy_s: Mapping[int, float]


def simulate(
    plan: Plan, costs: CommandCosts, *, steps: int = 1, processors: Sequence[int] = ()
) -> PredictedTimeline:
    """Return the timeline of the last of some consecutive steps (runs of the plan).

    Args:
        steps: How often it runs; with more than one the last finds the streams as an earlier one
            left them.
        processors: See ``ggsched.topology.caps.processors``: launches of different devices on one
            of them take turns. Without it each device has its own.
    """
    state = _Simulation(plan, costs, processors)
    commands = [(command, command.effects) for command in plan.commands]
    end = len(commands)
    while end and (hazard := commands[end - 1][1].hazard) and hazard.next_run:
        end -= 1  # for the sake of the next step alone, which begins with it (ADR 75)
    began = ended = 0.0
    for step in range(steps):
        began, ended = state.host_s, state.end_s
        if step:
            state.enqueue_all(commands[end:])
        state.spans = []
        state.enqueue_all(commands[:end])
    step_s, period_s = state.host_s - began, state.end_s - ended
    return PredictedTimeline(tuple(state.spans), step_s, period_s, _busy(plan, state.spans))


class _Lanes:
    """When the last command of each lane of a stream ends: launches, and copies."""

    def __init__(self, in_order: bool) -> None:
        self.in_order = in_order
        self.launches = 0.0
        self.copies = 0.0
        self.recorded = 0.0
        self.noticed = 0.0

    @property
    def all(self) -> float:
        return max(self.launches, self.copies)


class _Processor:
    """When a processor works for which device."""

    def __init__(self) -> None:
        self._turns: list[tuple[float, float, int]] = []

    def begin(self, device: int, start: float, seconds: float) -> float:
        """Take the first gap that other devices leave from a start on, and return its begin."""
        for begin, end, other in self._turns:
            if other == device or end <= start:
                continue
            if begin >= start + seconds:
                break
            start = end
        if seconds:
            insort(self._turns, (start, start + seconds, device))
        return start


class _Simulation:
    def __init__(self, plan: Plan, costs: CommandCosts, processors: Sequence[int]) -> None:
        self.costs = costs
        shared = {p for p, n in Counter(processors).items() if n > 1}
        made = {p: _Processor() for p in shared}
        self.processor = {d: made[p] for d, p in enumerate(processors) if p in shared}
        self.device_of = [s.device for s in plan.streams.streams]
        self.lanes = [
            _Lanes(plan.devices[s.device].copy_order == "stream") for s in plan.streams.streams
        ]
        self.host_s = 0.0
        self.event_s: dict[int, float] = {}
        self.recorder: dict[int, int] = {}
        self.spans: list[PredictedSpan] = []

    @property
    def end_s(self) -> float:
        """When the host and all streams are through with what was enqueued."""
        return max([self.host_s, *(max(lanes.all, lanes.recorded) for lanes in self.lanes)])

    def enqueue_all(self, commands: Iterable[tuple[Command, Effects]]) -> None:
        for command, effects in commands:
            self._enqueue(command, effects)

    def _enqueue(self, command: Command, effects: Effects) -> None:
        stream = effects.streams[0]
        lanes, device = self.lanes[stream], self.device_of[stream]
        if effects.blocks_host:
            done = [self.event_s[event] for event in effects.waits]
            self.host_s = max(self.host_s, *(done or (lanes.all, lanes.recorded)))
            return
        self.host_s += self.costs.enqueue_s(device)
        if effects.engine is not None:
            self._work(command, effects, lanes)
        for event in effects.records:
            start = max(self.host_s, lanes.all, lanes.recorded)
            lanes.recorded = start + self.costs.record_s(device)
            self.event_s[event], self.recorder[event] = lanes.recorded, device
        for event in effects.waits:
            self._wait(event, lanes, device)
        if effects.is_barrier:
            lanes.launches = lanes.copies = max(self.host_s, lanes.all)

    def _work(self, command: Command, effects: Effects, lanes: _Lanes) -> None:
        is_launch = effects.engine == "compute"
        before = lanes.launches if is_launch else lanes.copies
        start = max(self.host_s, lanes.all if lanes.in_order else before)
        seconds = self.costs.work_s(command)
        device = self.device_of[effects.streams[0]]
        if is_launch and device in self.processor:
            start = self.processor[device].begin(device, start, seconds)
        end = start + seconds
        if is_launch or lanes.in_order:
            lanes.launches = end
        if not is_launch or lanes.in_order:
            lanes.copies = end
        self.spans.append(PredictedSpan(command.id, start, end))

    def _wait(self, event: int, lanes: _Lanes, device: int) -> None:
        recorder = self.recorder[event]
        done = self.event_s[event]
        notice = self.costs.notice_s(device, recorder)
        if notice is not None:
            done = lanes.noticed = max(self.host_s, done, lanes.noticed) + notice
        wait_s = self.costs.wait_s(device, recorder)
        lanes.launches = max(self.host_s, lanes.launches, done) + wait_s
        lanes.copies = max(self.host_s, lanes.copies, done) + wait_s


def _busy(plan: Plan, spans: list[PredictedSpan]) -> dict[int, float]:
    """Return by device the length of the union of its launches."""
    busy: dict[int, float] = {}
    until: dict[int, float] = {}
    for span in sorted(spans, key=lambda s: s.start_s):
        effects = plan.commands[span.command].effects
        if effects.engine != "compute":
            continue
        device = plan.streams.streams[effects.streams[0]].device
        start = max(span.start_s, until.get(device, span.start_s))
        busy[device] = busy.get(device, 0.0) + max(0.0, span.end_s - start)
        until[device] = max(span.end_s, until.get(device, 0.0))
    return busy
