"""Matrix products of the OpenCL kernels: every path, every type of weight, every kind of edge."""

import numpy as np
import pytest

from ggsched.errors import DeviceFault
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F16, F32, I32, MXFP4
from ggsched_kernels.block_constants import KERNEL_DTYPES
from ggsched_testing.eager import run_direct
from ggsched_testing.generators.values import LeafRule
from tests.backends.against_oracle import check, tame, whole
from tests.backends.op_graphs import attention_graph, decoder_products, expert_products, rows_by_ids
from tests.backends.opencl_devices import on_profiles, opencl_device

pytestmark = pytest.mark.opencl

PLAIN = (F32, F16, BF16)


@pytest.fixture(scope="module", params=["cpu", "gpu"])
def device(request):
    made = opencl_device(profile=request.param)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("device", "dtype"), on_profiles(KERNEL_DTYPES), indirect=["device"], ids=str
)
@pytest.mark.parametrize("m", [1, 3, 5, 130])
def test_mul_mat(device, dtype, m):
    g = GraphBuilder()
    k = whole(96, dtype)
    w, x = g.weight("w", (67, k), dtype), g.input("x", (m, k))
    graph = g.build(g.mul_mat(w, x))
    check(device, graph, tame(graph))


@pytest.mark.parametrize("m", [1, 4, 5, 64, 127])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (4, 33), (7, 7), (66, 1100), (3, 2050)])
def test_edges(device, m, n, k):
    g = GraphBuilder()
    graph = g.build(g.mul_mat(g.weight("w", (n, k)), g.input("x", (m, k))))
    check(device, graph, tame(graph), atol=1e-3)


@pytest.mark.parametrize(("device", "dtype"), on_profiles(PLAIN), indirect=["device"], ids=str)
@pytest.mark.parametrize("m", [1, 2, 9])
@pytest.mark.parametrize("n", [3, 40, 200])
def test_transposed_weights(device, dtype, m, n):
    g = GraphBuilder()
    w = g.transpose(g.weight("w", (70, n), dtype))
    whole = g.weight("v", (n, 70, 2), dtype)
    spread = g.view(whole, (n, 70), whole.strides[:2])
    x = g.input("x", (m, 70))
    across = g.transpose(g.input("y", (70, m)))
    graph = g.build(*(g.mul_mat(a, b) for a in (w, spread) for b in (x, across)))
    check(device, graph, tame(graph))


@pytest.mark.parametrize(("device", "kv"), on_profiles(PLAIN), indirect=["device"], ids=str)
@pytest.mark.parametrize(("heads", "groups"), [(8, 2), (4, 4), (6, 1)])
@pytest.mark.parametrize("tokens", [1, 5])
def test_attention(device, kv, heads, groups, tokens):
    graph = decoder_products(kv, heads, groups, tokens)
    check(device, graph, tame(graph, mask=LeafRule("mask")))


ATTENTION = [
    # tokens, heads, key heads, widths of keys and values, rows, mask, sinks, bounds, soft cap
    (1, 8, 2, 32, 32, 300, None, False, True, 0.0),
    (1, 2, 2, 128, 128, 1300, None, True, True, 0.0),  # shares of the rows are joined
    (2, 1, 1, 16, 24, 700, "mask", True, False, 0.0),
    (1, 6, 1, 8, 8, 1, None, False, False, 0.0),
    (37, 8, 2, 32, 40, 300, None, True, True, 0.0),
    (5, 4, 4, 256, 192, 70, "heads", False, False, 5.0),
    (9, 6, 3, 13, 7, 33, "mask", True, True, 3.0),
]


@pytest.mark.parametrize(("device", "kv"), on_profiles(PLAIN), indirect=["device"], ids=str)
@pytest.mark.parametrize("case", ATTENTION, ids=str)
def test_attention_op(device, kv, case):
    graph = attention_graph(case, kv)
    rules = {"mask": LeafRule("mask"), "bounds": LeafRule("bounds", bound=case[5])}
    check(device, graph, tame(graph, **rules))


def test_attention_to_nothing_gives_zeros(device):
    g = GraphBuilder()
    k, q = g.input("k", (600, 1, 4)), g.input("q", (2, 2, 4))
    bounds, mask = g.input("bounds", (2, 2), I32), g.input("mask", (600,))
    graph = g.build(g.attention(q, k, k, bounds=bounds), g.attention(q, k, k, mask=mask))
    values = tame(graph) | {"mask": np.full(600, -np.inf, np.float32)}
    values["bounds"] = np.array([[3, 3], [600, 700]], np.int32)
    check(device, graph, values)


def test_batches_of_two_axes(device):
    g = GraphBuilder()
    w, x = g.weight("w", (2, 3, 9, 32), F16), g.input("x", (4, 3, 6, 32))
    graph = g.build(g.mul_mat(w, x), g.mul_mat(g.weight("v", (9, 32)), x))
    check(device, graph, tame(graph))


@pytest.mark.parametrize(
    ("device", "dtype"), on_profiles(KERNEL_DTYPES), indirect=["device"], ids=str
)
@pytest.mark.parametrize(("tokens", "rows"), [(1, 1), (1, 3), (90, 1), (90, 3)])
def test_mul_mat_id(device, dtype, tokens, rows):
    graph = expert_products(dtype, tokens, rows)
    check(device, graph, tame(graph, ids=LeafRule("ids", bound=5)))


def test_all_rows_to_one_of_many_experts(device):
    g = GraphBuilder()
    w, x = g.weight("w", (40, 9, 32)), g.transpose(g.input("x", (300, 32, 1)))
    graph = g.build(g.mul_mat_id(w, x, g.input("ids", (300, 1), I32)))
    check(device, graph, tame(graph) | {"ids": np.full((300, 1), 39, np.int32)})


def test_transposed_experts(device):
    g = GraphBuilder()
    w, x = g.transpose(g.weight("w", (3, 40, 9), F16)), g.input("x", (2, 2, 40))
    graph = g.build(g.mul_mat_id(w, x, g.input("ids", (2, 2), I32)))
    check(device, graph, tame(graph, ids=LeafRule("ids", bound=3)))


@pytest.mark.parametrize("m", [1, 9])
def test_empty_sums_and_empty_results(device, m):
    g = GraphBuilder()
    x = g.input("x", (m, 0))
    graph = g.build(
        g.mul_mat(g.weight("w", (5, 0)), x),
        g.sum_rows(x),
        g.mul_mat(g.weight("v", (0, 8)), g.input("y", (m, 8))),
        g.soft_max(x),
        g.silu(x),
    )
    check(device, graph, tame(graph))


@pytest.mark.parametrize("m", [1, 20])
def test_every_exponent_of_mxfp4(device, m):
    raw = np.random.default_rng(0).integers(0, 256, (256, 17), np.uint8)
    raw[:, 0] = np.arange(256)
    finite = raw[:250]  # beyond, f32 weights are infinite while those of the oracle are not
    g = GraphBuilder()
    w, v = g.weight("w", (256, 32), MXFP4), g.weight("v", (250, 32), MXFP4)
    rows = g.get_rows(w, g.input("ids", (256,), I32))
    graph = g.build(g.mul_mat(v, g.input("x", (m, 32))), g.cont(w, F32), rows)
    values = {"w": raw, "v": finite, "ids": np.arange(256, dtype=np.int32)}
    values["x"] = np.zeros((m, 32), np.float32)
    values["x"][:, 3] = 2.0**-10
    check(device, graph, values, atol=0)


def test_f16_weights_may_be_infinite(device):
    g = GraphBuilder()
    graph = g.build(
        *(g.mul_mat(g.weight(f"w{m}", (2, 8), F16), g.input(f"x{m}", (m, 8))) for m in (1, 9))
    )
    w = np.full((2, 8), np.inf, np.float16)
    ones = {f"x{m}": np.ones((m, 8), np.float32) for m in (1, 9)}
    check(device, graph, {"w1": w, "w9": w, **ones})


@pytest.mark.parametrize("wrong", [-1, 4, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("op", ["get_rows", "set_rows", "mul_mat_id", "add_id"])
def test_ids_out_of_range_are_a_fault(device, op, count, wrong):
    graph = rows_by_ids(op, count)
    if op == "set_rows" and wrong == 4 and count > 4:
        wrong = count
    ids_given = np.arange(count, dtype=np.int32) % (count if op == "set_rows" else 4)
    ids_given[-1] = wrong
    total = max(4, count) if op == "set_rows" else 4
    with pytest.raises(DeviceFault, match=rf"n0 {op}.*row {wrong} was requested.*{total} rows"):
        run_direct(device, graph, tame(graph) | {"ids": ids_given})
