"""Lowering of ops whose elements depend on a whole row, and of rope."""

import math
import struct
from typing import Final

from ggsched.backend.program import BoundNode
from ggsched.ir.rope import rope_table
from ggsched_kernels.calls import (
    MAX_PARTS,
    SCRATCH,
    Arg,
    Constant,
    Window,
    f32,
    i32,
    i64,
    window,
    window_of,
)
from ggsched_kernels.lowering_context import LoweringContext

BLOCK: Final = 256  # elements that sort_blocks sorts
SPAN: Final = 2048
"""Elements of a row in which a group of lanes finds the largest, where rows are few and long."""

FEW_ROWS: Final = 64
SHORT_ROW: Final = 16
"""Most elements of a row that one lane sums. A group for each row took 1.8 ms for four experts of
512 tokens, 2,880 elements each (H200)."""

TURN: Final = 2**60  # one turn in the fixed-point frequencies of rope.cl
_NORM: Final = {"rms_norm": 0, "norm": 1}


def lower_norm(ctx: LoweringContext) -> None:
    """``rms_norm`` and ``norm``."""
    x, y = window(ctx.node.inputs[0]), window(ctx.node.output)
    kind = i32(_NORM[ctx.node.op])
    args = (*x.args, *y.args, kind, f32(ctx.number("eps")))
    ctx.call("norm", "norm_rows", args, (x.rows, 1, 1), lanes=row_lanes(x, ctx))


def row_lanes(x: Window, ctx: LoweringContext) -> int:
    """Return the work-items of a group that reduces a row: more where rows leave a GPU idle."""
    p = ctx.profile
    vectors = x.shape[-1] // p.vector
    most = p.row_lanes if x.rows < p.num_sms else p.lanes
    return max(p.lanes, min(most, 1 << (max(1, vectors) - 1).bit_length()))


def lower_sum_rows(ctx: LoweringContext) -> None:
    """Sums of rows, also of empty ones."""
    x, y, lanes = window(ctx.node.inputs[0]), window(ctx.node.output), ctx.profile.lanes
    if lanes > 1 and x.shape[3] <= SHORT_ROW:
        groups = (-(-x.rows // lanes), 1, 1)
        ctx.call("norm", "sum_short_rows", (*x.args, *y.args, i32(x.rows)), groups)
        return
    ctx.call("norm", "sum_rows", (*x.args, *y.args), (x.rows, 1, 1))


def lower_soft_max(ctx: LoweringContext) -> None:
    """Softmax with optional mask and sinks; their places are taken by x where they are absent."""
    node = ctx.node
    x, *rest = node.inputs
    plain = window(x)
    masked, has_sinks = bool(node.params["mask"]), bool(node.params["sinks"])
    mask = window(rest.pop(0), x.shape) if masked else plain
    sinks = plain
    if has_sinks:
        operand = rest.pop(0)
        heads, rows = x.shape[:2]
        sinks = window_of(operand, (1, heads, rows, 1), (0, operand.strides[0], 0, 0))
    has = i32(masked | has_sinks << 1)
    tensors = (*plain.args, *mask.args, *sinks.args, *window(node.output).args)
    ctx.call("softmax", "soft_max", (*tensors, has, f32(ctx.number("scale"))), (plain.rows, 1, 1))


def lower_rope(ctx: LoweringContext) -> None:
    """Rotations; frequencies become turns per position in units of 2^-60."""
    tensors, table, flags = rope_arguments(ctx.node)
    args = (*tensors, *window(ctx.node.output).args, table, *flags)
    ctx.call("rope", "rope", args, (ctx.node.inputs[0].shape[0], 1, 1))


def rope_arguments(node: BoundNode) -> tuple[tuple[Arg, ...], Constant, tuple[bytes, ...]]:
    """Return operands, frequencies, and what else the kernels of rope.cl take."""
    factors, table, flags = rope_constants(node)
    windows = (*map(window, node.inputs[:2]), factors)
    return tuple(arg for w in windows for arg in w.args), table, flags


def rope_constants(node: BoundNode) -> tuple[Window, Constant, tuple[bytes, ...]]:
    """Return factors (positions where there are none), frequencies, and what else kernels take."""
    _, positions, *factors = node.inputs
    per_position, magnitude = rope_table(node.params)
    turns = [round(f / math.tau * TURN) for f in per_position]
    wrapped = [(t + 2**63) % 2**64 - 2**63 for t in turns]
    table = Constant(struct.pack(f"<{len(wrapped)}q", *wrapped))
    extra = window(factors[0] if factors else positions)
    pairing = i32(int(node.params["pairing"] == "halves"))
    flags = (i32(len(turns)), pairing, i32(len(factors)), f32(magnitude))
    return extra, table, flags


def _lower_largest(ctx: LoweringContext) -> None:
    """``top_k`` of one: the largest of spans of each row, then the largest of those."""
    x, y = window(ctx.node.inputs[0]), ctx.node.output
    n = x.shape[-1]
    span = max(SPAN, -(-n // MAX_PARTS)) if x.rows <= FEW_ROWS and n > 4 * SPAN else n
    spans = -(-n // span)
    result, unused = (y.buffer, i64(y.offset)), (y.buffer, i64(0))
    area = (SCRATCH, i64(ctx.scratch(4 * x.rows * spans))) if spans > 1 else result
    args = (*x.args, *unused, *area, i32(spans), i32(span), i32(0))
    ctx.call("sort", "largest", args, (x.rows, spans, 1))
    if spans > 1:
        args = (*x.args, *area, *result, i32(1), i32(spans), i32(1))
        ctx.call("sort", "largest", args, (x.rows, 1, 1))


def lower_sort(ctx: LoweringContext) -> None:
    """``argsort`` and ``top_k``: sorted blocks, then merges that double the runs.

    The last step writes to the result, the steps before to one of two scratch areas in turn.
    """
    node = ctx.node
    x, y = window(node.inputs[0]), node.output
    n, keep = x.shape[-1], y.shape[-1]
    if node.op == "top_k" and keep == 1:
        _lower_largest(ctx)
        return
    descending = node.op == "top_k" or bool(node.params["descending"])
    rows, groups = x.rows, (x.rows, -(-n // BLOCK), 1)
    widths = [BLOCK << i for i in range(max(0, (-(-n // BLOCK) - 1).bit_length()))]
    areas = [ctx.scratch(4 * rows * n) for _ in range(min(2, len(widths)))]
    for step in range(len(widths) + 1):
        last = step == len(widths)
        to = (y.buffer, i64(y.offset)) if last else (SCRATCH, i64(areas[step % 2]))
        kept = keep if last else n
        tail = (i32(kept), i32(kept), i32(int(descending)))
        if step == 0:
            ctx.call("sort", "sort_blocks", (*x.args, *to, *tail), groups)
            continue
        origin = (SCRATCH, i64(areas[(step - 1) % 2]))
        args = (*x.args, *origin, *to, *tail, i32(widths[step - 1]))
        ctx.call("sort", "sort_merge", args, groups)
