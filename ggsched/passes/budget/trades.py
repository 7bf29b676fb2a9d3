"""Trades: which waits of a plan exist to save memory, what they save and what they cost."""

import msgspec

from ggsched.passes.cost.simulate import PredictedTimeline
from ggsched.plan.bundle import Plan, Trade
from ggsched.plan.effects import Hazard, touched_values
from ggsched.topology.cost import MachineRates


def with_trades(plan: Plan, timeline: PredictedTimeline, rates: MachineRates) -> Plan:
    """Return a plan that names its trades.

    Args:
        plan: The plan.
        timeline: When its commands are predicted to run.
        rates: Of the machine.
    """
    costs = _Costs(plan, timeline, rates)
    trades = [
        Trade(c.id, hazard.end - hazard.start, costs.of(hazard))
        for c in plan.commands
        if (hazard := c.effects.hazard) is not None and _is_for_memory(plan, hazard)
    ]
    return msgspec.structs.replace(plan, trades=tuple(trades))


def _is_for_memory(plan: Plan, hazard: Hazard) -> bool:
    """Whether the two ends of the hazard touch the same bytes, but no common value there."""
    if hazard.next_run or min(hazard.earlier, hazard.later) < 0:
        return False
    if plan.memory.arenas[hazard.arena].kind == "cache":  # its rows belong to no value
        return False
    earlier, later = (_touched(plan, i) for i in (hazard.earlier, hazard.later))
    for value in earlier & later:
        region = plan.memory.regions[value]
        meets = region.offset < hazard.end and hazard.start < region.end
        if region.arena == hazard.arena and meets:
            return False
    return True


def _touched(plan: Plan, command: int) -> set[int]:
    """Return the values that a command reads or writes."""
    effects = plan.commands[command].effects
    return {v for step in touched_values(plan.splits, effects) for v in step}


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

    def of(self, hazard: Hazard) -> float:
        """Return the event, and how long the later stream has nothing to do but wait."""
        earlier = self._plan.commands[hazard.earlier]
        device = self._plan.streams.streams[earlier.stream].device
        stall_s = self._end_s[earlier.id] - self._before_s[hazard.later]
        return self._rates.devices[device].event_s + max(0.0, stall_s)
