"""Budget: add the cheapest waits that make a plan fit into less memory.

Without a budget values share bytes only where the data flow orders them. Any two whose lives do not
meet in program order may share bytes too, at the cost of a wait. What that wait costs is predicted
from the plan without it: nothing but the event where the earlier value is done with long before the
later one is written, a standstill where it is not. So pairs are let in by their slack, the largest
first, and each device gets the largest least slack with which its budget is kept, found by
bisection. The waits themselves come from the hazards, as all others do.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from ggsched.errors import PlanError
from ggsched.passes.cost.simulate import PredictedTimeline
from ggsched.passes.memory.reuse import StepTimes
from ggsched.passes.order.liveness import Liveness
from ggsched.plan.bundle import Plan, Trade
from ggsched.plan.effects import Hazard, touched_values
from ggsched.plan.memory import Memory
from ggsched.topology.cost import MachineRates
from ggsched.topology.model import Topology

_ROUNDS = 10
_ANY_SLACK = float("-inf")

Slack = Mapping[int, float]
"""By device the least slack with which two values may share bytes."""


def over_budget(memory: Memory, budget: Mapping[int, int]) -> list[int]:
    """Return the devices whose compute arenas are larger than they may be."""
    used = _compute_nbytes(memory)
    return [d for d, most in sorted(budget.items()) if used.get(d, 0) > most]


def find_slack(
    over: Sequence[int],
    times: StepTimes,
    budget: Mapping[int, int],
    topology: Topology,
    allocate: Callable[[Slack], Memory],
) -> Memory:
    """Return memory within the budget, of which as much as possible needs no costly wait.

    Args:
        over: Devices whose budget is not kept without added waits.
        times: When each step runs without added waits.
        budget: Most bytes of the compute arena by device index.
        allocate: Plans memory with the slack that it is given.

    Raises:
        PlanError: no waits keep the budget; the message has the least that is needed.
    """
    best = allocate(dict.fromkeys(over, _ANY_SLACK))
    require_budget(best, budget, topology)
    span = max(times.end_s, default=0.0)
    low, high = dict.fromkeys(over, -span), dict.fromkeys(over, span)
    for _ in range(_ROUNDS):
        middle = {d: (low[d] + high[d]) / 2 for d in over}
        found = allocate(middle)
        failed = over_budget(found, budget)
        for d in over:
            (high if d in failed else low)[d] = middle[d]
        if not failed:
            best = found
    return best


def require_budget(memory: Memory, budget: Mapping[int, int], topology: Topology) -> None:
    """Refuse memory in which everything that may share bytes does, if it is over its budget.

    Raises:
        PlanError: it is; the message has the least that is needed.
    """
    for device in over_budget(memory, budget):
        raise PlanError(
            f"needs {_compute_nbytes(memory)[device]:,} bytes of compute memory, "
            f"allowed are {budget[device]:,}",
            where=topology.devices[device].name,
            why="everything that may share bytes does",
            hint="allow more, or give it fewer layers or smaller micro-batches",
        )


def find_step_times(live: Liveness, plan: Plan, timeline: PredictedTimeline) -> StepTimes:
    """Return the times of the steps of a plan whose commands run at these times."""
    node_step, transfer_step = live.node_step, live.transfer_step
    count = len(node_step) + len(transfer_step)
    start, end = [0.0] * count, [0.0] * count
    for span in timeline.spans:
        effects = plan.commands[span.command].effects
        if effects.transfer >= 0:
            steps = [transfer_step[effects.transfer]]
        else:
            steps = [node_step[s.node] for s in effects.steps]
        each = (span.end_s - span.start_s) / len(steps)
        for k, step in enumerate(steps):
            start[step], end[step] = span.start_s + k * each, span.start_s + (k + 1) * each
    return StepTimes(tuple(start), tuple(end))


def _compute_nbytes(memory: Memory) -> dict[int, int]:
    used: dict[int, int] = {}
    for a in memory.arenas:
        if a.kind == "compute":
            used[a.device] = used.get(a.device, 0) + a.nbytes
    return used


# --- waits that save memory -----------------------------------------------------------------------


def with_trades(plan: Plan, timeline: PredictedTimeline, rates: MachineRates) -> Plan:
    """Return a plan that names its trades.

    Args:
        timeline: When its commands are predicted to run.
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
