"""Groups that run as one (LCH-6), where that saves calls of numpy: those of one token.

Only such patterns are declared. Products with what is added to them, and the two halves of a gated
network, are none: numpy has no product that goes on from its sums, so the calls would be the same.
"""

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import Final

import numpy as np

from ggsched.backend.arrays import Array
from ggsched.ir.dtype import F32
from ggsched_cpu.kernels.rope import rotation
from ggsched_cpu.kernels.rows import no_such_row, only_id, unsigned
from ggsched_cpu.lowering_context import Call, CpuLoweringContext, Node


def emit_group(nodes: Sequence[Node], site: CpuLoweringContext) -> list[Call] | None:
    """Return calls for a group, or None if its nodes are as well run one by one."""
    group = nodes[-1].bound.group
    emit = None if group is None else _FUSED.get(group.pattern)
    if emit is None or any(not n.out.size for n in nodes):
        return None
    return emit(nodes, site)


def supported_fusions() -> frozenset[str]:
    """Return the patterns that are worth while."""
    return frozenset(_FUSED)


def _norm_mul_row(
    x: Array,
    matrix: Array,
    eps: float,
    total: Array,
    cell: Array,
    number: "memoryview[float]",
    weight: Array,
    out: Array,
) -> None:
    """Normalise one row and scale it by another; see ``normal._rms_norm_row``."""
    np.dot(matrix, x, total)
    number[()] = 1.0 / sqrt(number[()] / x.size + eps)
    np.multiply(weight, cell, out)  # the result may be the weight's bytes, and not those of x
    np.multiply(out, x, out)


def _norm_mul(nodes: Sequence[Node], site: CpuLoweringContext) -> list[Call] | None:
    norm, mul = nodes
    x, out, eps = norm.inputs[0], mul.out, norm.number("eps")
    a, b = mul.bound.inputs
    other = 1 if a == norm.bound.output else 0
    if (a, b)[1 - other] != norm.bound.output or norm.out.shape != out.shape:
        return None
    weight = np.broadcast_to(mul.inputs[other], out.shape)
    if x.size != x.shape[-1]:
        return None  # of several rows, blocks that stay in the cache were measured no faster
    head = (0,) * (x.ndim - 1)
    row, cell = x[head], site.scratch(())
    numbers = (eps, cell[None], cell, cell.data)
    return [(_norm_mul_row, (row, row[None], *numbers, weight[head], out[head]))]


def _into_row(
    ufunc: np.ufunc, a: Array, b: Array, dst: Array, id_: "memoryview[int] | Array", count: int
) -> None:
    """Combine two arrays into a row of ``dst``."""
    row = id_[0]
    if row >= count:
        raise no_such_row(row, count)
    ufunc(a, b, dst[row])


def _rope_into_row(nodes: Sequence[Node], site: CpuLoweringContext) -> list[Call] | None:
    rope, store = nodes
    x, dst = rope.inputs[0], store.out
    ids = unsigned(store.inputs[2])
    one = ids.size == 1 and x.shape[0] == 1 and int(rope.number("n_dims")) == x.shape[-1]
    if not one or store.dtype(0) is not F32 or not rope.out.flags.c_contiguous:
        return None
    if dst.strides[-1] != dst.itemsize or not dst.flags.aligned:
        return None
    *calls, (ufunc, (a, b, out)) = rotation(rope, site)
    # The last call is one ufunc of arrays in the shape of the heads; cutting an axis never copies.
    rows = dst.view(out.dtype).reshape(dst.shape[0], *out.shape[1:])
    arguments = (ufunc, a[0], b[0], rows, only_id(ids), dst.shape[0])
    return [*calls, (_into_row, arguments)]


_FUSED: Final[Mapping[str, Callable[[Sequence[Node], CpuLoweringContext], list[Call] | None]]] = {
    "rms_norm+mul": _norm_mul,
    "rope+set_rows": _rope_into_row,
}
"""By pattern."""
