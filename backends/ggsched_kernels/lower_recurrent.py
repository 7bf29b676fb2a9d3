"""Lowering of recurrences over tokens: short convolutions and linear attention."""

from math import prod
from typing import Final

from ggsched.backend.program import Operand
from ggsched.ir.dtype import F32
from ggsched.ir.tensor import contiguous_strides
from ggsched_kernels.calls import CODE, FAULT, Arg, Window, f32, i32, window
from ggsched_kernels.lowering_context import LoweringContext

COLUMNS: Final = 32
"""Lanes that lie side by side: what they read of a row is one line of memory."""

LANES: Final = 256
"""Lanes of a group; those that share a column add up once or twice for each token."""


def lower_short_conv(ctx: LoweringContext) -> None:
    """One call for results and states; a row of the result is a row of work."""
    state, x, w, slots, positions = ctx.node.inputs
    y = window(ctx.node.output)
    groups, span = ctx.parts(y.rows, y.shape[-1])
    tensors = (window(state), window(x), window(w), window(slots), window(positions), y)
    args = (*(arg for t in tensors for arg in t.args), span, FAULT, CODE)
    ctx.call("recurrent", "short_conv", args, groups, TAPS=w.shape[1])


def lower_linear_attention(ctx: LoweringContext, copied: Operand | None = None) -> None:
    """One call: lanes keep the matrices while they go through the tokens.

    Args:
        ctx: Of the node.
        copied: Where the states afterwards go too: where they were, or apart from all operands.
    """
    state, _, _, v, *_ = ctx.node.inputs
    count, heads, width, across = state.shape
    args, defines = linear_attention_args(ctx, copied)
    is_single = ctx.profile.lanes == 1
    lanes, columns = (1, 1) if is_single else (LANES, COLUMNS)
    plain = all(t.strides[-1] == F32.block_nbytes for t in (state, v))
    vectors = is_single and plain and across % ctx.profile.vector == 0
    wide = columns * (ctx.profile.vector if vectors else 1)
    ctx.call(
        "recurrent",
        "linear_attention",
        args,
        (count * heads, -(-across // wide), 1),
        lanes=lanes,
        COLS=columns,
        OWN=-(-width // (lanes // columns)),
        EVEN=int(width % (lanes // columns) == 0),
        VECTORS=int(vectors),
        **defines,
    )


def linear_attention_args(
    ctx: LoweringContext, copied: Operand | None
) -> tuple[tuple[Arg, ...], dict[str, int]]:
    """Return what kernels of linear attention take, and definitions of all of them."""
    node = ctx.node
    state, q, k, v, decay, slots, positions, *beta = node.inputs
    y, after = _part(node.output, 0, v.shape), _part(node.output, prod(v.shape), state.shape)
    given = (state, q, k, v, decay, slots, positions, beta[0] if beta else decay)
    also = after if copied is None else window(copied)
    tensors: tuple[Window, ...] = (*(window(t) for t in given), y, after, also)
    tail = (i32(int(bool(node.params["tiled"]))), f32(ctx.number("scale")), FAULT, CODE)
    defines = {"BETA": int(bool(beta)), "COPIED": int(copied is not None)}
    return (*(arg for t in tensors for arg in t.args), *tail), defines


def _part(result: Operand, start: int, shape: tuple[int, ...]) -> Window:
    """Return a window on a part of a result of one axis, from an element on."""
    strides = contiguous_strides(F32, shape)
    offset = result.offset + start * F32.block_nbytes
    nbytes = prod(shape) * F32.block_nbytes
    return window(Operand(result.buffer, offset, nbytes, F32, shape, strides))
