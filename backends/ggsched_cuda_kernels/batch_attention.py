"""Attention in batches, of which every factor is f32: two products around a softmax as one kernel.

Scores stay in registers. Factors are rounded to what ``TuningProfile.precision`` says; for ``f32``
each is the sum of two numbers of TF32, which together have 22 bits. Groups stand for it that
``ggsched.ir.fusion`` finds, so that nobody else reads scores and shares.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Final, NamedTuple

from ggsched.backend.program import BoundNode, Operand
from ggsched.ir.fusion import PATTERNS as ALL_PATTERNS
from ggsched.ir.tensor import contiguous_strides
from ggsched_cuda_kernels.calls import CudaLoweringContext
from ggsched_kernels.calls import Arg, Window, f32, i32, i64, window

PATTERNS: Final = tuple(name for name in ALL_PATTERNS if "+soft_max+mul_mat" in name)
MAX_WIDTH: Final = 128
MANY: Final = 4
"""Warps of a thread block, each with 16 rows of queries; half of them where blocks are few."""


class _Attention(NamedTuple):
    """``softmax(q k' * scale + mask) v``, or what is beside it where ``seen`` is not true.

    Attributes:
        y: Where rows of the result go, as the product makes them.
        choice: The condition, and the element elsewhere.
    """

    q: Window
    k: Window
    v: Window
    y: Window
    scale: float
    mask: Operand | None
    choice: tuple[Operand, ...]


def fits_batches(contexts: list[CudaLoweringContext]) -> bool:
    """Whether a group is attention for this kernel: heads up to ``MAX_WIDTH``, equal batches."""
    return (
        contexts[0].profile.num_sms > 0 and _attention([ctx.node for ctx in contexts]) is not None
    )


def _attention(nodes: Sequence[BoundNode]) -> _Attention | None:
    """Return what a group computes, or None if it is not of that form."""
    product, soft_max, weighted, *behind = nodes
    (k, q), (v, shares) = product.inputs, weighted.inputs
    scores, *masks = soft_max.inputs
    if scores != product.output or shares != soft_max.output or soft_max.params["sinks"]:
        return None
    if any(o.dtype.name != "f32" for o in (k, q, v)):
        return None
    choice: tuple[Operand, ...] = ()
    made = weighted.output
    y: Window | None = window(made)
    for node in behind:
        if node.op == "cont":
            y = _reordered(made, node.inputs[0], node.output)
            continue
        condition, same, other = node.inputs
        shape = (1,) * (len(made.shape) - len(condition.shape)) + condition.shape
        if same != made or node.output.shape != made.shape or shape[-1:] != (1,):
            return None
        if prod(other.shape) != 1 or len(condition.shape) > len(made.shape):
            return None
        choice, made = (condition, other), node.output
        y = window(made)
    batches = {window(o).shape[:2] for o in (k, q, v)} | ({y.shape[:2]} if y else set())
    if y is None or len(batches) > 1 or max(q.shape[-1], y.shape[-1]) > MAX_WIDTH:
        return None
    scale, mask = soft_max.params["scale"], masks[0] if masks else None
    assert isinstance(scale, (int, float))  # the graph was verified
    return _Attention(window(q), window(k), window(v), y, scale, mask, choice)


def _reordered(made: Operand, seen: Operand, copy: Operand) -> Window | None:
    """Return the window of a copy, of a result seen with other axes, with the axes of the result.

    None where the axes differ by more than their order.
    """
    plain = contiguous_strides(made.dtype, made.shape)
    left = [(n, s, to) for n, s, to in zip(seen.shape, seen.strides, copy.strides, strict=True)
            if n > 1]  # fmt: skip
    strides = []
    for n, step in zip(made.shape, plain, strict=True):
        found = [axis for axis in left if axis[:2] == (n, step)]
        if n > 1 and not found:
            return None
        strides.append(found[0][2] if n > 1 else 0)
    if len(left) != sum(n > 1 for n in made.shape) or seen.offset != made.offset:
        return None
    return window(replace(copy, shape=made.shape, strides=tuple(strides)))


def lower_batches(contexts: list[CudaLoweringContext]) -> None:
    """One kernel: a thread block has some rows of queries of one batch."""
    found, ctx = _attention([ctx.node for ctx in contexts]), contexts[-1]
    assert found is not None  # it fits
    q, k, v, y = found[:4]
    rows = (*q.shape[:3], k.shape[2])
    mask = q if found.mask is None else window(found.mask, rows)
    seen, other = q, (q.buffer, i64(q.offset))
    if found.choice:
        condition, one = found.choice
        seen, other = window(condition, (*rows[:3], 1)), (one.buffer, i64(one.offset))
    precision = ctx.profile.precision
    unit = 16 if precision == "bf16" else 8
    width, across = -(-q.shape[3] // unit) * unit, -(-y.shape[3] // 8) * 8
    batches = q.shape[0] * q.shape[1]
    warps = MANY if batches * -(-q.shape[2] // (16 * MANY)) >= ctx.profile.num_sms else MANY // 2
    blocks = -(-q.shape[2] // (16 * warps))
    args: tuple[Arg, ...] = (
        *(arg for w in (q, k, v, mask, seen) for arg in w.args), *other, *y.args,
        f32(found.scale), i32(blocks), y.buffer,
    )  # fmt: skip
    in_pairs = y.shape[3] % 2 == 0 and (y.strides[3], y.offset % 8) == (4, 0)
    in_pairs = in_pairs and not any(n % 8 for n in y.strides[:3])
    defines = {
        "WIDTH": width, "ACROSS": across, "BN": 64 if precision == "bf16" else 32,
        "MASKED": int(found.mask is not None), "CHOOSES": int(bool(found.choice)),
        "EXACT": int(precision == "f32"), "VEC": int(all(map(_has_fours, (k, _turned(v))))),
        "VEC_Y": int(in_pairs), "HALVES": 0, **({"W_BF16": 1} if precision == "bf16" else {}),
    }  # fmt: skip
    ctx.call("batch_attention", "batch_attention", args, (batches * blocks, 1, 1),
              lanes=32 * warps, **defines)  # fmt: skip
    if in_pairs:
        ctx.can_write_halves()


def _turned(v: Window) -> Window:
    """Return values as rows of keys are."""
    (*outer, across, keys), (*steps, column, row) = v.shape, v.strides
    return Window(v.buffer, v.offset, (*outer, keys, across), (*steps, row, column))


def _has_fours(x: Window) -> bool:
    """Whether rows can be read four elements at a time; buffers are aligned."""
    return (
        x.strides[3] == 4
        and x.shape[3] % 4 == 0
        and not any(n % 16 for n in (x.offset, *x.strides[:3]))
    )


__all__ = ["PATTERNS", "fits_batches", "lower_batches"]
