"""Rotations and copies into caches that follow each other, of many tokens, as one kernel.

Of a prompt, too, Q is rotated, K is rotated into its cache, and V is copied into its own. Three
kernels that read elements one by one took 34 us for each layer of an 8B and 512 tokens, where the
bytes take 7 (H200); this one takes 12. A group has all heads of a token, and each sine once.
"""

from collections.abc import Sequence
from typing import Final

from ggsched.backend.program import BoundNode
from ggsched_cuda_kernels.calls import CudaLoweringContext
from ggsched_cuda_kernels.operands import PIECE
from ggsched_kernels import TuningProfile
from ggsched_kernels.calls import MAX_PARTS, Launch, Window
from ggsched_kernels.rope_kv_write import FEW_POSITIONS, Job, arguments, jobs_from

LANES: Final = 256
UNIT: Final = 8
"""Elements that a lane takes at once."""

MAX_PAIRS: Final = 128
MAX_UNITS: Final = 8
"""Units of all jobs that a lane keeps in registers."""


def join_tokens(
    groups: Sequence[Sequence[BoundNode]], at: int, profile: TuningProfile
) -> tuple[int, CudaLoweringContext] | None:
    """Return how many groups from ``at`` on one kernel does, and its context; None if under two.

    A group is taken as long as nothing that it writes is read or written by the others.
    """
    jobs = jobs_from(groups, at)
    if not jobs or not FEW_POSITIONS < jobs[0].source.shape[1] <= MAX_PARTS:
        return None
    count = next((i for i, job in enumerate(jobs) if not _fits(job, jobs[0])), len(jobs))
    units = [_units(job) for job in jobs[:count]]
    if count < 2 or sum(units) > MAX_UNITS:
        return None
    ctx = CudaLoweringContext(groups[at + count - 1][-1], profile)
    defines = {f"UNITS_{i}": n for i, n in enumerate([*units, 1][:3])}
    grid = (jobs[0].source.shape[1], 1, 1)
    kernel = "rope_tokens"
    ctx.call(kernel, kernel, arguments(jobs[:count]), grid, lanes=LANES, JOBS=count, **defines)
    ctx.launched(Launch.WAITS_FIRST)
    return count, ctx


def _units(job: Job) -> int:
    _, _, heads, width = job.source.shape
    return -(-heads * width // (UNIT * LANES))


def _fits(job: Job, first: Job) -> bool:
    """Whether a job has the tokens of the first one, and units that can be loaded and stored."""
    (_, tokens, _, width), pairs = job.source.shape, job.pairs
    if tokens != first.source.shape[1] or width % UNIT or pairs % 4 or pairs > MAX_PAIRS:
        return False
    return _has_units(job.source) and _has_units(job.to)


def _has_units(place: Window) -> bool:
    """Whether elements lie side by side, and rows begin at multiples of 16 bytes."""
    steps = [s for n, s in zip(place.shape[:-1], place.strides[:-1], strict=True) if n > 1]
    is_dense = place.strides[-1] in (2, 4)
    return is_dense and all(at % PIECE == 0 for at in (place.offset, *steps))


__all__ = ["join_tokens"]
