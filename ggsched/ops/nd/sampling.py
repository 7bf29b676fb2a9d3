"""Sampling of images at places that are computed."""

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np

from ggsched.ops.nd.declare import FLOATS, Array, nd_op, wide
from ggsched.ops.record import Operand, Shape


def _sampled(x: Sequence[Operand], mode: str, padding: str, corners: bool) -> tuple[str, Shape]:
    data, grid = x[0].shape, x[1].shape
    n = len(data) - 2
    if n < 1 or len(grid) != len(data) or grid[0] != data[0] or grid[-1] != n:
        raise ValueError("needs x (N, C, ...) and a grid (N, ..., n)")
    if mode not in ("linear", "nearest", "cubic") or padding not in (
        "zeros",
        "border",
        "reflection",
    ):
        raise ValueError(f"unknown padding {padding!r}")
    return x[0].dtype.name, (*data[:2], *grid[1:-1])


def _work(x: Shape, grid: Shape, **_: object) -> float:
    return 2.0 * x[1] * prod(grid) * (1 << (len(x) - 2))


@nd_op(
    "grid_sample",
    "x",
    "grid",
    rule=_sampled,
    types=FLOATS,
    family="sampling",
    flops=_work,
    mode="linear",
    padding="zeros",
    corners=False,
)
def grid_sample(x: Array, grid: Array, mode: str, padding: str, corners: bool) -> Array:
    """Sample x (N, C, ...) at places of the grid, in [-1, 1], the last dimension first."""
    data, places = wide(x), wide(grid)
    spatial, n = x.shape[2:], x.ndim - 2
    made = np.zeros((*x.shape[:2], *grid.shape[1:-1]), data.dtype)
    axes = []
    for i, size in enumerate(spatial):
        at = places[..., n - 1 - i]
        at = (at + 1) / 2 * (size - 1) if corners else ((at + 1) * size - 1) / 2
        axes.append(_points(at, mode))
    planes = data.reshape(*x.shape[:2], -1)
    for chosen in product(*axes):
        weight, index = np.ones((), data.dtype), np.zeros((), np.int64)
        for (at, share), size in zip(chosen, spatial, strict=True):
            where, known = _within(at, size, padding, corners)
            index, weight = index * size + where, weight * np.where(known, share, 0)
        for b in range(x.shape[0]):
            found = np.take(planes[b], index[b], axis=1)
            made[b] += np.multiply(found, weight[b], out=found)
    return made


def _points(at: Array, mode: str) -> list[tuple[Array, Array]]:
    """Return neighbours of places along one axis, with their shares."""
    if mode == "nearest":
        return [(np.rint(at), np.ones_like(at))]
    low = np.floor(at)
    t = at - low
    if mode == "linear":
        return [(low, 1 - t), (low + 1, t)]
    return [(low + k, cubic(abs(t - k))) for k in (-1, 0, 1, 2)]


def cubic(d: Array, a: float = -0.75) -> Array:
    """Return the weights of cubic convolution at distances ``d``, with its free parameter."""
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def _within(at: Array, size: int, padding: str, corners: bool) -> tuple[Array, Array]:
    """Return indices that exist, and which of them count."""
    if padding == "reflection":
        low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
        span = high - low
        if span > 0:
            folded = np.mod(at - low, 2 * span)
            at = low + np.minimum(folded, 2 * span - folded)
        else:
            at = np.zeros_like(at)
    known = np.ones(at.shape, bool) if padding != "zeros" else (at >= 0) & (at <= size - 1)
    return np.clip(np.nan_to_num(at), 0, size - 1).astype(np.int64), known
