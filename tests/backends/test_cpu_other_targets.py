"""Kernels for older processors compute what those for this one do, as far as this one runs them."""

import ctypes

import numpy as np
import pytest

pytest.importorskip("llvmlite.binding")

from ggsched.backend.packed import dequantize
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F16, F32, Q4_K, Q5_0, Q6_K, Q8_0, QUANTIZED_DTYPES
from ggsched_cpu import native
from ggsched_cpu.device import CpuDevice, CpuSettings
from ggsched_cpu.kernels import gemv, packed_rows, rows_together
from ggsched_cpu.kernels.compiler import Linker, host_target, object_code
from ggsched_cpu.kernels.elements import coding
from ggsched_cpu.kernels.emit import module_text
from ggsched_cpu.kernels.int_dot import correction_factor, rounded_nbytes
from ggsched_cpu.kernels.library import Library
from ggsched_cpu.kernels.target import AVX2, AVX512, Target
from ggsched_testing.generators.values import random_blocks
from tests.backends import against_oracle

AVX_VNNI = Target(AVX2.triple, "alderlake", f"{AVX2.features},+avxvnni")
ZEN_FEATURES = f"{AVX512.features},+avx512bf16,+sse4a"  # no other maker's processor has sse4a
ZEN4 = Target(AVX512.triple, "znver4", ZEN_FEATURES)
ZEN5 = Target(AVX512.triple, "znver5", f"{ZEN_FEATURES},-avxvnni,-avx512vp2intersect")
TARGETS = {"avx2": AVX2, "avx512": AVX512, "avxvnni": AVX_VNNI, "zen4": ZEN4, "zen5": ZEN5}
KERNEL = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
)
ROWS = 5


def runs_here(target):
    host = host_target()
    needed = [f[1:] for f in target.features.split(",") if f[0] == "+"]
    return host.is_x86 and host.has(*needed)


def call(target, builder, arguments):
    code = object_code(module_text(builder), target)
    linker = Linker()
    (address,) = linker.load(code, [builder.name]).values()
    slots = np.array(arguments, np.int64)
    assert KERNEL(address)(slots.ctypes.data, 0, 1, None) == 0


def product(target, dtype, w, x, activations):
    """Return x @ w.T by the kernel for one row of activations at a time."""
    n, k, vectors = len(w), x.shape[-1], x.size // x.shape[-1]
    read = x
    if activations == "int8":
        factor = correction_factor(target, coding(dtype.layout))
        read = np.zeros(rounded_nbytes(k), np.uint8)
        head = [k // 32, 1, 1, 1, 1, k // 32]
        places = [x.ctypes.data, 0, 0, 0, 0, read.ctypes.data, 0, 0, 0, 0]
        call(target, packed_rows.round_rows("round", target), [*head, *places, factor])
    out = np.zeros((*x.shape[:-1], n), np.float32)
    values = {
        "w": w.ctypes.data, "x": read.ctypes.data, "out": out.ctypes.data,
        "rows": n, "columns": k, "w_row": dtype.row_nbytes(k), "vectors": vectors,
        "x_row": read.itemsize * k, "out_row": 4 * n, "chunks": 1, "chunk_rows": n, "inner": 1,
        "w_outer_share": 1, "w_inner_share": 1,
    }  # fmt: skip
    kernel = gemv.gemv("product", target, dtype, activations, 1, "batch")
    call(target, kernel, [values.get(name, 0) for name in gemv.SLOTS])
    return out


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("dtype", QUANTIZED_DTYPES, ids=str)
def test_products_of_packed_weights(name, dtype):
    """With whole pairs of blocks and with one left; both kinds of activations."""
    target = TARGETS[name]
    if not runs_here(target):
        pytest.skip(f"this processor does not run code for {target.title}")
    rng = np.random.default_rng(3)
    for blocks in (1, 7):
        k = dtype.block * blocks
        w = np.ascontiguousarray(random_blocks(dtype, (ROWS, k), 0.5, rng)).reshape(ROWS, -1)
        x = rng.standard_normal(k).astype(np.float32)
        wide = dequantize(w, dtype, (ROWS, k)).astype(np.float64)
        wanted, size = wide @ x, np.abs(wide) @ np.abs(x)
        exact = product(target, dtype, w, x, "f32")
        np.testing.assert_array_less(np.abs(exact - wanted), 1e-6 * size)
        assert np.all(np.abs(product(target, dtype, w, x, "int8") - wanted) < 1e-2 * size)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_products_of_plain_weights(name, dtype):
    """Rows of every remainder: of a step, of a vector."""
    target = TARGETS[name]
    if not runs_here(target):
        pytest.skip(f"this processor does not run code for {target.title}")
    rng = np.random.default_rng(4)
    k = 4 * 16 + 16 + 3
    wide = rng.standard_normal((ROWS, k)).astype(np.float32)
    wide = (wide.view(np.uint32) & 0xFFFF0000).view(np.float32)
    w = {F32: wide, F16: wide.astype(np.float16), BF16: (wide.view(np.uint32) >> 16).astype("u2")}
    kept = w[dtype].astype(np.float64) if dtype is F16 else wide.astype(np.float64)
    x = rng.standard_normal(k).astype(np.float32)
    size = np.abs(kept) @ np.abs(x)
    found = product(target, dtype, w[dtype], x, "f32")
    np.testing.assert_array_less(np.abs(found - kept @ x), 1e-6 * size)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
@pytest.mark.parametrize("more", [0, 32, 5])
def test_products_of_long_rows(name, dtype, more):
    """Rows of 8 KB and more: some at a time where that is faster, and those that are left."""
    target = TARGETS[name]
    if not runs_here(target) or (dtype is BF16 and (more == 5 or "bf16" not in target.features)):
        pytest.skip(f"no such kernel for {target.title}, or this processor does not run it")
    rng = np.random.default_rng(5)
    k, rows = 8192 // dtype.block_nbytes + more, 2 * rows_together.TOGETHER + 3
    w = rng.standard_normal((rows, k)).astype(np.float16 if dtype is F16 else np.float32)
    x = rng.standard_normal((3, k)).astype(np.float32)
    kept, given, activations = w, x, "f32"
    if dtype is BF16:
        w, x = ((a.view(np.uint32) & 0xFFFF0000).view(np.float32) for a in (w, x))
        kept, given = ((a.view(np.uint32) >> 16).astype(np.uint16) for a in (w, x))
        activations = "bf16"
    wide = w.astype(np.float64)
    found = product(target, dtype, kept, given, activations)
    np.testing.assert_array_less(np.abs(found - x @ wide.T), 1e-6 * (np.abs(x) @ np.abs(wide.T)))


@pytest.mark.parametrize(("dtype", "x"), [(F32, "f32"), (F16, "f32"), (BF16, "bf16")], ids=str)
def test_kernels_that_take_rows_together(dtype, x):
    """One row of activations: a sum for each of the rows, and one for a row by itself."""
    texts = [module_text(gemv.gemv("k", ZEN4, dtype, x, n, "batch")) for n in (1, 2)]
    stores = [text.count("store float") for text in texts]
    assert stores[0] >= rows_together.TOGETHER + 1
    assert stores[1] < rows_together.TOGETHER
    assert "8192" in texts[0]


def test_rows_are_taken_together_where_processors_fetch_streams():
    """On Zen 4 alone: others read row by row, as the measurements say."""
    takes = rows_together.takes_rows_together
    found = [takes(t, F16, "f32", 1) for t in (AVX2, AVX512, ZEN4, ZEN5)]
    assert found == [False, False, True, False]
    assert [takes(ZEN4, BF16, x, 1) for x in ("f32", "bf16")] == [False, True]
    assert not takes(ZEN4, F16, "f32", 2)


@pytest.mark.parametrize("name", TARGETS)
def test_products_of_many_rows(monkeypatch, tmp_path, name):
    """In 8 bits where the target has instructions for that, else in f32."""
    target = TARGETS[name]
    if not runs_here(target):
        pytest.skip(f"this processor does not run code for {target.title}")
    native.walk_functions()  # kept for the process, so they must not be those of ``made``
    made = Library(target, tmp_path)
    monkeypatch.setattr("ggsched_cpu.native.library", lambda: made)
    device = CpuDevice(0, CpuSettings(threads=1, activations="auto"))
    assert device.kernels_used.target is target
    for dtype in (F16, Q5_0, Q8_0, Q4_K, Q6_K):
        g = GraphBuilder()
        k = against_oracle.whole(96, dtype)
        graph = g.build(g.mul_mat(g.weight("w", (70, k), dtype), g.input("x", (45, k))))
        against_oracle.check(device, graph, against_oracle.tame(graph))
    device.close()
