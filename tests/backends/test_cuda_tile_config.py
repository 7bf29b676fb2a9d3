"""Tile configurations of warp-specialised kernels."""

from dataclasses import replace

import pytest

from ggsched.backend.program import Operand
from ggsched.ir.dtype import BF16, F16, F32, I32, MXFP4, Q4_0, Q4_K, Q8_0
from ggsched.ir.tensor import contiguous_strides
from ggsched_kernels.block_constants import KERNEL_BLOCKS
from tests.backends.test_cuda_warp_specialized import H200, Memory


def operand(dtype, *shape, offset=0, strides=None):
    strides = strides or contiguous_strides(dtype, shape)
    nbytes = shape[0] * strides[0]
    return Operand(Memory(nbytes), offset, nbytes, dtype, shape, strides)


def cut(*weights, has_norm=False, profile=H200):
    from ggsched_cuda_kernels.warp_specialized.tile_config import cut_for

    return cut_for(list(weights), profile, has_norm=has_norm)


DTYPES = (F32, F16, BF16, *KERNEL_BLOCKS)


def check_tiles(c, blocks, sides):
    """A lane keeps five words of each pair of blocks, and has four sums of each tile."""
    from ggsched_cuda_kernels.warp_specialized.tile_config import MAX_KEPT, TILE

    assert c.teams == 1
    assert c.team_warps % 4 == 0, "blocks of a pair are four apart"
    assert 2 * c.chunks_per_lane * c.team_warps >= blocks, "all of a row is taken"
    assert 2 * (c.chunks_per_lane - 1) * c.team_warps < blocks, (
        "only the last block of a warp may be missing"
    )
    assert c.rows * sides % TILE == 0
    assert 5 * c.chunks_per_lane + 4 * c.rows * sides // TILE <= MAX_KEPT


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sides", [1, 2])
@pytest.mark.parametrize("has_norm", [False, True])
def test_a_cut_keeps_its_limits(dtype, sides, has_norm):
    from ggsched_cuda_kernels.warp_specialized.tile_config import (
        ELEMS_PER_CHUNK,
        MAX_KEPT,
        MAX_SUMS,
        MIN_STAGES,
    )

    items, found = ELEMS_PER_CHUNK[dtype.name], 0
    step = 352 if dtype.block <= 32 else 256
    unit = max(32, dtype.block)
    for k in [*range(unit, 2100, unit), *range(2112 // unit * unit, 16385, step)]:
        w = operand(dtype, 1000, k)
        c = cut(*[w] * sides, has_norm=has_norm)
        if c is None:
            continue
        found += 1
        known = c.defines(w, 10**6)
        stages, lanes = known["STAGES"], known["lanes"]
        assert stages >= MIN_STAGES
        row = 3 * k + k // 8 if dtype.is_quantized else 4 * k  # digits and units, or floats
        assert known["LOCAL_NBYTES"] == stages * c.stage_nbytes + row
        declared = 2 * 64 * 2 * 16 * 4 + 1024  # kept sums, gates and jobs
        assert known["LOCAL_NBYTES"] + declared <= H200.local_nbytes
        if c.is_tiled:
            check_tiles(c, k // 32, sides)
        else:
            assert c.chunks_per_lane * items * (2 if has_norm else 1) <= MAX_KEPT
            assert c.chunks_per_lane * c.team_warps * 32 * items >= k, "all of a row is taken"
            assert sides * c.rows // c.teams <= MAX_SUMS
        assert known["TILES"] == c.is_tiled
        assert 96 < lanes == 32 * c.team_warps * c.teams <= 992
        assert c.rows % c.teams == 0
        each = c.rows // c.teams
        assert each & (each - 1) == 0
        beside = 0 if c.is_aligned else 30
        assert c.stage_nbytes >= sides * (c.rows * dtype.row_nbytes(k) + beside)
        assert c.stage_nbytes % (128 * sides) == 0
    assert found > 60


def test_rows_at_multiples_of_a_line():
    assert cut(operand(BF16, 8, 2048)).is_aligned
    assert cut(operand(Q8_0, 8, 4096)).is_aligned
    assert not cut(operand(Q8_0, 8, 2880)).is_aligned, "3060 bytes"
    assert not cut(operand(BF16, 8, 2048, offset=64)).is_aligned
    assert not cut(operand(BF16, 8, 2048), operand(BF16, 8, 2048, offset=16)).is_aligned
    experts = operand(MXFP4, 4, 8, 4096, strides=(8 * 2176 + 17, 2176, 17))
    assert not cut(experts).is_aligned, "from expert to expert"


def test_weights_that_a_producer_cannot_load():
    assert cut(operand(F32, 8, 64, strides=(512, 4))) is None, "gaps between rows"
    assert cut(operand(F32, 8, 64, strides=(4, 32))) is None, "columns"
    assert cut(operand(F16, 8, 36)) is None, "rows of no whole pieces"
    assert cut(operand(BF16, 8, 2048, offset=8)) is None, "pieces at no multiples of 16 bytes"
    assert cut(operand(I32, 8, 64)) is None
    assert cut(operand(Q4_K, 8, 512, offset=8)) is None, "blocks are loaded by 16 bytes"
    assert cut(operand(F32, 8, 0)) is None
    assert cut(operand(F16, 8, 64), operand(BF16, 8, 64)) is None
    assert cut(operand(F16, 8, 64), operand(F16, 9, 64)) is None
    assert cut(operand(F32, 8, 1 << 20)) is None, "more than lanes can keep"
    assert cut(operand(F32, 8, 2048), profile=replace(H200, local_nbytes=16384)) is None
    assert cut(operand(F16, 1, 64, strides=(512, 2))) is not None, "one row has no neighbours"


def test_rows_whose_lanes_meet_at_banks_have_more_warps():
    """Blocks of q8_0: even and odd ones in turn need places for multiples of 64."""
    for k, warps in ((4096, 8), (14336, 14), (2880, 12), (1440, 12)):
        for sides in (1, 2):
            c = cut(*[operand(Q8_0, 2880, k)] * sides)
            assert c.team_warps * c.teams == warps, (k, sides)


def test_tiles():
    """Where rows begin at many banks, and stages hold what tensor cores take at once."""
    gpt_oss = cut(operand(MXFP4, 2880, 2880))
    assert gpt_oss.is_tiled
    assert (gpt_oss.rows, gpt_oss.team_warps, gpt_oss.chunks_per_lane, gpt_oss.most_stages) == (
        16,
        8,
        6,
        5,
    )
    gated = cut(*[operand(MXFP4, 2880, 2880)] * 2)
    assert (gated.is_tiled, gated.rows, gated.most_stages) == (True, 8, 5)
    assert cut(operand(Q4_0, 8, 2880)).is_tiled
    assert cut(operand(MXFP4, 8, 2048)).is_tiled
    assert not cut(operand(Q4_0, 8, 2048)).is_tiled, "rows of a multiple of 128 bytes"
    assert not cut(operand(MXFP4, 8, 4096)).is_tiled, "rows of a multiple of 128 bytes"
    assert not cut(operand(MXFP4, 8, 64)).is_tiled, "fewer blocks than warps"
    assert not cut(operand(MXFP4, 8, 8224)).is_tiled, "rows too long for three stages"
    for dtype in (F32, F16, BF16, Q8_0):
        assert not cut(operand(dtype, 8, 2880)).is_tiled
