"""Sums over devices, the residual and the norm behind them, as one kernel (LCH-6).

Of many rows the sum of a product and the residual goes the same way (``residual_norm``).

Of a decoding step such a sum has some KiB, so each kernel less counts. With many rows it saves the
ways to memory between the three.
"""

from collections.abc import Sequence
from itertools import pairwise, product
from math import prod

from ggsched.backend.program import BoundNode, Operand
from ggsched_cuda_kernels.calls import CudaLoweringContext
from ggsched_cuda_kernels.decode.fused import MAX_LANES, MAX_UNITS, lanes_of
from ggsched_cuda_kernels.operands import has_rows, is_row, is_same, other_operand
from ggsched_kernels.calls import CODE, FAULT, MAX_PARTS, MAX_PEERS, TuningProfile, f32, i64, window

Groups = Sequence[Sequence[BoundNode]]

PATTERN = "add+add"
MAX_MEETING_ROWS = 32
"""A group waits for each row, and all of them have to be on the GPU at once."""


def fits_sums(nodes: list[CudaLoweringContext]) -> bool:
    """Whether all three addends have the rows of the result, which the lanes of a group keep."""
    return addends([ctx.node for ctx in nodes]) is not None


def lower_sums(nodes: list[CudaLoweringContext]) -> None:
    """One kernel for both additions."""
    _lower(nodes[-1], [ctx.node for ctx in nodes], None)


def join_sums(
    groups: Groups, at: int, profile: TuningProfile
) -> tuple[int, CudaLoweringContext] | None:
    """Return how many groups one call computes, and its context; None if it cannot.

    These are a sum of two devices or of four, which is two groups, and a norm of it. What groups
    give to others is written all the same.
    """
    sums = sums_at(groups, at)
    if not sums:
        return None
    count, ctx = len(sums) // 2, None
    if at + count < len(groups):
        ctx = _with_norm(sums, groups[at + count], profile)
    if ctx is not None:
        return count + 1, ctx
    if count == 1:
        return None  # it is a kernel of its own
    ctx = CudaLoweringContext(sums[-1], profile)
    _lower(ctx, sums, None)
    return count, ctx


def sums_at(groups: Groups, at: int) -> Sequence[BoundNode]:
    """Return the nodes of the groups from ``at`` on that add up rows of devices; maybe none."""
    count = next((c for c in (2, 1) if _is_sum(groups[at : at + c], c)), 0)
    return [node for group in groups[at : at + count] for node in group]


def _is_sum(groups: Groups, count: int) -> bool:
    """Whether some groups add up rows, the second to what the first has found."""
    if [_pattern(group) for group in groups] != [PATTERN] * count:
        return False
    sums = [node for group in groups for node in group]
    read = addends(sums)
    if count == 1 or read is None:
        return read is not None
    part, y = sums[1].output, sums[-1].output
    apart = all(not part.meets(o) or _is_in_place(part, o) for o in (*read, y))
    return apart and any(is_same(part, o) for o in sums[2].inputs)


def residual_norm(
    add: BoundNode, group: Sequence[BoundNode], profile: TuningProfile
) -> CudaLoweringContext | None:
    """Return the context of a call that computes one addition and the norm of it, or None.

    A single row goes another way: additions belong to the product before them there, and norms to
    the one behind.
    """
    rows = prod(add.output.shape[:-1])
    return _with_norm([add], group, profile) if rows > 1 else None


def _with_norm(
    sums: Sequence[BoundNode], group: Sequence[BoundNode], profile: TuningProfile
) -> CudaLoweringContext | None:
    if _pattern(group) != "rms_norm+mul":
        return None
    norm, mul = group
    read, y, made = addends(sums), sums[-1].output, mul.output
    w = other_operand(norm.output, mul)
    if read is None or w is None or not is_same(norm.inputs[0], y):
        return None
    if {norm.inputs[0].shape, made.shape} != {y.shape} or not has_rows(made):
        return None
    if not is_row(w) or w.shape[-1] != y.shape[-1] or y.meets(made):
        return None
    part = [sums[1].output] if len(sums) > 2 else []
    if any(o.meets(w) for o in (y, made, *part)):
        return None
    if any(o.meets(i) and not _is_in_place(o, i) for o, i in product((y, made), (*read, *part))):
        return None  # another row's group may not have read it yet
    ctx = CudaLoweringContext(mul, profile)
    _lower(ctx, sums, (norm, w, made))
    return ctx


def _pattern(nodes: Sequence[BoundNode]) -> str:
    group = nodes[-1].group
    return group.pattern if group is not None and len(nodes) > 1 else ""


def addends(nodes: Sequence[BoundNode]) -> tuple[Operand, ...] | None:
    """Return what is added up, in order, two to five; None if rows do not fit."""
    read, y = [*nodes[0].inputs], nodes[-1].output
    for before, node in pairwise(nodes):
        z = other_operand(before.output, node)
        if z is None:
            return None
        read.append(z)
    if any(o.shape != y.shape or not has_rows(o) for o in (*read, y)):
        return None
    n = y.shape[-1]
    rows = y.nbytes // (4 * n) if n else 0
    fits = 0 < n <= 4 * MAX_LANES * MAX_UNITS and rows <= MAX_PARTS
    return tuple(read) if fits else None


def _is_in_place(a: Operand, b: Operand) -> bool:
    return is_same(a, b) and a.strides == b.strides


def _lower(
    ctx: CudaLoweringContext,
    sums: Sequence[BoundNode],
    norm: tuple[BoundNode, Operand, Operand] | None,
) -> None:
    read, y = addends(sums), window(sums[-1].output)
    assert read is not None  # it fits
    n = y.shape[-1]
    lanes, units = lanes_of(n, y.rows)
    is_sum = len(read) > 2  # of devices, and what was there before
    parts = read[:-1] if is_sum else read
    places = [*map(window, parts), *[y] * (MAX_PEERS + 1 - len(parts))]
    # The residual, or any memory; and the sum of all devices but the last, of four.
    places += [window(read[-1]), window(sums[1].output) if len(parts) > 2 else y, y]
    eps = 0.0
    if norm is None:
        places += [y, y]
    else:
        node, w, made = norm
        places += [window(w), window(made)]
        eps = float(node.params["eps"])  # type: ignore[arg-type]  # the graph was verified
    args = (*(arg for place in places for arg in place.args), f32(eps))
    meets = len(args) if is_sum and y.rows <= MAX_MEETING_ROWS else -1
    args += (*[i64(0)] * (2 * MAX_PEERS + 1), FAULT, CODE, y.buffer)
    is_normed = norm is not None
    defines = {"UNITS": units, "NORM": int(is_normed), "THIRD": int(is_sum), "PARTS": len(parts)}
    ctx.call("sum_norm", "sum_norm", args, (y.rows, 1, 1), lanes=lanes, **defines)
    ctx.can_meet(meets)
    if is_normed:
        ctx.can_write_halves()
