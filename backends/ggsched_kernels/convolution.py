"""Convolutions on GPUs: tiles of a product of matrices, or one element of the result per lane.

The product is an implicit GEMM: the matrix of windows is read through a table of taps and never
laid out. Where the tiles are too few for the device, several groups share the sum of one and a
second kernel adds up the parts. Ops on single elements that replace the results are computed by
the kernel that stores them, as in ``chains``.
"""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product
from math import prod
from typing import Final, NamedTuple

from ggsched.backend.program import BoundNode, Operand
from ggsched.ir.dtype import DType
from ggsched.ir.tensor import contiguous_strides
from ggsched_kernels.arrays import PREFIX, SOURCE_PREFIX, f32_place, f32_result, sliding_axes
from ggsched_kernels.calls import MAX_PARTS, SCRATCH, Constant, TuningProfile, f32, i32, i64
from ggsched_kernels.chains import MAX_NUMBERS, MAX_OPERANDS, Chain, Groups, Site, chain_behind
from ggsched_kernels.lowering_context import LoweringContext

LANES: Final = 256
BK: Final = 16
MAX_TAP: Final = 1023  # along an axis, in the ten bits of the table
MAX_SHARES: Final = 32
STEP: Final = 32  # to a multiple of which tables are filled up
MAX_KNOWN: Final = 31  # elements of a window of which a word of 32 bits says which are inside x
FEW_ROWS: Final = 8  # output channels of a group of channels below which tiles are mostly empty
SOURCE: Final = f"{SOURCE_PREFIX}conv"
_TYPES: Final = dict.fromkeys(("A_T", "B_T", "C_T", "Y_T"), "f32")
_UNKNOWN_SMS: Final = 32  # of a device that does not say how many multiprocessors it has


class Tile(NamedTuple):
    """A cut of the product, and what it takes on an H100.

    Attributes:
        rows: Output channels of a tile.
        columns: Output positions of a tile.
        depth: Elements of the sum of a step.
        alone: Microseconds of a step where a multiprocessor has one group, or ``resident`` of them.
        shared: Those where it has several, for each of them.
        defines: What the source needs to know of the cut.
        lanes: Work-items of a group.
        kernel: What multiplies tiles of this cut.
        source: How the name of its source begins.
        vector: Elements of a row of y that a lane writes at once.
        resident: Groups that a multiprocessor has at once and whose steps overlap; 0: unknown.
        knows_taps: Whether lanes keep in a word which elements of a window are inside x.
    """

    rows: int
    columns: int
    depth: int
    alone: float
    shared: float
    defines: tuple[tuple[str, int], ...]
    lanes: int = LANES
    kernel: str = "conv_tiles"
    source: str = SOURCE
    vector: int = 4
    resident: int = 0
    knows_taps: bool = False


def _tile(lx: int, mv: int, alone: float, shared: float) -> Tile:
    """Return a cut whose lanes have ``mv`` vectors of four rows, ``lx`` of them along columns."""
    defines = (("BK", BK), ("LX", lx), ("MV", mv))
    return Tile(LANES // lx * 4 * mv, lx * 4, BK, alone, shared, defines)


# Fitted to the times of all convolutions of ResNet-50, for one image and for 16, on an H100
# (docs/measurements/array-graphs.md). Wider tiles than these were slower.
TILES: Final = (
    _tile(16, 2, 1.04, 0.70),
    _tile(16, 1, 1.37, 0.44),
    _tile(8, 1, 0.94, 0.37),
    _tile(32, 1, 0.34, 0.82),
)
Tiles = tuple[Tile, ...]
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

    @property
    def farthest(self) -> int:
        """Elements of x from the corner of a window to its last tap, which may be behind x."""
        z, y, x = ((k - 1) * d for k, d in zip(self.kernel, self.dilations, strict=True))
        last = self.channels // self.groups - 1
        return ((last * self.x[0] + z) * self.x[1] + y) * self.x[2] + x


def fits_gpu(node: BoundNode, profile: TuningProfile) -> bool:
    """Whether a node is a convolution for these kernels: on a GPU, with 31 bits for each size."""
    if node.op != PREFIX + "conv" or profile.lanes == 1 or 0 in node.output.shape:
        return False
    return max(prod(o.shape) for o in (*node.inputs[:2], node.output)) < 1 << 31


def join_convolution(
    groups: Groups,
    at: int,
    profile: TuningProfile,
    ctx: type[Site],
    tiles: Callable[[TuningProfile, DType], Tiles] = lambda *_: TILES,
) -> tuple[int, Site] | None:
    """Return how many groups from ``at`` on a convolution computes, and the context of its calls.

    Args:
        tiles: The cuts that a device of a profile has for operands of a type.
    """
    node = groups[at][0]
    if len(groups[at]) > 1 or not fits_gpu(node, profile):
        return None
    chain = chain_behind(groups, at, takes=lambda x: _step_of(x, node.output) is not None)
    count = 1 + len(chain.steps)
    made = ctx(groups[at + count - 1][0], profile)
    _lower(made, node, chain, tiles(profile, node.inputs[0].dtype))
    return count, made


def _step_of(operand: Operand, y: Operand) -> int | None:
    """Return bytes between elements of an operand of the ops behind, None where they differ."""
    if operand.shape == y.shape:
        plain = contiguous_strides(y.dtype, y.shape)
        axes = zip(y.shape, operand.strides, plain, strict=True)
        if all(n == 1 or a == b for n, a, b in axes):
            return y.dtype.block_nbytes
    return 0 if prod(operand.shape) == 1 else None


def _lower(ctx: LoweringContext, node: BoundNode, chain: Chain, tiles: Tiles) -> None:
    y = node.output
    c = _sizes(node)
    places = [f32_place(ctx, o) for o in node.inputs]
    to, to_offset, convert = f32_result(ctx, y)
    has_bias = bool(node.params["bias"])
    bias = places[2] if has_bias else (places[0][0], 0)
    missing = (0,) * (MAX_OPERANDS - len(chain.operands))
    steps = (*(_step_of(o, y) or 0 for o in chain.operands), *missing)
    columns, per = c.images * prod(c.y), c.channels // c.groups
    tile, shares = choose_tile(c, ctx.profile.num_sms or _UNKNOWN_SMS, tiles)
    step = tile.depth if tile else 1
    stretch = -(-c.depth // (shares * step)) * step
    made = prod(y.shape)
    parts = ctx.scratch(shares * made * 4) if shares > 1 else 0
    packed = struct.pack(
        "<8q24i",
        *(places[0][1], places[1][1], bias[1], to_offset, parts),
        *(c.channels * prod(c.x), per * prod(c.x), made),
        *(c.m, c.m // c.groups, columns, prod(c.y), c.depth, stretch, c.groups, c.images),
        *(*c.x, *c.y, *c.strides, *c.pads, int(has_bias), *steps),
    )
    extra = [*chain.operands, *[y] * len(missing)]
    memory = [v for o in extra for v in (o.buffer, i64(o.offset))]
    numbers = [f32(v) for v in (*chain.numbers, *(0.0,) * MAX_NUMBERS)[:MAX_NUMBERS]]
    behind = (*memory, *numbers)
    text = f"-{chain.text}-f32"
    operands = (places[0][0], places[1][0], bias[0], to, packed)
    by_lane = (-(-made // ctx.profile.lanes), 1, 1)
    if tile is None:
        window = struct.pack("<7i", per, *c.kernel, *c.dilations)
        ctx.call(SOURCE + text, "conv_each", (*operands, window, *behind), by_lane, **_TYPES)
        convert()
        return
    aligned = places[1][1] % 16 == 0 and c.depth % 4 == 0
    grid = (-(-columns // tile.columns), -(-(c.m // c.groups) // tile.rows), c.groups * shares)
    scratch = SCRATCH if shares > 1 else to
    taps = prod(c.kernel)
    known, more = 0, dict[str, int]()
    if tile.knows_taps:
        known = taps if taps <= MAX_KNOWN and (taps == 1 or not c.is_inside) else 0
        more = {"TAPS": known, "EVEN": int(c.depth % tile.depth == 0)}
    ctx.call(
        tile.source + text,
        tile.kernel,
        (*operands, Constant(_taps(c, is_known=known > 0)), scratch, *behind),
        grid,
        **_TYPES,
        lanes=tile.lanes,
        **dict(tile.defines),
        **more,
        INSIDE=int(c.is_inside),
        SPLIT=int(shares > 1),
        VEC_W=int(aligned),
        VEC_Y=int(prod(c.y) % tile.vector == 0 and to_offset % (4 * tile.vector) == 0),
    )
    if shares > 1:
        adding = (bias[0], to, packed, SCRATCH, i32(shares), *behind)
        ctx.call(SOURCE + text, "conv_sums", adding, by_lane, **_TYPES)
    convert()


def _sizes(node: BoundNode) -> Conv:
    x, w = node.inputs[:2]
    groups = node.params["group"]
    assert isinstance(groups, int)
    own, made, kernel, strides, dilations, pads, _ = sliding_axes(node, w.shape[2:])
    sizes = (x.shape[0], x.shape[1], w.shape[0], groups)
    return Conv(*sizes, kernel, strides, dilations, pads, own, made)


@lru_cache(1024)
def _taps(c: Conv, *, is_known: bool = False) -> bytes:
    """Return for each element of a sum its distance from the corner, in x and along the axes.

    Where ``is_known``, its number in the window stands in the place of the latter, which follow for
    the elements of a window. Steps are whole.
    """
    axes = zip(c.kernel, c.dilations, strict=True)
    taps = list(product(*(range(0, k * d, d) for k, d in axes)))
    far = [z << 20 | y << 10 | x if c.reach <= MAX_TAP else 0 for z, y, x in taps]
    table = [
        value
        for channel in range(c.channels // c.groups)
        for i, (z, y, x) in enumerate(taps)
        for value in (((channel * c.x[0] + z) * c.x[1] + y) * c.x[2] + x, i if is_known else far[i])
    ]
    table += (0, MAX_KNOWN if is_known else 0) * (-c.depth % STEP) + (
        tuple(far) if is_known else ()
    )
    return struct.pack(f"<{len(table)}i", *table)


@lru_cache(1024)
def choose_tile(c: Conv, num_sms: int, tiles: Tiles = TILES) -> tuple[Tile | None, int]:
    """Return the cut that is predicted to be fastest, and how many groups share a sum.

    None where a lane for each element is better, or the table cannot hold the window.
    """
    rows = c.m // c.groups
    if rows < FEW_ROWS or (not c.is_inside and (c.reach > MAX_TAP or c.farthest >= 1 << 31)):
        return None, 1
    fitting = [
        (_predicted_us(c, tile, shares, num_sms), tile, shares)
        for tile in tiles
        for shares in _shares(c, tile)
        if c.groups * shares <= MAX_PARTS and -(-rows // tile.rows) <= MAX_PARTS
    ]
    _, tile, shares = min(fitting, default=(0.0, None, 1))
    return tile, shares


def _shares(c: Conv, tile: Tile) -> Sequence[int]:
    """Return how many groups can share a sum, each with two steps or more."""
    steps = -(-c.depth // tile.depth)
    return [n for n in (1, 2, 4, 8, 16, MAX_SHARES) if n == 1 or 2 * n <= steps]


def _predicted_us(c: Conv, tile: Tile, shares: int, num_sms: int) -> float:
    rows, columns = c.m // c.groups, c.images * prod(c.y)
    count = -(-rows // tile.rows) * -(-columns // tile.columns) * c.groups * shares
    steps = -(-c.depth // (shares * tile.depth))
    alone, of_each = steps * tile.alone, steps * tile.shared + _GROUP_US
    if tile.resident:
        alone = -(-count // (num_sms * tile.resident)) * (alone + _GROUP_US)
        together = count / num_sms * of_each
    else:
        together = -(-count // num_sms) * of_each
    adding = 0.0
    if shares > 1:
        mb = 4e-6 * (shares + 1) * c.images * c.m * prod(c.y)
        adding = _SUMS_US + mb * _SUMS_US_PER_MB
    return max(alone, together) + adding


__all__ = ["TILES", "Conv", "Tile", "Tiles", "choose_tile", "fits_gpu", "join_convolution"]
