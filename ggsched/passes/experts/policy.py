"""What a caller decides about nodes that an accelerator could compute with weights of a CPU."""

from dataclasses import dataclass
from typing import Literal

from ggsched.errors import PlanError

OffloadWhen = Literal["off", "auto", "on"]


@dataclass(frozen=True, slots=True)
class ExpertPolicy:
    """Whether experts and layers are computed away from their weights, and with how much memory.

    Attributes:
        offload: ``off``: never. ``auto``: where that is predicted to be faster. ``on``: wherever
            it is possible.
        ring: Buffers on the computing device, each for the weights of one block; with more
            than one, whole layers can be copied while earlier ones compute.
        cache_nbytes: Memory for rows that stay on the computing device between runs, shared
            evenly by all blocks.
    """

    offload: OffloadWhen = "off"
    ring: int = 1
    cache_nbytes: int = 0

    def __post_init__(self) -> None:
        if self.ring < 1 or self.cache_nbytes < 0:
            raise PlanError(
                f"a ring of {self.ring} and a cache of {self.cache_nbytes} bytes",
                where="experts",
                why="a ring has at least one buffer, and a cache 0 bytes or more",
            )
