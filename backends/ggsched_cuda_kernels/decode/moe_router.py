"""The nodes that choose experts for a few tokens, as one kernel.

Between the router's product and those of the experts stand three small kernels (gpt-oss) or five
(models that choose by probabilities). Each works on a few numbers and takes about as long as its
start and its end. They are not a fusion group: others may read what each of them computes, so all
of it is written.

One group of lanes reads all logits before it writes anything, and writes in the order of the nodes.
So results may lie wherever the results of the nodes may, on each other or on the logits.
"""

from collections.abc import Sequence
from typing import Final

from ggsched.backend.program import BoundNode, Operand
from ggsched_cuda_kernels.calls import CudaLoweringContext
from ggsched_cuda_kernels.operands import is_same
from ggsched_kernels import TuningProfile
from ggsched_kernels.calls import Arg, f32, window, window_of

Groups = Sequence[Sequence[BoundNode]]

BY_LOGITS: Final = ("top_k", "get_rows", "soft_max")
BY_PROBABILITIES: Final = ("soft_max", "top_k", "get_rows", "sum_rows", "div")
MAX_EXPERTS: Final = 512
"""A lane looks at every number of its row, or of its warp and then at those that are left."""
MAX_LANES: Final = 1024
"""A lane for each logit, in one group."""
MAX_CHOSEN: Final = 32
WARP: Final = 32


def join_route(
    groups: Groups, at: int, profile: TuningProfile
) -> tuple[int, CudaLoweringContext] | None:
    """Return how many groups from ``at`` on the kernel does, and its context, or None."""
    for ops, lower in ((BY_LOGITS, _by_logits), (BY_PROBABILITIES, _by_probabilities)):
        some = groups[at : at + len(ops)]
        if any(len(group) != 1 for group in some):
            continue
        nodes = [group[0] for group in some]
        if tuple(node.op for node in nodes) == ops:
            ctx = lower(nodes, CudaLoweringContext(nodes[-1], profile))
            return None if ctx is None else (len(ops), ctx)
    return None


def chooses_by_logits(groups: Groups, at: int) -> Sequence[BoundNode] | None:
    """Return the nodes from ``at`` on that choose by logits, if they do."""
    some = groups[at : at + len(BY_LOGITS)]
    nodes = [group[0] for group in some]
    if any(len(group) != 1 for group in some) or tuple(node.op for node in nodes) != BY_LOGITS:
        return None
    top, pick, soft = nodes
    if not _fits(top.inputs[0], top, pick) or not _is_plain(soft):
        return None
    return nodes if _is_seen_as(soft.inputs[0], pick.output, top.output.shape) else None


def _by_logits(nodes: Sequence[BoundNode], ctx: CudaLoweringContext) -> CudaLoweringContext | None:
    top, pick, soft = nodes
    if chooses_by_logits([[node] for node in nodes], 0) is None:
        return None
    operands = (top.inputs[0], top.output, pick.output, soft.output)
    _call(ctx, "route_chosen", top, tuple(map(rows_of, operands)), (f32(ctx.number("scale")),))
    return ctx


def _by_probabilities(
    nodes: Sequence[BoundNode], ctx: CudaLoweringContext
) -> CudaLoweringContext | None:
    soft, top, pick, add, div = nodes
    probs = soft.output
    if not _is_plain(soft) or not _is_seen_as(top.inputs[0], probs, probs.shape):
        return None
    if not _fits(probs, top, pick):
        return None
    chosen, (some, total) = top.output.shape, div.inputs
    picked = (add.inputs[0], some)
    if any(not _is_seen_as(o, pick.output, chosen) for o in picked) or div.output.shape != chosen:
        return None
    if not _is_seen_as(total, add.output, (chosen[0], 1)):
        return None
    operands = (soft.inputs[0], probs, top.output, pick.output, add.output, div.output)
    scale = f32(CudaLoweringContext(soft, ctx.profile).number("scale"))
    _call(ctx, "route_all", top, tuple(map(rows_of, operands)), (scale,))
    return ctx


def _fits(scores: Operand, top: BoundNode, pick: BoundNode) -> bool:
    """Whether few rows are chosen from, and what is picked are the scores of those chosen."""
    table, ids = pick.inputs
    if len(scores.shape) != len(("token", "expert")) or 0 in scores.shape:
        return False
    if scores.shape[-1] > MAX_EXPERTS or top.output.shape[-1] > MAX_CHOSEN:
        return False
    if _lanes(scores) > MAX_LANES:
        return False
    return _is_seen_as(table, scores, (*scores.shape, 1)) and _is_seen_as(
        ids, top.output, top.output.shape
    )


def _is_plain(soft: BoundNode) -> bool:
    """Whether a softmax is of two axes, without mask and sinks."""
    is_alone = not soft.params["mask"] and not soft.params["sinks"]
    return is_alone and len(soft.inputs[0].shape) == len(("token", "expert"))


def _is_seen_as(o: Operand, made: Operand, shape: tuple[int, ...]) -> bool:
    """Whether an operand is a result, number by number, with axes of extent 1 more or less."""
    return is_same(o, made) and o.shape == shape and _axes(o) == _axes(made)


def _axes(o: Operand) -> list[tuple[int, int]]:
    return [(n, step) for n, step in zip(o.shape, o.strides, strict=True) if n > 1]


def _span(scores: Operand) -> int:
    return max(WARP, 1 << (scores.shape[-1] - 1).bit_length())


def _lanes(scores: Operand) -> int:
    """Return lanes for a power of two of rows."""
    return _span(scores) << (scores.shape[0] - 1).bit_length()


def rows_of(o: Operand) -> tuple[Arg, Arg]:
    """Return an operand as (1, 1, T, n), of which picked scores may have an axis more."""
    if len(o.shape) == len(("token", "expert")):
        return window(o).args
    (t, n, _), (st, sn, _) = o.shape, o.strides
    return window_of(o, (1, 1, t, n), (0, 0, st, sn)).args


def _call(
    ctx: CudaLoweringContext,
    kernel: str,
    top: BoundNode,
    operands: Sequence[tuple[Arg, Arg]],
    more: tuple[Arg, ...],
) -> None:
    args = tuple(arg for place in operands for arg in place)
    scores, count = top.inputs[0], top.output.shape[-1]
    lanes, span = _lanes(scores), _span(scores)
    defines: dict[str, str | int] = {"lanes": lanes, "SPAN": span, "COUNT": count}
    ctx.call("moe_router", kernel, (*args, *more), (1, 1, 1), **defines)
