"""Lowering of groups of nodes (LCH-6), and of single nodes that are small in decoding.

The fusions are those that ggml's CUDA backend has found worth while; see ``ggsched.ir.fusion``.
"""

from typing import Final

from ggsched.backend.program import BoundNode, Operand
from ggsched_cuda_kernels.calls import CudaLoweringContext
from ggsched_kernels.calls import CODE, Window, f32, window
from ggsched_kernels.rope_kv_write import (
    FEW_POSITIONS,
    HEAD_LANES,
    heads_arguments,
    kind_of_rows,
)

MAX_LANES: Final = 1024
MAX_UNITS: Final = 8
MANY_ROWS: Final = 128
MANY_LANES: Final = 256


def fits_rms_mul(nodes: list[CudaLoweringContext]) -> bool:
    """Whether rows are vectors of four that the lanes of a group can keep."""
    norm, mul = (ctx.node for ctx in nodes)
    x, w, y = norm.inputs[0], _other(norm, mul), mul.output
    n = x.shape[-1]
    if n % 4 or n > 4 * MAX_LANES * MAX_UNITS or x.shape != y.shape or w.shape[-1] != n:
        return False
    return all(_is_wide(operand) for operand in (x, w, y))


def lower_rms_mul(nodes: list[CudaLoweringContext]) -> None:
    """One kernel for the norm and the product with its weight."""
    _norm(nodes[0], nodes[1].node, nodes[1], None)


def fits_gated_norm(nodes: list[CudaLoweringContext]) -> bool:
    """Whether ``rms_norm+mul`` fits, and the gate lies as it needs it."""
    *norm, gated = nodes
    z, made = gated.node.inputs
    y = gated.node.output
    if not fits_rms_mul(norm) or made.shape != y.shape or z.shape != made.shape:
        return False
    return norm[-1].node.output.shape == y.shape and _is_wide(z) and _is_wide(y)


def lower_gated_norm(nodes: list[CudaLoweringContext]) -> None:
    """The same, and the product with SiLU of a gate."""
    norm, mul, gated = nodes
    _norm(norm, mul.node, gated, gated.node.inputs[0])


def fits_norm_mul_add(nodes: list[CudaLoweringContext]) -> bool:
    """Whether all but x are rows of vectors of four, which the lanes of a group can keep."""
    norm, mul, added = (ctx.node for ctx in nodes)
    w, z, y = _other(norm, mul), _other(mul, added), added.output
    n = y.shape[-1]
    shapes = {o.shape for o in (norm.inputs[0], mul.output, y)}
    if n % 4 or n > 4 * MAX_LANES * MAX_UNITS or len(shapes) > 1:
        return False
    return all(o.shape[-1:] == (n,) and _is_wide(o) for o in (w, z, y))


def lower_norm_mul_add(nodes: list[CudaLoweringContext]) -> None:
    """One kernel for the norm, the product with its weight, and what is added."""
    norm, mul, added = nodes
    _norm(norm, mul.node, added, _other(mul.node, added.node))


def _norm(
    ctx: CudaLoweringContext, mul: BoundNode, last: CudaLoweringContext, gate: Operand | None
) -> None:
    norm = ctx.node
    x, y = window(norm.inputs[0]), window(last.node.output)
    w = window(_other(norm, mul), mul.output.shape)
    z = y if gate is None else window(gate, mul.output.shape)
    n = x.shape[-1]
    lanes, units = lanes_of(n, x.rows)
    args = (*x.args, *w.args, *z.args, *y.args, f32(ctx.number("eps")), y.buffer)
    is_centred = norm.op == "norm"
    flags = {"UNITS": units, "GATED": int(gate is not None) * (1 + is_centred)}
    if is_centred:
        flags |= {"CENTRED": 1, "APART": int(not _is_wide(norm.inputs[0]))}
    last.call("rms_mul", "rms_mul", args, (x.rows, 1, 1), lanes=lanes, **flags)
    last.can_write_halves()


def lanes_of(n: int, rows: int) -> tuple[int, int]:
    """Return the lanes of a group that keeps a row, and the vectors of four that each has.

    One row is spread as far as it goes. Of many rows several are on a multiprocessor at a time,
    and each lane has more under way.
    """
    vectors = max(1, -(-n // 4))
    most = MAX_LANES if rows < MANY_ROWS else max(MANY_LANES, -(-vectors // MAX_UNITS))
    lanes = min(MAX_LANES, most, max(32, 1 << (vectors - 1).bit_length()))
    lanes = 1 << (lanes - 1).bit_length()
    return lanes, -(-vectors // lanes)


def fits_rope(ctx: CudaLoweringContext) -> bool:
    """Whether positions are few."""
    return 0 < ctx.node.inputs[0].shape[0] <= FEW_POSITIONS


def lower_rope(ctx: CudaLoweringContext) -> None:
    """A group for each head."""
    _rope(ctx, ctx.node, window(ctx.node.output), None, 0)


def lower_rope_rows(nodes: list[CudaLoweringContext]) -> None:
    """One kernel that rotates heads on their way to a cache."""
    ctx, last = nodes
    dst, _, ids = last.node.inputs
    _rope(last, ctx.node, window(dst), window(ids), kind_of_rows(dst))


def _rope(
    ctx: CudaLoweringContext, rope: BoundNode, y: Window, ids: Window | None, kind: int
) -> None:
    args = heads_arguments(rope, y, ids, kind, CODE)
    tokens, heads, _ = rope.inputs[0].shape
    ctx.call("rope_kv_write", "rope_heads", args, (tokens, heads, 1), lanes=HEAD_LANES)


def _other(norm: BoundNode, mul: BoundNode) -> Operand:
    """Return the operand of the product that is not the norm's result."""
    a, b = mul.inputs
    made = norm.output
    is_first = (a.buffer, a.offset, a.nbytes) == (made.buffer, made.offset, made.nbytes)
    return b if is_first else a


def _is_wide(operand: Operand) -> bool:
    """Whether rows lie without gaps at multiples of 16 bytes; buffers do."""
    if operand.shape[-1] > 1 and operand.strides[-1] != 4:
        return False
    return operand.offset % 16 == 0 and all(
        s % 16 == 0 or n == 1 for n, s in zip(operand.shape[:-1], operand.strides[:-1], strict=True)
    )
