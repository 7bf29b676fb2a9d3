"""Chains of ops on single elements whose result lies without gaps, four elements at a time.

What stands behind a product, a bias, a residual and an activation, is such a chain: one pass over
the result in place of one for each op. It writes rows in bf16 too where the next product takes
them.
"""

from collections.abc import Sequence
from math import prod
from typing import Final

from ggsched.backend.program import BoundNode, Operand
from ggsched.ir.tensor import contiguous_strides
from ggsched_cuda_kernels.calls import CudaLoweringContext
from ggsched_cuda_kernels.decode.device_sums import sums_at
from ggsched_kernels import TuningProfile
from ggsched_kernels.arrays import SOURCE_PREFIX
from ggsched_kernels.calls import f32, i32, i64
from ggsched_kernels.chains import (
    MAX_NODES,
    MAX_NUMBERS,
    MAX_OPERANDS,
    Chain,
    chain_behind,
    chain_from,
    chain_within,
    joined_chains,
    without_ones,
)

SOURCE: Final = f"{SOURCE_PREFIX}chain_rows"
LANES: Final = 128
VECTOR: Final = 4
PIECE: Final = 16
"""Bytes of four elements."""

PLACE, COLUMN, ONE = 2, 1, 0
"""What an operand has an element for: each place of the result, each column, all."""


def join_chain_rows(
    groups: Sequence[Sequence[BoundNode]], at: int, profile: TuningProfile
) -> tuple[int, CudaLoweringContext] | None:
    """Return how many groups from ``at`` on are such a chain, and the context of its call."""
    y = groups[at][-1].output
    if not profile.num_sms or step_of(y, y) != PLACE or prod(y.shape) >= 1 << 31:
        return None
    chain = _chain(groups, at, y)
    count = 1 + len(chain.steps) - len(groups[at]) if chain else 0
    behind = groups[at + count : at + count + 1]
    if chain is None or (behind and behind[0][0].op == "rms_norm"):  # takes the last addition
        return None
    if count == 1 and sums_at(groups, at):  # has a kernel of its own
        return None
    ctx = CudaLoweringContext(groups[at + count - 1][-1], profile)
    places = [*chain.operands, *[y] * (MAX_OPERANDS - len(chain.operands)), y]
    numbers = [*chain.numbers, *(0.0,) * MAX_NUMBERS][:MAX_NUMBERS]
    memory = [arg for o in places for arg in (o.buffer, i64(o.offset))]
    sizes = i32(prod(y.shape)), i32(y.shape[-1])
    steps = {f"STEP{i}": step_of(o, y) or 0 for i, o in enumerate(chain.operands)}
    ctx.call(
        f"{SOURCE}-{chain.text}-f32", "chain_rows",
        (*memory, *sizes, *map(f32, numbers), y.buffer),
        (-(-prod(y.shape) // (VECTOR * LANES)), 1, 1),
        lanes=LANES, A_T="f32", B_T="f32", C_T="f32", Y_T="f32", OPERANDS=len(chain.operands),
        HALVES=0, **steps,
    )  # fmt: skip
    ctx.can_write_halves()
    return count, ctx


def _chain(groups: Sequence[Sequence[BoundNode]], at: int, y: Operand) -> Chain | None:
    """Return the chain from ``at`` on, of two ops or more, or None."""

    def fits(more: Sequence[Operand]) -> bool:
        return all(step_of(o, y) is not None for o in more)

    if len(groups[at]) == 1:
        chain = chain_from(groups, at, lambda _, more: fits(more))
        return chain if len(chain.steps) > 1 else None
    inner = chain_within(groups[at])
    if inner is None or not fits(inner.operands):
        return None
    last = [groups[at][-1:], *groups[at + 1 : at + 1 + MAX_NODES]]
    outer = chain_behind(last, 0, lambda o: fits([o]))
    return joined_chains(inner, outer) or inner


def step_of(operand: Operand, y: Operand) -> int | None:
    """Return what an operand has elements for; None where vectors of it cannot be read."""
    if prod(operand.shape) == 1 != prod(y.shape):
        return ONE
    plain = contiguous_strides(operand.dtype, operand.shape)
    axes = zip(operand.shape, operand.strides, plain, strict=True)
    if operand.offset % PIECE or not all(n == 1 or a == b for n, a, b in axes):
        return None
    if without_ones(operand).shape == without_ones(y).shape:
        return PLACE if prod(y.shape) % VECTOR == 0 else None
    is_column = operand.shape[-1:] == (prod(operand.shape),) == y.shape[-1:]
    return COLUMN if is_column and y.shape[-1] % VECTOR == 0 else None


__all__ = ["SOURCE", "join_chain_rows"]
