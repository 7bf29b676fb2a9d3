"""Execute a small program in every order that its actors allow, and see what comes out.

    def run(policy):
        world = SimWorld(configs, policy=policy)
        ...
        return Observation.of({"y": y})

    found = explore(run)
    assert found.is_complete and found.is_deterministic, found.to_text()
    replay(found.outcomes[1].token, run)

A program is anything that calls a ``SchedulePolicy`` (``ggsched_testing.schedule_policy``) what
happens next.
It must be deterministic apart from that.
"""

from ggsched_testing.explore.outcome import Exploration, Observation, Outcome, Run
from ggsched_testing.explore.parts import PartsProgram
from ggsched_testing.explore.plans import PlanProgram, explore_plan
from ggsched_testing.explore.search import Mode, explore
from ggsched_testing.explore.token import replay

__all__ = [
    "Exploration",
    "Mode",
    "Observation",
    "Outcome",
    "PartsProgram",
    "PlanProgram",
    "Run",
    "explore",
    "explore_plan",
    "replay",
]
