"""Convolutions on GPUs: tiles of a product of matrices, or one element of the result per lane.

The product is an implicit GEMM: the matrix of windows is read through a table of taps and never
laid out. Where the tiles are too few for the device, several groups share the sum of one and a
second kernel adds up the parts. Ops on single elements that replace the results are computed by
the kernel that stores them, as in ``chains``.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from math import prod
from typing import Final, NamedTuple

from ggsched.backend.program import BoundNode, Operand
from ggsched.ir.tensor import contiguous_strides
from ggsched_kernels.arrays import PREFIX, SOURCE_PREFIX, plain_place, sliding_axes
from ggsched_kernels.calls import MAX_PARTS, SCRATCH, Constant, TuningProfile, f32, i32, i64
from ggsched_kernels.chains import MAX_NUMBERS, MAX_OPERANDS, Chain, Groups, Site, chain_behind
from ggsched_kernels.lowering_context import LoweringContext

LANES: Final = 256
BK: Final = 16
MAX_TAP: Final = 1023  # along an axis, in the ten bits of the table
MAX_SHARES: Final = 32
FEW_ROWS: Final = 8  # output channels of a group of channels below which tiles are mostly empty
_TYPES: Final = dict.fromkeys(("A_T", "B_T", "C_T", "Y_T"), "f32")
_UNKNOWN_SMS: Final = 32  # of a device that does not say how many multiprocessors it has


class Tile(NamedTuple):
    """A cut of the product, and what it takes on an H100.

    Attributes:
        lx: Lanes along columns, each with four of them.
        mv: Vectors of four rows that a lane has.
        alone: Microseconds of a step of BK elements where a multiprocessor has one group.
        shared: Those where it has several, for each of them.
    """

    lx: int
    mv: int
    alone: float
    shared: float

    @property
    def rows(self) -> int:
        """Output channels of a tile."""
        return LANES // self.lx * 4 * self.mv

    @property
    def columns(self) -> int:
        """Output positions of a tile."""
        return self.lx * 4


# Fitted to the times of all convolutions of ResNet-50, for one image and for 16, on an H100
# (docs/measurements/array-graphs.md). Wider tiles than these were slower.
TILES: Final = (
    Tile(16, 2, 1.04, 0.70),
    Tile(16, 1, 1.37, 0.44),
    Tile(8, 1, 0.94, 0.37),
    Tile(32, 1, 0.34, 0.82),
)
_GROUP_US: Final = 1.3
_SUMS_US: Final = 0.8
_SUMS_US_PER_MB: Final = 0.55


class Conv(NamedTuple):
    """Sizes of a convolution whose spatial axes are three."""

    images: int
    channels: int
    m: int
    groups: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]  # in front
    x: tuple[int, ...]
    y: tuple[int, ...]

    @property
    def depth(self) -> int:
        """Elements of a sum."""
        return self.channels // self.groups * prod(self.kernel)

    @property
    def is_inside(self) -> bool:
        """Whether no window leaves x."""
        axes = zip(self.y, self.strides, self.kernel, self.dilations, self.x, strict=True)
        last = ((y - 1) * s + (k - 1) * d < n for y, s, k, d, n in axes)
        return not any(self.pads) and all(last)

    @property
    def reach(self) -> int:
        """The farthest tap of a window along an axis."""
        return max((k - 1) * d for k, d in zip(self.kernel, self.dilations, strict=True))


def fits_gpu(node: BoundNode, profile: TuningProfile) -> bool:
    """Whether a node is a convolution for these kernels: on a GPU, with 31 bits for each size."""
    if node.op != PREFIX + "conv" or profile.lanes == 1 or 0 in node.output.shape:
        return False
    return max(prod(o.shape) for o in (*node.inputs[:2], node.output)) < 1 << 31


def join_convolution(
    groups: Groups, at: int, profile: TuningProfile, site: type[Site]
) -> tuple[int, Site] | None:
    """Return how many groups from ``at`` on a convolution computes, and the site of its calls."""
    node = groups[at][0]
    if len(groups[at]) > 1 or not fits_gpu(node, profile):
        return None
    chain = chain_behind(groups, at, takes=lambda x: _step_of(x, node.output) is not None)
    count = 1 + len(chain.steps)
    made = site(groups[at + count - 1][0], profile)
    _lower(made, node, chain)
    return count, made


def _step_of(operand: Operand, y: Operand) -> int | None:
    """Return bytes between elements of an operand of the ops behind, None where they differ."""
    if operand.shape == y.shape:
        plain = contiguous_strides(y.dtype, y.shape)
        axes = zip(y.shape, operand.strides, plain, strict=True)
        if all(n == 1 or a == b for n, a, b in axes):
            return y.dtype.block_nbytes
    return 0 if prod(operand.shape) == 1 else None


def _lower(site: LoweringContext, node: BoundNode, chain: Chain) -> None:
    y = node.output
    c = _sizes(node)
    places = [plain_place(site, o) for o in node.inputs]
    has_bias = bool(node.params["bias"])
    bias = places[2] if has_bias else (places[0][0], 0)
    missing = (0,) * (MAX_OPERANDS - len(chain.operands))
    steps = (*(_step_of(o, y) or 0 for o in chain.operands), *missing)
    columns, per = c.images * prod(c.y), c.channels // c.groups
    tile, shares = choose_tile(c, site.profile.num_sms or _UNKNOWN_SMS)
    stretch = -(-c.depth // (shares * BK)) * BK
    made = prod(y.shape)
    parts = site.scratch(shares * made * 4) if shares > 1 else 0
    packed = struct.pack(
        "<8q24i",
        *(places[0][1], places[1][1], bias[1], y.offset, parts),
        *(c.channels * prod(c.x), per * prod(c.x), made),
        *(c.m, c.m // c.groups, columns, prod(c.y), c.depth, stretch, c.groups, c.images),
        *(
            *c.x,
            *c.y,
            *c.strides,
            *c.pads,
            int(has_bias),
            *steps,
            *(0,) * (MAX_OPERANDS - len(steps)),
        ),
    )
    extra = [*chain.operands, *[y] * len(missing)]
    memory = [v for o in extra for v in (o.buffer, i64(o.offset))]
    numbers = [f32(v) for v in (*chain.numbers, *(0.0,) * MAX_NUMBERS)[:MAX_NUMBERS]]
    behind = (*memory, *numbers)
    source = f"{SOURCE_PREFIX}conv-{chain.text}-f32"
    operands = (places[0][0], places[1][0], bias[0], y.buffer, packed)
    by_lane = (-(-made // site.profile.lanes), 1, 1)
    if tile is None:
        taps = struct.pack("<7i", per, *c.kernel, *c.dilations)
        site.call(source, "conv_each", (*operands, taps, *behind), by_lane, **_TYPES)
        return
    aligned = places[1][1] % 16 == 0 and c.depth % 4 == 0
    grid = (-(-columns // tile.columns), -(-(c.m // c.groups) // tile.rows), c.groups * shares)
    scratch = SCRATCH if shares > 1 else y.buffer
    site.call(
        source,
        "conv_tiles",
        (*operands, Constant(_taps(c)), scratch, *behind),
        grid,
        **_TYPES,
        lanes=LANES,
        **defines_of(tile, is_inside=c.is_inside, is_split=shares > 1),
        VEC_W=int(aligned),
        VEC_Y=int(prod(c.y) % 4 == 0 and y.offset % 16 == 0),
    )
    if shares > 1:
        adding = (bias[0], y.buffer, packed, SCRATCH, i32(shares), *behind)
        site.call(source, "conv_sums", adding, by_lane, **_TYPES)


def defines_of(tile: Tile, *, is_inside: bool, is_split: bool) -> dict[str, int]:
    """Return what the source needs to know of a cut."""
    cut = {"LX": tile.lx, "MV": tile.mv, "BK": BK}
    return {**cut, "INSIDE": int(is_inside), "SPLIT": int(is_split)}


def _sizes(node: BoundNode) -> Conv:
    x, w = node.inputs[:2]
    groups = node.params["group"]
    assert isinstance(groups, int)
    own, made, kernel, strides, dilations, pads, _ = sliding_axes(node, w.shape[2:])
    sizes = (x.shape[0], x.shape[1], w.shape[0], groups)
    return Conv(*sizes, kernel, strides, dilations, pads, own, made)


@lru_cache(1024)
def _taps(c: Conv) -> bytes:
    """Return for each element of a sum its distance from the corner, in x and along the axes."""
    distances = []
    for channel in range(c.channels // c.groups):
        for tap in product(*(range(k) for k in c.kernel)):
            z, y, x = (k * d for k, d in zip(tap, c.dilations, strict=True))
            delta = ((channel * c.x[0] + z) * c.x[1] + y) * c.x[2] + x
            distances += [delta, z << 20 | y << 10 | x if c.reach <= MAX_TAP else 0]
    return struct.pack(f"<{len(distances)}i", *distances)


@lru_cache(1024)
def choose_tile(c: Conv, num_sms: int) -> tuple[Tile | None, int]:
    """Return the cut that is predicted to be fastest, and how many groups share a sum.

    None where a lane for each element is better, or the table cannot hold the window.
    """
    rows = c.m // c.groups
    if rows < FEW_ROWS or (c.reach > MAX_TAP and not c.is_inside):
        return None, 1
    fitting = [
        (_predicted_us(c, tile, shares, num_sms), tile, shares)
        for tile in TILES
        for shares in _shares(c)
        if c.groups * shares <= MAX_PARTS and -(-rows // tile.rows) <= MAX_PARTS
    ]
    _, tile, shares = min(fitting, default=(0.0, None, 1))
    return tile, shares


def _shares(c: Conv) -> Sequence[int]:
    """Return how many groups can share a sum, each with two steps or more."""
    steps = -(-c.depth // BK)
    return [n for n in (1, 2, 4, 8, 16, MAX_SHARES) if n == 1 or 2 * n <= steps]


def _predicted_us(c: Conv, tile: Tile, shares: int, num_sms: int) -> float:
    rows, columns = c.m // c.groups, c.images * prod(c.y)
    count = -(-rows // tile.rows) * -(-columns // tile.columns) * c.groups * shares
    steps = -(-c.depth // (shares * BK))
    together = -(-count // num_sms) * (steps * tile.shared + _GROUP_US)
    adding = 0.0
    if shares > 1:
        mb = 4e-6 * (shares + 1) * c.images * c.m * prod(c.y)
        adding = _SUMS_US + mb * _SUMS_US_PER_MB
    return max(steps * tile.alone, together) + adding


__all__ = ["TILES", "Conv", "Tile", "choose_tile", "defines_of", "fits_gpu", "join_convolution"]
