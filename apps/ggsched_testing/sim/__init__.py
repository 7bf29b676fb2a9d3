"""A deterministic simulator that uses each freedom of the contract against its caller.

    world = SimWorld([SimConfig(), SimConfig(copy_order="barrier")], seed=7)
    with Scheduler(world.open_all()) as scheduler:
        scheduler.run(graph, inputs)
    assert not world.violations

Nothing that is enqueued runs until the world lets it, and a ``SchedulePolicy`` picks what: see
``ggsched_testing.schedule_policy``. There are no threads and no clocks.
"""

from ggsched_testing.sim.backend import SimBackend, open_backend
from ggsched_testing.sim.config import SIM_OPS, InjectedFaults, SimConfig
from ggsched_testing.sim.costs import Costs, TimeSpan
from ggsched_testing.sim.device import SimDevice
from ggsched_testing.sim.event import SimEvent
from ggsched_testing.sim.memory import POISON, SimBuffer
from ggsched_testing.sim.program import SimProgram
from ggsched_testing.sim.state import Violation
from ggsched_testing.sim.stream import SimStream
from ggsched_testing.sim.world import SimWorld

__all__ = [
    "POISON",
    "SIM_OPS",
    "Costs",
    "InjectedFaults",
    "SimBackend",
    "SimBuffer",
    "SimConfig",
    "SimDevice",
    "SimEvent",
    "SimProgram",
    "SimStream",
    "SimWorld",
    "TimeSpan",
    "Violation",
    "open_backend",
]
