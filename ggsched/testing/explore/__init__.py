"""Execute a small program in every order that its actors allow, and see what comes out.

    def run(policy):
        world = SimWorld(configs, policy=policy)
        ...
        return Observation.of({"y": y})

    found = explore(run)
    assert found.is_complete and found.is_deterministic, found.to_text()
    replay(found.outcomes[1].token, run)

A program is anything that calls a ``SchedulePolicy`` (``ggsched.testing.schedule_policy``) what
happens next.
It must be deterministic apart from that.
"""

from ggsched.testing.explore.outcome import Exploration, Observation, Outcome, Run
from ggsched.testing.explore.parts import PartsProgram
from ggsched.testing.explore.plans import PlanProgram, explore_plan
from ggsched.testing.explore.search import Mode, explore
from ggsched.testing.explore.token import replay

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
