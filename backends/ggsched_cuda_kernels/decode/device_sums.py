"""Sums over devices, the residual and the norm behind them, as one kernel (LCH-6).

Of many rows the sum of a product and the residual goes the same way (``residual_norm``).

Of a decoding step such a sum has some KiB, so each kernel less counts. With many rows it saves the
ways to memory between the three.
"""

from collections.abc import Sequence
from itertools import product
from math import prod

from ggsched.backend.program import BoundNode, Operand
from ggsched_cuda_kernels.calls import CudaLoweringContext
from ggsched_cuda_kernels.decode.fused import MAX_LANES, MAX_UNITS, lanes_of
from ggsched_cuda_kernels.operands import has_rows, is_row, is_same, meet, other_operand
from ggsched_kernels.calls import CODE, FAULT, MAX_PARTS, TuningProfile, f32, i64, window

PATTERN = "add+add"
MAX_MEETING_ROWS = 32
"""A group waits for each row, and all of them have to be on the GPU at once."""
MAX_PEERS = 3
"""GPUs whose kernels one kernel meets; ``PEERS`` of ``sum_norm.cu``."""


def fits_sums(nodes: list[CudaLoweringContext]) -> bool:
    """Whether all three addends have the rows of the result, which the lanes of a group keep."""
    return _addends([site.node for site in nodes]) is not None


def lower_sums(nodes: list[CudaLoweringContext]) -> None:
    """One kernel for both additions."""
    _lower(nodes[-1], [site.node for site in nodes], None)


def join_sums(
    groups: Sequence[Sequence[BoundNode]], at: int, profile: TuningProfile
) -> tuple[int, CudaLoweringContext] | None:
    """Return two, and the site of a call that computes a sum and the norm of it; None if it cannot.

    The sum is written for others all the same.
    """
    if at + 1 == len(groups) or _pattern(groups[at]) != PATTERN:
        return None
    site = _with_norm(groups[at], groups[at + 1], profile)
    return None if site is None else (2, site)


def residual_norm(
    add: BoundNode, group: Sequence[BoundNode], profile: TuningProfile
) -> CudaLoweringContext | None:
    """Return the site of a call that computes one addition and the norm of it, or None.

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
    read, y, made = _addends(sums), sums[-1].output, mul.output
    w = other_operand(norm.output, mul)
    if read is None or w is None or not is_same(norm.inputs[0], y):
        return None
    if {norm.inputs[0].shape, made.shape} != {y.shape} or not has_rows(made):
        return None
    if not is_row(w) or w.shape[-1] != y.shape[-1] or meet(y, made):
        return None
    if any(meet(o, w) for o in (y, made)):
        return None
    if any(meet(o, i) and not _is_in_place(o, i) for o, i in product((y, made), read)):
        return None  # another row's group may not have read it yet
    site = CudaLoweringContext(mul, profile)
    _lower(site, sums, (norm, w, made))
    return site


def _pattern(nodes: Sequence[BoundNode]) -> str:
    group = nodes[-1].group
    return group.pattern if group is not None and len(nodes) > 1 else ""


def _addends(nodes: Sequence[BoundNode]) -> tuple[Operand, ...] | None:
    """Return the two or three that are added up, in order; None if rows do not fit."""
    first, *more = nodes
    read, y = [*first.inputs], nodes[-1].output
    for node in more:
        z = other_operand(first.output, node)
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
    site: CudaLoweringContext,
    sums: Sequence[BoundNode],
    norm: tuple[BoundNode, Operand, Operand] | None,
) -> None:
    read, y = _addends(sums), window(sums[-1].output)
    assert read is not None  # it fits
    n = y.shape[-1]
    lanes, units = lanes_of(n, y.rows)
    places = [*map(window, read), *[y] * (4 - len(read))]
    eps = 0.0
    if norm is None:
        places += [y, y]
    else:
        node, w, made = norm
        places += [window(w), window(made)]
        eps = float(node.params["eps"])  # type: ignore[arg-type]  # the graph was verified
    args = (*(arg for place in places for arg in place.args), f32(eps))
    is_sum = len(read) > 2  # of devices, and what was there before
    meets = len(args) if is_sum and y.rows <= MAX_MEETING_ROWS else -1
    args += (*[i64(0)] * (2 * MAX_PEERS + 1), FAULT, CODE, y.buffer)
    defines = {"UNITS": units, "NORM": int(norm is not None), "THIRD": int(is_sum)}
    site.call("sum_norm", "sum_norm", args, (y.rows, 1, 1), lanes=lanes, **defines)
    site.can_meet(meets)
    if norm is not None:
        site.can_write_halves()
