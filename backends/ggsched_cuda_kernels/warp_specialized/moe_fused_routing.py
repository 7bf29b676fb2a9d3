"""Router top-k fused into the GEMV of the experts that it chooses.

Between the router's product and those of the experts stands one small kernel, which takes about as
long as its start and its end. Its work is little enough to be done by each group of the next one.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Final

from ggsched.backend.program import BoundNode
from ggsched_cuda_kernels.calls import CudaLoweringContext
from ggsched_cuda_kernels.decode.moe_router import BY_LOGITS, chooses_by_logits, rows_of
from ggsched_cuda_kernels.warp_specialized.experts import Route, chosen_of, lower_chosen
from ggsched_kernels.calls import TuningProfile

MAX_EXPERTS: Final = 128
"""Four logits for each lane of a warp, each of which is compared with all."""

ROUTED: Final = frozenset(
    ", ".join((*BY_LOGITS, pattern))
    for pattern in ("(mul_mat_id+add_id)*2+swiglu_oai", "mul_mat_id*2+swiglu")
)
"""What the call does, as neighbours are named."""


def join_routed(
    groups: Sequence[Sequence[BoundNode]], at: int, profile: TuningProfile
) -> tuple[int, CudaLoweringContext] | None:
    """Return how many groups from ``at`` on the kernel does, and its context, or None."""
    nodes, behind = chooses_by_logits(groups, at), at + len(BY_LOGITS)
    if nodes is None or behind >= len(groups):
        return None
    chosen = chosen_of(groups[behind], profile)
    if chosen is None or len(chosen.branches) == 1 or chosen.scale is not None:
        return None
    top, pick, soft = nodes
    logits, ids = top.inputs[0], top.output
    _, x, given = chosen.branches[0].inputs
    same = given.is_same_window(ids)
    if not same or logits.shape[-1] > MAX_EXPERTS:
        return None
    # Groups read logits and rows as they come, while others write already.
    writes = (ids, pick.output, soft.output, chosen.last.output)
    reads = (logits, x, *chosen.biases)
    if any(a.meets(b) for a, b in combinations(writes, 2)) or any(
        w.meets(r) for w in writes for r in reads
    ):
        return None
    args = tuple(arg for o in (logits, pick.output, soft.output) for arg in rows_of(o))
    scale = CudaLoweringContext(soft, profile).number("scale")
    ctx = CudaLoweringContext(chosen.last, profile)
    lower_chosen(chosen, ctx, Route(logits.shape[-1], args, scale))
    return len(BY_LOGITS) + 1, ctx
