"""Every op of the OpenCL kernels against the oracle, cut for processors and for GPUs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F16, F32, I32
from ggsched.ir.ops import OPS
from ggsched_kernels import GPU, supported_ops
from ggsched_kernels.block_constants import KERNEL_DTYPES
from ggsched_kernels.lower_reductions import SHORT_ROW
from ggsched_testing.generators.strategies import graphs, seeds
from ggsched_testing.generators.values import LeafRule, values_for
from tests.backends.against_oracle import check, tame, whole
from tests.backends.op_graphs import rotations
from tests.backends.opencl_devices import GPU_DTYPES, on_profiles, opencl_device

pytestmark = pytest.mark.opencl

BINARY = ("add", "sub", "mul", "div")
UNARY = {
    "scale": (1.5, -0.25),
    "clamp": (-0.5, 0.25),
    "silu": (),
    "gelu": (),
    "sigmoid": (),
    "tanh": (),
}


@pytest.fixture(scope="module", params=["cpu", "gpu"])
def device(request):
    """The same device with kernels cut for processors, and with groups of many work-items."""
    made = opencl_device(profile=request.param)
    yield made
    made.close()


def dtypes_for(device):
    return GPU_DTYPES if device.profile is GPU else KERNEL_DTYPES


def test_every_op_is_supported():
    assert {key.partition(":")[0] for key in supported_ops()} == set(OPS)


@pytest.mark.slow
@settings(max_examples=400)
@given(drawn=graphs(max_nodes=16), seed=seeds())
def test_many_random_graphs(device, drawn, seed):
    check(device, drawn.graph, values_for(drawn, seed), runs=2)


@given(data=st.data(), seed=seeds())
def test_random_graphs(device, data, seed):
    drawn = data.draw(graphs(weight_dtypes=dtypes_for(device)))
    check(device, drawn.graph, values_for(drawn, seed), runs=2)


@pytest.mark.parametrize("op", OPS)
@settings(max_examples=15)
@given(data=st.data(), seed=seeds())
def test_each_op(device, op, data, seed):
    drawn = data.draw(graphs(max_nodes=4, ops=[op], weight_dtypes=dtypes_for(device)))
    check(device, drawn.graph, values_for(drawn, seed))


# --- element by element --------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5,), (3, 1000), (2, 3, 4, 37), (9000,)])
def test_arithmetic(device, shape):
    g = GraphBuilder()
    a, b, row = g.input("a", shape), g.input("b", shape), g.input("row", shape[-1:])
    one = g.input("one", (1,))
    outs = [getattr(g, op)(a, other) for op in BINARY for other in (b, row, one)]
    outs += [getattr(g, op)(a, *args) for op, args in UNARY.items()]
    outs += [g.swiglu(a, b), g.swiglu_oai(a, b, limit=0.5)]
    graph = g.build(*outs)
    positive = LeafRule("positive")
    check(device, graph, tame(graph, b=positive, row=positive, one=positive))


@pytest.mark.parametrize("op", [*BINARY, *UNARY])
def test_strided_and_in_place(device, op):
    g = GraphBuilder()
    whole = g.input("x", (6, 5, 40))
    part = g.view(whole, (6, 3, 17), (800, 160, 8), 4)  # every other column, some rows
    args = (g.input("y", (3, 17)),) if op in BINARY else UNARY[op]
    graph = g.build(getattr(g, op)(part, *args, inplace=True), whole)
    check(device, graph, tame(graph, y=LeafRule("positive")))


def test_large_arguments_of_exp(device):
    g = GraphBuilder()
    x = g.input("x", (20,))
    graph = g.build(
        g.silu(x), g.gelu(x), g.sigmoid(x), g.tanh(x), g.swiglu(x, x), g.swiglu_oai(x, x)
    )
    values = {"x": np.linspace(-200, 200, 20, dtype=np.float32)}
    check(device, graph, values)


# --- copies ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "dtype", "to"),
    on_profiles(KERNEL_DTYPES, (F32,), (F16,))
    + on_profiles([I32], (I32,))
    + on_profiles([BF16], (BF16,)),
    indirect=["device"],
    ids=str,
)
def test_conversions(device, dtype, to):
    g = GraphBuilder()
    n = whole(64, dtype)
    x = g.input("x", (3, 5, n), dtype)
    wider = g.input("y", (3, 5, n + 32), to)
    y = g.view(wider, (3, 5, n), wider.strides, 32 * to.block_nbytes)
    graph = g.build(g.cont(x, to), g.cpy(x, y), wider, g.cont(g.rows(x, 1, 3), to))
    check(device, graph, tame(graph, x=LeafRule(bound=100)), atol=1e-3)


@pytest.mark.parametrize("dtype", [F32, F16, BF16, I32], ids=str)
def test_copies_of_permuted_tensors(device, dtype):
    g = GraphBuilder()
    x = g.input("x", (3, 4, 5, 33), dtype)
    graph = g.build(*(g.cont(g.permute(x, *axes)) for axes in ((1, 0, 2, 3), (3, 2, 1, 0))))
    check(device, graph, tame(graph, x=LeafRule(bound=100)))


@pytest.mark.parametrize("unit", [False, True], ids=["scalars", "vectors"])
def test_half_precision_is_exact(device, unit):
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(-1, 64)
    finite = np.where(np.isfinite(every), every, np.float16(1)).astype(np.float32)
    above = np.nextafter(finite, np.float32(np.inf))
    with np.errstate(invalid="ignore"):
        single = np.concatenate([every.astype(np.float32), finite, above])
    g = GraphBuilder()
    x, y = g.input("x", every.shape, F16), g.input("y", single.shape)
    if not unit:
        x, y = g.transpose(x), g.transpose(y)
    graph = g.build(g.cont(x, F32), g.cont(y, F16))
    check(device, graph, {"x": every, "y": single}, rtol=0, atol=0)


def test_ties_of_half_precision_go_to_even(device):
    steps = np.arange(2049, dtype=np.float32)
    single = np.concatenate([(steps + 0.5) * 2.0**e for e in (-24, -14, 0, 5)])
    g = GraphBuilder()
    graph = g.build(g.cont(g.input("x", single.shape), F16))
    check(device, graph, {"x": single}, rtol=0, atol=0)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", [F32, I32], ids=str)
def test_concat(device, axis, dtype):
    shapes = [[3, 4, 5], [3, 4, 5]]
    shapes[1][axis] = 2
    g = GraphBuilder()
    a, b = (g.input(n, s, dtype) for n, s in zip("ab", shapes, strict=True))
    empty = g.input("e", tuple(0 if i == axis else n for i, n in enumerate(shapes[0])), dtype)
    graph = g.build(g.concat(a, b, axis), g.concat(a, empty, axis))
    check(device, graph, tame(graph, a=LeafRule(bound=9), b=LeafRule(bound=9)))


@pytest.mark.parametrize(
    ("shape", "target"),
    [((1,), (70,)), ((3,), (9,)), ((2, 40), (6, 40)), ((2, 1, 3), (4, 5, 6)), ((1, 33), (5, 33))],
)
def test_repeat(device, shape, target):
    g = GraphBuilder()
    x = g.input("x", shape)
    flipped = g.transpose(x) if len(shape) > 1 else x
    backwards = (*target[:-2], *reversed(target[-2:])) if len(shape) > 1 else target
    graph = g.build(g.repeat(x, target), g.repeat(flipped, backwards))
    check(device, graph, tame(graph))


# --- rows ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "dtype"), on_profiles([*KERNEL_DTYPES, I32]), indirect=["device"], ids=str
)
@pytest.mark.parametrize("ids", [(5,), (2, 3)])
def test_get_rows(device, dtype, ids):
    g = GraphBuilder()
    table = g.weight("w", (9, whole(64, dtype)), dtype)
    graph = g.build(g.get_rows(table, g.input("ids", ids, I32)))
    check(device, graph, tame(graph, ids=LeafRule("ids", bound=9), w=LeafRule(bound=100)))


def test_get_rows_in_batches_and_strided(device):
    g = GraphBuilder()
    ids = g.input("ids", (2, 3, 4), I32)
    table = g.permute(g.input("w", (2, 7, 3, 37)), 0, 2, 1, 3)
    graph = g.build(
        g.get_rows(table, ids),
        g.get_rows(g.transpose(g.input("v", (40, 9))), g.permute(ids, 2, 0, 1)),
    )
    check(device, graph, tame(graph, ids=LeafRule("ids", bound=7)))


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
@pytest.mark.parametrize("strided", [False, True])
def test_set_rows(device, dtype, strided):
    g = GraphBuilder()
    state = g.state("s", (9, 70), dtype)
    dst = g.view(state, (9, 35), (70 * dtype.block_nbytes, 2 * dtype.block_nbytes))
    src = g.transpose(g.input("t", (35, 4))) if strided else g.input("x", (4, 70))
    graph = g.build(g.set_rows(dst if strided else state, src, g.input("ids", (4,), I32)))
    values = tame(graph, ids=LeafRule("ids", bound=9, distinct=True))
    check(device, graph, values, runs=2)


def test_add_id(device):
    g = GraphBuilder()
    x, bias, ids = g.input("x", (5, 2, 37)), g.weight("b", (4, 37)), g.input("ids", (5, 2), I32)
    strided = g.permute(g.input("y", (37, 5, 2)), 1, 2, 0)
    graph = g.build(
        g.add_id(x, bias, ids),
        g.op("add_id", x, bias, ids, inplace=True),
        g.add_id(strided, bias, ids),
    )
    check(device, graph, tame(graph, ids=LeafRule("ids", bound=4)))


# --- over the last axis ----------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 7, 64, 1000])
def test_norms_and_sums(device, n):
    g = GraphBuilder()
    x = g.input("x", (3, 2, n))
    columns = g.transpose(g.input("y", (2, n, 3)))
    outs = [getattr(g, op)(t) for op in ("rms_norm", "norm", "sum_rows") for t in (x, columns)]
    outs += [g.op(op, x, inplace=True) for op in ("norm", "rms_norm")]
    graph = g.build(*outs)
    check(device, graph, tame(graph), atol=3e-4)


@pytest.mark.parametrize("n", [SHORT_ROW, SHORT_ROW + 1])
def test_sums_over_the_experts_of_tokens(device, n):
    """Rows that lie across memory; short ones are more than a group of lanes has."""
    g = GraphBuilder()
    experts = g.input("experts", (3, n, 70))
    graph = g.build(g.sum_rows(g.permute(experts, 0, 2, 1)))
    check(device, graph, tame(graph), atol=3e-4)


@pytest.mark.parametrize("n", [1, 7, 300])
@pytest.mark.parametrize("inplace", [False, True])
def test_soft_max(device, n, inplace):
    g = GraphBuilder()
    x, mask, sinks = g.input("x", (4, 3, n)), g.input("mask", (3, n)), g.weight("sinks", (4,))
    columns = g.transpose(g.input("y", (4, n, 3)))
    outs = [g.soft_max(columns, g.transpose(g.input("m", (n, 3))), sinks, scale=3.0)]
    outs += [g.soft_max(x), g.soft_max(x, mask, scale=0.3), g.soft_max(x, sinks=sinks)]
    has = {"mask": True, "sinks": True}
    outs += [g.op("soft_max", x, mask, sinks, inplace=inplace, scale=2.0, **has)]
    graph = g.build(*outs)
    check(device, graph, tame(graph, mask=LeafRule("mask"), x=LeafRule(amp=50.0)))


def test_a_row_that_is_masked_but_for_its_sink(device):
    g = GraphBuilder()
    x, mask = g.input("x", (2, 1, 20)), g.input("mask", (1, 20))
    graph = g.build(g.soft_max(x, mask, g.weight("sinks", (2,))))
    check(device, graph, tame(graph) | {"mask": np.full((1, 20), -np.inf, np.float32)})


@pytest.mark.parametrize("pairing", ["adjacent", "halves"])
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("n_dims", [8, 6])
def test_rope(device, pairing, inplace, strided, n_dims):
    graph = rotations(n_dims, pairing, inplace=inplace, strided=strided, yarn=True)
    check(device, graph, tame(graph, at=LeafRule("ids", bound=50), f=LeafRule("positive")))


@pytest.mark.parametrize("position", [0, -5, 131_071, 2**31 - 1])
def test_angles_stay_exact_far_out(device, position):
    g = GraphBuilder()
    x, at = g.input("x", (1, 1, 64)), g.input("at", (1,), I32)
    graph = g.build(g.rope(x, at), g.rope(x, at, g.weight("f", (32,)), base=5e5))
    values = tame(graph, f=LeafRule("positive", amp=8.0))
    check(device, graph, values | {"at": np.array([position], np.int32)}, atol=1e-4)


@pytest.mark.parametrize("n", [1, 5, 256, 257, 3000])
def test_sorting_equal_numbers(device, n):
    g = GraphBuilder()
    x, y = g.input("x", (2, n)), g.input("y", (n, 3))
    columns = g.transpose(y)
    graph = g.build(
        g.argsort(x),
        g.argsort(x, descending=True),
        g.argsort(columns),
        *(g.top_k(x, k) for k in {1, min(4, n), n}),
    )
    rng = np.random.default_rng(n)
    values = {"x": rng.integers(-9, 9, (2, n)), "y": rng.standard_normal((n, 3))}
    values = {name: array.astype(np.float32) for name, array in values.items()}
    values["x"][0, ::2] *= np.float32(-1.0) * np.float32(0.0)  # zeros of both signs
    check(device, graph, values)


def test_sorting_infinities_and_what_is_no_number(device):
    x = np.array([[np.nan, 1, -np.inf, np.inf, -0.0, np.nan, 0.0, -1, 1e-40, -1e-40]], np.float32)
    g = GraphBuilder()
    at = g.input("x", x.shape)
    check(device, g.build(g.argsort(at), g.argsort(at, descending=True), g.top_k(at, 9)), {"x": x})
