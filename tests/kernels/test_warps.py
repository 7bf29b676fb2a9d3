"""Kernels for devices with warps, run on PoCL with groups of many work-items, against the oracle.

What CUDA adds to them (a producer warp, shuffles, tensor cores)
is emulated there by local memory and barriers; the lowering, the sums and all edges are the same.
"""

import numpy as np
import pytest

from ggsched.errors import BackendUnavailable, DeviceFault
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F16, F32, I32, MXFP4, Q2_K, Q4_0, Q8_0
from ggsched_kernels import lower_nodes, warp_profile
from ggsched_kernels.block_bytes import BYTE_BLOCKS, OWN_CODE
from ggsched_testing.eager import bound_nodes, run_direct
from ggsched_testing.generators.values import LeafRule
from tests.backends.against_oracle import check, tame
from tests.backends.op_graphs import decoder_products
from tests.kernels.test_fibers import Memory

pytestmark = pytest.mark.opencl

slow = pytest.mark.slow  # every type of weight is a program, and takes PoCL seconds to compile
PLAIN = (F16, pytest.param(F32, marks=slow), pytest.param(BF16, marks=slow))
BLOCKS = (Q8_0, pytest.param(Q4_0, marks=slow), pytest.param(MXFP4, marks=slow))
BY_FIELDS = [t for t in BYTE_BLOCKS if t not in OWN_CODE]
FIELDS = [Q2_K, *(pytest.param(t, marks=slow) for t in BY_FIELDS if t is not Q2_K)]
"""Types whose bytes are put together from fields: one with parts of 16, sums, and super-blocks."""
PROFILE = warp_profile(num_sms=2, local_nbytes=150 << 10, has_tma=False)


@pytest.fixture(scope="module")
def device():
    try:
        from ggsched_opencl import driver
        from ggsched_opencl.device import OpenClDevice

        found = driver.find_devices().devices
    except BackendUnavailable as error:
        pytest.skip(str(error))
    made = OpenClDevice(0, found[0], profile=PROFILE, timeout_s=60.0)
    yield made
    made.close()


def kernels(device, graph):
    """Return the names of the kernels that a graph becomes."""
    from ggsched_kernels import lower_nodes
    from ggsched_testing.eager import bound_nodes

    buffers = {t.id: device.allocate(t.nbytes) for t in graph.tensors if not t.is_view}
    lowered = lower_nodes(bound_nodes(graph, buffers), device.profile)
    for buffer in buffers.values():
        buffer.close()
    return [call.kernel for call in lowered.calls]


def test_opencl_gpus_read_weights_of_few_rows_in_place():
    from ggsched_opencl.device import profile_of
    from ggsched_opencl.driver import DeviceInfo

    gpu = DeviceInfo(
        None, "a platform", "3.0", "a GPU", False, 1 << 34, 1 << 32, 128, compute_units=40
    )
    profile = profile_of(gpu)
    assert profile.num_sms == 40
    for dtype in (BF16, Q8_0):
        graph = product(dtype, 64, 256, 1)
        memory = {t.id: Memory(0) for t in graph.tensors if not t.is_view}
        (call,) = lower_nodes(bound_nodes(graph, memory), profile).calls
        assert call.kernel == "matvec_rows"


def product(dtype, n, k, m):
    g = GraphBuilder()
    return g.build(g.mul_mat(g.weight("w", (n, k), dtype), g.input("x", (m, k))))


@pytest.mark.parametrize("dtype", BLOCKS, ids=str)
@pytest.mark.parametrize(("n", "k"), [(16, 32), (1, 64), (67, 96), (33, 2080)])
@pytest.mark.parametrize("m", [1, pytest.param(3, marks=slow)])
def test_blocks(device, dtype, n, k, m):
    graph = product(dtype, n, k, m)
    assert kernels(device, graph) == ["matvec_blocks"]
    check(device, graph, tame(graph), atol=1e-3)


@pytest.mark.parametrize("dtype", FIELDS, ids=str)
@pytest.mark.parametrize("m", [3, pytest.param(1, marks=slow), pytest.param(8, marks=slow)])
def test_blocks_by_their_fields(device, dtype, m):
    g = GraphBuilder()
    w, x = g.weight("w", (40, 768), dtype), g.input("x", (m, 768))
    experts, ids = g.weight("v", (4, 21, 256), dtype), g.input("ids", (m, 2), I32)
    chosen = g.mul_mat_id(experts, g.input("z", (m, 1, 256)), ids)
    graph = g.build(g.mul_mat(w, x), g.mul_mat(g.rows(w, 3, 20), x), chosen)
    assert {name.removesuffix("_id") for name in kernels(device, graph)} == {"matvec_blocks"}
    check(device, graph, tame(graph, ids=LeafRule("ids", bound=4)), atol=1e-3)


@pytest.mark.parametrize("dtype", BLOCKS, ids=str)
@pytest.mark.parametrize("m", [2, pytest.param(4, marks=slow), pytest.param(7, marks=slow)])
def test_blocks_and_columns(device, dtype, m):
    graph = product(dtype, 40, 320, m)
    assert kernels(device, graph) == ["matvec_blocks"]
    check(device, graph, tame(graph), atol=1e-3)


@pytest.mark.parametrize("dtype", PLAIN, ids=str)
@pytest.mark.parametrize(("n", "k"), [(16, 32), (1, 8), (67, 96), (33, 2080), (300, 64)])
@pytest.mark.parametrize("m", [1, 3, 8])
def test_rows(device, dtype, n, k, m):
    graph = product(dtype, n, k, m)
    assert kernels(device, graph) == ["matvec_rows"]
    check(device, graph, tame(graph), atol=1e-3)


@pytest.mark.parametrize("dtype", [F16, F32], ids=str)
def test_what_is_not_aligned_takes_another_kernel(device, dtype):
    graph = product(dtype, 5, 33, 2)
    assert kernels(device, graph) == ["matvec"]
    check(device, graph, tame(graph))


@pytest.mark.parametrize("kv", PLAIN, ids=str)
@pytest.mark.parametrize(("heads", "groups"), [(8, 2), (4, 4), (9, 1)])
@pytest.mark.parametrize("tokens", [1, 3])
def test_attention(device, kv, heads, groups, tokens):
    graph = decoder_products(kv, heads, groups, tokens)
    names = kernels(device, graph)
    assert names[0] == "matvec_rows"
    assert "matvec_sums" in names
    check(device, graph, tame(graph, mask=LeafRule("mask")))


def test_batches_of_two_axes(device):
    g = GraphBuilder()
    w, x = g.weight("w", (2, 3, 9, 32), F16), g.input("x", (4, 3, 6, 32))
    v, y = g.weight("v", (2, 3, 9, 32), Q8_0), g.input("y", (2, 6, 1, 32))
    graph = g.build(g.mul_mat(w, x), g.mul_mat(v, x), g.mul_mat(w, y), g.mul_mat(v, y))
    check(device, graph, tame(graph))


@pytest.mark.parametrize("dtype", [*PLAIN, *BLOCKS], ids=str)
@pytest.mark.parametrize(("tokens", "rows"), [(1, 1), (2, 3)])
def test_mul_mat_id(device, dtype, tokens, rows):
    g = GraphBuilder()
    w, x = g.weight("w", (5, 70, 96), dtype), g.input("x", (tokens, rows, 96))
    graph = g.build(g.mul_mat_id(w, x, g.input("ids", (tokens, 3), I32)))
    assert kernels(device, graph)[0].endswith("_id")
    check(device, graph, tame(graph, ids=LeafRule("ids", bound=5)))


@pytest.mark.parametrize("dtype", [F16, Q8_0], ids=str)
def test_an_expert_that_does_not_exist(device, dtype):
    g = GraphBuilder()
    w, x = g.weight("w", (4, 40, 64), dtype), g.input("x", (2, 1, 64))
    graph = g.build(g.mul_mat_id(w, x, g.input("ids", (2, 2), I32)))
    values = tame(graph) | {"ids": np.array([[0, 1], [4, 2]], np.int32)}
    with pytest.raises(DeviceFault, match=r"row 4 was requested.*4 rows"):
        run_direct(device, graph, values)


def test_large_and_small_numbers_side_by_side(device):
    """Digits are relative to the largest number of a block, as small as the others may be."""
    graph = product(Q8_0, 20, 128, 1)
    values = tame(graph)
    x = values["x"]
    x[0, :32] *= 1e-30
    x[0, 32:64] *= 1e30
    x[0, 64:96] = 0.0
    check(device, graph, values, atol=1e25)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite(device, bad):
    graph = product(Q8_0, 20, 64, 1)
    values = tame(graph)
    values["x"][0, 40] = bad
    (result,) = run_direct(device, graph, values).values()
    assert np.isnan(result).all()


@pytest.mark.parametrize("dtype", BLOCKS, ids=str)
def test_a_view_of_rows(device, dtype):
    """Rows that begin anywhere, in the middle of a tensor and at its end."""
    g = GraphBuilder()
    w, x = g.weight("w", (50, 160), dtype), g.input("x", (1, 160))
    graph = g.build(*(g.mul_mat(g.rows(w, a, b), x) for a, b in ((1, 20), (33, 50), (49, 50))))
    assert set(kernels(device, graph)) == {"matvec_blocks"}
    check(device, graph, tame(graph), atol=1e-3)
