"""Every program that the plug-in cuda compiles, for tests of sources without a GPU."""

import hashlib
import importlib.util
import os
import sys
from functools import cache
from importlib.metadata import distributions
from itertools import product
from pathlib import Path

import pytest

from ggsched.errors import BackendUnavailable
from ggsched.whole_file import write_whole
from ggsched_kernels import GPU, OPENCL_ONLY, SOURCES
from ggsched_kernels.calls import Launch
from tests.kernels.second_nvrtc import SecondNvrtc
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

BY_BYTES = ("q4_k", "q6_k")
"""Types whose tiles stand for those of all that become bytes: with one and two parts, and sums."""

LAUNCHES = {
    "attention": Launch.BY_ITSELF, "heads_attention": Launch.BY_ITSELF,
    "warp_specialized_rows": Launch.WAITS_FIRST, "warp_specialized_experts": Launch.WAITS_FIRST,
    "tile_product": Launch.WAITS_FIRST, "helpers": Launch.IN_TURN,
    "attention_blocks": Launch.IN_TURN, "flash_attention": Launch.BY_ITSELF,
    "rope_kv_write": Launch.WAITS_FIRST, "rope_tokens": Launch.WAITS_FIRST,
}  # fmt: skip
"""How kernels of a source are launched, where not at their heads."""


def launch_of(source):
    return LAUNCHES.get(source, Launch.AT_HEAD)


ATTENTION = (
    {"WIDTH": 80, "SPAN": 16, "ROWS": 4, "STEPS": 2, "SPLITS": 1, "LANES": 32},
    {"WIDTH": 64, "SPAN": 8, "ROWS": 8, "STEPS": 4, "SPLITS": 8, "LANES": 256},
)
DECODE = (
    {"WIDTH": 64, "SPAN": 8, "ROWS": 4, "STEPS": 2, "SPLITS": 8, "LANES": 128},
    {"WIDTH": 128, "SPAN": 16, "ROWS": 4, "STEPS": 4, "SPLITS": 8, "LANES": 128},
)

OF_SOURCE = {
    "matmul": TILES,
    "attention_blocks": {
        "BR": 16, "BC": 16, "MR": 4, "NR": 2, "VE": 2, "PITCH": 132, "TURNED": 0,
    },
    "recurrent": {
        "TAPS": 4, "COLS": 32, "OWN": 16, "EVEN": 1, "VECTORS": 0, "BETA": 1, "LANES": 256,
    },
}  # fmt: skip
"""Definitions of shared sources beyond those that all have."""

BARE = {"MASKED": 0, "CAPPED": 0, "SKIPS": 0, "ALONG": 0}
FLASH = (
    {
        **BARE,
        "WIDTH": 64,
        "ACROSS": 64,
        "MT": 2,
        "BN": 64,
        "PLANES": 1,
        "RESIDENT": 2,
        "SKIPS": 1,
    },
    {"WIDTH": 128, "ACROSS": 128, "MT": 2, "BN": 64, "PLANES": 1, "RESIDENT": 2, **BARE},
    {"WIDTH": 128, "ACROSS": 128, "MT": 1, "BN": 64, "PLANES": 2, "RESIDENT": 1, **BARE},
    {"WIDTH": 192, "ACROSS": 128, "MT": 1, "BN": 32, "PLANES": 1, "RESIDENT": 1, **BARE},
    {
        "WIDTH": 128,
        "ACROSS": 128,
        "MT": 1,
        "BN": 64,
        "PLANES": 1,
        "RESIDENT": 3,
        **BARE,
        "ALONG": 1,
    },
    {
        "WIDTH": 256,
        "ACROSS": 256,
        "MT": 1,
        "BN": 32,
        "PLANES": 2,
        "RESIDENT": 1,
        "MASKED": 1,
        "CAPPED": 1,
        "SKIPS": 1,
        "ALONG": 0,
    },
)

ROUTES = (
    {"LANES": 32, "SPAN": 32, "COUNT": 4},
    {"LANES": 1024, "SPAN": 256, "COUNT": 32},
    {"LANES": 512, "SPAN": 512, "COUNT": 10},
)


OF_CUDA = {name: packed for name, packed in SOURCES.items() if name not in OPENCL_ONLY}


def programs():
    """Yield (source, definitions) for every source, with every type of weight that it reads."""
    for name, packed in OF_CUDA.items():
        defines = {**COMMON, **OF_SOURCE.get(name, {})}
        for cut in cuts_of(name):
            for dtype in packed or (None,):
                more = {f"W_{dtype.upper()}": 1} if dtype else {}
                yield name, _sorted({**defines, **cut, **more})
    for gated in (0, 1):
        flags = {"GATED": gated, "HALVES": 2 - 2 * gated}
        yield "rms_mul", _sorted({**COMMON, "LANES": 1024, "UNITS": 2, **flags})
        norm = {"GATED": 2, "CENTRED": 1, "APART": gated, "HALVES": gated}
        yield "rms_mul", _sorted({**COMMON, "LANES": 32, "UNITS": 1, **norm})
        numbers = {"LANES": 256, "UNITS": 2, "HALVES": gated, "NARROW": int(gated == 1)}
        yield "gated_rows", _sorted({**COMMON, **numbers})
        cut = {"LANES": 256, "ACROSS": 80, "AT_ONCE": 8, "WARPS_OF_ROW": 1 + 7 * gated}
        yield "flash_join", _sorted({**COMMON, **cut, "HALVES": gated})
    yield "elements", _sorted({**COMMON, "LANES": 1024, "STEPS": 6})
    for flag in (0, 1):
        states = {"BETA": flag, "COPIED": 1 - flag}
        yield "conv_step", _sorted({**COMMON, "LANES": 64, "TAPS": 4, "SILU_TOO": flag})
        yield "delta_scan", _sorted({**COMMON, "LANES": 128, "KEPT": 16, **states})
    units = {"UNITS_0": 2, "UNITS_1": 1, "UNITS_2": 1}
    for jobs in (2, 3):
        yield "rope_tokens", _sorted({**COMMON, "LANES": 256, "JOBS": jobs, **units})
    for norm in (0, 1):
        yield "sum_add", _sorted({**COMMON, "LANES": 64, "COUNT": 4, "ALSO": 4 * norm})
        flags = {"NORM": norm, "THIRD": 1 - norm, "HALVES": 2 * norm, "PARTS": 4 - 2 * norm}
        yield "sum_norm", _sorted({**COMMON, "LANES": 1024, "UNITS": 2, **flags})
    for cut in ROUTES:
        yield "moe_router", _sorted({**COMMON, **cut})
    yield from attention_programs()
    for dtype, planes in (
        ("F32", 2),
        ("F16", 2),
        ("Q8_0", 2),
        ("Q4_0", 2),
        ("MXFP4", 1),
        ("Q6_K", 2),
    ):
        yield "to_bf16", _sorted({**COMMON, "LANES": 256, "PLANES": planes, f"W_{dtype}": 1})
    for dtype in ("Q8_0", "Q4_0", "MXFP4"):
        yield "to_f16", _sorted({**COMMON, "LANES": 256, f"W_{dtype}": 1})
    for has_columns in (0, 1):
        yield "unscale", _sorted({**COMMON, "LANES": 256, "ROWS": 32, "HAS_COLUMNS": has_columns})
    yield from tile_programs()
    yield "helpers", ()


def attention_programs():
    """Yield the programs of attention."""
    for dtype, cut in product(("W_F16", "W_F32", "W_BF16"), ATTENTION):
        yield "attention", _sorted({**COMMON, **cut, dtype: 1})
    for dtype, cut in product(("W_F16", "W_BF16"), FLASH):
        yield "flash_attention", _sorted({**COMMON, "LANES": 128, **cut, dtype: 1})
    rounded = {"W_BF16": 1, "EXACT": 0}, {"EXACT": 0}, {"EXACT": 1}
    for i, factors in enumerate(rounded):
        flags = {
            "MASKED": int(i != 1),
            "VEC": int(i != 1),
            "VEC_Y": int(i != 2),
            "CHOOSES": i % 2,
            "HALVES": int(i == 0),
        }
        cut = {"WIDTH": 64 << i // 2, "ACROSS": 64 << i // 2, "BN": 64 >> i // 2, "LANES": 128}
        yield "batch_attention", _sorted({**COMMON, **cut, **flags, **factors})
    for dtype in ("W_F16", "W_F32"):
        for cut, tokens in product((*ATTENTION[:1], *DECODE), (1, 4)):
            yield "heads_attention", _sorted({**COMMON, **cut, "TOKENS": tokens, dtype: 1})


def tile_programs():
    """Yield the programs that multiply tiles, and those that prepare rows for them."""
    from ggsched_cuda_kernels.tiles import BY_BYTES as OTHERS
    from ggsched_cuda_kernels.tiles import CUTS, DTYPES, FEW

    for is_bf16, planes in product((0, 1), (1, 2)):
        yield "to_halves", _sorted({**COMMON, "LANES": 256, "PLANES": planes, "HALF_BF16": is_bf16})
    own = sorted(DTYPES - OTHERS)
    kinds = [(name, *flags) for name, *flags in product(own, (1, 2), (0, 1))]
    kinds += [(name, 1, 1) for name in BY_BYTES]
    for name, planes, routed in kinds:
        cut = CUTS[name]
        numbers = {
            "LANES": 32 * cut.warps, "BM": GPU.tile_rows, "KB": cut.blocks, "STAGES": cut.stages,
            "WT": cut.tiles, "RESIDENT": cut.resident, "PLANES": planes, "ROUTED": routed,
            "SPLITS": 1, "TURNS": cut.turns, "GROUP_MMA": 0,
        }  # fmt: skip
        yield "tile_product", _sorted({**COMMON, **numbers, f"W_{name.upper()}": 1})
    for rows, cuts in FEW.items():
        for name in sorted(cuts.keys() - OTHERS | {BY_BYTES[0]}):
            for cut in dict.fromkeys(cuts[name]):
                yield "tile_product", few_rows_program(name, cut, rows)


def few_rows_program(name, cut, rows, splits=1):
    """Return the definitions of a product of few rows; from capability 9.0 on with ``splits``."""
    return _sorted({
        **COMMON, "LANES": 32 * cut.warps, "BM": rows, "KB": cut.blocks, "STAGES": cut.stages,
        "WT": cut.tiles, "RESIDENT": cut.resident, "PLANES": 1, "ROUTED": 0, "SPLITS": splits,
        "TURNS": cut.turns, "GROUP_MMA": int(cut.by_groups),
        f"W_{name.upper()}": 1,
    })  # fmt: skip


def _sorted(defines):
    return tuple(sorted((k, str(v)) for k, v in defines.items()))


def label(program):
    name, defines = program
    types = [key for key, _ in defines if key.startswith("W_")]
    return "-".join([name, *types])


OLDEST_FOLDER = Path(sys.prefix) / "nvrtc-oldest"
RELEASES = ("installed", "oldest")
"""The newest NVRTC of the declared range, and the oldest: what may move over a wait differs."""


@cache
def compiler(release="installed"):
    """Return what compiles, keeping results; tests are skipped, with the reason, without one."""
    from ggsched_cuda.compiler import driver

    if release == "oldest":
        if not has_oldest():
            pytest.skip(f"no NVRTC in {OLDEST_FOLDER}: make test installs it where it can be had")
        second = SecondNvrtc(OLDEST_FOLDER)
        (build,) = OLDEST_FOLDER.glob("nvidia_cuda_nvrtc-*.dist-info")
        version = ".".join(map(str, second.version))
        return Compiler(f"{version} {build.stem}", second.compile_both)
    try:
        version = driver.compiler_version()
    except BackendUnavailable as error:
        pytest.skip(f"{error.one_line()}: make test installs it with the extra 'nvrtc'")
    builds = (d.version for d in distributions() if d.name.startswith("nvidia-cuda-nvrtc"))
    return Compiler(f"{version} {next(builds, '')}", driver.compile_both)


def has_oldest():
    return any(OLDEST_FOLDER.glob("nvidia_cuda_nvrtc-*.dist-info"))


OPTIMISES = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
"""Whether kernels on the host, and programs that only have to compile, are optimised, as PoCL's."""


class Compiler:
    """Compiles CUDA C++ with NVRTC unless the folder has what the same compiler made of it.

    Machine code and PTX come from one compilation.
    """

    folder = None
    """Where results are kept; the fixture ``compiled_kernels``."""

    def __init__(self, version, compile_both):
        self.version, self._compile = version, compile_both

    def compiles(self, text, options):
        """Return machine code that nobody looks into, in a quarter of the time."""
        return self.machine_code(text, options if OPTIMISES else [*options, "--Ofast-compile=max"])

    def machine_code(self, text, options):
        return self._made(text, options, "cubin")

    def ptx(self, text, options):
        return self._made(text, options, "ptx").decode()

    def _made(self, text, options, suffix):
        content = "\0".join([self.version, *options, text])
        stem = f"nvrtc-{hashlib.sha256(content.encode()).hexdigest()[:32]}"
        made = self.folder / f"{stem}.{suffix}"
        if not made.exists():
            if suffix == "ptx":
                options = [o.replace("=sm_", "=compute_") for o in options]
            for kind, code in zip(("ptx", "cubin"), self._compile(text, options), strict=True):
                if code:
                    write_whole(self.folder / f"{stem}.{kind}", code)
        return made.read_bytes()
