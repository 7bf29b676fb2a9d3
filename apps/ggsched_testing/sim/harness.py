"""The harness of the simulator, which any combination of capabilities passes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ggsched.backend.protocols import Device, Stream
from ggsched_testing.conformance.harness import Harness, Waiver
from ggsched_testing.conformance.latch import Latch
from ggsched_testing.sim.config import SimConfig
from ggsched_testing.sim.stream import SimStream
from ggsched_testing.sim.world import SimWorld

ONE_THREAD: Final = Waiver(
    "str6_*_threads",
    "the simulator repeats its runs exactly, and is for one thread",
    "unsupported",
)


def sim_harness(*configs: SimConfig, name: str = "sim:0") -> Harness:
    """Return the harness of simulated devices; the second one is like the first by default."""
    given = configs or (SimConfig(),)

    def open_simulated(count: int, seed: int) -> Sequence[Device]:
        world = SimWorld([*given, *given][: max(count, len(configs))], seed=seed)
        return world.open_all()[:count]

    waivers = (ONE_THREAD,) if given[0].facts(0).max_streams > 1 else ()
    return replace(
        Harness(name, open_simulated), latch=hold, waivers=waivers, grace_s=0.004, far_offsets=False
    )


def own_harness() -> Mapping[str, Any]:
    """Return what the plug-in ``sim`` has in place of the defaults, for ``ggsched conform sim``."""
    harness = sim_harness()
    names = ("open", "latch", "waivers", "grace_s")
    return {name: getattr(harness, name) for name in names}


def hold(stream: Stream) -> Latch:
    """Hold a simulated stream."""
    assert isinstance(stream, SimStream)
    return stream.hold()
