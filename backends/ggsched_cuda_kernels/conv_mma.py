"""Convolutions on tensor cores: the cuts of ``conv_mma``, which rounds factors to TF32 or bf16."""

from functools import cache
from typing import Final

from ggsched.backend.precision import Precision
from ggsched.ir.dtype import F16, DType
from ggsched_kernels import TuningProfile
from ggsched_kernels.arrays import SOURCE_PREFIX
from ggsched_kernels.convolution import TILES, Tile, Tiles

SOURCE: Final = f"{SOURCE_PREFIX}conv_mma"

# Warps along rows and columns, tiles of 16 rows and of 8 columns of a warp, thread blocks that a
# multiprocessor has room for; microseconds of a step alone and shared, in TF32 and in bf16: numbers
# with which the cuts chosen for the convolutions of ResNet-50, one image and 16, take at most 5 %
# longer than the best of all on an H100 (docs/measurements/array-graphs.md).
_CUTS: Final = (
    ((2, 2, 2, 2, 4), (0.27, 0.32), (0.42, 0.21)),
    ((2, 2, 2, 4, 4), (0.92, 0.07), (0.50, 0.26)),
    ((2, 4, 2, 2, 3), (0.37, 0.19), (1.43, 0.16)),
    ((2, 2, 4, 4, 2), (0.60, 0.27), (0.65, 0.54)),
    ((2, 2, 4, 8, 2), (0.62, 0.52), (1.26, 1.05)),
)


def conv_tiles(profile: TuningProfile, dtype: DType) -> Tiles:
    """Return the cuts for the precision of a device; f16 takes TF32, which has all its values."""
    return _tiles("tf32" if dtype == F16 else profile.precision)


@cache
def _tiles(precision: Precision) -> Tiles:
    if precision == "f32":
        return TILES
    return tuple(_tile(cut, precision, *us) for cut, *us in _CUTS)


def _tile(
    cut: tuple[int, int, int, int, int],
    precision: Precision,
    tf32: tuple[float, float],
    bf16: tuple[float, float],
) -> Tile:
    along, across, mt, nt, resident = cut
    names = ("ALONG", "ACROSS", "MT", "NT", "RESIDENT")
    defines = tuple(zip(names, cut, strict=True))
    is_bf16 = precision == "bf16"
    return Tile(
        rows=along * mt * 16,
        columns=across * nt * 8,
        depth=32 if is_bf16 else 16,
        alone=(bf16 if is_bf16 else tf32)[0],
        shared=(bf16 if is_bf16 else tf32)[1],
        defines=(*defines, *((("W_BF16", 1),) if is_bf16 else ())),
        lanes=32 * along * across,
        kernel="conv_mma",
        source=SOURCE,
        vector=2,
        resident=resident,
        knows_taps=True,
    )


__all__ = ["SOURCE", "conv_tiles"]
