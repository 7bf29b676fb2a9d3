"""Concrete numbers for a drawn graph, made from a seed.

The numbers are tame: a drawn graph computed in f32 agrees with the oracle within ``ATOL`` and
``RTOL``, whatever the order of accumulation.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from ggsched.backend.arrays import numpy_shape
from ggsched.ir.blocks import BlockLayout, Integers
from ggsched.ir.dtype import BF16, BOOL, F16, F32, I32, DType
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role, Tensor

Array = npt.NDArray[Any]

ATOL: Final = 1e-4
RTOL: Final = 1e-4

LeafKind = Literal["plain", "positive", "ranked", "mask", "ids", "bounds"]


@dataclass(frozen=True, slots=True)
class LeafRule:
    """What the numbers of an input or a weight must be like.

    Attributes:
        kind: ``plain`` within [-amp, amp]; ``positive`` within [amp/4, amp], safe to divide by;
            ``ranked`` rows of well separated numbers, safe to sort; ``mask`` of 0 and -inf with a
            0 in each row; ``ids`` within [0, bound);
            ``bounds`` pairs (first, end) that cut [0, bound), a few of them empty or beyond it.
        amp: Largest magnitude.
        bound: For ids: one more than the largest; for bounds: number of rows.
        distinct: For ids: all different.
    """

    kind: LeafKind = "plain"
    amp: float = 1.0
    bound: int = 1
    distinct: bool = False


@dataclass(frozen=True)
class DrawnGraph:
    """A random graph and what its inputs and weights must be like, by name."""

    graph: Graph
    rules: Mapping[str, LeafRule]


def values_for(drawn: DrawnGraph, seed: int) -> dict[str, Array]:
    """Return arrays for all inputs and weights, in the form that ``run_oracle`` takes.

    The same seed gives the same numbers; a tensor's numbers depend on seed, name, shape and
    type only, so they stay as they are while Hypothesis makes the graph smaller.
    """
    out: dict[str, Array] = {}
    for role in (Role.INPUT, Role.WEIGHT):
        for t in drawn.graph.roots(role):
            rng = np.random.default_rng([seed, zlib.crc32(t.name.encode())])
            out[t.name] = leaf_values(t, drawn.rules.get(t.name, LeafRule()), rng)
    return out


def leaf_values(t: Tensor, rule: LeafRule, rng: np.random.Generator) -> Array:
    """Return the numbers of one tensor, in its host form."""
    if rule.kind == "bounds":
        first = rng.integers(-1, rule.bound, t.shape[0])
        length = rng.integers(0, rule.bound + 2, t.shape[0])
        return np.stack([first, first + length], axis=-1).astype(np.int32)
    if t.dtype is BOOL:
        return rng.random(t.shape) < 0.5
    if t.dtype is I32:
        if rule.distinct:
            return rng.permutation(rule.bound)[: t.size].reshape(t.shape).astype(np.int32)
        return rng.integers(0, rule.bound, t.shape, dtype=np.int32)
    if t.dtype.is_quantized:
        return random_blocks(t.dtype, t.shape, rule.amp, rng)
    plain = _floats(t.shape, rule, rng)
    if t.dtype is F16:
        return plain.astype(np.float16)
    if t.dtype is BF16:
        return (plain.view(np.uint32) >> 16).astype(np.uint16)
    assert t.dtype is F32
    return plain


def _floats(shape: tuple[int, ...], rule: LeafRule, rng: np.random.Generator) -> Array:
    match rule.kind:
        case "positive":
            return rng.uniform(rule.amp / 4, rule.amp, shape).astype(np.float32)
        case "ranked":
            steps = np.linspace(-rule.amp, rule.amp, shape[-1], dtype=np.float32)
            return rng.permuted(np.broadcast_to(steps, shape), axis=-1).astype(np.float32)
        case "mask":
            hidden = rng.random(shape) < 0.4
            hidden[..., :1] = False
            return np.where(hidden, -np.inf, 0.0).astype(np.float32)
        case _:
            return rng.uniform(-rule.amp, rule.amp, shape).astype(np.float32)


def random_blocks(
    dtype: DType, shape: tuple[int, ...], amp: float, rng: np.random.Generator
) -> npt.NDArray[np.uint8]:
    """Return the packed bytes of random quantised rows within [-amp, amp].

    The shape of the result is ``(..., row_nbytes)``.
    """
    packed = numpy_shape(dtype, shape)
    blocks = rng.integers(
        0, 256, (*packed[:-1], packed[-1] // dtype.block_nbytes, dtype.block_nbytes)
    )
    raw = blocks.astype(np.uint8)
    count = raw.shape[:-1]
    layout = dtype.layout
    assert layout is not None
    share = amp / len(layout.reals)
    for real, arrays in zip(layout.reals, _factors(layout), strict=True):
        steps = float(np.prod([max(map(abs, integers.range)) for integers in arrays]))
        if real.kind == "e8m0_half":
            top = int(np.floor(np.log2(share / steps)))
            raw[..., real.at] = rng.integers(128 + top - 2, 128 + top + 1, count)
        else:
            scale = rng.uniform(0.25, 1.0, count).astype(np.float16) * np.float16(share / steps)
            if real is layout.min:
                scale *= rng.choice(np.array([-1, 1], np.float16), count)
            raw[..., real.at : real.at + 2] = scale[..., None].view(np.uint8)
    return raw.reshape(packed)


def _factors(layout: BlockLayout) -> Iterator[list[Integers]]:
    """Yield the arrays of integers that each number of a block is multiplied with."""
    yield [x for x in (layout.codes, layout.sub_scales) if x is not None]
    if layout.min is not None:
        yield [x for x in (layout.sub_mins,) if x is not None]
