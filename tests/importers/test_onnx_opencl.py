"""ONNX's own tests of its ops on OpenCL, those whose ops have kernels there."""

import numpy as np
import pytest

from ggsched import GraphBuilder, Scheduler
from ggsched.backend.user_kernels import user_op_keys
from ggsched.errors import DeviceFault
from ggsched_kernels.array_table import (
    BEST,
    BY_TYPE,
    ELEMENTS,
    MOVES,
    PUTS,
    REDUCTIONS,
    RUNNING,
    TAKES,
    WINDOWS,
)
from ggsched_kernels.arrays import array_ops
from tests.backends.opencl_devices import opencl_device
from tests.importers.onnx_nodes import FEW, gather, is_new, run
from tests.kernels.array_expressions import expressions


def test_every_op_with_a_kernel_is_in_the_library():
    from ggsched.ops.nd import library

    names = {key.partition(":")[0] for key in array_ops(has_f64=True)}
    assert names <= set(library())
    assert {n.removeprefix("nd.") for n in names} == {
        *ELEMENTS, *BY_TYPE, *REDUCTIONS, *WINDOWS, *MOVES, *TAKES, *PUTS, *RUNNING,
        *BEST, "gather", "pad", "top_k"
    }  # fmt: skip
    assert not user_op_keys("opencl") & names


@pytest.fixture(params=["cpu", "gpu"])
def device(request):
    """The device with kernels cut for processors, and with groups of many work-items."""
    made = opencl_device(profile=request.param)
    yield made
    made.close()


@pytest.mark.opencl
@pytest.mark.filterwarnings("ignore")
def test_one_of_each_kind(cases):
    device = opencl_device()
    some = [c for c in cases if c.name in FEW]
    assert len(some) == len(FEW)
    assert run(device, some, lambda keys, seen: True) == len(FEW)
    device.close()


@pytest.mark.opencl
def test_every_expression_compiles():
    from ggsched_opencl import driver

    device = opencl_device()
    defines = (("VW", "8"), ("LANES", "1"), ("A_T", "f32"), ("Y_T", "f32"))
    driver.build_program(device.context, expressions("opencl"), defines)
    device.close()


@pytest.mark.opencl
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_one_of_each_op(device, cases):
    assert run(device, cases, is_new) > 30


@pytest.mark.opencl
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_all_that_have_kernels(device, cases):
    assert run(device, cases, lambda keys, seen: True) > 1000


@pytest.mark.opencl
@pytest.mark.parametrize("bad", [-6, 5])
def test_an_index_out_of_range_is_a_fault(device, bad):
    with pytest.raises(DeviceFault, match="5 rows"):
        gather(device, [-5, bad])


@pytest.mark.opencl
def test_strided_operands_and_many_axes(device):
    g = GraphBuilder()
    x = g.input("x", (2, 3, 4, 5, 2))
    turned = g.permute(x, 4, 2, 1, 0, 3)
    nodes = (
        g.op("nd.exp", turned),
        g.op("nd.reduce_sum", turned, axes=(1, 3), keepdims=False),
        g.op("nd.gather", turned, g.input("i", (2, 2), "i32"), axis=2),
        g.op("nd.concat", turned, turned, turned, axis=1),
        g.op("nd.slice", turned, starts=(1, 3, 0, 0, 4), stops=(-1, 0, 3, 2, -1),
             steps=(-1, -2, 2, 1, -1)),
    )  # fmt: skip
    graph = g.build(*nodes)
    rng = np.random.default_rng(0)
    values = {
        "x": rng.standard_normal(x.shape).astype(np.float32),
        "i": rng.integers(-3, 3, (2, 2)).astype(np.int32),
    }
    found = []
    for there in (device, "cpu:0"):
        with Scheduler([there]) as scheduler:
            found.append(scheduler.run(graph, values))
    for tid in graph.outputs:
        np.testing.assert_allclose(found[0][tid], found[1][tid], rtol=1e-5, atol=1e-6)
