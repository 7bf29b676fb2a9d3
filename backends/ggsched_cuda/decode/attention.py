"""Attention of a few tokens as one kernel (LCH-6): products, softmax, and no weights in memory.

In decoding the work is small and the way to memory long: keys and values are fetched at once, by as
many groups as the GPU has room for, and the positions of a head are shared by a cluster of groups
that add up through each other's local memory.
"""

from typing import Final

from ggsched.backend.program import Operand
from ggsched_cuda.calls import CudaLoweringContext
from ggsched_kernels.calls import Arg, Window, f32, i32, window, window_of
from ggsched_kernels.lowering_context import weight_define

MAX_TOKENS: Final = 8
MAX_WIDTH: Final = 256
MAX_ROWS: Final = 4
"""Query heads of a group: of each, sixteen numbers stay in the registers of a lane."""
FEW_ROWS: Final = 2
"""The same where rows of the caches are few: they are read by more groups then, each of which has
less to do one after the other, and fewer registers."""
SHORT: Final = 1024
"""Positions that are few."""
MAX_SPLITS: Final = 8
"""Groups of a cluster; more are not portable."""
MAX_WARPS: Final = 8
FEW_POSITIONS: Final = 32
"""A group with fewer takes less time than the meeting of a cluster."""
FEW_STEPS: Final = 2
MAX_STEPS: Final = 4
"""Positions that a lane has under way; more where one turn of the loop is not enough."""
PIECE: Final = 16  # bytes of a vector load
EIGHT: Final = 8  # elements of a lane
WARP: Final = 32


def fits_attention(nodes: list[CudaLoweringContext]) -> bool:
    """Whether tokens are few, and rows of queries, keys, values and results are pieces."""
    product, soft, last = (site.node for site in nodes)
    (k, q), (v, weights), x = product.inputs, last.inputs, soft.inputs[0]
    if not nodes[-1].profile.has_tma or any(len(o.shape) != 3 for o in (k, q, v, x, weights)):
        return False
    (heads, tokens, width), (groups, n, _) = q.shape, k.shape
    as_they_are = x.shape == product.output.shape and weights.shape == soft.output.shape
    if not as_they_are or v.shape != (groups, width, n) or v.dtype is not k.dtype:
        return False
    if tokens > MAX_TOKENS or width % EIGHT or width > MAX_WIDTH or not n:
        return False
    if soft.params["mask"] and heads > 1 and window(soft.inputs[1], x.shape).strides[1]:
        return False
    if k.dtype.name not in ("f32", "f16", "bf16"):
        return False
    return _has_pieces(v, 1) and all(_has_pieces(o, 2) for o in (k, q, last.output))


def lower_attention(nodes: list[CudaLoweringContext]) -> None:
    """One kernel in the place of the last product."""
    site = nodes[-1]
    grid, flags, cut = cut_of(nodes)
    q = nodes[0].node.inputs[1]
    args = (*window(q).args, *operands_of(nodes), *flags)
    site.call("attention", "attention", args, grid, **cut)


def operands_of(nodes: list[CudaLoweringContext]) -> tuple[Arg, ...]:
    """Return the operands of the kernel but for the queries."""
    product, soft, last = (site.node for site in nodes)
    (k, q), v, (x, *rest) = product.inputs, last.inputs[0], soft.inputs
    mask = window(rest.pop(0), x.shape) if soft.params["mask"] else window(q)
    sinks = _sinks(rest[0], x) if soft.params["sinks"] else window(q)
    places = (window(k), window(v), mask, sinks, window(last.output))
    return tuple(arg for place in places for arg in place.args)


def cut_of(
    nodes: list[CudaLoweringContext],
) -> tuple[tuple[int, int, int], tuple[bytes, ...], dict[str, str | int]]:
    """Return the grid, what the kernel takes behind its operands, and its definitions."""
    product, soft, _ = (site.node for site in nodes)
    k, q = product.inputs
    (heads, tokens, _), groups = q.shape, k.shape[0]
    share = heads // groups
    parts = -(-share // (FEW_ROWS if k.shape[1] <= SHORT else MAX_ROWS))
    each = -(-share // parts)
    cut = _cut(nodes[-1].profile.units, k, each, groups * parts * tokens)
    has = bool(soft.params["mask"]) | bool(soft.params["sinks"]) << 1
    flags = i32(has), f32(nodes[1].number("scale")), i32(share), i32(each)
    grid = (cut["SPLITS"], groups * parts, tokens)
    return grid, flags, {**cut, **weight_define(k.dtype), "cluster": cut["SPLITS"]}


def _sinks(sinks: Operand, x: Operand) -> Window:
    heads, tokens, _ = x.shape
    return window_of(sinks, (1, heads, tokens, 1), (0, sinks.strides[0], 0, 0))


def _cut(units: int, k: Operand, each: int, others: int) -> dict[str, int]:
    """Cut the kernel.

    Args:
        units: Multiprocessors.
        k: The keys.
        each: Query heads of a group.
        others: Groups for each share of the positions.
    """
    _, n, width = k.shape
    rows = _power(each)
    span = max(_power(width // EIGHT), rows)
    per = WARP // span
    room = max(1, units // others)
    splits = min(MAX_SPLITS, _power(room + 1) // 2, _power(-(-n // FEW_POSITIONS)))
    warps = min(MAX_WARPS, _power(-(-n // (splits * per * FEW_STEPS))))
    steps = FEW_STEPS if n <= splits * warps * per * FEW_STEPS else MAX_STEPS
    items = rows * width // 4
    slots = -(-items // splits)
    local = PIECE * (warps * items + splits * slots) + 8 * rows * (warps + splits)
    return {
        "lanes": warps * WARP, "WIDTH": width, "SPAN": span, "ROWS": rows, "STEPS": steps,
        "SPLITS": splits, "LOCAL_NBYTES": local,
    }  # fmt: skip


def _has_pieces(operand: Operand, along: int) -> bool:
    """Whether elements lie side by side along an axis, and the rows begin at pieces."""
    steps = [
        step
        for axis, (n, step) in enumerate(zip(operand.shape, operand.strides, strict=True))
        if n > 1 and axis != along
    ]
    side_by_side = operand.strides[along] == operand.dtype.block_nbytes
    return side_by_side and all(place % PIECE == 0 for place in (operand.offset, *steps))


def _power(n: int) -> int:
    """Return the smallest power of two that is not smaller."""
    return 1 << (max(1, n) - 1).bit_length()
