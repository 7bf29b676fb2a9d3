"""What racecheck says of stores to the shared memory of other blocks of a cluster, in small.

Blocks bring stretches to shared memory by ``cp.async`` and add them up, as ``tile_product`` does
where blocks share a sum. After a barrier of the cluster each stores its sums in the memory of the
others, and after a second one adds up what it got.

- ``over``: the sums go where the stretches were
- ``ring``: the same with two stages, one of which is copied to while the other is read, as in
  ``tile_product``
- ``beside``: they go where no copy went, the control
- ``torn``: as ``over``, without the first barrier: a real race

To be run as ``compute-sanitizer --tool racecheck --racecheck-report all python -m
benchmarks.gpu.racecheck_cluster over``. For each variant a line says whether the sums are right.
Without a name all run but ``torn``; ``compile`` needs no GPU.
"""

import sys
from pathlib import Path

import numpy as np

from benchmarks.gpu.racecheck_ring import Kernel, main_of

VARIANTS = {"over": 0, "ring": 3, "beside": 1, "torn": 2}
LANES, BLOCKS, ROUNDS, CLUSTERS, WORDS = 128, 4, 16, 2, 2048


def run(variant: str) -> bool:
    """Launch a variant; say whether the sums are those of the host."""
    w = np.random.default_rng(1).integers(0, 1 << 32, (CLUSTERS, BLOCKS, ROUNDS * WORDS), np.uint32)
    found = np.zeros((CLUSTERS * BLOCKS, LANES), np.uint32)
    shared = 4 * (2 * WORDS + 4 * BLOCKS * LANES)
    KERNEL.launch(variant, [w, found], CLUSTERS * BLOCKS, LANES, shared)
    quads = w.reshape(CLUSTERS, BLOCKS, -1, 4 * LANES).sum(axis=2, dtype=np.uint32)
    each = quads.reshape(CLUSTERS, -1, LANES).sum(axis=1, dtype=np.uint32)
    wrong = int((np.repeat(each, BLOCKS, axis=0) != found).sum())
    result = "sums ok" if not wrong else f"{wrong} of {found.size} sums WRONG"
    sys.stdout.write(f"{variant}: {result}; {CLUSTERS} clusters of {BLOCKS} blocks\n")
    sys.stdout.flush()
    return not wrong or variant == "torn"


KERNEL = Kernel(
    Path(__file__).with_suffix(".cu"),
    "exchange",
    VARIANTS,
    {"LANES": LANES, "BLOCKS": BLOCKS, "ROUNDS": ROUNDS, "WORDS": WORDS},
)

if __name__ == "__main__":
    sys.exit(main_of(KERNEL, run))
