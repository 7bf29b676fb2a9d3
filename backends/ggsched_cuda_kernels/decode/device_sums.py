"""Sums over devices, the residual and the norm behind them, as one kernel (LCH-6).

Of a decoding step such a sum has some KiB, so each kernel less counts. With many rows it saves the
ways to memory between the three.
"""

from collections.abc import Sequence
from itertools import product

from ggsched.backend.program import BoundNode, Operand
from ggsched_cuda_kernels.calls import CudaLoweringContext
from ggsched_cuda_kernels.decode.fused import MAX_LANES, MAX_UNITS
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
    if _pattern(groups[at + 1]) != "rms_norm+mul":
        return None
    sums, (norm, mul) = groups[at], groups[at + 1]
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
    return 2, site


def _pattern(nodes: Sequence[BoundNode]) -> str:
    group = nodes[-1].group
    return group.pattern if group is not None and len(nodes) > 1 else ""


def _addends(nodes: Sequence[BoundNode]) -> tuple[Operand, Operand, Operand] | None:
    """Return what is added up, in order; None if rows do not fit."""
    first, last = nodes
    (a, b), z, y = first.inputs, other_operand(first.output, last), last.output
    if z is None or any(o.shape != y.shape or not has_rows(o) for o in (a, b, z, y)):
        return None
    n = y.shape[-1]
    rows = y.nbytes // (4 * n)
    return (a, b, z) if n <= 4 * MAX_LANES * MAX_UNITS and rows <= MAX_PARTS else None


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
    lanes = min(MAX_LANES, max(32, 1 << (max(1, n // 4) - 1).bit_length()))
    places = [*map(window, read), y]
    eps = 0.0
    if norm is None:
        places += [y, y]
    else:
        node, w, made = norm
        places += [window(w), window(made)]
        eps = float(node.params["eps"])  # type: ignore[arg-type]  # the graph was verified
    args = (*(arg for place in places for arg in place.args), f32(eps))
    meets = len(args) if y.rows <= MAX_MEETING_ROWS else -1
    args += (*[i64(0)] * (2 * MAX_PEERS + 1), FAULT, CODE)
    units = -(-n // (4 * lanes))
    defines = {"UNITS": units, "NORM": int(norm is not None)}
    site.call("sum_norm", "sum_norm", args, (y.rows, 1, 1), lanes=lanes, **defines)
    site.can_meet(meets)
