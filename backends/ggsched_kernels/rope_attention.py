"""Attention of one token, as one kernel with the rotations and copies into caches before it.

A group has one head of keys with its queries: it writes these and then reads them, so that nothing
has to wait for other groups.
"""

from ggsched.backend.program import Operand
from ggsched_kernels.calls import MAX_JOBS, TuningProfile, i32
from ggsched_kernels.chains import Groups, Site
from ggsched_kernels.lower_attention import lower_attention, splits_of
from ggsched_kernels.rope_kv_write import Job, arguments, jobs_from


def join_attention(
    groups: Groups, at: int, profile: TuningProfile, ctx: type[Site]
) -> tuple[int, Site] | None:
    """Return how many groups from ``at`` on one kernel does, and its context, or None."""
    jobs, last = jobs_from(groups, at), groups[at + MAX_JOBS : at + MAX_JOBS + 1]
    if len(jobs) < MAX_JOBS or not last or [node.op for node in last[0]] != ["attention"]:
        return None
    node, (turned, keys, values) = last[0][0], jobs
    (k, v, q, *others), y = node.inputs, node.output
    if 0 in (*y.shape, *k.shape) or q.shape[0] > 1 or splits_of(k.shape[1], k.shape[0]) > 1:
        return None
    if not (q.is_same_window(turned.writes) and _writes_row(keys, k) and _writes_row(values, v)):
        return None
    if any(y.meets(o) for job in jobs for o in (*job.reads, job.writes)):
        return None
    if any(job.writes.meets(o) for job in jobs for o in others):
        return None
    heads = [i32(job.groups // k.shape[1]) for job in jobs]
    made = ctx(node, profile)
    lower_attention(made, (*arguments(jobs), *heads))
    return MAX_JOBS + 1, made


def _writes_row(job: Job, cache: Operand) -> bool:
    """Whether a job writes a row of a cache, of each head what belongs to one head of keys."""
    (_, heads, _), (row, head, each) = cache.shape, cache.strides
    to, (_, _, pieces, width) = job.to, job.source.shape
    return (
        to.buffer is cache.buffer
        and (to.strides[2], to.strides[3]) == (row, each)
        and pieces % heads == 0
        and head == pieces // heads * width * each
        and (cache.offset - to.offset) % row == 0
    )
