"""From nodes to kernel calls. Which op uses which kernel is decided here, for every plug-in."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ggsched.backend.program import BoundNode, groups_of
from ggsched.backend.user_kernels import user_op_keys
from ggsched.ir.dtype import F32, I32, KV_DTYPES
from ggsched.topology.caps import op_key
from ggsched_kernels.arrays import PREFIX as ARRAYS
from ggsched_kernels.arrays import array_ops, lower_array
from ggsched_kernels.block_constants import KERNEL_DTYPES
from ggsched_kernels.calls import (
    SCRATCH,
    ArgPlaceholder,
    KernelCall,
    StreamCall,
    TuningProfile,
    check_alignment,
)
from ggsched_kernels.chains import join_chain
from ggsched_kernels.convolution import join_convolution
from ggsched_kernels.lower_attention import lower_attention
from ggsched_kernels.lower_elements import (
    BINARY,
    UNARY,
    lower_add_id,
    lower_binary,
    lower_concat,
    lower_copy,
    lower_get_rows,
    lower_repeat,
    lower_set_rows,
    lower_unary,
)
from ggsched_kernels.lower_fused import join_products, lower_group, supported_fusions
from ggsched_kernels.lower_matrix import lower_mul_mat, lower_mul_mat_id
from ggsched_kernels.lower_recurrent import lower_linear_attention, lower_short_conv
from ggsched_kernels.lower_reductions import (
    lower_norm,
    lower_rope,
    lower_soft_max,
    lower_sort,
    lower_sum_rows,
)
from ggsched_kernels.lower_warps import ALL_OPS as PRODUCTS
from ggsched_kernels.lowering_context import LoweringContext
from ggsched_kernels.retained import Retained
from ggsched_kernels.rope_attention import join_attention
from ggsched_kernels.rope_kv_write import join_heads
from ggsched_kernels.user import lower_user

_LOWER: Final[dict[str, Callable[[LoweringContext], None]]] = {
    **dict.fromkeys(UNARY, lower_unary),
    **dict.fromkeys(BINARY, lower_binary),
    **dict.fromkeys(("cpy", "cont"), lower_copy),
    **dict.fromkeys(("rms_norm", "norm"), lower_norm),
    **dict.fromkeys(("argsort", "top_k"), lower_sort),
    "concat": lower_concat,
    "repeat": lower_repeat,
    "get_rows": lower_get_rows,
    "set_rows": lower_set_rows,
    "add_id": lower_add_id,
    "mul_mat": lower_mul_mat,
    "mul_mat_id": lower_mul_mat_id,
    "sum_rows": lower_sum_rows,
    "soft_max": lower_soft_max,
    "rope": lower_rope,
    "attention": lower_attention,
    "short_conv": lower_short_conv,
    "linear_attention": lower_linear_attention,
}

_JOINERS: Final = (join_chain, join_convolution, join_products, join_attention, join_heads)


@dataclass(frozen=True, slots=True)
class Lowered:
    """Kernel calls for some nodes.

    Attributes:
        calls: What to enqueue, in order.
        memory: Bytes of each memory of the program that they need: scratch memory, which they
            share, and memory for what later nodes use again.
    """

    calls: tuple[KernelCall | StreamCall, ...]
    memory: Mapping[ArgPlaceholder, int]


def lower_nodes(
    nodes: Sequence[BoundNode], profile: TuningProfile, retained: Retained | None = None
) -> Lowered:
    """Lower nodes that run in order on one stream.

    A node whose result is empty needs no kernel. Scratch is used within one node or group only, so
    all of them share it.

    Args:
        profile: How kernels are cut for the device.
        retained: What calls of earlier nodes of the same program have prepared.

    Raises:
        UsageError: an op without a kernel, or elements that are not aligned.
    """
    calls: list[KernelCall | StreamCall] = []
    retained = Retained() if retained is None else retained
    scratch = 0
    for node in nodes:
        for operand in (*node.inputs, node.output):
            check_alignment(operand, node.label)
    groups, at = list(groups_of(nodes)), 0
    while at < len(groups):
        some = groups[at]
        joiners = _JOINERS if profile.joins and 0 not in some[0].output.shape else _JOINERS[:2]
        joined = (join(groups, at, profile, LoweringContext) for join in joiners)
        count, fused = next(filter(None, joined), (1, None))
        if fused is None and len(some) > 1:
            fused = lower_group(some, profile)
        some = [node for group in groups[at : at + count] for node in group]
        lowered = [(fused, some)] if fused is not None else []
        for node in some:
            if fused is None:
                lowered.append((_lower_node(node, profile, retained), [node]))
            retained.forget(node.output)
        at += count
        for ctx, own in lowered:
            calls.extend(_with_places(ctx.calls, own) if profile.merged_groups else ctx.calls)
            scratch = max(scratch, ctx.scratch_nbytes)
    return Lowered(tuple(calls), memory_of(scratch, retained))


def _with_places(
    calls: list[KernelCall | StreamCall], nodes: Sequence[BoundNode]
) -> list[KernelCall | StreamCall]:
    """Say what calls of nodes touch; several have more between them than what they read."""
    writes = tuple(node.output for node in nodes)
    reads = tuple(operand for node in nodes for operand in node.inputs)
    weights = tuple(node.inputs[0] for node in nodes if node.op in PRODUCTS)
    if len(calls) > 1:
        reads = weights = ()
    return [
        replace(call, reads=reads, writes=writes, early_reads=weights)
        if isinstance(call, KernelCall)
        else call
        for call in calls
    ]


def memory_of(scratch_nbytes: int, retained: Retained) -> dict[ArgPlaceholder, int]:
    """Return the bytes of each memory that a program needs."""
    scratch = {SCRATCH: scratch_nbytes} if scratch_nbytes else {}
    return {**scratch, **retained.nbytes}


def _lower_node(node: BoundNode, profile: TuningProfile, retained: Retained) -> LoweringContext:
    ctx = LoweringContext(node, profile, retained)
    if 0 not in node.output.shape:
        lower = lower_array if node.op.startswith(ARRAYS) else lower_user
        _LOWER.get(node.op, lower)(ctx)
    return ctx


def supported_ops(backend: str = "", *, has_f64: bool = False) -> frozenset[str]:
    """Return ``op:dtype`` for all that ``lower_nodes`` takes, for ``DeviceFacts.ops``.

    Args:
        backend: Whose kernels of user-defined ops, and of the library ``nd``, are added.
        has_f64: Whether the device computes with f64.
    """
    kinds = dict.fromkeys(_LOWER, (F32,))
    more = {
        "get_rows": (*KERNEL_DTYPES, I32),
        "mul_mat": KERNEL_DTYPES,
        "mul_mat_id": KERNEL_DTYPES,
        "attention": KV_DTYPES,
        "set_rows": KV_DTYPES,
        "cpy": (*KERNEL_DTYPES, I32),
        "cont": (*KERNEL_DTYPES, I32),
        "concat": (F32, I32),
    }
    keys = {op: more.get(op, types) for op, types in kinds.items()}
    built_in = frozenset(op_key(op, t.name) for op, types in keys.items() for t in types)
    arrays = array_ops(has_f64=has_f64) if backend in ("opencl", "cuda") else frozenset()
    return built_in | arrays | user_op_keys(backend)


__all__ = ["Lowered", "lower_nodes", "supported_fusions", "supported_ops"]
