"""Sums of a row over GPUs as the prologue of the products behind them (LCH-6).

``device_sums`` computes a sum, the residual and the norm by a kernel of one thread block. If the
GPUs push their rows into each other's memory, each thread block of the products behind the norm
adds up the rows itself, and this kernel is not needed. Without pushed rows each thread block would
read the rows of the other GPUs, which takes longer than the kernel.

The result is an alternative to the first calls of a program. The capture that launches the program
decides between them (``ggsched_cuda.rendezvous``).
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
    """Return the call that replaces the first ones of a program if rows are pushed, or None.

    Args:
        groups: All groups of the program.
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
        return None  # its own result can be pushed, or sent to the host, which saves more
    made = [node.output for group in groups[:end] for node in group]
    if covered < len(calls) and reads_early(calls[covered], made):
        return None
    ctx = CudaLoweringContext(groups[end - 1][-1], profile)
    staged = lower_gemv_group(feeding, ctx, is_last=end == len(groups))
    (call,) = ctx.calls
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
