"""What a caller decides about nodes that an accelerator could compute with weights of a CPU."""

from dataclasses import dataclass
from typing import Literal

from ggsched.errors import PlanError
from ggsched.flags import HOMES, flag, read_size

OffloadWhen = Literal["off", "auto", "on"]


@dataclass(frozen=True, slots=True)
class ExpertPolicy:
    """Whether experts and layers are computed away from their weights, and with how much memory.

    Attributes:
        offload: ``off``: never. ``auto``: where that is predicted to be faster. ``on``: wherever
            it is possible.
        ring: Buffers on the computing device, each for the weights of one block.
        cache_nbytes: Memory for rows that stay on the computing device between runs, shared
            evenly by all blocks.
    """

    offload: OffloadWhen = flag(
        "off", "--op-offload", ("auto", "on", "off"),
        "Compute layers and experts of the CPU on the accelerator, to which their weights are "
        "copied, of experts those that the router chose: where that is predicted to be faster, "
        "wherever it is possible, or never.",
        param="op_offload", heading=HOMES, unset="auto",
    )  # fmt: skip
    ring: int = flag(
        1, "--expert-staging-buffers", 1,
        "Buffers on the accelerator, each for the weights of one block; from 2 on the weights of "
        "whole blocks are copied while earlier ones compute, where that is faster.",
        param="expert_staging_buffers", heading=HOMES, unset=2, old="--expert-ring",
    )  # fmt: skip
    cache_nbytes: int = flag(
        0, "--expert-cache", read_size,
        "Memory on the accelerator for experts that were chosen before, e.g. 512MiB. [default: 0]",
        param="expert_cache", heading=HOMES, metavar="BYTES",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.ring < 1 or self.cache_nbytes < 0:
            raise PlanError(
                f"a ring of {self.ring} and a cache of {self.cache_nbytes} bytes",
                where="experts",
                why="a ring has at least one buffer, and a cache 0 bytes or more",
            )
