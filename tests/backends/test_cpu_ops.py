"""Every op of the CPU against the oracle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.backend.packed import dequantize
from ggsched.errors import DeviceFault
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F16, F32, FLOAT_DTYPES, I32, MXFP4
from ggsched.ir.ops import OPS
from ggsched_cpu.supported import supported_ops
from ggsched_testing.eager import run_direct
from ggsched_testing.generators.strategies import graphs, seeds
from ggsched_testing.generators.values import LeafRule, random_blocks, values_for
from ggsched_testing.oracle.interpreter import run_oracle
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
    names = {key.partition(":")[0] for key in supported_ops(is_compiled=False)}
    assert names == set(OPS) | {"nd.*"}  # and the library of array ops, as a whole


# --- products -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("m", [1, 3, 20])
def test_mul_mat_of_two_matrices(dtype, m):
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
def test_attention(kv, heads, groups, tokens):
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


@pytest.mark.parametrize("kv", [F32, F16, BF16], ids=str)
@pytest.mark.parametrize("case", ATTENTION, ids=str)
def test_attention_op(case, kv):
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


@pytest.mark.parametrize("n", [5, 1024, 3000])
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


CONVERSIONS = [(dtype, to) for dtype in FLOAT_DTYPES for to in (F32, F16)]
CONVERSIONS += [(I32, I32), (BF16, BF16)]


@pytest.mark.parametrize("op", ["cpy", "cont"])
@pytest.mark.parametrize(("dtype", "to"), CONVERSIONS, ids=str)
def test_conversions(dtype, to, op):
    g = GraphBuilder()
    n = whole(32, dtype)
    x = g.input("x", (3, 5, n), dtype)
    wider = g.input("y", (3, 5, n + 32), to)
    y = g.view(wider, (3, 5, n), wider.strides, 32 * to.block_nbytes)
    graph = g.build(g.cont(x, to) if op == "cont" else g.cpy(x, y), wider)
    check(graph, tame(graph, x=LeafRule(bound=100)), atol=1e-3)


def converted(x, dtype, shape):
    """Return elements of a type as the device converts them to f32."""
    g = GraphBuilder()
    graph = g.build(g.cont(g.input("x", shape, dtype), F32))
    (found,) = run_direct(DEVICES["sync"], graph, {"x": x}).values()
    return found


def test_half_precision_is_exact():
    halves = np.arange(1 << 16, dtype=np.uint16).reshape(64, -1).view(np.float16)
    found, wanted = converted(halves, F16, halves.shape), halves.astype(np.float32)
    np.testing.assert_array_equal(found, wanted)
    numbers = ~np.isnan(wanted)
    np.testing.assert_array_equal(
        found.view(np.uint32)[numbers], wanted.view(np.uint32)[numbers]
    )  # the sign of zeros, too


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_dequantisation(dtype):
    rng = np.random.default_rng(0)
    n = whole(96, dtype)
    raw = rng.integers(0, 256, (7, dtype.row_nbytes(n)), np.uint8)
    if dtype is MXFP4:
        raw = random_blocks(dtype, (7, 96), 1.0, rng)
        raw[:, 0] = [0, 1, 2, 127, 253, 254, 255]
    np.testing.assert_array_equal(converted(raw, dtype, (7, n)), dequantize(raw, dtype, (7, n)))
