"""Attention in batches, of which every factor is f32: two products around a softmax as one kernel.

Scores stay in registers. Factors are rounded to what ``TuningProfile.precision`` says; for ``f32``
each is the sum of two numbers of TF32, which together have 22 bits. Groups stand for it that
``ggsched.ir.fusion`` finds, so that nobody else reads scores and shares.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from ggsched.backend.program import BoundNode, Operand
from ggsched_cuda_kernels.calls import CudaLoweringContext
from ggsched_kernels.calls import Arg, Window, f32, i32, window

PATTERNS: Final = (
    "mul_mat+soft_max+mul_mat", "mul_mat+scale+soft_max+mul_mat", "mul_mat+add+soft_max+mul_mat",
    "mul_mat+scale+add+soft_max+mul_mat",
)  # fmt: skip
MAX_WIDTH: Final = 128
MANY: Final = 4
"""Warps of a thread block, each with 16 rows of queries; half of them where blocks are few."""



class _Scores(NamedTuple):
    """What a softmax is taken of: ``products * scale + mask``."""

    scale: float
    mask: Operand | None


def fits_batches(sites: list[CudaLoweringContext]) -> bool:
    """Whether a group is attention for this kernel: heads up to ``MAX_WIDTH``, equal batches."""
    product, *inner, last = (site.node for site in sites)
    (k, q), (v, shares), y = product.inputs, last.inputs, last.output
    if not sites[0].profile.num_sms or any(o.dtype.name != "f32" for o in (k, q, v)):
        return False
    if shares != inner[-1].output or _scores(product, inner) is None:
        return False
    batches = {window(o).shape[:2] for o in (k, q, v, y)}
    return len(batches) == 1 and max(q.shape[-1], y.shape[-1]) <= MAX_WIDTH


def _scores(product: BoundNode, inner: Sequence[BoundNode]) -> _Scores | None:
    """Return what a group takes the softmax of, or None if it is not of that form."""
    made, scale, masks = product.output, 1.0, list[Operand]()
    for node in inner:
        others = [o for o in node.inputs if o != made]
        factor, bias = node.params.get("scale", 1.0), node.params.get("bias", 0.0)
        is_plain = not bias and not node.params.get("sinks") and (factor == 1.0 or not masks)
        if len(others) == len(node.inputs) or node.output.shape != made.shape or not is_plain:
            return None
        assert isinstance(factor, (int, float))  # the graph was verified
        made, scale, masks = node.output, scale * factor, [*masks, *others]
    return _Scores(scale, masks[0] if masks else None) if len(masks) < 2 else None


def lower_batches(sites: list[CudaLoweringContext]) -> None:
    """One kernel: a thread block has some rows of queries of one batch."""
    product, *inner, last = (site.node for site in sites)
    site = sites[-1]
    (k, q), v, y = map(window, product.inputs), window(last.inputs[0]), window(last.output)
    scores = _scores(product, inner)
    assert scores is not None  # it fits
    shape = (*q.shape[:3], k.shape[2])
    mask = window(scores.mask, shape) if scores.mask is not None else q
    precision = site.profile.precision
    unit = 16 if precision == "bf16" else 8
    width, across = -(-q.shape[3] // unit) * unit, -(-y.shape[3] // 8) * 8
    keys = 64 if precision == "bf16" else 32
    batches = q.shape[0] * q.shape[1]
    warps = MANY if batches * -(-q.shape[2] // (16 * MANY)) >= site.profile.num_sms else MANY // 2
    blocks = -(-q.shape[2] // (16 * warps))
    args: tuple[Arg, ...] = (
        *(arg for w in (q, k, v, mask, y) for arg in w.args), f32(scores.scale), i32(blocks)
    )  # fmt: skip
    defines = {
        "WIDTH": width, "ACROSS": across, "BN": keys, "MASKED": int(scores.mask is not None),
        "EXACT": int(precision == "f32"), "VEC": int(all(map(_has_fours, (k, _turned(v))))),
        "VEC_Y": int(y.strides[3] == 4 and not any(n % 8 for n in (y.offset, *y.strides[:3]))
                     and y.shape[3] % 2 == 0),
        **({"W_BF16": 1} if precision == "bf16" else {}),
    }  # fmt: skip
    site.call("batch_attention", "batch_attention", args, (batches * blocks, 1, 1),
              lanes=32 * warps, **defines)  # fmt: skip


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
