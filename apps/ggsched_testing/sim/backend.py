"""The plug-in ``sim``: simulated devices wherever devices are named, e.g. ``--devices sim:0``."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ggsched.backend.protocols import CONTRACT_VERSION
from ggsched.config import Settings
from ggsched_testing.sim.config import BACKEND, SimConfig
from ggsched_testing.sim.device import SimDevice
from ggsched_testing.sim.world import SimWorld

MAX_DEVICES: Final = 64


class SimBackend:
    """All devices that it opens live in one world.

    It offers none unless one is named, so that it is not used by accident.

    Args:
        configs: Capabilities of the devices; 64 that can everything if not given.
        seed: Decides what runs when.
    """

    def __init__(self, configs: Sequence[SimConfig] | None = None, *, seed: int = 0) -> None:
        self.name = BACKEND
        self.contract_version = CONTRACT_VERSION
        given = [SimConfig()] * MAX_DEVICES if configs is None else configs
        self.world = SimWorld(given, seed=seed)

    @property
    def conformance_harness(self) -> Mapping[str, Any]:
        """How the conformance kit opens and holds simulated devices."""
        from ggsched_testing.sim.harness import own_harness

        return own_harness()

    def device_count(self) -> int:
        """Return 0: its devices exist only when they are named."""
        return 0

    def open_device(self, index: int) -> SimDevice:
        """Open a device; every call gives a device of its own."""
        return self.world.open(index)


def open_backend() -> SimBackend:
    """Open the plug-in; ``GGSCHED_SEED`` decides what runs when."""
    return SimBackend(seed=Settings.from_environment().seed)
