"""Kernels of the library ``nd`` in CUDA: compiled by NVRTC, and run on the host, without a GPU."""

import importlib.util
import platform
import shutil
from dataclasses import replace

import pytest

from ggsched.ir.dtype import F32
from ggsched_cuda_kernels.conv_mma import conv_tiles
from ggsched_cuda_kernels.programmatic_launch import FIRST_ARCH
from ggsched_kernels import GPU, supported_ops
from ggsched_kernels.calls import Launch
from ggsched_kernels.convolution import LANES, TILES
from tests.kernels.array_expressions import expressions
from tests.kernels.nvrtc import ARCHS, NEEDS_BINDINGS, compiler
from tests.kernels.test_cuda_on_host import CudaOnHost

ALL_F32 = dict.fromkeys(("A_T", "B_T", "C_T", "Y_T"), "f32")
COMMON = {"VW": GPU.vector, "LANES": GPU.lanes}
PROGRAMS = {
    "nd-elements-add-f16": {"A_T": "f16", "B_T": "f16", "C_T": "f32", "Y_T": "f16", "OPERANDS": 2},
    "nd-elements-where-bool": {
        "A_T": "bool", "B_T": "i64", "C_T": "i64", "Y_T": "i64", "OPERANDS": 3,
    },
    "nd-elements-cast-f32": {"A_T": "f32", "B_T": "f32", "C_T": "f32", "Y_T": "f64", "OPERANDS": 1},
    "nd-reduce-reduce_max-f16": {"A_T": "f16", "B_T": "f32", "C_T": "f32", "Y_T": "f16"},
    "nd-gather-gather-u8": {"A_T": "u8", "B_T": "i64", "C_T": "f32", "Y_T": "f32"},
    "nd-index-gather_nd-bool": {"A_T": "u8", "B_T": "i64", "C_T": "f32", "Y_T": "f32"},
    "nd-index-add-f16": {"A_T": "f16", "B_T": "i32", "C_T": "f32", "Y_T": "f32"},
    "nd-index-mul-i16": {"A_T": "i16", "B_T": "i32", "C_T": "f32", "Y_T": "f32"},
    "nd-index-max-bool": {"A_T": "bool", "B_T": "i32", "C_T": "f32", "Y_T": "f32"},
    "nd-scan-cum_sum-f64": {"A_T": "f64", "B_T": "f32", "C_T": "f32", "Y_T": "f32"},
    "nd-scan-arg_max-bool": {"A_T": "bool", "B_T": "f32", "C_T": "f32", "Y_T": "f32"},
    "nd-scan-top_k-u64": {"A_T": "u64", "B_T": "f32", "C_T": "f32", "Y_T": "f32"},
    "nd-pad-pad-f16": {"A_T": "u16", "B_T": "f32", "C_T": "f32", "Y_T": "f32"},
    "nd-windows-max_pool-f32": ALL_F32,
    "nd-conv-nd.relu_v-f32": ALL_F32,
    "nd-conv-add_v_0-f32": {
        **ALL_F32, **dict(TILES[0].defines), "LANES": LANES, "INSIDE": 0, "SPLIT": 0,
        "VEC_W": 1, "VEC_Y": 0,
    },
    "nd-chain_rows-add_0_1+gelu_v+mul_v_2-f32": {
        **ALL_F32, "OPERANDS": 3, "STEP0": 2, "STEP1": 1, "STEP2": 0, "HALVES": 1,
    },
    **{
        f"nd-conv_mma-{text}-f32": {
            **ALL_F32, **dict(tile.defines), "LANES": tile.lanes, "INSIDE": 0, "SPLIT": 0,
            "TAPS": taps, "EVEN": taps % 2, "VEC_W": 1 - taps % 2, "VEC_Y": taps % 2,
        }
        for tile, text, taps in (
            (conv_tiles(replace(GPU, precision="tf32"), F32)[-1], "nd.relu_v", 9),
            (conv_tiles(replace(GPU, precision="bf16"), F32)[-1], "add_v_0", 0),
        )
    },
}  # fmt: skip
"""One for each source, with types that need other code than f32."""


@NEEDS_BINDINGS
@pytest.mark.parametrize("arch", [ARCHS[0], ARCHS[-1]])
@pytest.mark.parametrize("name", PROGRAMS)
def test_compiles(name, arch):
    from ggsched_cuda_kernels.sources import options_for, text_of

    defines = tuple((k, str(v)) for k, v in {**COMMON, **PROGRAMS[name]}.items())
    mode = "on" if arch >= FIRST_ARCH else "off"
    text = text_of(name, mode, Launch.AT_HEAD)
    assert ("EARLY_START();" in text) == (mode == "on")
    assert compiler().compiles(text, options_for(arch, defines))


@NEEDS_BINDINGS
def test_every_expression_compiles():
    from ggsched_cuda_kernels.sources import options_for

    types = {"A_T": "f32", "Y_T": "f32", **COMMON}
    defines = tuple((k, str(v)) for k, v in types.items())
    assert compiler().compiles(expressions("cuda"), options_for(ARCHS[0], defines))


def test_the_plug_in_offers_what_opencl_offers():
    ops = {key for key in supported_ops("opencl", has_f64=True) if key.startswith("nd.")}
    assert ops
    assert ops <= supported_ops("cuda", has_f64=True)


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    ops = supported_ops("cuda", has_f64=True)
    made = CudaOnHost(tmp_path_factory.mktemp("arrays"), ops)
    yield made
    made.close()


ON_HOST = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="uses instructions of x86-64"),
    pytest.mark.skipif(not importlib.util.find_spec("onnx"), reason="needs ONNX's own tests"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def cases():
    from onnx.backend.test.case.node import collect_testcases

    from tests.importers.onnx_nodes import covered, excluded

    patterns = excluded()
    return [c for c in collect_testcases(None) if c.data_sets and covered(c, patterns)]


class TestOnHost:
    pytestmark = ON_HOST

    def test_one_of_each_kind(self, device, cases):
        from tests.importers.onnx_nodes import FEW, run

        some = [c for c in cases if c.name in FEW]
        assert run(device, some, lambda keys, seen: True) == len(FEW)

    def test_one_of_each_op(self, device, cases):
        from tests.importers.onnx_nodes import is_new, run

        assert run(device, cases, is_new) > 30
