"""Lowering of groups that run as one kernel (LCH-6).

Each function looks whether it can take a group, and returns False without a trace if it cannot;
the nodes are then lowered one by one. Products are taken where few rows meet the weight, on
devices whose groups are single work-items: there a kernel more costs as much as a small product.
GPUs have kernels of their own for products, which know nothing of what comes after them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ggsched.backend.program import BoundNode, Operand
from ggsched.ir.dtype import F16, F32
from ggsched_kernels.calls import CODE, FAULT, Arg, Launch, TuningProfile, f32, i32, window
from ggsched_kernels.lower_matrix import ROWS_AT_ONCE, is_along_sum
from ggsched_kernels.lower_reductions import rope_arguments
from ggsched_kernels.lower_warps import ids_window
from ggsched_kernels.lowering_context import LoweringContext, weight_define

Nodes = Sequence[BoundNode]


def lower_group(nodes: Nodes, profile: TuningProfile) -> LoweringContext | None:
    """Return a site with the calls of a group, or None if it has to be lowered node by node."""
    group = nodes[-1].group
    lower = None if group is None else _FUSED.get(group.pattern)
    if lower is None or any(0 in n.output.shape for n in nodes):
        return None
    site = LoweringContext(nodes[-1], profile)
    return site if lower(nodes, site) else None


def supported_fusions(profile: TuningProfile) -> frozenset[str]:
    """Return the patterns for which a device of this profile has kernels."""
    products = {name for name in _FUSED if name.startswith("mul_mat")}
    return frozenset(_FUSED) - (products if profile.lanes > 1 else set())


def _norm_mul(nodes: Nodes, site: LoweringContext) -> bool:
    norm, mul = nodes
    other = _other(norm, mul)
    if other is None or norm.output.shape != mul.output.shape:
        return False
    eps = norm.params["eps"]
    assert isinstance(eps, (int, float))  # the graph was verified
    x = window(norm.inputs[0])
    tensors = (*x.args, *window(other, mul.output.shape).args, *window(mul.output).args)
    site.call("norm", "norm_mul_rows", (*tensors, f32(eps)), (x.rows, 1, 1))
    return True


def _other(made: BoundNode, user: BoundNode) -> Operand | None:
    """Return what a node takes beside a result, whose shape it must take as it is."""
    a, b = user.inputs
    if a == made.output:
        return b
    return a if b == made.output else None


def _product_add(nodes: Nodes, site: LoweringContext) -> bool:
    product, add = nodes
    w, x = product.inputs
    other = _other(product, add)
    if other is None or product.output.shape != add.output.shape or not _is_small(w, x, site):
        return False
    return _product(site, "matvec_add", (w,), x, None, window(other, add.output.shape).args)


def _experts_add(nodes: Nodes, site: LoweringContext) -> bool:
    product, add = nodes
    w, x, ids = product.inputs
    made, bias, again = add.inputs
    if made != product.output or ids != again or bias.shape[0] != w.shape[0]:
        return False
    if not _is_small(w, x, site, ids):
        return False
    return _product(site, "matvec_id_add", (w,), x, ids, window(bias).args)


def _gated(nodes: Nodes, site: LoweringContext) -> bool:
    gate, up, _ = nodes
    w, x, *given = gate.inputs
    v, ids = up.inputs[0], given[0] if given else None
    if not _are_alike(nodes, w, v) or not _is_small(w, x, site, ids):
        return False
    return _product(site, "matvec_id_gated" if given else "matvec_gated", (w, v), x, ids)


def _product(
    site: LoweringContext,
    kernel: str,
    weights: Sequence[Operand],
    x: Operand,
    ids: Operand | None,
    more: Sequence[Arg] = (),
) -> bool:
    """Call a kernel that computes the last node of a group from products of ``x``."""
    y, define = window(site.node.output), weight_define(weights[0].dtype)
    read = (*(arg for w in weights for arg in window(w).args), *site.contiguous(x).args)
    if ids is None:
        rows, args = y.shape[0] * y.shape[1], (*read, *more, *y.args)
    else:
        rows = ids.shape[0] * ids.shape[1]
        args = (*read, *ids_window(ids).args, *more, *y.args, FAULT, CODE)
    grid = (-(-y.shape[-1] // ROWS_AT_ONCE), rows, 1)
    site.call("matvec", kernel, args, grid, **define)
    site.launched(Launch.IN_TURN)
    return True


def _rope_into_rows(nodes: Nodes, site: LoweringContext) -> bool:
    rope, store = nodes
    x = rope.inputs[0]
    dst, _, ids = store.inputs
    tokens = x.shape[0]
    whole = x.shape[1] * x.shape[2] == dst.shape[-1] and ids.shape == (tokens,)
    if dst.dtype not in (F32, F16):
        return False
    if len(x.shape) != len(("token", "head", "width")) or not whole or not tokens:
        return False
    tensors, table, flags = rope_arguments(rope)
    half = i32(int(dst.dtype is F16))
    args = (*tensors, *window(dst).args, *window(ids).args, table, *flags, half, FAULT, CODE)
    site.call("rope", "rope_set_rows", args, (tokens, 1, 1))
    return True


def _are_alike(nodes: Nodes, w: Operand, v: Operand) -> bool:
    """Whether the two weights are alike, and their results meet as they are."""
    gate, up, join = nodes
    as_they_are = tuple(join.inputs) == (gate.output, up.output)
    return as_they_are and w.dtype is v.dtype and w.shape == v.shape and is_along_sum(v)


def _is_small(w: Operand, x: Operand, site: LoweringContext, ids: Operand | None = None) -> bool:
    """Whether few rows meet the weight; those of several experts count as in ``lower_matrix``."""
    p = site.profile
    rows, most = x.shape[-2], p.few_rows
    if ids is not None:
        rows, most = ids.shape[0] * ids.shape[1], max(2 * p.few_rows, w.shape[0] // 2)
    return p.lanes == 1 and rows <= most and is_along_sum(w)


_FUSED: Final[Mapping[str, Callable[[Nodes, LoweringContext], bool]]] = {
    "rms_norm+mul": _norm_mul,
    "mul_mat+add": _product_add,
    "mul_mat_id+add_id": _experts_add,
    "mul_mat*2+swiglu": _gated,
    "mul_mat_id*2+swiglu": _gated,
    "rope+set_rows": _rope_into_rows,
}
"""By pattern."""
