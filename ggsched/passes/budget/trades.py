"""Trades: which waits of a plan exist to save memory, what they save and what they cost."""

import msgspec

from ggsched.passes.cost.simulate import PredictedTimeline
from ggsched.plan.bundle import Plan, Trade
from ggsched.plan.command import (
    Barrier,
    Command,
    Copy,
    CopyRows,
    Download,
    HostSync,
    Launch,
    Upload,
    Wait,
)
from ggsched.topology.cost import MachineRates

Sync = Wait | Barrier | HostSync


def with_trades(plan: Plan, timeline: PredictedTimeline, rates: MachineRates) -> Plan:
    """Return a plan that names its trades.

    Args:
        plan: The plan.
        timeline: When its commands are predicted to run.
        rates: Of the machine.
    """
    costs = _Costs(plan, timeline, rates)
    trades = [
        Trade(c.id, c.hazard.end - c.hazard.start, costs.of(c))
        for c in plan.commands
        if isinstance(c, Sync) and _is_for_memory(plan, c)
    ]
    return msgspec.structs.replace(plan, trades=tuple(trades))


def _is_for_memory(plan: Plan, sync: Sync) -> bool:
    """Whether the two ends of the hazard touch the same bytes, but no common value there."""
    hazard = sync.hazard
    if hazard.next_run or min(hazard.earlier, hazard.later) < 0:
        return False
    if plan.memory.arenas[hazard.arena].kind == "cache":  # holds rows, which are no value's
        return False
    earlier, later = (_touched(plan, plan.commands[i]) for i in (hazard.earlier, hazard.later))
    for value in earlier & later:
        region = plan.memory.regions[value]
        meets = region.offset < hazard.end and hazard.start < region.end
        if region.arena == hazard.arena and meets:
            return False
    return True


def _touched(plan: Plan, command: Command) -> set[int]:
    """Return the values that a command reads or writes."""
    match command:
        case Launch():
            return {v for s in command.steps for v in plan.splits.bindings[s.node]}
        case Upload() | Download() | Copy():
            t = plan.splits.transfers[command.transfer]
            return {t.src, t.dst}
        case CopyRows():
            t = plan.splits.transfers[command.transfer]
            return {t.src, t.dst} if t.rows is None else {t.src, t.dst, t.rows.ids}
        case _:
            return set()


class _Costs:
    def __init__(self, plan: Plan, timeline: PredictedTimeline, rates: MachineRates) -> None:
        self._plan, self._rates = plan, rates
        spans = {span.command: span for span in timeline.spans}
        self._end_s = {number: span.end_s for number, span in spans.items()}
        self._before_s: dict[int, float] = {}  # when the work before a command's on its stream ends
        last: dict[int, float] = {}
        for c in plan.commands:
            self._before_s[c.id] = last.get(c.stream, 0.0)
            if c.id in spans:
                last[c.stream] = spans[c.id].end_s

    def of(self, sync: Sync) -> float:
        """Return the event, and how long the later stream has nothing to do but wait."""
        earlier = self._plan.commands[sync.hazard.earlier]
        device = self._plan.streams.streams[earlier.stream].device
        stall_s = self._end_s[earlier.id] - self._before_s[sync.hazard.later]
        return self._rates.devices[device].event_s + max(0.0, stall_s)
