"""Sums of a row over GPUs as the first part of the products behind them (LCH-6).

A sum, the residual and the norm take a kernel of one thread block (``device_sums``). If each GPU
writes its row into the memory of the others while it computes it, each thread block of the products
behind the norm adds up the rows by itself, and no such kernel is needed. Without that it would read
the rows of other GPUs once for each thread block, which takes longer than the kernel.

So this is an alternative for the first calls of a program. Whoever launches the program decides.
"""

from collections.abc import Sequence

from ggsched.backend.program import BoundNode
from ggsched_cuda_kernels.calls import Call, CudaLoweringContext
from ggsched_cuda_kernels.decode.device_sums import addends, sums_at
from ggsched_cuda_kernels.operands import is_row
from ggsched_cuda_kernels.pdl_prefetch import reads_early
from ggsched_cuda_kernels.warp_specialized.gemv_jobs import PeerSumPrologue
from ggsched_cuda_kernels.warp_specialized.rows import gemv_group_of, lower_gemv_group
from ggsched_kernels import KernelCall
from ggsched_kernels.calls import PushedRows, TuningProfile


def pushed_rows(
    groups: Sequence[Sequence[BoundNode]],
    calls: Sequence[Call],
    ends: Sequence[int],
    profile: TuningProfile,
) -> PushedRows | None:
    """Return what can take the place of the first calls of a program, or None.

    Args:
        groups: All groups of the program.
        calls: Its calls.
        ends: For each call how many groups are computed when it has run; 0 within a group.
        profile: Of the device.
    """
    sums = _peer_sum(sums_at(groups, 0))
    if sums is None:
        return None
    count = 1 if sums.part is None else 2
    products = gemv_group_of(groups, count, profile, sums)
    if products is None or products[0] not in ends:
        return None
    end, feeding = products
    covered = ends.index(end) + 1
    last = calls[-1]
    if covered == len(calls) and isinstance(last, KernelCall) and last.also is not None:
        return None  # to let it write its result to other places counts more
    made = [node.output for group in groups[:end] for node in group]
    if covered < len(calls) and reads_early(calls[covered], made):
        return None
    site = CudaLoweringContext(groups[end - 1][-1], profile)
    staged = lower_gemv_group(feeding, site, is_last=end == len(groups))
    (call,) = site.calls
    assert isinstance(call, KernelCall)
    places = tuple((part.buffer, part.offset) for part in sums.parts)
    return PushedRows(call, covered, places, sums.y.nbytes, staged)


def _peer_sum(sums: Sequence[BoundNode]) -> PeerSumPrologue | None:
    """Return what nodes add up that compute one row; None if they do not."""
    read = addends(sums) if sums else None
    if read is None or not is_row(read[0]):
        return None
    part = sums[1].output if len(sums) > 2 else None
    return PeerSumPrologue(read[:-1], part, read[-1], sums[-1].output, sums[-1].label)
