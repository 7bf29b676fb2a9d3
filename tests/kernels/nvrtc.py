"""Every program that the plug-in cuda compiles, for tests of sources without a GPU."""

import importlib.util
from functools import cache
from itertools import product

import pytest

from ggsched.errors import BackendUnavailable
from ggsched_kernels import GPU, SOURCES
from tests.kernels.tile_configs import cuts_of

NEEDS_BINDINGS = pytest.mark.skipif(
    importlib.util.find_spec("cuda") is None, reason="cuda-bindings are in the extra 'nvrtc'"
)

ARCHS = (80, 86, 89, 90, 100, 120)
COMMON = {"VW": GPU.vector, "LANES": GPU.lanes}
TILES = {
    "LANES": GPU.tile_lanes,
    "LX": GPU.tile_columns,
    "NR": GPU.lane_columns,
    "MR": GPU.lane_rows,
    "BM": GPU.tile_rows,
    "BK": GPU.tile_depth,
}

ATTENTION = (
    {"WIDTH": 80, "SPAN": 16, "ROWS": 4, "STEPS": 2, "SPLITS": 1, "LANES": 32},
    {"WIDTH": 64, "SPAN": 8, "ROWS": 8, "STEPS": 4, "SPLITS": 8, "LANES": 256},
)
DECODE = (
    {"WIDTH": 64, "SPAN": 8, "ROWS": 4, "STEPS": 2, "SPLITS": 8, "LANES": 128},
    {"WIDTH": 128, "SPAN": 16, "ROWS": 4, "STEPS": 4, "SPLITS": 8, "LANES": 128},
)

ROUTES = ({"LANES": 32, "SPAN": 32, "COUNT": 4}, {"LANES": 1024, "SPAN": 256, "COUNT": 32})


def programs():
    """Yield (source, definitions) for every source, with every type of weight that it reads."""
    for name, packed in SOURCES.items():
        defines = {**COMMON, **(TILES if name == "matmul" else {})}
        for cut in cuts_of(name):
            for dtype in packed or (None,):
                more = {f"W_{dtype.upper()}": 1} if dtype else {}
                yield name, _sorted({**defines, **cut, **more})
    yield "rms_mul", _sorted({**COMMON, "LANES": 1024, "UNITS": 2})
    yield "rope_heads", _sorted({**COMMON, "LANES": 64})
    yield "sum_add", _sorted({**COMMON, "LANES": 64, "COUNT": 4})
    for cut in ROUTES:
        yield "route", _sorted({**COMMON, **cut})
    for dtype in ("W_F16", "W_F32", "W_BF16"):
        for cut in ATTENTION:
            yield "attention", _sorted({**COMMON, **cut, dtype: 1})
    for dtype in ("W_F16", "W_F32"):
        for cut, tokens in product((*ATTENTION[:1], *DECODE), (1, 4)):
            yield "heads_attention", _sorted({**COMMON, **cut, "TOKENS": tokens, dtype: 1})
    yield "helpers", ()


def _sorted(defines):
    return tuple(sorted((k, str(v)) for k, v in defines.items()))


def label(program):
    name, defines = program
    types = [key for key, _ in defines if key.startswith("W_")]
    return "-".join([name, *types])


@cache
def compiler():
    """Return the plug-in's compiler; tests are skipped, with the reason, where there is none."""
    from ggsched_cuda.compiler import driver

    try:
        driver.compiler_version()
    except BackendUnavailable as error:
        pytest.skip(f"{error.one_line()}: make test installs it with the extra 'nvrtc'")
    return driver
