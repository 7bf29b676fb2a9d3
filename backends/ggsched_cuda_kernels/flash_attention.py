"""Attention of many tokens on tensor cores, for keys and values of 16 bits or q8_0 (LCH-3).

Rows of queries of one head of keys, of all its heads and tokens, are one matrix. Where there are so
few of them that most multiprocessors would wait, the rows of keys are cut into shares, and a second
kernel joins what these have.
"""

from math import prod
from typing import Final, NamedTuple

from ggsched.backend.program import Operand
from ggsched_cuda_kernels.calls import GROUP_ALIGNMENT, CudaLoweringContext
from ggsched_cuda_kernels.operands import PIECE, has_pieces
from ggsched_kernels.calls import SCRATCH, Arg, Launch, Window, f32, i32, window
from ggsched_kernels.lower_attention import attention_operands
from ggsched_kernels.lowering_context import weight_define

DTYPES: Final = frozenset({"f16", "bf16"})
"""Types of keys and values that few tokens may leave to this kernel."""

ALL_DTYPES: Final = DTYPES | {"q8_0"}
UNIT: Final = 16
"""Widths of heads are multiples of it: what one instruction adds up, and two columns of results."""

MAX_WIDTH: Final = 256
WIDE: Final = 128
"""Heads up to this width leave registers for two tiles of queries in a warp."""

SPLIT_ROWS: Final = 128
"""Rows of keys of a share, at least."""

MAX_SPLITS: Final = 64
SKIPPING: Final = 8
"""Groups of rows up to which warps leave out what none of their rows sees: up to 256 tokens with 4
heads of queries for each of keys, which are rather of several sequences than of a prompt. It takes
registers: 512 tokens of a prompt behind 4,096 positions took 214 us with it, and 167 without."""

BOUNDS: Final = 4
"""Flag of the kernel: there are bounds, the last operand."""

JOINING_WARPS: Final = 8
"""Warps of a group that joins shares, each of which has a row; or, where rows are so few that most
multiprocessors would wait, all have one."""

MAX_AT_ONCE: Final = 16
"""Shares of a row that are on their way together."""


class Cut(NamedTuple):
    """How the kernel is cut.

    Attributes:
        warps: Warps of a group.
        tiles: Tiles of 16 rows of queries in a warp.
        keys: Rows of keys that are multiplied at once.
        resident: Groups that a multiprocessor has at a time.
        along: Whether all warps have the same rows of queries, and each a part of the keys.
        by_groups: Whether groups of four warps multiply (``group_mma.h``).
    """

    warps: int
    tiles: int
    keys: int
    resident: int
    along: bool = False
    by_groups: bool = False

    @property
    def rows(self) -> int:
        """Rows of queries of a group."""
        return (1 if self.along else self.warps) * self.tiles * UNIT


FEW: Final = Cut(4, 1, 64, 3, along=True)
MANY: Final = Cut(4, 2, 64, 2)
"""For few rows of queries, and for many."""

GROUPS: Final = Cut(8, 1, 128, 1, by_groups=True)
"""Of so many rows that all multiprocessors have a group, on capability 9.0: a layer of 8B and 4,096
tokens takes 524 us, 763 by warps that multiply alone, and 261 by PyTorch (H200)."""

GROUP_UNIT: Final = 64
"""Widths of heads are multiples of it where groups of warps multiply."""

GROUP_STAGES: Final = 3
"""All that local memory holds of 128 rows."""

FEW_ROWS: Final = 128
"""Rows of queries that are few. Groups for 16 of them read the same keys, if these tokens see them,
more often than one for all would; tokens of several sequences see different ones."""


def fits_flash(ctx: CudaLoweringContext) -> bool:
    """Whether keys and values can be copied in pieces to tensor cores."""
    k, v, q = ctx.node.inputs[:3]
    widths = q.shape[2], v.shape[2]
    if not ctx.profile.num_sms or any(n % UNIT or not 0 < n <= MAX_WIDTH for n in widths):
        return False
    if _local_nbytes(_cut_of(ctx), *widths, _planes(ctx)) > ctx.profile.local_nbytes:
        return False
    if k.dtype.is_quantized:
        return has_pieces(q, 2) and all(_has_words(o) for o in (k, v))
    return all(has_pieces(o, 2) for o in (k, v, q))


def lower_flash(ctx: CudaLoweringContext) -> None:
    """One kernel, and one that joins shares of the keys if there are several."""
    node = ctx.node
    k, v, q = node.inputs[:3]
    tensors, has, share = attention_operands(node)
    cut, planes = _cut_of(ctx), _planes(ctx)
    blocks = -(-q.shape[0] * share // cut.rows)
    splits = _splits(ctx, cut, blocks * k.shape[1], k)
    y, parts = window(node.output), _parts(ctx, splits, q.shape, v.shape[2])
    numbers = i32(has), f32(ctx.number("scale")), f32(ctx.number("soft_cap"))
    args: tuple[Arg, ...] = (
        *(arg for w in (*tensors, y) for arg in w.args), parts,
        *numbers, i32(share), i32(blocks), i32(splits), y.buffer,
    )  # fmt: skip
    skips = blocks <= SKIPPING and not cut.along and not cut.by_groups
    defines = {
        "lanes": cut.warps * 32, "MT": cut.tiles, "BN": cut.keys, "WIDTH": q.shape[2],
        "ACROSS": v.shape[2], "PLANES": planes, "RESIDENT": cut.resident,
        "ALONG": int(cut.along), "SKIPS": int(skips),
        "MASKED": int(bool(node.params["mask"])), "CAPPED": int(bool(node.params["soft_cap"])),
        "GROUP_MMA": int(cut.by_groups),
        "LOCAL_NBYTES": _local_nbytes(cut, q.shape[2], v.shape[2], planes),
    }  # fmt: skip
    grid = (blocks, k.shape[1], splits)
    ctx.call("flash_attention", "flash_attention", args, grid, **defines, **weight_define(k.dtype))
    # What a group sees, and so which rows it requests, is known while the predecessor writes some.
    ctx.launched(Launch.BY_ITSELF, node.inputs[-1:] if has & BOUNDS else ())
    if splits == 1 and not cut.along:
        ctx.can_write_halves()
    if splits > 1:
        _join(ctx, tensors[4], splits, has)


def _join(ctx: CudaLoweringContext, sinks: Window, splits: int, has: int) -> None:
    """Add the call that joins what shares of the rows have: a warp for each head of a token."""
    y = window(ctx.node.output)
    tokens, heads, across = ctx.node.output.shape
    args = (SCRATCH, *sinks.args, *y.args, i32(has), i32(splits), y.buffer)
    warps = JOINING_WARPS if tokens * heads <= ctx.profile.num_sms else 1
    grid = (-(-tokens * heads * warps // JOINING_WARPS), 1, 1)
    at_once = min(MAX_AT_ONCE, 1 << (-(-splits // warps) - 1).bit_length())
    cut = {"ACROSS": across, "AT_ONCE": at_once, "WARPS_OF_ROW": warps}
    ctx.call("flash_join", "flash_join", args, grid, lanes=32 * JOINING_WARPS, **cut)
    ctx.can_write_halves()


def _has_words(operand: Operand) -> bool:
    """Whether all blocks lie at even addresses; buffers do."""
    return all(place % 2 == 0 for place in (operand.offset, *operand.strides))


def _planes(ctx: CudaLoweringContext) -> int:
    """Return how many numbers of 16 bits stand for one of f32."""
    return 1 if ctx.profile.activations == "auto" else 2


def _cut_of(ctx: CudaLoweringContext) -> Cut:
    k, v, q = ctx.node.inputs[:3]
    width, rows = max(q.shape[2], v.shape[2]), q.shape[0] * q.shape[1] // k.shape[1]
    has_one = _planes(ctx) == 1
    if width <= WIDE and rows <= FEW_ROWS:
        return FEW if has_one else FEW._replace(resident=2)
    if width > WIDE or not has_one:
        return Cut(4, 1, 32 if width > WIDE else 64, 1)
    blocks = -(-rows // GROUPS.rows) * k.shape[1]
    is_whole = not (q.shape[2] | v.shape[2]) % GROUP_UNIT
    return GROUPS if ctx.profile.group_mma and is_whole and blocks >= ctx.profile.num_sms else MANY


def _local_nbytes(cut: Cut, width: int, across: int, planes: int) -> int:
    if cut.by_groups:
        return GROUP_STAGES * cut.keys * 2 * (width + across) + GROUP_ALIGNMENT
    key, value = 2 * width + PIECE, 2 * across + PIECE
    return planes * cut.rows * key + 2 * cut.keys * (key + value)


def _splits(ctx: CudaLoweringContext, cut: Cut, groups: int, k: Operand) -> int:
    """Return into how many shares the rows are cut, so that all multiprocessors have work."""
    # Of one token memory is what takes the time, and each share more to be joined.
    resident = cut.resident if groups > k.shape[1] else 2
    room = ctx.profile.num_sms * resident // groups
    return max(1, min(room, k.shape[0] // SPLIT_ROWS, MAX_SPLITS))


def _parts(ctx: CudaLoweringContext, splits: int, shape: tuple[int, ...], across: int) -> Arg:
    """Return memory for what the shares have, or any memory where there are none."""
    if splits == 1:
        return ctx.node.output.buffer
    assert ctx.scratch(4 * splits * prod(shape[:2]) * (across + 2)) == 0
    return SCRATCH
