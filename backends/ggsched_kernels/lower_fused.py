"""Lowering of groups that run as one kernel (LCH-6).

Each function looks whether it can take a group, and returns False without a trace if it cannot;
the nodes are then lowered one by one. Products are taken where few rows meet the weight: there a
kernel more costs as much as a small product.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Final, NamedTuple

from ggsched.backend.program import BoundNode, Operand
from ggsched.ir.dtype import F16, F32
from ggsched_kernels.calls import (
    CODE,
    FAULT,
    MAX_PARTS,
    Arg,
    Launch,
    TuningProfile,
    f32,
    i32,
    window,
)
from ggsched_kernels.chains import Groups, Site
from ggsched_kernels.lower_matrix import ROWS_AT_ONCE, is_along_sum
from ggsched_kernels.lower_reductions import rope_arguments, row_lanes
from ggsched_kernels.lower_warps import fits_in_place, has_pieces, ids_window, lower_rows
from ggsched_kernels.lowering_context import LoweringContext, experts_of, weight_define

Nodes = Sequence[BoundNode]
MAX_WEIGHTS: Final = 3  # of one call


def lower_group(nodes: Nodes, profile: TuningProfile) -> LoweringContext | None:
    """Return a context with the calls of a group, or None if it has to be lowered node by node."""
    group = nodes[-1].group
    lower = None if group is None else _FUSED.get(group.pattern)
    if lower is None or any(0 in n.output.shape for n in nodes):
        return None
    ctx = LoweringContext(nodes[-1], profile)
    return ctx if lower(nodes, ctx) else None


def supported_fusions(profile: TuningProfile) -> frozenset[str]:
    """Return the patterns for which a device of this profile has kernels."""
    if profile.lanes == 1:
        return frozenset(_FUSED)
    return frozenset(_FUSED) - (_PRODUCTS if not profile.joins else {"mul_mat_id+add_id"})


def _norm_mul(nodes: Nodes, ctx: LoweringContext) -> bool:
    norm, mul = nodes
    other = _other(norm, mul)
    if other is None or norm.output.shape != mul.output.shape:
        return False
    eps = norm.params["eps"]
    assert isinstance(eps, (int, float))  # the graph was verified
    x = window(norm.inputs[0])
    tensors = (*x.args, *window(other, mul.output.shape).args, *window(mul.output).args)
    args, grid = (*tensors, f32(eps)), (x.rows, 1, 1)
    ctx.call("norm", "norm_mul_rows", args, grid, lanes=row_lanes(x, ctx))
    return True


def _other(made: BoundNode, user: BoundNode) -> Operand | None:
    """Return what a node takes beside a result, whose shape it must take as it is."""
    a, b = user.inputs
    if a == made.output:
        return b
    return a if b == made.output else None


def _product_add(nodes: Nodes, ctx: LoweringContext) -> bool:
    product, add = nodes
    w, x = product.inputs
    other = _other(product, add)
    if other is None or product.output.shape != add.output.shape:
        return False
    if _is_in_place(w, x, ctx):
        lower_rows(ctx, [(w, add.output)], x, added=(other,))
        return True
    if not _is_small(w, x, ctx):
        return False
    return _product(ctx, "matvec_add", (w,), x, None, window(other, add.output.shape).args)


def _experts_add(nodes: Nodes, ctx: LoweringContext) -> bool:
    product, add = nodes
    w, x, ids = product.inputs
    made, bias, again = add.inputs
    if made != product.output or ids != again or experts_of(add) != experts_of(product):
        return False
    if not _is_small(w, x, ctx, ids):
        return False
    return _product(ctx, "matvec_id_add", (w,), x, product, window(bias).args)


def _gated(nodes: Nodes, ctx: LoweringContext) -> bool:
    gate, up, _ = nodes
    w, x, *given = gate.inputs
    v, ids = up.inputs[0], given[0] if given else None
    if not _are_alike(nodes, w, v) or (given and experts_of(up) != experts_of(gate)):
        return False
    chosen = gate if given else None
    if _is_in_place(w, x, ctx, ids) and fits_in_place(v, x):
        y = ctx.node.output
        lower_rows(ctx, [(w, y), (v, y)], x, chosen, is_gated=True)
        return True
    if not _is_small(w, x, ctx, ids):
        return False
    return _product(ctx, "matvec_id_gated" if given else "matvec_gated", (w, v), x, chosen)


def _product(
    ctx: LoweringContext,
    kernel: str,
    weights: Sequence[Operand],
    x: Operand,
    chosen: BoundNode | None,
    more: Sequence[Arg] = (),
) -> bool:
    """Call a kernel that computes the last node of a group from products of ``x``."""
    y, define = window(ctx.node.output), weight_define(weights[0].dtype)
    read = (*(arg for w in weights for arg in window(w).args), *ctx.contiguous(x).args)
    if chosen is None:
        rows, args = y.shape[0] * y.shape[1], (*read, *more, *y.args)
    else:
        rows = prod(chosen.inputs[2].shape)
        args = (*read, *ids_window(chosen).args, *more, *y.args, FAULT, CODE)
    grid = (-(-y.shape[-1] // ROWS_AT_ONCE), rows, 1)
    ctx.call("matvec", kernel, args, grid, **define)
    ctx.launched(Launch.IN_TURN)
    return True


def _rope_into_rows(nodes: Nodes, ctx: LoweringContext) -> bool:
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
    ctx.call("rope", "rope_set_rows", args, (tokens, 1, 1))
    return True


def _are_alike(nodes: Nodes, w: Operand, v: Operand) -> bool:
    """Whether the two weights are alike, and their results meet as they are."""
    gate, up, join = nodes
    as_they_are = tuple(join.inputs) == (gate.output, up.output)
    return as_they_are and w.dtype is v.dtype and w.shape == v.shape and is_along_sum(v)


def _is_small(w: Operand, x: Operand, ctx: LoweringContext, ids: Operand | None = None) -> bool:
    """Whether few rows meet the weight; those of several experts count as in ``lower_matrix``."""
    return ctx.profile.lanes == 1 and _is_few(w, x, ctx, ids) and is_along_sum(w)


def _is_in_place(w: Operand, x: Operand, ctx: LoweringContext, ids: Operand | None = None) -> bool:
    """Whether a GPU reads the weight once for few rows, which lie as it needs them."""
    return ctx.profile.joins and _is_few(w, x, ctx, ids) and fits_in_place(w, x)


def _is_few(w: Operand, x: Operand, ctx: LoweringContext, ids: Operand | None) -> bool:
    p = ctx.profile
    if ids is not None:
        return ids.shape[0] * ids.shape[1] <= max(2 * p.few_rows, w.shape[0] // 2)
    return x.shape[-2] <= p.few_rows and prod(x.shape[:-2]) <= MAX_PARTS


def join_products(
    groups: Groups, at: int, profile: TuningProfile, ctx: type[Site]
) -> tuple[int, Site] | None:
    """Return how many groups from ``at`` on one kernel computes, and its context; None below two.

    A norm goes together with up to three products of the same few rows, or with a gated one. A
    group is taken as long as it writes nothing that others touch.
    """
    norm = _norm_of(groups[at])
    first = at + (norm is not None)
    if first == len(groups):
        return None
    made = ctx(groups[first][-1], profile)
    x = None if norm is None else norm.made
    read, written = ([], []) if norm is None else ([norm.x, norm.weight], [norm.made])
    parts: list[tuple[Operand, Operand]] = []
    added: list[Operand] = []
    for group in groups[first : first + MAX_WEIGHTS]:
        products = _products_of(group, made)
        y = group[-1].output
        if not products or (parts and len(products) > 1):
            break
        other = _addend_of(group)
        also = () if other is None else (other,)
        if parts and len(also) != bool(added):
            break
        if len({window(z, y.shape).strides for z in (*added[:1], *also)}) > 1:
            break
        rows, weights = products[0].inputs[1], [node.inputs[0] for node in products]
        if any(w.dtype is not (parts[0][0] if parts else weights[0]).dtype for w in weights):
            break
        x = rows if x is None else x
        if not rows.is_same_window(x):
            break
        read += also
        if any(y.meets(o) for o in (*read, *written, rows, *(w for w, _ in parts), *weights)):
            break
        if any(o.meets(w) for o in written for w in (*weights, *also)):
            break
        written.append(y)
        added += also
        parts += [(w, y) for w in weights]
        if len(products) > 1:
            break
    is_gated = len(parts) > 1 and parts[0][1] is parts[1][1]
    count = (norm is not None) + (1 if is_gated else len(parts))
    if count < 2 or not parts or x is None:
        return None
    made = ctx(groups[at + count - 1][-1], profile)
    normed = None if norm is None else (norm.weight, norm.made, norm.eps)
    rows = x if norm is None else norm.x
    lower_rows(made, parts, rows, added=added, is_gated=is_gated, normed=normed)
    return count, made


class _Norm(NamedTuple):
    """``made = rms_norm(x) * weight``."""

    x: Operand
    weight: Operand
    made: Operand
    eps: float


def _norm_of(group: Nodes) -> _Norm | None:
    """Return the norm that a group is, if products can compute it besides."""
    if [node.op for node in group] != ["rms_norm", "mul"]:
        return None
    (x, made), weight, eps = (
        (group[0].inputs[0], group[1].output),
        _other(*group),
        group[0].params["eps"],
    )
    if weight is None or len(x.shape) != 2 or x.shape != made.shape or made.meets(x):
        return None
    if prod(weight.shape) != x.shape[1] or not (has_pieces(weight) and has_pieces(made)):
        return None
    assert isinstance(eps, (int, float))  # the graph was verified
    return None if made.meets(weight) else _Norm(x, weight, made, float(eps))


def _products_of(group: Nodes, ctx: LoweringContext) -> list[BoundNode]:
    """Return the products of few rows that a group is, one or the two of a gated one; else none."""
    ops = [node.op for node in group]
    if ops == ["mul_mat"] or _addend_of(group) is not None:
        products = [*group[:1]]
    elif ops == ["mul_mat", "mul_mat", "swiglu"] and _are_alike(
        group, *(n.inputs[0] for n in group[:2])
    ):
        products = [*group[:2]]
    else:
        return []
    fits = (
        len(w.shape) == len(x.shape) == 2 and 0 not in w.shape and _is_in_place(w, x, ctx)
        for w, x in (node.inputs for node in products)
    )
    return products if all(fits) else []


def _addend_of(group: Nodes) -> Operand | None:
    """Return what is added to the product that a group is, if anything."""
    if [node.op for node in group] != ["mul_mat", "add"]:
        return None
    product, add = group
    return _other(product, add) if product.output.shape == add.output.shape else None


_FUSED: Final[Mapping[str, Callable[[Nodes, LoweringContext], bool]]] = {
    "rms_norm+mul": _norm_mul,
    "mul_mat+add": _product_add,
    "mul_mat_id+add_id": _experts_add,
    "mul_mat*2+swiglu": _gated,
    "mul_mat_id*2+swiglu": _gated,
    "rope+set_rows": _rope_into_rows,
}
"""By pattern."""

_PRODUCTS: Final = frozenset(name for name in _FUSED if name.startswith("mul_mat"))
