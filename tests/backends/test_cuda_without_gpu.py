"""What of the backend ``cuda`` can be tested on a machine without a GPU."""

import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.backend.base import BaseDevice, host_facts
from ggsched.backend.program import BoundNode, Operand, full_params
from ggsched.backend.registry import discover, open_devices
from ggsched.errors import BackendUnavailable, GgschedError, UsageError
from ggsched.ir.dtype import F32

MOST = 8


@pytest.fixture
def no_gpu():
    """Skip where there is a GPU: then the GPU itself is tested."""
    pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")
    from ggsched_cuda import driver

    try:
        driver.find_gpus()
    except BackendUnavailable:
        return
    pytest.skip("there is a GPU here")


def test_the_plugin_is_told_about_with_its_reason(no_gpu):
    (status,) = (s for s in discover(allow=["cuda"]) if s.name == "cuda" and s.state != "blocked")
    assert status.state == "unavailable"
    assert "driver" in status.reason
    assert "ggsched[cuda]" in status.hint


def test_naming_it_says_what_to_do(no_gpu):
    with pytest.raises(BackendUnavailable, match="driver"):
        open_devices(["cuda:0/1"])


def test_parts_of_a_backend_that_has_none():
    with pytest.raises(UsageError, match="no logical devices named by a part"):
        open_devices(["cpu:0/1"])


@pytest.mark.parametrize("spec", ["cuda:0/", "cuda:/1", "cuda/1", "cuda:0/x", "cuda:0/1/2"])
def test_malformed_parts(spec):
    with pytest.raises(UsageError, match="is not a device"):
        open_devices([spec])


# --- products: what cuBLAS would be asked to do, done by numpy -------------------------------


class Memory:
    """A buffer for lowering, and numpy arrays for what is lowered."""

    device = BaseDevice(host_facts("nowhere", ()), {})

    def __init__(self, nbytes):
        self.bytes = np.zeros(nbytes, np.uint8)
        self.nbytes = nbytes


def product_by_numpy(call):
    """Do what ``gemm_strided_batched_ex`` does, with w transposed, in float64."""
    m, n, k = call.size
    count, *steps = call.batches

    def view(place, rows, columns, step, distance):
        memory, offset = place
        array = memory.bytes[offset:].view(np.float32)
        strides = (4 * distance, 4 * step, 4)
        return np.lib.stride_tricks.as_strided(array, (count, rows, columns), strides)

    w, x, y = (
        view(place, rows, columns, step, distance)
        for place, (rows, columns), step, distance in zip(
            (call.w, call.x, call.y), ((n, k), (m, k), (m, n)), call.rows, steps, strict=True
        )
    )
    assert all(step >= extent for step, extent in zip(call.rows, (k, k, n), strict=True))
    found = x.astype(np.float64) @ w.astype(np.float64).swapaxes(1, 2)
    y[...] = y + found if call.adds else found


extents = st.integers(1, MOST)


@given(
    groups=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    ratio=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    size=st.tuples(st.integers(5, 9), extents, extents),
    order=st.sampled_from(["plain", "heads"]),
    single=st.booleans(),
    seed=st.integers(0, 100),
)
def test_products_of_any_batches(groups, ratio, size, order, single, seed):
    from ggsched_cuda_kernels.blas.driver import F32 as KIND
    from ggsched_cuda_kernels.calls import ProductCall
    from ggsched_cuda_kernels.kernel_selection import lower

    (w0, w1), (r0, r1), (m, n, k) = ((1, 1) if single else groups), ratio, size
    rng = np.random.default_rng(seed)
    w, x, y = (operand(s, o) for s, o in (
        ((w0, w1, n, k), "plain"), ((w0 * r0, w1 * r1, m, k), order),
        ((w0 * r0, w1 * r1, m, n), "plain"),
    ))  # fmt: skip
    for o in (w, x):
        array(o)[...] = rng.standard_normal(o.shape)
    node = BoundNode(0, "mul_mat", (w, x), y, full_params("mul_mat", {}), "n0 mul_mat")
    calls, _ = lower([node])
    if not all(isinstance(call, ProductCall) for call in calls):
        assert order == "heads", "rows that follow each other evenly go to cuBLAS"
        return
    assert all(call.kind == KIND for call in calls)
    for call in calls:
        product_by_numpy(call)
    wide = np.repeat(np.repeat(array(w), r0, 0), r1, 1)
    expected = array(x).astype(np.float64) @ wide.swapaxes(2, 3)
    np.testing.assert_allclose(array(y), expected, rtol=1e-5, atol=1e-5)


def operand(shape, order):
    """Return an f32 operand; ``heads``: the second axis lies inside the third, as in attention."""
    memory = Memory(4 * int(np.prod(shape)) + 64)
    _, b, c, d = shape
    strides = (4 * b * c * d, 4 * c * d, 4 * d, 4)
    if order == "heads":
        strides = (4 * b * c * d, 4 * d, 4 * b * d, 4)
    return Operand(memory, 0, 4 * int(np.prod(shape)), F32, shape, strides)


def array(o):
    flat = o.buffer.bytes.view(np.float32)
    return np.lib.stride_tricks.as_strided(flat, o.shape, o.strides)


# --- which kernel runs which node -------------------------------------------------------------


def chosen(op, shapes, dtypes, strides=None, profile=None):
    from ggsched.ir.dtype import dtype_by_name
    from ggsched.ir.tensor import contiguous_strides
    from ggsched_cuda_kernels.calls import CudaLoweringContext
    from ggsched_cuda_kernels.kernel_selection import choose
    from ggsched_kernels import GPU

    operands = []
    for i, (shape, kind) in enumerate(zip(shapes, dtypes, strict=True)):
        dtype = dtype_by_name(kind)
        own = contiguous_strides(dtype, shape)
        if strides and i in strides:
            own = strides[i]
        operands.append(Operand(Memory(0), 0, 0, dtype, shape, own))
    *inputs, output = operands
    node = BoundNode(0, op, tuple(inputs), output, {}, f"n0 {op}")
    choice = choose(CudaLoweringContext(node, profile or GPU))
    return choice.name if choice else "shared"


@pytest.mark.parametrize(
    ("kind", "rows", "expected"),
    [
        ("f32", 1, "shared"), ("f32", 4, "shared"), ("f32", 5, "cublas f32"),
        ("bf16", 1, "shared"), ("bf16", 64, "cublas 2 x bf16"),
        ("f16", 4, "shared"), ("f16", 5, "cublas unpacked to bf16"),
        ("q8_0", 1, "shared"), ("q8_0", 512, "cublas unpacked to bf16"),
        ("mxfp4", 4, "shared"), ("mxfp4", 33, "cublas unpacked to bf16"),
    ],
)  # fmt: skip
def test_products_by_rows(kind, rows, expected):
    from ggsched_kernels import GPU

    shapes, dtypes = ((64, 128), (rows, 128), (rows, 64)), (kind, "f32", "f32")
    assert chosen("mul_mat", shapes, dtypes, profile=replace(GPU, activations="f32")) == expected
    is_rounded = expected.startswith("cublas") and kind != "f32"
    rounded = replace(GPU, activations="auto")
    wanted = "cublas rounded" if is_rounded else expected
    assert chosen("mul_mat", shapes, dtypes, profile=rounded) == wanted


def test_the_driver_starts_beside_the_imports(monkeypatch):
    pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")
    from ggsched_cuda import driver, open_backend

    threads = []

    def find_gpus():
        threads.append(threading.current_thread())
        return ()

    monkeypatch.setattr(driver, "find_gpus", find_gpus)
    open_backend()
    assert threads[0] is not threading.current_thread()
    assert not threads[0].is_alive()


@pytest.mark.parametrize("spec", ["cuda:0", "cuda:0/1"])
def test_gpus_without_the_instructions_of_kernels_are_refused(monkeypatch, spec):
    """By one line, instead of the compiler's text when a kernel is first needed."""
    pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")
    from ggsched_cuda import driver

    turing = driver.DeviceInfo(0, "Tesla T4", 75, 16 << 30, 13000, 40, 65536)
    monkeypatch.setattr(driver, "find_gpus", lambda: (turing,))
    with pytest.raises(GgschedError, match=r"(?s)Tesla T4.*compute capability 7\.5.*8\.0"):
        open_devices([spec])
