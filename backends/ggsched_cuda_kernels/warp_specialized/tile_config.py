"""Tile configuration of warp-specialised kernels: teams of warps, rows of a stage, stages."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from ggsched.backend.program import Operand
from ggsched.ir.dtype import DType
from ggsched_cuda_kernels.operands import PIECE
from ggsched_kernels.block_bytes import BYTE_BLOCKS, OWN_CODE, alignment_of
from ggsched_kernels.calls import TuningProfile
from ggsched_kernels.lowering_context import weight_define

WARP: Final = 32
LINE: Final = 128
MIN_WARPS: Final = 8
MAX_WARPS: Final = 16
MAX_WARPS_OF: Final = {
    **{dtype.name: MAX_WARPS for dtype in BYTE_BLOCKS if dtype not in OWN_CODE},
    "q4_0": 12, "mxfp4": 12,
}  # fmt: skip
"""Of a group, for types that take longer to multiply than to fetch; some do better with fewer than
there can be. Those of q4_0 and mxfp4 were measured on an H200."""

STAGE_NBYTES: Final = 18 << 10
"""What a stage has at most, unless a row for each team is more."""

SHARE: Final = 0.58
"""Of a multiprocessor's local memory for all stages: more than half, so that groups are alone."""

SHARE_OF: Final = {"q8_0": 0.66}
"""For types that do better with another share. Measured on an H200."""

OTHER_NBYTES: Final = 18 << 10
"""Local memory for what is neither stages nor the row, at most."""

MAX_SUMS: Final = 8
MAX_ROWS: Final = 64
MAX_STAGES: Final = 16
MIN_STAGES: Final = 3
FEW_STAGES: Final = 4
"""A group that is given no more of them requests one after the other. Measured on an H200."""

MAX_KEPT: Final = 64
"""Floats of x that a lane keeps; half as many if it loads some of a norm's weight as well."""

TILE: Final = 16
"""Rows that a tensor core multiplies at once, of all branches."""

TILE_WARPS: Final = (8, 12, 16)
"""Ways to cut a group that takes tiles: multiples of four, for what lanes read (gemv_tiles.h)."""

MAX_IDLE: Final = 1.25
"""Upper limit of the blocks for which warps have places, as a multiple of the row's blocks."""

BY_PARITY: Final = ("q8_0",)
"""Types of which warps take even and odd blocks in turn (gemv_pieces.h), if they have places."""

CROWDED_WARPS: Final = 12
CROWDED_STAGE_NBYTES: Final = 26 << 10
"""The fewest warps and the most bytes of a stage where there are no such places, as for rows of
2880: lanes meet at banks of local memory then, and more warps hide it. Measured on an H200."""

MIN_BANKS: Final = {"mxfp4": 2, "q4_0": 4}
"""Types that are multiplied in tiles, and at how many different banks of local memory eight rows
have to begin: lanes read them at once, and wait if they are in few. The other way takes more
instructions, for mxfp4 twice as many as for q4_0, and reads along the rows."""

ELEMS_PER_CHUNK: Final = {
    "f32": 4, "f16": 8, "bf16": 8, **{dtype.name: 32 for dtype in BYTE_BLOCKS},
}  # fmt: skip
"""Weights of a piece, by type."""


@dataclass(frozen=True, slots=True)
class TileConfig:
    """Numbers that the kernel is compiled with.

    Attributes:
        team_warps: Warps that share a row.
        teams: Teams of a group.
        chunks_per_lane: Chunks of a row that a lane of a team takes.
        rows: Rows of a stage, of each side.
        most_stages: How many of them there is room for.
        is_aligned: Whether rows begin at multiples of 128 bytes.
        is_tiled: Whether tensor cores multiply tiles of rows. The group is one team then,
            and ``chunks_per_lane`` are the pairs of blocks of a row that a warp takes.
    """

    team_warps: int
    teams: int
    chunks_per_lane: int
    rows: int
    stage_nbytes: int
    most_stages: int
    is_aligned: bool
    is_tiled: bool = False

    def stages_of(self, rows: int) -> int:
        """Return how many stages full of rows there are."""
        return -(-rows // self.rows)

    def defines(self, w: Operand, given: int) -> dict[str, str | int]:
        """Return the preprocessor's definitions, lanes and local memory among them.

        Args:
            w: A weight.
            given: What a group is given, in stages; it has no more of them than that.
        """
        stages = min(self.most_stages, max(MIN_STAGES, given))
        return {
            "lanes": WARP * self.team_warps * self.teams, "helpers": WARP, "TEAMS": self.teams,
            "NK": w.shape[-1], "ROWS": self.rows, "STAGES": stages,
            "FLIGHT": 1 if given <= FEW_STAGES else stages,
            "ALIGNED": int(self.is_aligned), "TILES": int(self.is_tiled),
            "LOCAL_NBYTES": stages * self.stage_nbytes + _x_nbytes(w), **weight_define(w.dtype),
        }  # fmt: skip


class _Weight(NamedTuple):
    """What the cut for a weight depends on; ``begin`` is how far it lies behind a line."""

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    begin: int


def cut_for(
    weights: Sequence[Operand], profile: TuningProfile, *, has_norm: bool = False
) -> TileConfig | None:
    """Return the configuration for weights of one shape, one for each branch.

    None if a producer warp cannot load them.
    """
    kinds = tuple([_Weight(w.dtype, w.shape, w.strides, w.offset % LINE) for w in weights])
    return _cut_for(kinds, profile, has_norm)


@lru_cache(1024)  # layers have the same ones, and each is requested several times
def _cut_for(
    weights: tuple[_Weight, ...], profile: TuningProfile, has_norm: bool
) -> TileConfig | None:
    w = weights[0]
    if any(
        not _can_stream(o) or (o.dtype, o.shape[-2:]) != (w.dtype, w.shape[-2:]) for o in weights
    ):
        return None
    row_nbytes = w.dtype.row_nbytes(w.shape[-1])
    places = [row_nbytes, *(o.begin for o in weights), *(s for o in weights for s in _outer(o))]
    aligned = all(place % LINE == 0 for place in places)
    unit = alignment_of(w.dtype) if w.dtype.is_quantized else PIECE
    if any(place % unit for place in places):
        return None  # what is loaded at once does not lie at multiples of that
    tiles = _cut_in_tiles(w, len(weights), profile, aligned)
    return tiles or _cut_in_teams(w, len(weights), profile, aligned, has_norm)


def _cut_in_teams(
    w: _Weight, branches: int, profile: TuningProfile, aligned: bool, has_norm: bool
) -> TileConfig | None:
    """Return the cut for teams, whose lanes go along the rows."""
    items, k = ELEMS_PER_CHUNK[w.dtype.name], w.shape[-1]
    most = MAX_KEPT // (2 if has_norm else 1) // items
    row_nbytes, each = w.dtype.row_nbytes(k), 1
    most_nbytes, fewest = STAGE_NBYTES, MIN_WARPS
    if w.dtype.name in BY_PARITY and _places_by_parity(k // items) is None:
        most_nbytes, fewest = CROWDED_STAGE_NBYTES, CROWDED_WARPS
    most_teams = max(1, most_nbytes // (branches * row_nbytes))
    found = None
    for teams in (most_teams, TILE):
        found = found or _teams(k // items, most, teams, w.dtype, fewest)
    if found is None:
        return None
    team_warps, teams, chunks = found
    while (
        2 * each * branches <= MAX_SUMS
        and 2 * each * teams <= MAX_ROWS
        and _stage_nbytes(2 * each * teams * row_nbytes, branches, aligned) <= most_nbytes
    ):
        each *= 2
    nbytes = _stage_nbytes(each * teams * row_nbytes, branches, aligned)
    stages = _stages(nbytes, w, profile)
    if stages < MIN_STAGES:
        return None
    return TileConfig(team_warps, teams, chunks, each * teams, nbytes, stages, aligned)


def _cut_in_tiles(
    w: _Weight, branches: int, profile: TuningProfile, aligned: bool
) -> TileConfig | None:
    """Return the cut for tiles; None if the type, the extent or the place of rows is against it."""
    row_nbytes, blocks = w.dtype.row_nbytes(w.shape[-1]), w.shape[-1] // w.dtype.block
    banks = {n * row_nbytes // 4 % 32 for n in range(8)}
    if len(banks) < MIN_BANKS.get(w.dtype.name, 9):
        return None
    ways = [(-(-blocks // (2 * warps)), warps) for warps in TILE_WARPS]
    pairs, warps = min(ways, key=lambda way: (way[0] * way[1], way[1]))
    rows = TILE // branches
    while (
        2 * rows <= MAX_ROWS // branches
        and _stage_nbytes(2 * rows * row_nbytes, branches, aligned) <= STAGE_NBYTES
    ):
        rows *= 2
    nbytes = _stage_nbytes(rows * row_nbytes, branches, aligned)
    stages = _stages(nbytes, w, profile)
    if 2 * warps * pairs > MAX_IDLE * blocks or stages < MIN_STAGES:
        return None
    return TileConfig(warps, 1, pairs, rows, nbytes, stages, aligned, is_tiled=True)


def _stages(nbytes: int, w: _Weight, profile: TuningProfile) -> int:
    """Return how many stages of this size a group has room for."""
    share = SHARE_OF.get(w.dtype.name, SHARE)
    room = profile.local_nbytes - OTHER_NBYTES - _x_nbytes(w)
    return min(MAX_STAGES, int(share * profile.local_nbytes) // nbytes, room // nbytes)


def _x_nbytes(w: Operand | _Weight) -> int:
    """Return what a row of x takes in local memory (``gemv_row.h``)."""
    k = w.shape[-1]
    return 3 * k + k // 8 if w.dtype.is_quantized else 4 * k


def _teams(
    pieces: int, most_chunks: int, most_teams: int, dtype: DType, fewest: int
) -> tuple[int, int, int] | None:
    """Return warps of a team, teams and pieces for a lane: as few idle lanes as can be.

    Numbers of few bits take longer to multiply than to fetch, so more warps share them.
    """
    most_warps = MAX_WARPS_OF.get(dtype.name, MAX_WARPS)
    if dtype.name in BY_PARITY:
        pieces = _places_by_parity(pieces) or pieces
    ways = [
        (team, teams, -(-pieces // (WARP * team)))
        for team in range(1, most_warps + 1)
        for teams in range(1, min(most_warps // team, most_teams) + 1)
        if team * teams >= fewest and -(-pieces // (WARP * team)) <= most_chunks
    ]
    if not ways:
        return None
    sign = -1 if dtype.name in MAX_WARPS_OF else 1
    return min(ways, key=lambda w: (w[2] * w[0] * WARP / pieces, w[2], sign * w[0] * w[1]))


def _places_by_parity(pieces: int) -> int | None:
    """Return for how many pieces of a row lanes have places where parity counts; None: too many."""
    places = -(-pieces // (2 * WARP)) * 2 * WARP
    return places if places <= MAX_IDLE * pieces else None


def _stage_nbytes(side_nbytes: int, branches: int, aligned: bool) -> int:
    """Return the bytes of a stage; unaligned rows have what stands beside them copied as well."""
    return branches * ((side_nbytes + (LINE - 1 if aligned else 2 * LINE - 1)) // LINE * LINE)


def _outer(w: _Weight) -> list[int]:
    """Return the steps from expert to expert."""
    return [s for n, s in zip(w.shape[:-2], w.strides[:-2], strict=True) if n > 1]


def _can_stream(w: _Weight) -> bool:
    """Whether the rows of a weight (of an expert) follow each other without gaps."""
    dtype: DType = w.dtype
    items = ELEMS_PER_CHUNK.get(dtype.name, 0)
    if not items or 0 in w.shape or w.shape[-1] % items:
        return False
    side_by_side = w.strides[-1] == dtype.block_nbytes or w.shape[-1] == dtype.block
    apart = w.shape[-2] == 1 or w.strides[-2] == dtype.row_nbytes(w.shape[-1])
    return side_by_side and apart
