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
from ggsched.passes.budget.relaxed_reuse import Relaxed
from ggsched.passes.budget.step_times import find_step_times
from ggsched.passes.budget.trades import with_trades
from ggsched.passes.cost.predict import predict_step
from ggsched.passes.draft import Draft
from ggsched.plan.bundle import Plan
from ggsched.topology.cost import MachineRates

_ROUNDS = 10
_ANY_SLACK = float("-inf")

Finish = Callable[[Relaxed], Plan]
"""Makes the rest of a plan from an order of the values."""


def over_budget(plan: Plan, budget: Mapping[int, int]) -> list[int]:
    """Return the devices whose compute arenas are larger than they may be."""
    used = _compute_nbytes(plan)
    return [d for d, most in sorted(budget.items()) if used.get(d, 0) > most]


def keep_budget(
    draft: Draft, plan: Plan, budget: Mapping[int, int], rates: MachineRates, finish: Finish
) -> Plan:
    """Return a plan within the budget, its added waits named as trades.

    Args:
        draft: Of the plan.
        plan: The plan without added waits.
        budget: Most bytes of the compute arena by device index.
        rates: Of the machine.
        finish: Makes the rest of the plan from an order of the values.

    Raises:
        PlanError: no waits keep the budget; the message has the least that is needed.
    """
    over = over_budget(plan, budget)
    if draft.is_sequential:
        raise _too_little(plan, budget, over)
    times = find_step_times(draft, plan, predict_step(draft.graph, plan, rates).timeline)

    def relaxed(least: Mapping[int, float]) -> Plan:
        return finish(Relaxed(draft, times, least))

    best = relaxed(dict.fromkeys(over, _ANY_SLACK))
    if still := over_budget(best, budget):
        raise _too_little(best, budget, still)
    span = max(times.end_s, default=0.0)
    low, high = dict.fromkeys(over, -span), dict.fromkeys(over, span)
    for _ in range(_ROUNDS):
        middle = {d: (low[d] + high[d]) / 2 for d in over}
        found = relaxed(middle)
        failed = over_budget(found, budget)
        for d in over:
            (high if d in failed else low)[d] = middle[d]
        if not failed:
            best = found
    return with_trades(best, predict_step(draft.graph, best, rates).timeline, rates)


def _compute_nbytes(plan: Plan) -> dict[int, int]:
    used: dict[int, int] = {}
    for a in plan.memory.arenas:
        if a.kind == "compute":
            used[a.device] = used.get(a.device, 0) + a.nbytes
    return used


def _too_little(plan: Plan, budget: Mapping[int, int], over: Sequence[int]) -> PlanError:
    device = over[0]
    return PlanError(
        f"needs {_compute_nbytes(plan)[device]:,} bytes of compute memory, "
        f"allowed are {budget[device]:,}",
        where=plan.devices[device].name,
        why="everything that may share bytes does",
        hint="allow more, or give it fewer layers or smaller micro-batches",
    )
