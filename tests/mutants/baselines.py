"""The unbroken devices that mutants are made of. Each passes the kit."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from ggsched_testing.conformance import Harness
from ggsched_testing.sim import SimConfig
from ggsched_testing.sim.harness import sim_harness
from tests.mutants.mutate_exports import exports_harness


@dataclass(frozen=True, slots=True)
class Baseline:
    """A good device.

    Attributes:
        name: For people.
        harness: Returns how the kit opens it.
    """

    name: str
    harness: Callable[[], Harness]


SIM_REPEATS: Final = 6
"""Seeds with which a case runs on a simulated device: one order may be kind to a mutant."""


def _sim(name: str, config: SimConfig) -> Baseline:
    def harness() -> Harness:
        return replace(sim_harness(config, name=name), repeats=SIM_REPEATS, grace_s=0.002)

    return Baseline(name, harness)


CPU: Final = Baseline("cpu", lambda: Harness.named("cpu:0"))
SIM: Final = _sim("sim", SimConfig())
SIM_TWO_QUEUES: Final = _sim("sim, 2 queues", SimConfig(transfer_queues=1))
SIM_BARRIER: Final = _sim("sim, barriers", SimConfig(copy_order="barrier"))
SIM_SMALL: Final = _sim("sim, 16 MiB", SimConfig(memory_nbytes=1 << 24))
SIM_APART: Final = _sim("sim, no paths", SimConfig(copies=frozenset(), waits="host"))
SIM_NO_EVENTS: Final = _sim("sim, no events", SimConfig(has_events=False))
SIM_HOST: Final = _sim(
    "sim, host memory",
    SimConfig(is_host=True, kind="cpu", imports_host_memory=True, memory_nbytes=1 << 24),
)
EXPORTS: Final = Baseline("exports", exports_harness)

BASELINES: Final = (
    CPU,
    SIM,
    SIM_TWO_QUEUES,
    SIM_BARRIER,
    SIM_SMALL,
    SIM_APART,
    SIM_NO_EVENTS,
    SIM_HOST,
    EXPORTS,
)
