"""Whether a device runs the inline PTX of ``warp_opencl.h``, found out by small products.

Kernels reach units that multiply matrices, and values of other lanes, by the macros of that file
alone. Another vendor's extension becomes another branch there, and another probe here.
"""

from functools import cache
from typing import Final

import numpy as np

from ggsched_kernels import common_text
from ggsched_opencl import driver
from ggsched_opencl.driver import Handle

DEFINES: Final = (("HAS_PTX", "1"),)
"""What programs of such a device are compiled with."""

LANES: Final = 32
LARGE_NBYTES: Final = 96 << 10
"""Local memory that kernels declare; NVIDIA's driver gives more than it tells."""

LARGER_NBYTES: Final = 200 << 10
"""The same where a driver gives that much."""

_PROBE: Final = """
#if HAS_PTX
#define A(i, k) ((float)((2 * (i) + 3 * (k)) % 7 - 3))
#define B(k, j) ((float)((5 * (k) + (j)) % 11 - 5))
#if defined(W_BF16)
#define PAIR(x, y) (BITS_OF_FLOAT(x) >> 16 | BITS_OF_FLOAT(y))
#else
#define PAIR(x, y) HALF_PAIR((x), (y))
#endif
KERNEL(probe)(GLOBAL float *to) {
  LOCAL u4 large[LARGE_NBYTES / 16];
  int g = LANE / 4, t = LANE % 4;
  COPY16(large + LARGE_NBYTES / 16 - 1 - LANE, to + LANE * 4); /* zeros */
  COPIES_CLOSE();
  COPIES_AWAIT(0);
  BARRIER();
  u32 a[4], b[2];
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (int i = 0; i < 4; i++) {
    int row = g + i % 2 * 8, k = 2 * t + i / 2 * 8;
    a[i] = PAIR(A(row, k), A(row, k + 1));
    if (i < 2) b[i] = PAIR(B(2 * t + 8 * i, g), B(2 * t + 8 * i + 1, g));
  }
  MULTIPLY_HALVES(sum, a, b, 0);
  for (int i = 0; i < 4; i++) to[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sum[i];
  float zero = FLOAT_OF_BITS(large[LARGE_NBYTES / 16 - 1 - LANE].w);
  to[128 + LANE] = EXCHANGED((float)LANE, 5, 0) + zero;
  to[160 + LANE] = FLOAT_OF_HALF(0x3c00u + LANE);
  to[192 + LANE] = (float)DOT4(0x80ff7f01u, 0x02030405u, LANE);
  to[224 + LANE] = (float)(FUNNEL(0x11223344u, 0x55667788u, LANE) >> 8);
  WARP_SYNC();
}
#endif
"""


@cache
def has_ptx(device: Handle) -> bool:
    """Whether products of f16, bf16 and bytes, and an exchange of lanes are right."""
    return _is_right(device, LARGE_NBYTES)


@cache
def local_nbytes(device: Handle) -> int:
    """Return how much local memory a group of a device that has PTX can have."""
    return LARGER_NBYTES if _is_right(device, LARGER_NBYTES) else LARGE_NBYTES


def _is_right(device: Handle, nbytes: int) -> bool:
    text = common_text("opencl", has_warps=True) + _PROBE
    i, k, j = np.arange(16), np.arange(16), np.arange(8)
    a = (2 * i[:, None] + 3 * k) % 7 - 3
    b = (5 * k[:, None] + j) % 11 - 5
    lanes = np.arange(LANES)
    parts = [(a @ b).ravel(), lanes ^ 5, 1 + lanes / 1024, 254 + lanes]
    parts.append((0x5566778811223344 >> lanes & 0xFFFFFFFF) >> 8)
    wanted = np.concatenate(parts).astype(np.float32)
    common = (*DEFINES, *(("VW", "4"), ("LANES", str(LANES)), ("LARGE_NBYTES", str(nbytes))))
    return all(
        driver.probe(device, text, (*common, (kind, "1")), LANES, wanted.nbytes) == wanted.tobytes()
        for kind in ("W_F16", "W_BF16")
    )
