"""Which kernel runs which node: one table, from above; what fits nothing goes the shared way.

To add a kernel, write its lowering (``ggsched_kernels`` for one that OpenCL can use too) and put a
row above those that it is quicker than.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from ggsched.backend.program import BoundNode, Operand, groups_of
from ggsched.ir.dtype import KV_DTYPES
from ggsched_cuda_kernels.batch_attention import PATTERNS as BATCHES
from ggsched_cuda_kernels.batch_attention import fits_batches, lower_batches
from ggsched_cuda_kernels.calls import Call, CudaLoweringContext
from ggsched_cuda_kernels.chain_rows import join_chain_rows
from ggsched_cuda_kernels.conv_mma import conv_tiles
from ggsched_cuda_kernels.decode.attention import fits_attention, lower_attention
from ggsched_cuda_kernels.decode.device_sums import (
    PATTERN,
    fits_sums,
    join_sums,
    lower_sums,
    residual_norm,
)
from ggsched_cuda_kernels.decode.elements import join_elements
from ggsched_cuda_kernels.decode.fused import (
    fits_gated_norm,
    fits_norm_mul_add,
    fits_rms_mul,
    fits_rope,
    lower_gated_norm,
    lower_norm_mul_add,
    lower_rms_mul,
    lower_rope,
    lower_rope_rows,
)
from ggsched_cuda_kernels.decode.moe_router import join_route
from ggsched_cuda_kernels.decode.rope_attention import OPS as ATTENTION
from ggsched_cuda_kernels.decode.rope_attention import join_attention
from ggsched_cuda_kernels.decode.states import join_conv, join_linear_attention
from ggsched_cuda_kernels.decode.sums import fits_sum_add, join_last_sum, lower_sum_add
from ggsched_cuda_kernels.delta_scan import fits_scan, lower_scan
from ggsched_cuda_kernels.flash_attention import ALL_DTYPES as FLASH
from ggsched_cuda_kernels.flash_attention import fits_flash, lower_flash
from ggsched_cuda_kernels.gated_rows import fits_gated, fits_narrow, lower_gated, lower_narrow
from ggsched_cuda_kernels.halves import writing_halves
from ggsched_cuda_kernels.passes import fits_passes, lower_passes
from ggsched_cuda_kernels.pdl_prefetch import reading_early
from ggsched_cuda_kernels.products import (
    PLANES,
    fits_plain,
    fits_rounded,
    fits_split,
    fits_unpacked,
    lower_plain,
    lower_rounded,
    lower_split,
    lower_unpacked,
)
from ggsched_cuda_kernels.rope_tokens import join_tokens
from ggsched_cuda_kernels.same_rows import join_same_rows
from ggsched_cuda_kernels.tiles import DTYPES as TILED
from ggsched_cuda_kernels.tiles import fits_experts, fits_rows, lower_experts, lower_rows
from ggsched_cuda_kernels.warp_specialized.experts import EXPERT_PATTERNS, join_experts
from ggsched_cuda_kernels.warp_specialized.moe_fused_routing import ROUTED, join_routed
from ggsched_cuda_kernels.warp_specialized.pushed_rows import pushed_rows
from ggsched_cuda_kernels.warp_specialized.rows import GEMV_PATTERNS, join_products
from ggsched_kernels import GPU, SCRATCH, KernelCall, TuningProfile, lower_nodes
from ggsched_kernels.calls import ArgPlaceholder, check_alignment
from ggsched_kernels.chains import join_chain
from ggsched_kernels.convolution import join_convolution
from ggsched_kernels.lower import memory_of
from ggsched_kernels.lower_fused import lower_group, supported_fusions
from ggsched_kernels.lowering_context import LoweringContext
from ggsched_kernels.retained import Retained
from ggsched_kernels.rope_kv_write import fits_rope_rows, join_heads


@dataclass(frozen=True, slots=True)
class KernelRule:
    """A way to run some nodes.

    Attributes:
        name: For people.
        dtypes: Types of the first operand.
        fits: Whether a node can and should run this way, by its shapes and strides.
        lower: Adds the calls of the node to its ctx.
    """

    name: str
    op: str
    dtypes: frozenset[str]
    fits: Callable[[CudaLoweringContext], bool]
    lower: Callable[[CudaLoweringContext], None]


@dataclass(frozen=True, slots=True)
class Fused:
    """A way to run the nodes of a group by one kernel.

    Attributes:
        fits: Whether the nodes of a group can run this way.
        lower: Adds the call to the context of the last node.
    """

    fits: Callable[[list[CudaLoweringContext]], bool]
    lower: Callable[[list[CudaLoweringContext]], None]


Groups = Sequence[Sequence[BoundNode]]


FusionRule = Callable[[Groups, int, TuningProfile], tuple[int, CudaLoweringContext] | None]
"""Looks at the groups of a program from one on; says how many of them its call computes."""

_PACKED: Final = frozenset(PLANES)
PLAIN: Final = frozenset(dtype.name for dtype in KV_DTYPES if not dtype.is_quantized)

TABLE: Final[tuple[KernelRule, ...]] = (
    KernelRule("cublas f32", "mul_mat", frozenset({"f32"}), fits_plain, lower_plain),
    KernelRule("rows by tiles", "mul_mat", TILED, fits_rows, lower_rows),
    KernelRule("rows by passes", "mul_mat", _PACKED, fits_passes, lower_passes),
    KernelRule("cublas rounded", "mul_mat", TILED | _PACKED, fits_rounded, lower_rounded),
    KernelRule("cublas 2 x bf16", "mul_mat", frozenset({"bf16"}), fits_split, lower_split),
    KernelRule("cublas unpacked to bf16", "mul_mat", _PACKED, fits_unpacked, lower_unpacked),
    KernelRule("experts by tiles", "mul_mat_id", TILED, fits_experts, lower_experts),
    KernelRule("attention of few tokens", "attention", PLAIN, fits_attention, lower_attention),
    KernelRule("attention on tensor cores", "attention", FLASH, fits_flash, lower_flash),
    KernelRule(
        "linear attention of tokens", "linear_attention", frozenset({"f32"}), fits_scan, lower_scan
    ),
    KernelRule("gated product of rows", "swiglu", frozenset({"f32"}), fits_gated, lower_gated),
    KernelRule("rope by heads", "rope", frozenset({"f32"}), fits_rope, lower_rope),
)

FUSED: Final[Mapping[str, Fused]] = {
    "rms_norm+mul": Fused(fits_rms_mul, lower_rms_mul),
    "norm+mul+add": Fused(fits_norm_mul_add, lower_norm_mul_add),
    "rms_norm+mul+swiglu": Fused(fits_gated_norm, lower_gated_norm),
    "rope+set_rows": Fused(lambda s: fits_rope_rows(*(ctx.node for ctx in s)), lower_rope_rows),
    "sum_rows+add": Fused(fits_sum_add, lower_sum_add),
    "mul_mat*2+swiglu": Fused(fits_narrow, lower_narrow),
    PATTERN: Fused(fits_sums, lower_sums),
    **dict.fromkeys(BATCHES, Fused(fits_batches, lower_batches)),
}
"""How groups are run, by pattern. One that does not fit goes the shared way, or node by node."""

JOINERS: Final[tuple[FusionRule, ...]] = (
    join_products, join_routed, join_experts, join_attention,
    partial(join_heads, ctx=CudaLoweringContext, least=2), join_tokens, join_route,
    join_sums, join_last_sum, join_conv, join_linear_attention, join_elements, join_chain_rows,
    partial(join_chain, ctx=CudaLoweringContext),
    partial(join_convolution, ctx=CudaLoweringContext, tiles=conv_tiles),
)  # fmt: skip
"""What makes one call of neighbours; the first that does is taken, before any other way."""

ADDED: Final = ("mul_mat+add", "mul_mat+add+add")

SUMS: Final = (PATTERN, f"{PATTERN}, {PATTERN}")
_BIASED: Final = ", mul_mat+add"
SUMMED_FOR: Final = (
    "", ", mul_mat", ", mul_mat" * 3, _BIASED, _BIASED * 3, ", mul_mat*2+swiglu",
)  # fmt: skip

NEIGHBOURS: Final = frozenset(
    {
        ", ".join(ATTENTION),
        *ROUTED,
        *(f"{sums}, rms_norm+mul{products}" for sums in SUMS for products in SUMMED_FOR),
        "rms_norm+mul, mul_mat",
        "sum_rows+add, rms_norm+mul, mul_mat",
        "sum_rows+add, rms_norm+mul, mul_mat, mul_mat, mul_mat",
        "sum_rows+add, rms_norm+mul, mul_mat+add, mul_mat+add, mul_mat+add",
    }
)
"""Those of which some operands would else be dead, and lain on, before the last has run."""


def neighbours_of(profile: TuningProfile) -> frozenset[str]:
    """Return the sequences that a GPU declares."""
    return NEIGHBOURS if profile.has_tma else frozenset()


def fusions_of(profile: TuningProfile) -> frozenset[str]:
    """Return the patterns that a GPU declares."""
    joined = GEMV_PATTERNS | EXPERT_PATTERNS
    own = frozenset(FUSED) | joined if profile.has_tma else frozenset(FUSED) - joined
    return own | supported_fusions(profile)


def choose(ctx: CudaLoweringContext) -> KernelRule | None:
    """Return the first way that fits a node, or None for the shared kernels."""
    node = ctx.node
    kind = node.inputs[0].dtype.name if node.inputs else ""
    for choice in TABLE:
        if choice.op == node.op and kind in choice.dtypes and choice.fits(ctx):
            return choice
    return None


def lower(
    nodes: Sequence[BoundNode], profile: TuningProfile = GPU
) -> tuple[list[Call], dict[ArgPlaceholder, int]]:
    """Return the calls of nodes, in order, and the bytes of each memory that they need.

    Raises:
        UsageError: an op that is not lowered, or elements that are not aligned.
    """
    calls: list[Call] = []
    ends: list[int] = []  # how many groups are computed behind each call; 0 within a group
    writes: list[Operand] = []  # of the last call, at most
    scratch = at = 0
    groups, retained = list(groups_of(nodes)), Retained()
    while at < len(groups):
        joined = _joined(groups, at, profile) or _together(groups, at, profile, retained)
        if joined is None and _is_product_alone(groups[at], profile):
            groups[at : at + 1] = [groups[at][:1], groups[at][1:]]
            continue
        count, contexts = joined or (1, _lower_group(groups[at], profile, retained))
        normed = None if joined else _normed(groups, at, contexts, profile)
        if normed is not None:
            count, contexts = 2, [*contexts[:-1], normed]
        made = [node.output for group in groups[at : at + count] for node in group]
        for ctx in contexts:
            for call in ctx.calls:
                calls.append(reading_early(call, calls[-1], writes) if calls else call)
                ends.append(0)
            writes = made if ctx.calls else writes
            scratch = max(scratch, ctx.scratch_nbytes)
        for operand in made:
            retained.forget(operand)
        at += count
        if calls:
            calls[-1] = writing_halves(calls[-1], made[-1], groups[at:], profile, retained)
            ends[-1] = at
    if calls and isinstance(calls[0], KernelCall) and calls[0].meets >= 0:
        calls[0] = replace(calls[0], pushed=pushed_rows(groups, calls, ends, profile))
    return calls, memory_of(scratch, retained)


def _is_product_alone(group: Sequence[BoundNode], profile: TuningProfile) -> bool:
    """Whether a library computes the product of a group, and what is added has other kernels."""
    if group[0].group is None or group[0].group.pattern not in ADDED or len(group) < 2:
        return False
    if any(0 in node.output.shape for node in group):
        return False
    rule = choose(CudaLoweringContext(group[0], profile))
    return rule is not None and rule.name.startswith("cublas")


def _joined(
    groups: Groups, at: int, profile: TuningProfile
) -> tuple[int, list[CudaLoweringContext]] | None:
    """Return how many groups from ``at`` on one call computes, and its context, or None."""
    if any(0 in node.output.shape for node in groups[at]):
        return None
    for join in JOINERS:
        found = join(groups, at, profile)
        if found is not None:
            count, ctx = found
            for group in groups[at : at + count]:
                for node in group:
                    _check(node)
            return count, [ctx]
    return None


def _together(
    groups: Groups, at: int, profile: TuningProfile, retained: Retained
) -> tuple[int, list[CudaLoweringContext]] | None:
    """Return how many products of the same rows one call computes, and its context, or None."""
    found = join_same_rows(groups, at, profile, retained)
    if found is None:
        return None
    count, ctx = found
    for group in groups[at : at + count]:
        _check(group[0])
    return count, [ctx]


def _normed(
    groups: Groups, at: int, contexts: Sequence[LoweringContext], profile: TuningProfile
) -> LoweringContext | None:
    """Return the context of the last addition of a group and of the norm behind it, as one call."""
    last = contexts[-1]
    if at + 1 == len(groups) or last.node.op != "add" or len(last.calls) != 1:
        return None
    call = last.calls[0]
    if not isinstance(call, KernelCall) or call.kernel != "binary":
        return None
    if last.node is not groups[at][-1]:
        return None
    found = residual_norm(last.node, groups[at + 1], profile)
    if found is not None:
        for node in (last.node, *groups[at + 1]):
            _check(node)
    return found


def _lower_group(
    group: Sequence[BoundNode], profile: TuningProfile, retained: Retained
) -> Sequence[LoweringContext]:
    """Lower a group by one kernel or node by node."""
    contexts = [CudaLoweringContext(node, profile, retained) for node in group]
    fused = _fused(contexts) if len(contexts) > 1 else None
    if fused is not None:
        return [fused]
    at, singles = 0, [[node] for node in group]
    while at < len(contexts):
        count, joined = _together(singles, at, profile, retained) or (1, [])
        if joined:
            contexts[at + count - 1] = joined[0]
        else:
            _lower_one(contexts[at])
        for ctx in contexts[at : at + count]:
            retained.forget(ctx.node.output)
        at += count
    return contexts


def _fused(contexts: list[CudaLoweringContext]) -> LoweringContext | None:
    """Return the context of a group that one kernel runs, ours or a shared one, or None."""
    group = contexts[0].node.group
    if group is None or any(0 in ctx.node.output.shape for ctx in contexts):
        return None
    for ctx in contexts:
        _check(ctx.node)
    own = FUSED.get(group.pattern)
    if own is None or not own.fits(contexts):
        return lower_group([ctx.node for ctx in contexts], contexts[0].profile)
    own.lower(contexts)
    return contexts[-1]


def _lower_one(ctx: CudaLoweringContext) -> None:
    """Lower a node by its context."""
    node = ctx.node
    choice = None if 0 in node.output.shape else choose(ctx)
    if choice is None:
        shared = lower_nodes([node], ctx.profile, ctx.retained)
        ctx.calls.extend(shared.calls)
        ctx.scratch_nbytes = shared.memory.get(SCRATCH, 0)
        return
    _check(node)
    choice.lower(ctx)


def _check(node: BoundNode) -> None:
    for operand in (*node.inputs, node.output):
        check_alignment(operand, node.label)
