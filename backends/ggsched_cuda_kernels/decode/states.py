"""Recurrent nodes and the copies of their states, as one kernel each.

The state afterwards is a part of a node's result, and a copy puts it where the state lies (ADR 52).
A kernel that writes both reads what it writes over itself, by the same lane and before.
"""

from collections.abc import Sequence
from math import prod
from typing import Final

from ggsched.backend.program import BoundNode, Operand
from ggsched.ir.dtype import F32
from ggsched.ir.tensor import contiguous_strides
from ggsched_cuda_kernels.calls import CudaLoweringContext
from ggsched_cuda_kernels.delta_scan import fits_scan, lower_scan
from ggsched_cuda_kernels.operands import is_same
from ggsched_kernels import TuningProfile
from ggsched_kernels.calls import CODE, FAULT, window
from ggsched_kernels.lower_recurrent import lower_linear_attention

Groups = Sequence[Sequence[BoundNode]]
Joined = tuple[int, CudaLoweringContext] | None

CONV_LANES: Final = 64
MAX_SLOTS: Final = 64


def join_linear_attention(groups: Groups, at: int, profile: TuningProfile) -> Joined:
    """Linear attention, and the copy of its states."""
    some = _single(groups, at, ("linear_attention", "cpy"))
    if not some:
        return None
    node, copy = some
    state, v = node.inputs[0], node.inputs[3]
    place = _copied(node.output, prod(v.shape), copy, state)
    if place is None:
        return None
    ctx = CudaLoweringContext(node, profile)
    if fits_scan(ctx):
        lower_scan(ctx, place)
    else:
        lower_linear_attention(ctx, place)
    return len(some), ctx


def join_conv(groups: Groups, at: int, profile: TuningProfile) -> Joined:
    """A short convolution of one token, the copy of its states, and SiLU if that comes behind."""
    some = _single(groups, at, ("short_conv", "cpy"))
    if not some:
        return None
    node, copy = some
    state, x, w, slots, positions = node.inputs
    place = _copied(node.output, prod(x.shape), copy, state)
    if place is None or x.shape[0] != 1 or state.shape[0] > MAX_SLOTS:
        return None
    ctx, z = CudaLoweringContext(node, profile), None
    (silu,) = _single(groups, at + len(some), ("silu",)) or (None,)
    if silu is not None and _is_first_row(silu.inputs[0], node.output, x):
        z = silu.output
    y = window(node.output)
    places = (window(t) for t in (state, x, w, slots, positions))
    tensors = (*places, y, window(place), y if z is None else window(z))
    args = (*(arg for t in tensors for arg in t.args), FAULT, CODE)
    grid = (-(-x.shape[-1] // CONV_LANES), 1, 1)
    flags: dict[str, str | int] = {"TAPS": w.shape[1], "SILU_TOO": int(z is not None)}
    ctx.call("conv_step", "conv_step", args, grid, lanes=CONV_LANES, **flags)
    return len(some) + (z is not None), ctx


def _single(groups: Groups, at: int, ops: Sequence[str]) -> Sequence[BoundNode]:
    """Return the nodes from ``at`` on if they are these ops and of no group; else nothing."""
    some = groups[at : at + len(ops)]
    if any(len(group) != 1 for group in some) or tuple(group[0].op for group in some) != ops:
        return ()
    return [group[0] for group in some]


def _copied(result: Operand, start: int, copy: BoundNode, state: Operand) -> Operand | None:
    """Return where states go that lie in a result from an element on; None if not whole.

    It has the shape of the states. They may go where they were, or where no operand is.
    """
    source, goal = copy.inputs[0], copy.output
    nbytes = prod(state.shape) * F32.block_nbytes
    wanted = (result.buffer, result.offset + start * F32.block_nbytes, nbytes)
    plain = all(
        o.dtype is F32 and o.strides == contiguous_strides(F32, o.shape) for o in (source, goal)
    )
    if not plain or (source.buffer, source.offset, source.nbytes) != wanted:
        return None
    if goal.nbytes != nbytes or goal.meets(result):
        return None
    place = Operand(
        goal.buffer, goal.offset, nbytes, F32, state.shape, contiguous_strides(F32, state.shape)
    )
    if goal.meets(state) and not (is_same(place, state) and place.strides == state.strides):
        return None
    return place


def _is_first_row(o: Operand, result: Operand, x: Operand) -> bool:
    """Whether an operand is what a convolution gives for its token."""
    plain = o.strides[-1] == F32.block_nbytes and prod(o.shape[:-1]) == 1
    return plain and (o.buffer, o.offset, o.shape[-1]) == (
        result.buffer,
        result.offset,
        x.shape[-1],
    )
