"""Budget: add the cheapest waits that make a plan fit into less memory.

Without a budget values share bytes only where the data flow orders them. Any two whose lives do not
meet in program order may share bytes too, at the cost of a wait. What that wait costs is predicted
from the plan without it: nothing but the event where the earlier value is done with long before the
later one is written, a standstill where it is not. So pairs are let in by their slack, the largest
first, and each device gets the largest least slack with which its budget is kept, found by
bisection. The waits themselves come from the hazards, as all others do.
"""

from collections.abc import Callable, Mapping, Sequence

from ggsched.errors import PlanError
from ggsched.passes.cost.simulate import PredictedTimeline
from ggsched.passes.memory.reuse import StepTimes
from ggsched.passes.order.liveness import Liveness
from ggsched.plan.bundle import Plan
from ggsched.plan.memory import Memory
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
        topology: The machine.
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
