"""Products with weights of chosen experts: from nodes to a call of the warp-specialised kernel."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ggsched.backend.program import BoundNode, Operand
from ggsched_cuda_kernels.calls import CudaLoweringContext
from ggsched_cuda_kernels.operands import has_rows, is_same, joins, other_operand
from ggsched_cuda_kernels.warp_specialized.tile_config import cut_for
from ggsched_kernels.calls import CODE, FAULT, Arg, Launch, TuningProfile, f32, i32, window
from ggsched_kernels.lower_warps import ids_window
from ggsched_kernels.lowering_context import experts_of

Nodes = Sequence[BoundNode]

EXPERT_PATTERNS: Final = frozenset(
    {
        "mul_mat_id+mul",
        "mul_mat_id+add_id",
        "mul_mat_id*2+swiglu",
        "mul_mat_id+add_id+mul",
        "(mul_mat_id+add_id)*2+swiglu_oai",
    }
)
GATES: Final = {"swiglu": 1, "swiglu_oai": 2}


@dataclass(frozen=True, slots=True)
class ExpertGemv:
    """Products of rows with the weights of the experts that ids name, and what joins them.

    Attributes:
        branches: The ``mul_mat_id`` of each branch.
        biases: What is added to each branch; none, or one for each.
        scale: What results are multiplied with.
        last: The node whose result is computed.
    """

    branches: tuple[BoundNode, ...]
    biases: tuple[Operand, ...]
    scale: Operand | None
    last: BoundNode


@dataclass(frozen=True, slots=True)
class Route:
    """How the kernel chooses the ids itself.

    Attributes:
        experts: Logits of a token.
        args: The logits, and where those that are chosen and their softmax are written.
        scale: Of the logits in the softmax.
    """

    experts: int
    args: tuple[Arg, ...]
    scale: float


def join_experts(
    groups: Sequence[Nodes], at: int, profile: TuningProfile
) -> tuple[int, CudaLoweringContext] | None:
    """Return the context that computes the group at ``at``, if it is one of few pairs."""
    chosen = chosen_of(groups[at], profile)
    if chosen is None:
        return None
    ctx = CudaLoweringContext(chosen.last, profile)
    lower_chosen(chosen, ctx)
    return 1, ctx


def chosen_of(nodes: Nodes, profile: TuningProfile) -> ExpertGemv | None:
    """Return what nodes compute with chosen experts, if a producer warp can load the weights."""
    chosen = _chosen(nodes)
    return chosen if chosen and profile.has_tma and _fits(chosen, profile) else None


def _chosen(nodes: Nodes) -> ExpertGemv | None:
    """Return what nodes of a pattern compute; None if they are of none or joined otherwise."""
    group, last = nodes[-1].group, nodes[-1]
    match group.pattern if group is not None and len(nodes) > 1 else last.op:
        case "mul_mat_id":
            return ExpertGemv((last,), (), None, last)
        case "mul_mat_id+mul":
            scale = other_operand(nodes[0].output, last)
            if scale is None or not _is_scale(scale, last.output):
                return None
            return ExpertGemv((nodes[0],), (), scale, last)
        case "mul_mat_id+add_id":
            bias = _bias(nodes[0], nodes[1])
            return None if bias is None else ExpertGemv((nodes[0],), (bias,), None, last)
        case "mul_mat_id+add_id+mul":
            bias, scale = _bias(nodes[0], nodes[1]), other_operand(nodes[1].output, last)
            if bias is None or scale is None or not _is_scale(scale, last.output):
                return None
            return ExpertGemv((nodes[0],), (bias,), scale, last)
        case "mul_mat_id*2+swiglu":
            gate, up, join = nodes
            return ExpertGemv((gate, up), (), None, last) if joins(join, gate, up) else None
        case "(mul_mat_id+add_id)*2+swiglu_oai":
            gate, gate_bias, up, up_bias, join = nodes
            biases = _bias(gate, gate_bias), _bias(up, up_bias)
            if None in biases or not joins(join, gate_bias, up_bias):
                return None
            return ExpertGemv((gate, up), tuple(b for b in biases if b is not None), None, last)
        case _:
            return None


def _bias(product: BoundNode, add: BoundNode) -> Operand | None:
    """Return what is added to a product, by the same ids."""
    made, bias, ids = add.inputs
    chosen = product.inputs[2]
    alike = is_same(made, product.output) and ids.is_same_window(chosen)
    fits = alike and experts_of(add) == experts_of(product) and bias.dtype.name == "f32"
    return bias if fits else None


def _is_scale(scale: Operand, y: Operand) -> bool:
    """Whether there is one factor for each row of y."""
    return scale.dtype.name == "f32" and scale.shape == (*y.shape[:-1], 1)


def _fits(chosen: ExpertGemv, profile: TuningProfile) -> bool:
    """Whether there are few pairs, and weights that a producer warp can load."""
    first = chosen.branches[0]
    w, x, ids = first.inputs
    pairs = ids.shape[0] * ids.shape[1]
    if not 0 < pairs <= profile.num_sms or 0 in (*w.shape, *x.shape) or not has_rows(x):
        return False
    for branch in chosen.branches[1:]:
        if not branch.inputs[1].is_same_window(x) or not branch.inputs[2].is_same_window(ids):
            return False
        if experts_of(branch) != experts_of(first):
            return False
    weights = [branch.inputs[0] for branch in chosen.branches]
    if any(o.shape != w.shape for o in weights):
        return False
    return cut_for(weights, profile) is not None


def lower_chosen(chosen: ExpertGemv, ctx: CudaLoweringContext, route: Route | None = None) -> None:
    """Add the call to the context of the last node."""
    first = chosen.branches[0]
    w, x, ids = first.inputs
    weights = [branch.inputs[0] for branch in chosen.branches]
    cut = cut_for(weights, ctx.profile)
    assert cut is not None  # it fits
    y = window(chosen.last.output)
    biases = chosen.biases or (x, x)
    scale = y if chosen.scale is None else window(chosen.scale)
    is_oai = chosen.last.op == "swiglu_oai"
    p0, p1 = (ctx.number(name) if is_oai else 0.0 for name in ("alpha", "limit"))
    tensors = (window(x), ids_window(first), window(w), window(weights[-1]))
    more = (window(biases[0]), window(biases[-1]), scale, y)
    args = tuple(arg for place in (*tensors, *more) for arg in place.args)
    pairs = ids.shape[0] * ids.shape[1]
    parts = min(max(1, ctx.profile.num_sms // pairs), w.shape[-2])
    _, of, count = experts_of(first)
    is_some = of != count
    flags = (i32(parts), i32(bool(chosen.biases)), i32(chosen.scale is not None), f32(p0), f32(p1))
    defines = {
        **cut.defines(w, -(-cut.stages_of(w.shape[-2]) // parts)),
        "GATED": GATES[chosen.last.op] if len(weights) > 1 else 0,
        "CONSTANT_W": 0, "NORM": 0, "ADDENDS": 0, "ALSO": 0, "PEERS_MET": 0,
        "ROUTED": int(route is not None), "SOME": int(is_some),
    }  # fmt: skip
    if route is not None or is_some:
        defines |= {"EXPERTS": route.experts if route else 0, "COUNT": ids.shape[1]}
    places, scale_of_logits = (3 * y.args, 0.0) if route is None else (route.args, route.scale)
    given = (*args, *flags, FAULT, CODE, *places, f32(scale_of_logits))
    ctx.call(
        "warp_specialized_experts",
        "warp_specialized_experts",
        given,
        (parts * pairs, 1, 1),
        **defines,
    )
    ctx.launched(Launch.WAITS_FIRST)
