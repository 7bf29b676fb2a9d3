"""STR-7: proposals of lanes that are none."""

from collections.abc import Sequence
from typing import Any

from ggsched.ir.graph import Graph
from ggsched_testing.sim import SimDevice
from tests.mutants.baselines import SIM
from tests.mutants.mutant import breaks


@breaks("STR-7", "The last node gets no lane.", SIM, proposes_lanes=True)
class LastNodeGetsNoLane(SimDevice):
    """It is the one that others wait for."""

    def propose_lanes(self, graph: Graph) -> Sequence[int]:
        return super().propose_lanes(graph)[:-1]


@breaks("STR-7", "Lanes count from -1.", SIM, proposes_lanes=True)
class LanesCountFromMinusOne(SimDevice):
    """That is the main stream, in its own count."""

    def propose_lanes(self, graph: Graph) -> Sequence[int]:
        return [lane - 1 for lane in super().propose_lanes(graph)]


@breaks("STR-7", "Lanes are named by letters.", SIM, proposes_lanes=True)
class LanesAreLetters(SimDevice):
    """Its own streams have names."""

    def propose_lanes(self, graph: Graph) -> Sequence[Any]:
        return [chr(ord("a") + lane) for lane in super().propose_lanes(graph)]


@breaks("STR-7", "Lanes rotate from call to call.", SIM, proposes_lanes=True)
class LanesRotate(SimDevice):
    """Every stream is to get its share."""

    def propose_lanes(self, graph: Graph) -> Sequence[int]:
        asked = self.__dict__["asked"] = self.__dict__.get("asked", 0) + 1
        return [(lane + asked) % 8 for lane in super().propose_lanes(graph)]
