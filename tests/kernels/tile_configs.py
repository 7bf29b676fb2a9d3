"""Definitions under which the sources for warps are compiled without a device."""

_BLOCKS = {"BLOCKS": 8, "STAGES": 2, "ALIGNED": 0, "LOCAL_NBYTES": 90112}
CUTS = {
    "matmul_halves": ({"LANES": 256, "MT": 2, "NT": 2, "STAGES": 2},),
    "matvec_blocks": (
        {"LANES": 256, "COLS": 1, "PRODUCER": 0, **_BLOCKS},
        {"LANES": 512, "COLS": 8, "PRODUCER": 0, **_BLOCKS, "ALIGNED": 1, "BLOCKS": 4},
    ),
    "matvec_rows": (
        {"SPAN": 32, "SPLIT": 1, "ROWS": 4, "VECTORS": 2, "COLS": 1},
        {"SPAN": 16, "SPLIT": 2, "ROWS": 4, "VECTORS": 1, "COLS": 8},
    ),
    "matvec_sums": ({"SPAN": 16, "DEPTH": 4, "COLS": 4},),
}
PRODUCER = {"LANES": 256, "COLS": 1, "PRODUCER": 1, **_BLOCKS, "ALIGNED": 1}
"""From compute capability 9.0 on."""


def cuts_of(name):
    """Return the definitions of a source, besides those of every source, once or several times."""
    return CUTS.get(name, ({},))
