"""When each step of the lowered program is predicted to start and to end."""

from dataclasses import dataclass

from ggsched.passes.cost.simulate import PredictedTimeline
from ggsched.passes.draft import Draft
from ggsched.plan.bundle import Plan


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds from the start of a run, by step; a launch's are spread evenly over its nodes."""

    start_s: tuple[float, ...]
    end_s: tuple[float, ...]


def find_step_times(draft: Draft, plan: Plan, timeline: PredictedTimeline) -> StepTimes:
    """Return the times of the steps of a plan whose commands run at these times."""
    node_step, transfer_step = draft.timeline.node_step, draft.timeline.transfer_step
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
