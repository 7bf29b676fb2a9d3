"""Kernel sources: one text for two languages, and every kernel that a lowering names."""

import re
import shutil
import subprocess
from importlib import resources

import pytest

import ggsched_kernels
from ggsched.errors import UsageError
from ggsched.ir.ops import OPS
from ggsched_kernels import (
    CPU,
    DIALECTS,
    GPU,
    OPENCL_ONLY,
    SOURCES,
    WARP_SOURCES,
    source,
    source_digest,
    supported_ops,
    warp_profile,
)
from ggsched_kernels.block_constants import KERNEL_DTYPES
from tests.kernels.nvrtc import OF_SOURCE
from tests.kernels.tile_configs import cuts_of

FOLDER = resources.files(ggsched_kernels)
# Words of CUDA alone, for a producer warp.
FEEDING = {"GATES_READY", "GATE_ANNOUNCE", "GATE_ARRIVE", "GATE_AWAIT", "GATE_OPEN", "COPY_SPAN"}
# Words of OpenCL alone: CUDA's kernels for tensor cores have texts of their own.
UNITS = {"MULTIPLY_HALVES", "HALVES_WORDS", "HALF_PAIR", "BYTE_PAIRS", "COPY4", "DOT4"}
WARP_HEADERS = sorted({header for headers in WARP_SOURCES.values() for header in headers})
SHARED = ["common.h", "weights.h", *WARP_HEADERS, *(f"{name}.cl" for name in SOURCES)]

# Words of one of the two languages; shared text says them by macros of the prologues.
STRAY = re.compile(
    r"\b(__kernel|kernel|__global|__local|__constant|__private|get_\w+_id|barrier|vload\w*|vstore\w*"
    r"|convert_\w+|as_(float|u?int)\w*|half|uchar|ushort|uint|ulong|float[248]|float16"
    r"|__global__|__shared__|__device__|__syncthreads|threadIdx|blockIdx|blockDim|__half\w*"
    r"|template|long|unsigned|fma|exp|expf|tanh|tanhf|sqrt|sqrtf|sin|cos|sinf|cosf|fmax|fmin)\b"
)


def without_comments(text):
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def text_of(file):
    return FOLDER.joinpath(file).read_text(encoding="utf-8")


@pytest.mark.parametrize("file", SHARED)
def test_no_stray_words(file):
    assert not (found := STRAY.findall(without_comments(text_of(file)))), found


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", SOURCES)
def test_sources_assemble(name, dialect):
    text = source(name, dialect)
    assert text.startswith("/* Dialect: ")
    assert ("wload" in text) == bool(SOURCES[name])
    assert text.count("{") == text.count("}")
    assert text.isascii()


def test_prologues_define_the_same_words():
    defined = re.compile(r"^(?:#define (\w+)|FN [\w<> ]+?(\w+)\(|typedef .*?(\w+);)", re.MULTILINE)
    words = []
    for dialect in DIALECTS:
        text = text_of(f"prologue_{dialect}.h") + text_of(f"warp_{dialect}.h")
        found = {w for match in defined.findall(text) for w in match}
        words.append({w for w in found if w and not w.endswith("_")})
    used = {w for file in SHARED for w in re.findall(r"\w+", without_comments(text_of(file)))}
    optional = {w for file in SHARED for w in re.findall(r"#ifn?def (\w+)", text_of(file))}
    optional |= FEEDING | UNITS
    known = [known | optional for known in words]
    assert (words[0] ^ words[1]) & used <= optional, "a word of one prologue only"
    assert known[0] & used == known[1] & used


def test_digest():
    first, second = (source_digest(dialect) for dialect in DIALECTS)
    assert first != second
    assert first == source_digest(DIALECTS[0])


@pytest.mark.parametrize("name", ["nothing", "common.h"])
def test_unknown_source(name):
    with pytest.raises(UsageError, match="sources: attention_blocks, attention_halves"):
        source(name, "opencl")


def test_every_op_and_every_weight_is_lowered():
    assert {key.partition(":")[0] for key in supported_ops()} == set(OPS)
    for op in ("mul_mat", "mul_mat_id", "get_rows", "cont", "cpy"):
        assert {f"{op}:{dtype}" for dtype in KERNEL_DTYPES} <= supported_ops()


@pytest.mark.parametrize("profile", [CPU, GPU, warp_profile(132, 232448, True)])
def test_profiles_fit_the_kernels(profile):
    p = profile
    assert p.span % 32 == 0
    assert p.tile_depth % 32 == 0
    assert p.tile_rows % (p.lane_rows * p.tile_lanes // p.tile_columns) == 0
    rows = p.tile_columns * p.lane_columns + (p.tile_rows if p.tile_lanes > 1 else 0)
    tile = 4 * rows * (p.tile_depth + p.vector)
    assert tile + 16 * p.tile_rows <= 32 << 10, "local memory that every device has"


def programs():
    for name, weights in SOURCES.items():
        for weight in () if name in OPENCL_ONLY else weights or [None]:
            for i in range(len(cuts_of(name))):
                yield name, weight and f"W_{weight.upper()}", i


@pytest.mark.slow
@pytest.mark.parametrize(("name", "weight", "cut"), list(programs()))
def test_cuda_compiles(name, weight, cut, tmp_path):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("there is no nvcc on the path")
    p = GPU
    lanes = p.tile_lanes if name == "matmul" else p.lanes
    tile = {"LX": p.tile_columns, "NR": p.lane_columns, "MR": p.lane_rows}
    values = {"VW": p.vector, "LANES": lanes, "BM": p.tile_rows, "BK": p.tile_depth, **tile}
    values |= {**OF_SOURCE.get(name, {}), **cuts_of(name)[cut]}
    defines = [f"-D{key}={value}" for key, value in values.items()]
    file = tmp_path / "kernels.cu"
    file.write_text(source(name, "cuda"), encoding="utf-8")
    command = [
        nvcc,
        "-std=c++17",
        "-arch=sm_80",
        "-ptx",
        "-o",
        str(tmp_path / "out.ptx"),
        str(file),
        *defines,
    ]
    if weight:
        command.append(f"-D{weight}=1")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
