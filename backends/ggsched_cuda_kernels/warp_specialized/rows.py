"""Products of one row: from nodes to a call of ``warp_specialized_rows``."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from ggsched.backend.program import BoundNode, Operand
from ggsched_cuda_kernels.calls import CudaLoweringContext
from ggsched_cuda_kernels.operands import PIECE, is_row, is_same, is_vector, joins, other_operand
from ggsched_cuda_kernels.warp_specialized.gemv_jobs import (
    MAX_JOBS,
    GemvGroup,
    Job,
    Norm,
    PeerSumPrologue,
    Prologue,
    ReducePrologue,
)
from ggsched_cuda_kernels.warp_specialized.tile_config import cut_for
from ggsched_kernels.calls import (
    FAULT,
    MAX_PEERS,
    Arg,
    CodeOf,
    Launch,
    TuningProfile,
    f32,
    i32,
    i64,
    window,
)

Nodes = Sequence[BoundNode]
Groups = Sequence[Nodes]

MAX_TERMS: Final = 16
"""Rows that are added up while a kernel begins: every group does it for itself."""

SENT_NBYTES: Final = 64 << 10
"""A result as long as this can go to the host while it is computed: a row of logits."""

STAGED_ARGS: Final = 2 * MAX_PEERS + 3
"""Arguments of a call for rows of several GPUs: where they are, a count, words, patience."""

GEMV_PATTERNS: Final = frozenset({"mul_mat+add", "mul_mat+add+add", "mul_mat*2+swiglu"})
"""Groups that a call can compute; with many rows they are lowered node by node."""


def join_products(
    groups: Groups, at: int, profile: TuningProfile
) -> tuple[int, CudaLoweringContext] | None:
    """Return how many groups from ``at`` on one call computes, and the context that has it.

    A norm goes together with the products of its result, and products of the same row with each
    other; sums of a few rows go together with a norm of the result. What sums and a norm compute is
    written for others all the same.
    """
    sums = _sums_of(groups[at]) if profile.has_tma else None
    found = gemv_group_of(groups, at + (sums is not None), profile, sums)
    if found is None:
        return None
    end, feeding = found
    ctx = CudaLoweringContext(groups[end - 1][-1], profile)
    lower_gemv_group(feeding, ctx, is_last=end == len(groups))
    return end - at, ctx


def gemv_group_of(
    groups: Groups, at: int, profile: TuningProfile, sums: Prologue | None
) -> tuple[int, GemvGroup] | None:
    """Return a norm, if one is at ``at``, and the products that go together with it, or None.

    Args:
        groups: Of a program.
        at: Where to begin.
        profile: Of the device.
        sums: What precedes it; the norm has to take its result.

    Returns:
        Where the groups end that it computes, and what one call computes.
    """
    if not profile.has_tma or at == len(groups):
        return None
    end, feeding = at, _norm_of(groups[at], profile)
    if sums is not None:
        if feeding is None or not is_same(feeding.x, sums.y):
            return None
        feeding.sums = sums
    end += feeding is not None
    while end < len(groups):
        found = _product_of(groups[end], profile)
        if found is None:
            break
        x, job = found
        if feeding is None:
            feeding = GemvGroup(profile, x)
        if not feeding.takes(x, job):
            break
        feeding.jobs.append(job)
        end += 1
    return (end, feeding) if feeding is not None and feeding.jobs else None


def _product_of(nodes: Nodes, profile: TuningProfile) -> tuple[Operand, Job] | None:
    """Return the row and the job of a node, or of the nodes of a group; None if it is none."""
    group, last = nodes[-1].group, nodes[-1]
    match group.pattern if group is not None and len(nodes) > 1 else last.op:
        case "mul_mat":
            job = Job(last.inputs[0], last.output)
        case "mul_mat+add" | "mul_mat+add+add":
            others = [other_operand(a.output, b) for a, b in pairwise(nodes)]
            added = tuple(z for z in others if z is not None)
            if len(added) < len(others):
                return None
            job = Job(nodes[0].inputs[0], last.output, added=added)
        case "mul_mat*2+swiglu":
            gate, up, join = nodes
            if not joins(join, gate, up):
                return None
            job = Job(gate.inputs[0], last.output, v=up.inputs[0])
        case _:
            return None
    x, inside = nodes[0].inputs[1], [node.output for node in nodes[:-1]]
    if any(o.meets(made) for o in (x, *job.reads) for made in inside):
        return None  # it reads what is not written here
    return (x, job) if _fits(x, job, profile) else None


def _sums_of(nodes: Nodes) -> ReducePrologue | None:
    """Return the sums of a few rows that are added to another row; None if it is none."""
    group = nodes[-1].group
    if group is None or group.pattern != "sum_rows+add" or len(nodes) == 1:
        return None
    sums, add = nodes
    x, z, y = sums.inputs[0], other_operand(sums.output, add), add.output
    if z is None or not (is_row(z) and is_row(y)) or z.shape[-1] != y.shape[-1]:
        return None
    n, count = x.shape[-2:] if len(x.shape) > 1 else (0, 0)
    is_one = n == y.shape[-1] and all(extent == 1 for extent in x.shape[:-2])
    if not (is_one and x.dtype.name == "f32" and 0 < count <= MAX_TERMS):
        return None
    step, places = x.strides[-2], (x.offset, x.strides[-1] if count > 1 else 0)
    has_rows = step == x.dtype.block_nbytes and all(place % PIECE == 0 for place in places)
    return ReducePrologue(x, z, y) if has_rows else None


def _norm_of(nodes: Nodes, profile: TuningProfile) -> GemvGroup | None:
    """Return the begin of a call from a norm of one row and its weight; None if it is none."""
    group = nodes[-1].group
    if group is None or group.pattern != "rms_norm+mul" or len(nodes) == 1:
        return None
    norm, mul = nodes
    x, w = norm.inputs[0], other_operand(norm.output, mul)
    if w is None or not all(map(is_row, (x, w, mul.output))) or w.shape[-1] != x.shape[-1]:
        return None
    eps = norm.params["eps"]
    assert isinstance(eps, (int, float))  # the graph was verified
    return GemvGroup(profile, x, Norm(w, mul.output, float(eps)))


def _fits(x: Operand, job: Job, profile: TuningProfile) -> bool:
    """Whether a product is of one row, with a weight of two axes that a producer warp can load."""
    n = job.w.shape[-2]
    if not is_row(x) or any(extent != 1 for w in job.weights for extent in w.shape[:-2]):
        return False
    if not all(is_vector(o, n) for o in (job.y, *job.added)):
        return False
    return cut_for(job.weights, profile) is not None


def _parts(jobs: Sequence[Job], profile: TuningProfile) -> int:
    """Return how many groups share the rows: no more than make the largest share smaller.

    What is before it in the stream may keep a multiprocessor for itself until it ends, and then the
    last group begins late, while all others have their first stages.
    """
    n = jobs[0].w.shape[-2]
    return profile.num_sms if len(jobs) > 1 else -(-n // -(-n // profile.num_sms))


def lower_gemv_group(feeding: GemvGroup, ctx: CudaLoweringContext, *, is_last: bool) -> int:
    """Add the call to the context of the last node; return its first argument for rows of GPUs.

    Args:
        feeding: What it computes.
        ctx: Where to.
        is_last: Whether it is the last one of its program. Its result may then be one that other
            GPUs add up with their own.
    """
    jobs, cut, norm, sums = feeding.jobs, feeding.cut, feeding.norm, feeding.sums
    first, parts = jobs[0], _parts(jobs, ctx.profile)
    given = -(-sum(cut.stages_of(job.w.shape[-2]) for job in jobs) // parts)
    addends = 0 if sums is None else sums.count
    peers = addends - 1 if isinstance(sums, PeerSumPrologue) else 0
    places = _places(jobs, ctx.profile, is_last=is_last)
    defines = {
        **cut.defines(first.w, given), "GATED": int(first.v is not None),
        "NORM": int(norm is not None), "ADDENDS": addends,
        "CONSTANT_W": int(feeding.is_constant), "ALSO": places, "PEERS_MET": peers,
    }  # fmt: skip
    x = window(feeding.x)
    made = (x, x) if norm is None else (window(norm.w), window(norm.y))
    args: list[Arg] = [*x.args, *made[0].args, *made[1].args]
    args += [f32(0.0 if norm is None else norm.eps), i32(parts)]
    args += window(sums.x).args if isinstance(sums, ReducePrologue) else x.args
    args += x.args if sums is None else window(sums.z).args
    for i in range(MAX_JOBS):
        job = jobs[min(i, len(jobs) - 1)]
        y = window(job.y)
        added = [window(z, job.y.shape) for z in job.added]
        for place in (window(job.w), window(job.v or job.w), y, *added, *([y] * (2 - len(added)))):
            args += place.args
        args += [i32(job.w.shape[-2] if i < len(jobs) else 0), i32(len(added))]
    also = len(args)
    args += [i64(0)] * places
    staged = len(args)
    if isinstance(sums, PeerSumPrologue):
        part = window(sums.y if sums.part is None else sums.part)
        args += [*[i64(0)] * STAGED_ARGS, *part.args, FAULT, CodeOf(sums.label)]
    ctx.call(
        "warp_specialized_rows", "warp_specialized_rows", tuple(args), (parts, 1, 1), **defines
    )
    ctx.launched(Launch.WAITS_FIRST)
    if places:
        ctx.can_also_write(first.y, also, places)
    return staged


def _places(jobs: Sequence[Job], profile: TuningProfile, *, is_last: bool) -> int:
    """Return to how many other places the result of a call may be written."""
    y = jobs[0].y
    if len(jobs) > 1 or y.strides[-1] != y.dtype.block_nbytes:
        return 0
    if y.nbytes >= SENT_NBYTES:  # it would take longer to send to the host than to write by and by
        return 1
    return 1 + MAX_PEERS if is_last and profile.reads_peers else 0
