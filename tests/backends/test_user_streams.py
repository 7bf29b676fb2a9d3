"""Kernels of user-defined ops that are functions: they enqueue on the backend's own stream."""

from functools import cache

import numpy as np
import pytest

from ggsched.backend.device_array import DeviceArray, device_array
from ggsched.errors import DeviceFault, UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, Q8_0
from ggsched.ir.user_ops import Sample
from ggsched.passes.place import Constraints
from ggsched.scheduler import Scheduler
from ggsched_testing.conformance import Harness, run_conformance
from ggsched_testing.conformance.harness import adapted
from ggsched_testing.generators.values import ATOL, RTOL
from tests.backends.user_ops import registered
from tests.kernels.test_fibers import NEEDS, Runner

MOVED = {
    "operands": ("x",),
    "params": {"step": 0},
    "reference": lambda x, step: x,
    "samples": [Sample([(3, 8)]), Sample([(40, 7)], {"step": 2})],
}
"""What it does is a copy, which each library has, so that functions need no kernel of their own."""

SQUARES = """
kernel void squares(global const float *x, global float *out, float gain) {
  size_t i = get_global_id(0);
  out[i] = gain * x[i] * x[i];
}"""

SQUARED = {
    "operands": ("x",),
    "params": {"gain": 2.0},
    "in_place": (0,),
    "reference": lambda x, gain: gain * x * x,
    "magnitude": lambda x: 2 * x * x,
    "samples": [Sample([(3, 8)]), Sample([(40, 7)], {"gain": 0.5}), Sample([(0, 4)])],
}


@cache
def program(context):
    import pyopencl as cl

    return cl.Program(context, SQUARES).build()


def squared(queue, x, *, out, gain):
    """By pyopencl's own arrays and program."""
    import pyopencl.array

    assert isinstance(x, DeviceArray)
    a, b = (pyopencl.array.Array(queue, v.shape, v.dtype, data=v.memory, offset=v.offset)
            for v in (x, out))  # fmt: skip
    views = [v.base_data.get_sub_region(v.offset, v.nbytes) for v in (a, b)]
    return program(queue.context).squares(queue, (a.size,), None, *views, np.float32(gain))


def elementwise(queue, x, *, out, gain):
    """By kernels that pyopencl makes; there is no event to return."""
    import pyopencl.array

    a, b = (pyopencl.array.Array(queue, v.shape, v.dtype, data=v.memory, offset=v.offset)
            for v in (x, out))  # fmt: skip
    b[:] = a * a * np.float32(gain)


def half(queue, x, *, out, gain):
    squared(queue, narrow(x), out=narrow(out), gain=gain)


def narrow(a):
    return DeviceArray(a.memory, a.offset, (a.shape[0] // 2, *a.shape[1:]), a.dtype, a.stream)


def writes_an_operand(queue, x, *, out, gain):
    squared(queue, x, out=out, gain=gain)
    squared(queue, x, out=x, gain=gain)


@pytest.mark.opencl
class TestOpenCl:
    @pytest.mark.parametrize("function", [squared, elementwise])
    def test_right_ones_pass(self, function):
        with registered("squared", {**SQUARED, "kernels": {"opencl": function}}):
            report = run_conformance("opencl", op="squared")
        assert [r.case.name for r in report.results if r.verdict != "pass"] == []

    @pytest.mark.parametrize(
        ("function", "case"),
        [
            (writes_an_operand, "lch2_squared_operands"),
            (half, "lch1_squared_complete"),
            (lambda queue, x, *, out, gain: None, "lch1_squared_complete"),
        ],
        ids=["writes an operand", "half", "nothing"],
    )
    def test_wrong_ones_are_rejected(self, function, case):
        with registered("squared", {**SQUARED, "kernels": {"opencl": function}}):
            found = {r.case.name for r in run_conformance("opencl", op="squared").findings}
        assert case in found

    def test_a_plan_over_two_devices(self):
        def on_host(x, *, out, gain):
            np.multiply(x, x * np.float32(gain), out=out)

        kernels = {"cpu": on_host, "opencl": squared}
        with registered("squared", {**SQUARED, "kernels": kernels}):
            g = GraphBuilder()
            x = g.input("x", (6, 8))
            y = g.op("squared", g.transpose(x), gain=0.5)  # strided
            graph = g.build(y=g.op("squared", g.add(y, 1.0)))
            value = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
            pins = Constraints(pins={0: 1, 1: 0, 2: 1})
            with Scheduler(["cpu:0", "opencl:0"]) as scheduler:
                found = scheduler.run(graph, {"x": value}, pins)["y"]
        np.testing.assert_allclose(found, 2 * (0.5 * value.T**2 + 1) ** 2, RTOL, ATOL)

    def test_an_error_names_the_node(self):
        def fails(queue, x, *, out, gain):
            raise ValueError("no such thing")

        with registered("squared", {**SQUARED, "kernels": {"opencl": fails}}):
            g = GraphBuilder()
            graph = g.build(y=g.op("squared", g.silu(g.input("x", (2,)))))
            with (
                Scheduler(["opencl:0"]) as scheduler,
                pytest.raises(DeviceFault, match=r"n1 squared.*no such thing"),
            ):
                scheduler.run(graph, {"x": np.ones(2, np.float32)})


@pytest.mark.parametrize("is_wrong", [pytest.param(w, marks=NEEDS) for w in (False, True)])
def test_cuda_in_software(is_wrong, compiled_kernels):
    pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")
    from ggsched_cuda import driver
    from ggsched_cuda.harness import CudaHarness
    from tests.backends.software_kernels import in_software

    def moved(stream, x, *, out, step):
        nbytes = int(np.prod(x.shape)) * x.dtype.itemsize
        assert x.stream == stream
        driver.enqueue_copy(out.pointer, x.pointer, nbytes // (1 + is_wrong), stream)

    with (
        registered("moved", {**MOVED, "kernels": {"cuda": moved}}),
        in_software(Runner(compiled_kernels), 0),
    ):
        own = CudaHarness()
        report = run_conformance(
            adapted(Harness("cuda", own.open, timeout_s=60.0), own), op="moved"
        )
    failed = {r.case.name for r in report.results if r.verdict != "pass"}
    assert ("lch1_moved_complete" in failed) if is_wrong else not failed


def test_arrays_of_cuda_are_those_of_other_libraries():
    x = DeviceArray(1 << 20, 64, (2, 3), np.dtype("<f2"), stream=5)
    assert x.__cuda_array_interface__ == {
        "shape": (2, 3), "typestr": "<f2", "data": ((1 << 20) + 64, False), "strides": None,
        "stream": 5, "version": 3,
    }  # fmt: skip
    other = DeviceArray(object(), 0, (2,), np.dtype("<f4"), None)
    assert not hasattr(other, "__cuda_array_interface__")
    with pytest.raises(UsageError, match="without an address"):
        _ = other.pointer


def test_types_that_numpy_lacks_are_words_and_bytes():
    assert device_array(0, 0, BF16, (4, 8), None).dtype == np.uint16
    blocks = device_array(0, 0, Q8_0, (4, 64), None)
    assert (blocks.shape, blocks.dtype) == ((4, 68), np.uint8)
