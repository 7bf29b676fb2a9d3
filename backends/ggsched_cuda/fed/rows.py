"""Products of one row: from nodes to a call of ``fed_rows``."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from ggsched.backend.program import BoundNode, Operand
from ggsched_cuda.calls import CudaSite
from ggsched_cuda.fed.cut import cut_for
from ggsched_cuda.fed.jobs import MOST_JOBS, Feeding, Job, Norm
from ggsched_cuda.fed.operands import is_row, is_vector, joins, meet, other_operand
from ggsched_kernels.calls import Arg, Profile, f32, i32, window

Nodes = Sequence[BoundNode]
Groups = Sequence[Nodes]

FED_PATTERNS: Final = frozenset({"mul_mat+add", "mul_mat+add+add", "mul_mat*2+swiglu"})
"""Groups that a call can compute; with many rows they are lowered node by node."""


def join_products(groups: Groups, at: int, profile: Profile) -> tuple[int, CudaSite] | None:
    """Return how many groups from ``at`` on one call computes, and the site that has it.

    A norm goes together with the products of its result, and products of the same row with each
    other. What a norm computes is written for others all the same.
    """
    if not profile.has_feeder:
        return None
    feeding = _norm_of(groups[at], profile)
    end = at if feeding is None else at + 1
    while end < len(groups):
        found = _product_of(groups[end], profile)
        if found is None:
            break
        x, job = found
        if feeding is None:
            feeding = Feeding(profile, x)
        if not feeding.takes(x, job):
            break
        feeding.jobs.append(job)
        end += 1
    if feeding is None or not feeding.jobs:
        return None
    site = CudaSite(groups[end - 1][-1], profile)
    _lower(feeding, site)
    return end - at, site


def _product_of(nodes: Nodes, profile: Profile) -> tuple[Operand, Job] | None:
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
    if any(meet(o, made) for o in (x, *job.reads) for made in inside):
        return None  # it reads what is not written here
    return (x, job) if _fits(x, job, profile) else None


def _norm_of(nodes: Nodes, profile: Profile) -> Feeding | None:
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
    return Feeding(profile, x, Norm(w, mul.output, float(eps)))


def _fits(x: Operand, job: Job, profile: Profile) -> bool:
    """Whether a product is one of a row, with a weight of two axes that can be fed."""
    n = job.w.shape[-2]
    if not is_row(x) or any(extent != 1 for w in job.weights for extent in w.shape[:-2]):
        return False
    if not all(is_vector(o, n) for o in (job.y, *job.added)):
        return False
    return cut_for(job.weights, profile) is not None


def _lower(feeding: Feeding, site: CudaSite) -> None:
    """Add the call to the site of the last node."""
    jobs, cut, norm = feeding.jobs, feeding.cut, feeding.norm
    first, units = jobs[0], site.profile.units
    given = -(-sum(cut.units_of(job.w.shape[-2]) for job in jobs) // units)
    defines = {
        **cut.defines(first.w, given), "GATED": int(first.v is not None),
        "NORM": int(norm is not None), "CONSTANT_W": int(feeding.is_constant),
    }  # fmt: skip
    x = window(feeding.x)
    made = (x, x) if norm is None else (window(norm.w), window(norm.y))
    args: list[Arg] = [*x.args, *made[0].args, *made[1].args]
    args += [f32(0.0 if norm is None else norm.eps), i32(units)]
    for i in range(MOST_JOBS):
        job = jobs[min(i, len(jobs) - 1)]
        y = window(job.y)
        added = [window(z, job.y.shape) for z in job.added]
        for place in (window(job.w), window(job.v or job.w), y, *added, *([y] * (2 - len(added)))):
            args += place.args
        args += [i32(job.w.shape[-2] if i < len(jobs) else 0), i32(len(added))]
    site.call("fed_rows", "fed_rows", tuple(args), (units, 1, 1), **defines)
