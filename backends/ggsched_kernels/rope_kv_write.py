"""Rotations and copies into caches that follow each other, as one kernel.

Between the products of a layer and its attention stand three small kernels: Q is rotated, K is
rotated into its cache, V is copied into its own. Each takes about as long as its start and its end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ggsched.backend.program import BoundNode, Operand
from ggsched.ir.rope import rope_table
from ggsched_kernels.calls import (
    FAULT,
    MAX_JOBS,
    Arg,
    CodeOf,
    Constant,
    Launch,
    TuningProfile,
    Window,
    f32,
    i32,
    window,
    window_of,
)
from ggsched_kernels.chains import Groups, Site
from ggsched_kernels.lower_reductions import rope_constants

HEAD_LANES: Final = 64
FEW_POSITIONS: Final = 64
"""With more positions the shared kernel, which computes each sine once for all heads, is better."""


@dataclass(frozen=True, slots=True)
class Job:
    """A share of the kernel.

    Attributes:
        args: What ``rope_heads`` would be given.
        groups: How many groups it takes, one for each head of a position.
        source: What is rotated or copied, (1, positions, heads, width).
        to: Where it goes: the result, or the cache.
        pairs: Pairs of a head that are rotated.
    """

    args: tuple[Arg, ...]
    groups: int
    source: Window
    to: Window
    pairs: int
    reads: tuple[Operand, ...]
    writes: Operand


def join_heads(
    groups: Groups, at: int, profile: TuningProfile, ctx: type[Site], least: int = 1
) -> tuple[int, Site] | None:
    """Return how many groups from ``at`` on one kernel does, and its context; None for too few.

    A group is taken as long as nothing that it writes is read or written by the others.
    """
    jobs = jobs_from(groups, at)
    count = len(jobs)
    if count < least or any(job.source.shape[1] > FEW_POSITIONS for job in jobs):
        return None
    made = ctx(groups[at + count - 1][-1], profile)
    ends = [sum(job.groups for job in jobs[:i]) for i in range(1, MAX_JOBS + 1)]
    args = arguments(jobs)
    grid = (ends[-1], 1, 1)
    more = (i32(ends[0]), i32(ends[1]))
    made.call("rope_kv_write", "rope_kv_write", (*args, *more), grid, lanes=HEAD_LANES)
    made.launched(Launch.WAITS_FIRST)
    return count, made


def jobs_from(groups: Groups, at: int) -> list[Job]:
    """Return the jobs of groups from ``at`` on, at most ``MAX_JOBS``, that are apart."""
    jobs: list[Job] = []
    for group in groups[at : at + MAX_JOBS]:
        job = job_of(group)
        if job is None or not all(_are_apart(job, other) for other in jobs):
            break
        jobs.append(job)
    return jobs


def arguments(jobs: Sequence[Job]) -> tuple[Arg, ...]:
    """Return the arguments of a kernel of ``MAX_JOBS``; those that are missing get no work."""
    shares = (*jobs, *[jobs[0]] * (MAX_JOBS - len(jobs)))
    return tuple(arg for job in shares for arg in job.args)


def job_of(nodes: Sequence[BoundNode]) -> Job | None:
    """Return what a node or a group is as a share, or None."""
    ops = "+".join(node.op for node in nodes)
    if any(0 in node.output.shape for node in nodes):
        return None
    if ops == "rope":
        return _turned(nodes[0], None)
    if ops == "rope+set_rows" and fits_rope_rows(*nodes):
        return _turned(*nodes)
    return _copied(nodes[0]) if ops == "set_rows" else None


def _turned(rope: BoundNode, rows: BoundNode | None) -> Job:
    x = window(rope.inputs[0])
    heads, pairs = x.shape[1] * x.shape[2], len(rope_table(rope.params)[0])
    if rows is None:
        to = window(rope.output)
        args = heads_arguments(rope, to, None, 0, CodeOf(rope.label))
        return Job(args, heads, x, to, pairs, rope.inputs, rope.output)
    dst, _, ids = rows.inputs
    to = window(dst)
    args = heads_arguments(rope, to, window(ids), kind_of_rows(dst), CodeOf(rows.label))
    return Job(args, heads, x, to, pairs, (*rope.inputs, ids), rows.output)


def _copied(rows: BoundNode) -> Job | None:
    """Rows without a rotation: heads of as many elements as a group has lanes."""
    dst, src, ids = rows.inputs
    count, n = src.shape
    if dst.dtype.name not in ("f32", "f16"):
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
    return Job(args, count * (n // width), x, window(dst), 0, (src, ids), rows.output)


def _are_apart(a: Job, b: Job) -> bool:
    """Whether neither writes what the other one touches."""
    return not any(a.writes.meets(o) for o in (*b.reads, b.writes)) and not any(
        b.writes.meets(o) for o in a.reads
    )


def fits_rope_rows(rope: BoundNode, rows: BoundNode) -> bool:
    """Whether the rotated heads of a position are one row of the cache."""
    dst, src, ids = rows.inputs
    x = rope.inputs[0]
    return (
        len(dst.shape) == 2
        and len(ids.shape) == 1
        and src.shape[-1] == x.shape[-1] * x.shape[-2]
        and dst.strides[-1] == dst.dtype.block_nbytes
        and dst.dtype.name in ("f32", "f16")
    )


def kind_of_rows(dst: Operand) -> int:
    """Return how the kernel calls the type of a cache."""
    return 2 if dst.dtype.name == "f16" else 1


def heads_arguments(
    rope: BoundNode, y: Window, ids: Window | None, kind: int, code: Arg
) -> tuple[Arg, ...]:
    """Return what the kernels of ``rope_heads`` take for a rotation.

    Args:
        y: Where its result goes, or the cache.
        ids: Rows of the cache, if it goes there.
        kind: Type of the cache, see the kernels.
        code: What a bad id is reported with.
    """
    x, positions = rope.inputs[:2]
    factors, table, flags = rope_constants(rope)
    places = (window(x), window(positions), factors, y, ids or window(positions))
    return (*(arg for place in places for arg in place.args), table, *flags, i32(kind), FAULT, code)
