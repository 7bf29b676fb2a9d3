"""Rotations and copies into caches that follow each other, as one kernel.

Between the products of a layer and its attention stand three small kernels: Q is rotated, K is
rotated into its cache, V is copied into its own. Each takes about as long as its start and its end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ggsched.backend.program import BoundNode, Operand
from ggsched_cuda_kernels.calls import CudaLoweringContext
from ggsched_cuda_kernels.decode.fused import (
    FEW_POSITIONS,
    HEAD_LANES,
    fits_rope,
    fits_rope_rows,
    kind_of_rows,
    rope_arguments,
)
from ggsched_cuda_kernels.operands import meet
from ggsched_kernels import TuningProfile
from ggsched_kernels.calls import FAULT, Arg, CodeOf, Constant, f32, i32, window, window_of

MAX_JOBS: Final = 3


@dataclass(frozen=True, slots=True)
class Job:
    """A share of the kernel.

    Attributes:
        args: What ``rope_heads`` would be given.
        groups: How many groups it takes.
        reads: What it reads.
        writes: What it writes.
    """

    args: tuple[Arg, ...]
    groups: int
    reads: tuple[Operand, ...]
    writes: Operand


def join_heads(
    groups: Sequence[Sequence[BoundNode]], at: int, profile: TuningProfile
) -> tuple[int, CudaLoweringContext] | None:
    """Return how many groups from ``at`` on one kernel does, and its site; None for fewer than two.

    A group is taken as long as nothing that it writes is read or written by the others.
    """
    jobs: list[Job] = []
    for group in groups[at : at + MAX_JOBS]:
        job = job_of([CudaLoweringContext(node, profile) for node in group])
        if job is None or not all(_are_apart(job, other) for other in jobs):
            break
        jobs.append(job)
    count = len(jobs)
    if count < 2:
        return None
    site = CudaLoweringContext(groups[at + count - 1][-1], profile)
    ends = [sum(job.groups for job in jobs[:i]) for i in range(1, count + 1)]
    shares = (*jobs, *jobs[:1] * (MAX_JOBS - count))  # those that are missing get no group
    args = tuple(arg for job in shares for arg in job.args)
    grid = (ends[-1], 1, 1)
    more = (i32(ends[0]), i32(ends[1]))
    site.call("rope_kv_write", "rope_kv_write", (*args, *more), grid, lanes=HEAD_LANES)
    return count, site


def job_of(sites: list[CudaLoweringContext]) -> Job | None:
    """Return what a node or a group is as a share, or None."""
    nodes = [site.node for site in sites]
    ops = "+".join(node.op for node in nodes)
    if any(0 in node.output.shape for node in nodes):
        return None
    if ops == "rope" and fits_rope(sites[0]):
        return _turned(nodes[0], None)
    if ops == "rope+set_rows" and fits_rope(sites[0]) and fits_rope_rows(sites):
        return _turned(*nodes)
    return _copied(nodes[0]) if ops == "set_rows" else None


def _turned(rope: BoundNode, rows: BoundNode | None) -> Job:
    heads = rope.inputs[0].shape[0] * rope.inputs[0].shape[1]
    if rows is None:
        args = rope_arguments(rope, window(rope.output), None, 0, CodeOf(rope.label))
        return Job(args, heads, rope.inputs, rope.output)
    dst, _, ids = rows.inputs
    code = CodeOf(rows.label)
    args = rope_arguments(rope, window(dst), window(ids), kind_of_rows(dst), code)
    return Job(args, heads, (*rope.inputs, ids), rows.output)


def _copied(rows: BoundNode) -> Job | None:
    """Rows without a rotation: heads of as many elements as a group has lanes."""
    dst, src, ids = rows.inputs
    count, n = src.shape
    if count > FEW_POSITIONS or dst.dtype.name not in ("f32", "f16"):
        return None
    width = HEAD_LANES if n % HEAD_LANES == 0 else n
    step, each = src.strides
    x = window_of(src, (1, count, n // width, width), (0, step, width * each, each))
    chosen = window(ids)
    places = (x, chosen, chosen, window(dst), chosen)
    args: tuple[Arg, ...] = (
        *(arg for place in places for arg in place.args), Constant(bytes(8)), i32(0), i32(0),
        i32(0), f32(1.0), i32(kind_of_rows(dst)), FAULT, CodeOf(rows.label),
    )  # fmt: skip
    return Job(args, count * (n // width), (src, ids), rows.output)


def _are_apart(a: Job, b: Job) -> bool:
    """Whether neither writes what the other one touches."""
    return not any(meet(a.writes, o) for o in (*b.reads, b.writes)) and not any(
        meet(b.writes, o) for o in a.reads
    )
