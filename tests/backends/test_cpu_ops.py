"""Every op of the CPU against the oracle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.errors import DeviceFault
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F16, F32, FLOAT_DTYPES, I32, MXFP4
from ggsched.ir.ops import OPS
from ggsched.testing.eager import run_direct
from ggsched.testing.generators.strategies import graphs, seeds
from ggsched.testing.generators.values import LeafRule, random_blocks, values_for
from ggsched.testing.oracle.dequant import dequantize
from ggsched.testing.oracle.interpreter import run_oracle
from ggsched_cpu import dequant
from ggsched_cpu.kernels import EMITTERS, copy, gemm, matmul, sorting, supported_ops
from ggsched_cpu.kernels import attention as kernels_attention
from tests.backends import against_oracle
from tests.backends.against_oracle import tame, whole
from tests.backends.device_settings import cpu_device
from tests.backends.op_graphs import (
    attention_graph,
    decoder_products,
    expert_products,
    rotations,
    rows_by_ids,
)

DEVICES = {"sync": cpu_device(sync=True), "threads": cpu_device(sync=False)}


def check(graph, values, *, device=None, **how):
    """Compare with the oracle, on the synchronous device unless another one is given."""
    against_oracle.check(device or DEVICES["sync"], graph, values, **how)


@pytest.mark.parametrize("mode", DEVICES)
@given(drawn=graphs(), seed=seeds())
def test_random_graphs(mode, drawn, seed):
    check(drawn.graph, values_for(drawn, seed), device=DEVICES[mode], runs=2)


@pytest.mark.parametrize("op", OPS)
@given(data=st.data(), seed=seeds())
def test_each_op(op, data, seed):
    drawn = data.draw(graphs(max_nodes=4, ops=[op]))
    check(drawn.graph, values_for(drawn, seed))


def test_every_op_is_supported():
    assert set(EMITTERS) == set(OPS)
    names = {key.partition(":")[0] for key in supported_ops()}
    assert names == set(OPS) | {"nd.*"}  # and the library of array ops, as a whole


# --- products -----------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 2, 3, 7, 8, 16, 17, 33, 50, 95, 96, 130])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (7, 64), (257, 31), (300, 96), (1030, 33)])
def test_tiles(m, n, k):
    rng = np.random.default_rng(m * n)
    w, x = rng.uniform(-1, 1, (n, k)), rng.uniform(-1, 1, (m, k))
    out = np.full((m, n), np.nan, np.float32)
    gemm.multiply(w.astype(np.float32), x.astype(np.float32), out)
    np.testing.assert_allclose(out, x @ w.T, atol=1e-4)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("m", [1, 3, 20])
def test_mul_mat_in_pieces(monkeypatch, dtype, m):
    monkeypatch.setattr(matmul, "CACHED_NBYTES", 1000)
    monkeypatch.setattr(matmul, "SCRATCH_NBYTES", 3000)
    g = GraphBuilder()
    k = whole(64, dtype)
    w, x = g.weight("w", (2, 45, k), dtype), g.input("x", (4, m, k))
    graph = g.build(g.mul_mat(w, x))
    check(graph, tame(graph))


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize(("tokens", "rows"), [(1, 1), (1, 3), (40, 1), (40, 3)])
def test_mul_mat_id(dtype, tokens, rows):
    graph = expert_products(dtype, tokens, rows)
    check(graph, tame(graph, ids=LeafRule("ids", bound=5)))


@pytest.mark.parametrize("kv", [F32, F16, BF16], ids=str)
@pytest.mark.parametrize(("heads", "groups"), [(8, 2), (4, 4), (6, 1)])
@pytest.mark.parametrize("tokens", [1, 5])
def test_attention(monkeypatch, kv, heads, groups, tokens):
    monkeypatch.setattr(gemm, "_UNCACHED_NBYTES", 0)
    graph = decoder_products(kv, heads, groups, tokens)
    check(graph, tame(graph, mask=LeafRule("mask")))


ATTENTION = [
    # tokens, heads, key heads, widths of keys and values, rows, mask, sinks, bounds, soft cap
    (1, 8, 2, 32, 32, 300, None, False, True, 0.0),
    (1, 4, 4, 16, 24, 70, "mask", True, False, 0.0),
    (1, 6, 1, 8, 8, 1, None, False, False, 0.0),
    (5, 8, 2, 32, 32, 300, None, True, True, 0.0),
    (5, 4, 4, 16, 8, 70, "heads", False, False, 5.0),
    (9, 6, 3, 16, 16, 33, "mask", True, True, 3.0),
]


@pytest.mark.parametrize("is_blocked", [False, True])
@pytest.mark.parametrize("kv", [F32, F16, BF16], ids=str)
@pytest.mark.parametrize("case", ATTENTION, ids=str)
def test_attention_op(monkeypatch, case, kv, is_blocked):
    if is_blocked:
        for name, value in (("FEW_NBYTES", 0), ("ROWS", 32), ("TOKENS", 4)):
            monkeypatch.setattr(kernels_attention, name, value)
    graph = attention_graph(case, kv)
    rules = {"mask": LeafRule("mask"), "bounds": LeafRule("bounds", bound=case[5])}
    check(graph, tame(graph, **rules))


@pytest.mark.parametrize("kv", [F32, F16], ids=str)
def test_attention_to_nothing_gives_zeros(kv):
    g = GraphBuilder()
    k, q = g.input("k", (6, 1, 4), kv), g.input("q", (2, 2, 4))
    bounds, mask = g.input("bounds", (2, 2), I32), g.input("mask", (6,))
    seen_none = g.attention(q, k, k, bounds=bounds)
    graph = g.build(seen_none, g.attention(q, k, k, mask=mask))
    values = tame(graph) | {"mask": np.full(6, -np.inf, np.float32)}
    values["bounds"] = np.array([[3, 3], [6, 9]], np.int32)
    assert not any(out.any() for out in run_oracle(graph, values).values())
    check(graph, values)


def test_one_call_for_plain_arithmetic(monkeypatch):
    from ggsched.testing.eager import bound_nodes
    from ggsched_cpu.program import compile_steps

    device, g = DEVICES["sync"], GraphBuilder()
    x, y = g.input("x", (1, 16)), g.input("y", (16,))
    graph = g.build(g.div(g.sub(g.mul(g.add(x, y), x), y), x))
    buffers = {t.id: device.allocate(t.nbytes) for t in graph.tensors if not t.is_view}
    steps = compile_steps(bound_nodes(graph, buffers))
    calls, labels = [s.work for s in steps], [s.label for s in steps]
    assert [f for f, _ in calls] == [np.add, np.multiply, np.subtract, np.divide]
    assert all(a.shape == (16,) for _, args in calls for a in args)
    assert labels == ["n0 add", "n1 mul", "n2 sub", "n3 div"]


# --- rows -----------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [-1, 4, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("op", ["get_rows", "set_rows", "mul_mat_id", "add_id"])
def test_ids_out_of_range_are_a_fault(op, count, wrong):
    graph = rows_by_ids(op, count)
    values = tame(graph) | {"ids": np.array([0, wrong][-count:], np.int32)}
    for device in DEVICES.values():
        with pytest.raises(DeviceFault, match=rf"n0 {op}.*row {wrong} was requested.*4 rows"):
            run_direct(device, graph, values)


@pytest.mark.parametrize("dtype", [*FLOAT_DTYPES, I32], ids=str)
@pytest.mark.parametrize("ids", [(1,), (5,), (2, 3)])
def test_get_rows(dtype, ids):
    g = GraphBuilder()
    table = g.weight("w", (9, whole(64, dtype)), dtype)
    graph = g.build(g.get_rows(table, g.input("ids", ids, I32)))
    check(graph, tame(graph, ids=LeafRule("ids", bound=9), w=LeafRule(bound=100)))


# --- rotation -------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", ["adjacent", "halves"])
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("n_dims", [8, 6])
def test_rope(pairing, inplace, strided, n_dims):
    graph = rotations(n_dims, pairing, inplace=inplace, strided=strided)
    rules = {"at": LeafRule("ids", bound=100_000), "f": LeafRule("positive")}
    check(graph, tame(graph, **rules), atol=1e-3)


def test_rotations_share_angles_until_positions_change():
    g = GraphBuilder()
    x, at = g.input("x", (2, 3, 8)), g.input("at", (2,), I32)
    new = g.input("new", (2,), I32)
    first, same_angles = g.rope(x, at), g.rope(x, at)
    g.cpy(new, at)
    graph = g.build(first, same_angles, g.rope(x, at), g.rope(x, at))
    values = tame(graph) | {"at": np.array([1, 2], np.int32), "new": np.array([70, 9], np.int32)}
    check(graph, values)


# --- sorting, moving, types -----------------------------------------------------------------


@pytest.mark.parametrize("n", [5, sorting._SELECT_FROM, 3000])
@pytest.mark.parametrize("k", [1, 4])
def test_top_k_of_equal_numbers(n, k):
    g = GraphBuilder()
    graph = g.build(g.top_k(g.input("x", (3, n)), k), g.argsort(g.input("y", (3, n))))
    rng = np.random.default_rng(n)
    values = {name: rng.integers(0, 3, (3, n)).astype(np.float32) for name in ("x", "y")}
    values["x"][2] = 0
    check(graph, values)


@pytest.mark.parametrize("odd", [(), (np.nan,), (np.nan, -np.inf), (-0.0, 0.0)])
def test_the_largest_of_long_rows(odd):
    rng = np.random.default_rng(3)
    x = rng.integers(-9, 9, (3, 5000)).astype(np.float32)
    if odd:
        x[1:] = rng.choice(np.float32(odd), (2, 5000))
    g = GraphBuilder()
    check(g.build(g.top_k(g.input("x", x.shape), 1)), {"x": x})


def test_top_k_survives_what_is_no_number():
    x = np.full(sorting._SELECT_FROM, np.nan, np.float32)
    assert sorting._select_row(x, 4).shape == (4,)


CONVERSIONS = [(dtype, to) for dtype in FLOAT_DTYPES for to in (F32, F16)]
CONVERSIONS += [(I32, I32), (BF16, BF16)]


@pytest.mark.parametrize("op", ["cpy", "cont"])
@pytest.mark.parametrize(("dtype", "to"), CONVERSIONS, ids=str)
def test_conversions(monkeypatch, dtype, to, op):
    monkeypatch.setattr(copy, "_ROWS_NBYTES", 300)
    g = GraphBuilder()
    n = whole(32, dtype)
    x = g.input("x", (3, 5, n), dtype)
    wider = g.input("y", (3, 5, n + 32), to)
    y = g.view(wider, (3, 5, n), wider.strides, 32 * to.block_nbytes)
    graph = g.build(g.cont(x, to) if op == "cont" else g.cpy(x, y), wider)
    check(graph, tame(graph, x=LeafRule(bound=100)), atol=1e-3)


def test_half_precision_is_exact():
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(64, -1)
    every = bits.view(np.float16)
    finite = np.where(np.isfinite(every), every, np.float16(1))
    for halves in (every, finite):
        out = np.empty(halves.shape, np.float32)
        dequant.decoder(F16)(halves, out)
        np.testing.assert_array_equal(out, halves.astype(np.float32))
        ours, numpys = out.view(np.uint32), halves.astype(np.float32).view(np.uint32)
        np.testing.assert_array_equal(ours[~np.isnan(out)], numpys[~np.isnan(out)])


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_dequantisation(dtype):
    rng = np.random.default_rng(0)
    n = whole(96, dtype)
    raw = rng.integers(0, 256, (7, dtype.row_nbytes(n)), np.uint8)
    if dtype is MXFP4:
        raw = random_blocks(dtype, (7, 96), 1.0, rng)
        raw[:, 0] = [0, 1, 2, 127, 253, 254, 255]
    kind = {F32: np.float32, F16: np.float16, BF16: np.uint16}.get(dtype, np.uint8)
    out = np.empty((7, n), np.float32)
    with np.errstate(all="ignore"):
        dequant.decoder(dtype)(raw.view(kind), out)
    np.testing.assert_array_equal(out, dequantize(raw, dtype, (7, n)))
