"""The CUDA dialect of the kernels, compiled for the host with one thread to a block, and run.

This shows that its vectors and macros mean what those of OpenCL mean, without a GPU. What many
threads do is shown by the OpenCL tests with groups of many work-items.
"""

import ctypes
import platform
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched.backend.base import BaseDevice, BaseProgram, host_facts
from ggsched.backend.program_body import Steps
from ggsched.ir.ops import OPS
from ggsched_kernels import CODE, FAULT, GPU, Constant, lower_nodes, source, supported_ops
from ggsched_kernels.calls import ArgPlaceholder
from ggsched_testing.generators.strategies import graphs, seeds, values_for
from tests.backends.against_oracle import check

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="uses instructions of x86-64"),
]

ONE_THREAD = replace(
    GPU, lanes=1, tile_lanes=1, tile_columns=1, lane_rows=4, tile_rows=8, tile_depth=32
)

HALF = Path(__file__).with_name("f16.h").read_text(encoding="utf-8")
HOST = (
    f"{HALF}"
    """
#define __global__
#define __device__
#define __shared__ static
#define __syncthreads()
struct Place { int x, y, z; };
static Place blockIdx, gridDim, threadIdx;
struct float4 { float x, y, z, w; };
struct uint4 { unsigned x, y, z, w; };
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline float __uint_as_float(unsigned u) { float x; memcpy(&x, &u, 4); return x; }
static inline unsigned __float_as_uint(float x) { unsigned u; memcpy(&u, &x, 4); return u; }
extern "C" void set_block(int x, int y, int z) { blockIdx = {x, y, z}; }
extern "C" void set_grid(int x, int y, int z) { gridDim = {x, y, z}; }
"""
)
CONVERSIONS = {
    'asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));': "x = host_float_of_half_(bits);",
    'asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));': "bits = host_half_of_float_(x);",
}


class Tens(ctypes.Structure):
    _fields_ = [
        ("off", ctypes.c_int64),
        ("s", ctypes.c_int64 * 4),
        ("n", ctypes.c_int32 * 4),
    ]


class Nd(ctypes.Structure):
    _fields_ = [
        ("off", ctypes.c_int64 * 4),
        ("s", ctypes.c_int64 * 32),
        ("n", ctypes.c_int32 * 8),
    ]


class Sliding(ctypes.Structure):
    _fields_ = [("off", ctypes.c_int64 * 4), ("rest", ctypes.c_int32 * 25)]


KINDS = {
    "Tens": Tens, "Nd": Nd, "Sliding": Sliding,
    "float": ctypes.c_float, "int": ctypes.c_int32, "i64": ctypes.c_int64,
}  # fmt: skip


class Library:
    """A source compiled for the host."""

    def __init__(self, folder, name, defines):
        text = source(name, "cuda")
        for cuda, host in CONVERSIONS.items():
            assert cuda in text
            text = text.replace(cuda, host)
        label = "_".join([name, *(k for k, _ in defines)])
        file, self.path = folder / f"{label}.cpp", folder / f"{label}.so"
        file.write_text(HOST + text, encoding="utf-8")
        flags = [f"-D{key}={value}" for key, value in defines]
        command = ["g++", "-std=c++17", "-O1", "-mf16c", "-shared", "-fPIC", "-w", *flags]
        subprocess.run([*command, "-o", str(self.path), str(file)], check=True, timeout=120)
        self.library = ctypes.CDLL(str(self.path))
        self.parameters = {
            kernel: [p.split() for p in parameters.split(",")]
            for kernel, parameters in re.findall(r"KERNEL\((\w+)\)\(([^)]*)\)", text)
        }

    def bound(self, call, addresses):
        """Return a call without arguments that runs all blocks."""
        function, place = getattr(self.library, call.kernel), self.library.set_block
        arguments = []
        for words, arg in zip(self.parameters[call.kernel], call.args, strict=True):
            if any("*" in word for word in words):
                arguments.append(ctypes.c_void_p(addresses(arg)))
                continue
            raw = arg if isinstance(arg, bytes) else bytes(4)
            arguments.append(KINDS[words[0]].from_buffer_copy(raw))
        x, y, z = call.groups
        blocks = [(i, j, k) for k in range(z) for j in range(y) for i in range(x)]

        def run():
            self.library.set_grid(x, y, z)
            for block in blocks:
                place(*block)
                function(*arguments)

        return run


class CudaOnHost(BaseDevice):
    def __init__(self, folder, ops=None):
        super().__init__(host_facts("cuda-on-host", ops or supported_ops()), {})
        self._folder, self._libraries = folder, {}

    def compile(self, nodes, stream):
        lowered = lower_nodes(nodes, ONE_THREAD)
        memory = {kind: np.zeros(nbytes, np.uint8) for kind, nbytes in lowered.memory.items()}
        kept = [memory, np.zeros(3, np.int32)]

        def address(arg):
            if isinstance(arg, Constant):
                kept.append(np.frombuffer(arg.content, np.uint8))
                return kept[-1].ctypes.data
            match arg:
                case _ if arg is FAULT:
                    return kept[1].ctypes.data
                case ArgPlaceholder():
                    return memory[arg].ctypes.data
                case _:
                    assert arg is not CODE
                    return np.frombuffer(arg.host_view(), np.uint8).ctypes.data if arg.nbytes else 0

        steps = []
        for call in lowered.calls:
            key = call.source, call.defines
            if key not in self._libraries:
                self._libraries[key] = Library(self._folder, *key)
            steps.append((call.label, self._libraries[key].bound(call, address)))
        program = BaseProgram(stream, Steps(steps))
        program.kept = kept
        return program


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    return CudaOnHost(tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize("op", OPS)
@settings(max_examples=60)
@given(data=st.data(), seed=seeds())
def test_each_op(device, op, data, seed):
    drawn = data.draw(graphs(max_nodes=4, ops=[op]))
    check(device, drawn.graph, values_for(drawn, seed))


@settings(max_examples=200)
@given(drawn=graphs(), seed=seeds())
def test_random_graphs(device, drawn, seed):
    check(device, drawn.graph, values_for(drawn, seed), runs=2)
