"""Attention of a few tokens as one kernel (LCH-6): products, softmax, and no weights in memory.

In decoding the work is small and the way to memory long: keys and values are fetched at once, by as
many groups as the GPU has room for, and the positions of a head are shared by a cluster of groups
that add up through each other's local memory.
"""

from typing import Final

from ggsched.backend.program import BoundNode, Operand
from ggsched_cuda_kernels.calls import CudaLoweringContext
from ggsched_cuda_kernels.flash_attention import DTYPES as HALVES
from ggsched_cuda_kernels.flash_attention import fits_flash
from ggsched_cuda_kernels.operands import PIECE, has_pieces
from ggsched_kernels.calls import Arg, Launch, Window, f32, i32, window, window_of
from ggsched_kernels.lower_attention import attention_operands
from ggsched_kernels.lower_warps import next_power
from ggsched_kernels.lowering_context import weight_define

MAX_TOKENS: Final = 8
MAX_WIDTH: Final = 256
MAX_ROWS: Final = 4
"""Query heads of a group: of each, sixteen numbers stay in the registers of a lane."""
FEW_ROWS: Final = 2
"""The same where rows of the caches are few, or groups of ``MAX_ROWS`` would be too few for half of
the multiprocessors: rows are read by more groups then, each of which has less to do one after the
other, and fewer registers."""
SHORT: Final = 1024
"""Positions that are few."""
LONG: Final = 8192
"""Positions from which on tensor cores are faster, whose groups do not have to meet in clusters."""
MAX_SPLITS: Final = 8
"""Groups of a cluster; more are not portable."""
MAX_WARPS: Final = 8
FEW_POSITIONS: Final = 32
"""A group with fewer takes less time than the barrier of a cluster."""
FEW_STEPS: Final = 2
MAX_STEPS: Final = 4
"""Positions that a lane has under way; more where one turn of the loop is not enough."""
EIGHT: Final = 8  # elements of a lane
WARP: Final = 32


def fits_attention(ctx: CudaLoweringContext) -> bool:
    """Whether tokens are few, and rows of queries, keys, values and results are pieces."""
    node = ctx.node
    k, v, q = node.inputs[:3]
    tokens, heads, width = q.shape
    if not ctx.profile.has_tma or node.params["soft_cap"] or v.shape != k.shape:
        return False
    if tokens > MAX_TOKENS or width % EIGHT or width > MAX_WIDTH:
        return False
    if node.params["mask"] and heads > 1:
        shape = heads, tokens, k.shape[0]
        if window(node.inputs[3], shape).strides[1]:
            return False
    is_long = k.shape[0] >= LONG and k.dtype.name in HALVES and fits_flash(ctx)
    return not is_long and all(has_pieces(o, 2) for o in (k, v, q, node.output))


def lower_attention(ctx: CudaLoweringContext) -> None:
    """One kernel instead of the node."""
    grid, flags, cut = cut_of(ctx)
    args = (*_by_heads(ctx.node.inputs[2]).args, *operands_of(ctx.node), *flags)
    ctx.call("attention", "attention", args, grid, **cut)
    ctx.launched(Launch.BY_ITSELF)


def operands_of(node: BoundNode) -> tuple[Arg, ...]:
    """Return the operands of the kernel but for the queries."""
    k, v, q = node.inputs[:3]
    (*_, mask, sinks, bounds), _, _ = attention_operands(node)
    (rows, groups, width), (step, head, each) = v.shape, v.strides
    turned = window_of(v, (1, groups, width, rows), (0, head, each, step))
    if node.params["sinks"]:
        by_heads = (1, q.shape[1], q.shape[0], 1)
        sinks = Window(sinks.buffer, sinks.offset, by_heads, (0, sinks.strides[3], 0, 0))
    places = (_by_heads(k), turned, mask, sinks, bounds, _by_heads(node.output))
    return tuple(arg for place in places for arg in place.args)


def _by_heads(o: Operand) -> Window:
    """Return (token or row, head, element) with heads first."""
    (rows, heads, width), (step, head, each) = o.shape, o.strides
    return window_of(o, (1, heads, rows, width), (0, head, step, each))


def cut_of(
    ctx: CudaLoweringContext,
) -> tuple[tuple[int, int, int], tuple[bytes, ...], dict[str, str | int]]:
    """Return the grid, what the kernel takes behind its operands, and its definitions."""
    k, _, q = ctx.node.inputs[:3]
    _, has, share = attention_operands(ctx.node)
    (n, groups, _), tokens = k.shape, q.shape[0]
    largest = groups * -(-share // MAX_ROWS) * tokens * MAX_SPLITS
    is_few = n <= SHORT or 2 * largest <= ctx.profile.num_sms
    parts = -(-share // (FEW_ROWS if is_few else MAX_ROWS))
    each = -(-share // parts)
    cut = _cut(ctx.profile.num_sms, k, each, groups * parts * tokens)
    flags = i32(has), f32(ctx.number("scale")), i32(share), i32(each)
    grid = (cut["SPLITS"], groups * parts, tokens)
    return grid, flags, {**cut, **weight_define(k.dtype), "cluster": cut["SPLITS"]}


def _cut(num_sms: int, k: Operand, each: int, others: int) -> dict[str, int]:
    """Cut the kernel.

    Args:
        num_sms: Multiprocessors.
        k: The keys.
        each: Query heads of a group.
        others: Groups for each share of the positions.
    """
    n, _, width = k.shape
    rows = next_power(each)
    span = max(next_power(width // EIGHT), rows)
    per = WARP // span
    room = max(1, num_sms // others)
    splits = min(MAX_SPLITS, next_power(room + 1) // 2, next_power(-(-n // FEW_POSITIONS)))
    warps = min(MAX_WARPS, next_power(-(-n // (splits * per * FEW_STEPS))))
    steps = FEW_STEPS if n <= splits * warps * per * FEW_STEPS else MAX_STEPS
    items = rows * width // 4
    slots = -(-items // splits)
    local = PIECE * (warps * items + splits * slots) + 8 * rows * (warps + splits)
    return {
        "lanes": warps * WARP, "WIDTH": width, "SPAN": span, "ROWS": rows, "STEPS": steps,
        "SPLITS": splits, "LOCAL_NBYTES": local,
    }  # fmt: skip
