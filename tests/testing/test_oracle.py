"""The oracle's ops against numbers worked out by hand."""

import math

import numpy as np
import pytest

from ggsched.errors import UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F16, F32, I32, MXFP4, Q8_0
from ggsched_testing.oracle.interpreter import run_oracle


def f32(*rows):
    return np.array(rows, np.float32)


def vec(*numbers):
    return np.array(numbers, np.float32)


def i32(rows):
    return np.array(rows, np.int32)


def compute(op, *arrays, **params):
    """Run one node on inputs that hold the arrays."""
    g = GraphBuilder()
    kinds = {np.dtype(np.float32): F32, np.dtype(np.float16): F16, np.dtype(np.int32): I32}
    operands = [g.input(f"x{i}", a.shape, kinds[a.dtype]) for i, a in enumerate(arrays)]
    result = g.op(op, *operands, **params)
    values = {f"x{i}": a for i, a in enumerate(arrays)}
    return run_oracle(g.build(result), values)[result.id]


def check(actual, expected):
    expected = np.array(expected)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=2e-7, atol=1e-7)


def sig(x):
    return 1 / (1 + math.exp(-x))


def test_get_rows():
    table = f32([1, 2], [3, 4], [5, 6])
    check(compute("get_rows", table, i32([2, 0])), [[5, 6], [1, 2]])
    check(compute("get_rows", table, i32([[1], [1]])), [[[3, 4]], [[3, 4]]])
    check(compute("get_rows", table, i32(1)), [3, 4])
    check(compute("get_rows", np.stack([table, -table]), i32([[0], [2]])), [[[1, 2]], [[-5, -6]]])
    ids = compute("get_rows", i32([[7, 8], [9, 10]]), i32([1]))
    assert (ids.dtype, ids.tolist()) == (np.int32, [[9, 10]])


def test_mul_mat():
    w, x = f32([1, 2], [3, 4], [5, 6]), f32([1, 10], [0, 1])
    check(compute("mul_mat", w, x), [[21, 43, 65], [2, 4, 6]])


def test_mul_mat_shares_batches_of_w_among_neighbours():
    w = f32([[1]], [[10]])  # (2, 1, 1)
    x = f32([[1]], [[2]], [[3]], [[4]])  # (4, 1, 1): heads 0, 1 use w[0], heads 2, 3 use w[1]
    check(compute("mul_mat", w, x), [[[1]], [[2]], [[30]], [[40]]])
    check(compute("mul_mat", f32([[2]]).reshape(1, 1), x), [[[2]], [[4]], [[6]], [[8]]])


def test_mul_mat_id():
    w = f32([[1, 0]], [[0, 1]], [[2, 2]])  # three experts (1, 2)
    x = f32([[3, 4]], [[5, 6]])  # (2, 1, 2): one row per token, used for all
    check(compute("mul_mat_id", w, x, i32([[0, 1], [2, 0]])), [[[3], [4]], [[22], [5]]])
    own = f32([[3, 4], [5, 6]]).reshape(1, 2, 2)  # a row for each expert used
    check(compute("mul_mat_id", w, own, i32([[1, 1]])), [[[4], [6]]])


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("add", [[11, 22], [13, 24]]),
        ("sub", [[-9, -18], [-7, -16]]),
        ("mul", [[10, 40], [30, 80]]),
        ("div", [[0.1, 0.1], [0.3, 0.2]]),
    ],
)
def test_binary_broadcasts_b(op, expected):
    check(compute(op, f32([1, 2], [3, 4]), vec(10, 20)), expected)


def test_add_id():
    x = np.ones((1, 2, 2), np.float32)
    check(compute("add_id", x, f32([1, 2], [10, 20]), i32([[1, 0]])), [[[11, 21], [2, 3]]])


def test_scale_and_clamp():
    check(compute("scale", vec(1, -2), scale=3.0, bias=0.5), [3.5, -5.5])
    check(compute("clamp", vec(1, -2), min=-1.0, max=0.5), [0.5, -1.0])


def test_norms():
    check(compute("rms_norm", vec(3, 4), eps=0.0), np.array([3, 4]) / math.sqrt(12.5))
    check(compute("rms_norm", vec(0, 2), eps=2.0), [0, 1])
    check(compute("norm", vec(1, 5), eps=0.0), [-1, 1])
    check(compute("norm", vec(1, 5), eps=5.0), [-2 / 3, 2 / 3])


def test_rope_pairs():
    x = np.arange(1, 7, dtype=np.float32).reshape(1, 1, 6)
    c0, s0, c1, s1 = math.cos(2), math.sin(2), math.cos(0.02), math.sin(0.02)
    expected = [1 * c0 - 2 * s0, 1 * s0 + 2 * c0, 3 * c1 - 4 * s1, 3 * s1 + 4 * c1, 5, 6]
    check(compute("rope", x, i32([2]), n_dims=4), [[expected]])
    expected = [1 * c0 - 3 * s0, 2 * c1 - 4 * s1, 1 * s0 + 3 * c0, 2 * s1 + 4 * c1, 5, 6]
    check(compute("rope", x, i32([2]), n_dims=4, pairing="halves"), [[expected]])


def test_rope_factors_divide_the_frequency():
    x = f32([1, 0]).reshape(1, 1, 2)
    factors = np.array([4.0], np.float32)
    out = compute("rope", x, i32([2]), factors, n_dims=2, freq_factors=True, attn_factor=3.0)
    check(out, [[[3 * math.cos(0.5), 3 * math.sin(0.5)]]])


def test_rope_positions_and_heads():
    x = np.ones((2, 2, 2), np.float32)
    out = compute("rope", x, i32([0, 1]), n_dims=2)
    turned = [math.cos(1) - math.sin(1), math.sin(1) + math.cos(1)]
    check(out, [[[1, 1], [1, 1]], [turned, turned]])


def test_rope_yarn():
    # 8 pairs, base 10000: over 64 positions pair i turns 64 / (2 pi 10^(i/2)) times. It turns 32
    # times at i = -1.0 (below the first) and once at i = 2.02, so the ramp goes from 0 to 3.
    x = np.zeros((1, 1, 16), np.float32)
    x[..., 0::2] = 1
    params = {"n_dims": 16, "freq_scale": 0.5, "ext_factor": 1.0, "n_ctx_orig": 64}
    out = compute("rope", x, i32([1]), **params)
    magnitude = 1 + 0.1 * math.log(2)
    for i in range(8):
        slow = min(1.0, i / 3)
        angle = 10000 ** (-i / 8) * (slow * 0.5 + (1 - slow))
        check(out[0, 0, 2 * i], magnitude * math.cos(angle))
        check(out[0, 0, 2 * i + 1], magnitude * math.sin(angle))


def test_soft_max():
    e = math.e
    check(compute("soft_max", vec(0, 1)), [1 / (1 + e), e / (1 + e)])
    check(compute("soft_max", vec(0, 2), scale=0.5), [1 / (1 + e), e / (1 + e)])
    x, mask = np.zeros((1, 2, 2), np.float32), f32([0, -np.inf], [0, math.log(3)])
    check(compute("soft_max", x, mask, mask=True), [[[1, 0], [0.25, 0.75]]])
    sinks = vec(math.log(2), -np.inf)
    out = compute("soft_max", np.zeros((2, 1, 2), np.float32), sinks, sinks=True)
    check(out, [[[0.25, 0.25]], [[0.5, 0.5]]])
    both = compute("soft_max", x, mask, vec(math.log(4)), mask=True, sinks=True)
    check(both, [[[0.2, 0], [0.125, 0.375]]])
    check(compute("soft_max", vec(1000, 1000)), [0.5, 0.5])


def test_attention():
    def kept(*numbers):
        return np.array(numbers, np.float32)[:, None, None]

    ones, k, v = np.ones((1, 1, 1), np.float32), kept(0, math.log(3)), kept(1, 5)
    check(compute("attention", k, v, ones), [[[4]]])
    check(compute("attention", k, v, ones, scale=0.0), [[[3]]])
    check(compute("attention", k, v, ones, vec(-np.inf, 0), mask=True), [[[5]]])
    check(compute("attention", k, v, ones, vec(math.log(4)), sinks=True), [[[2]]])
    cap = math.log(3) / math.atanh(0.5)  # half of the cap is left of log 3
    share = 1 / (1 + math.exp(cap / 2))
    check(compute("attention", k, v, ones, soft_cap=cap), [[[5 - 4 * share]]])
    tokens = np.ones((3, 1, 1), np.float32)
    bounds = i32([[0, 1], [-5, 9], [2, 1]])
    check(compute("attention", k, v, tokens, bounds, bounds=True), [[[1]], [[4]], [[0]]])
    # Heads 0 and 1 of the queries share head 0 of the keys, heads 2 and 3 head 1.
    heads = np.concatenate([k, k[::-1]], axis=1)
    out = compute("attention", heads, np.concatenate([v, v], 1), np.ones((1, 4, 1), np.float32))
    check(out, [[[4], [4], [2], [2]]])


def test_short_conv():
    state, taps = f32((1, 2), (3, 4)).reshape(2, 2, 1), f32((1, 10, 100))
    x = vec(5, 6, 7, 8).reshape(4, 1)
    # Slot 1 goes on from 3, 4; slot 0 begins, so that 1, 2 do not count.
    found = compute("short_conv", state, x, taps, i32([1, 0, 1, 0]), i32([9, 0, 10, 1]))
    outputs, states = [543, 600, 754, 860], [6, 8, 5, 7]
    check(found, np.array([*outputs, *states])[:, None])


def test_linear_attention():
    state, decay = np.full((1, 1, 1, 1), 4, np.float32), np.log(f32((0.5,), (0.25,)))
    q, k, v = (np.array(n, np.float32).reshape(2, 1, 1) for n in ((1, 10), (2, 3), (5, 7)))
    slots, at = i32([0, 0]), i32([8, 9])
    # 4 * 0.5 + 2 * 5 = 12, and 12 * 0.25 + 3 * 7 = 24
    plain = compute("linear_attention", state, q, k, v, decay, slots, at, scale=2.0)
    check(plain, [2 * 12, 2 * 240, 24])
    # 2 + 2 * (5 - 2 * 2) = 4 with beta 1, and 1 + 3 * 0.5 * (7 - 3 * 1) = 7
    beta = f32((1,), (0.5,))
    check(
        compute("linear_attention", state, q, k, v, decay, slots, at, beta, beta=True), [4, 70, 7]
    )
    begins = compute("linear_attention", state, q, k, v, decay, slots, i32([8, 0]))
    check(begins, [12, 210, 21])


def test_heads_that_share_keys():
    state, decay = np.zeros((1, 4, 1, 1), np.float32), f32((0, 0, 0, 0))
    keys = f32((1, 10)).reshape(1, 2, 1)
    rest = (np.ones((1, 4, 1), np.float32), decay, i32([0]), i32([0]))
    found = compute("linear_attention", state, np.ones_like(keys), keys, *rest)
    check(found[:4], [1, 1, 10, 10])
    found = compute("linear_attention", state, np.ones_like(keys), keys, *rest, tiled=True)
    check(found[:4], [1, 10, 1, 10])


def test_gates():
    check(compute("softplus", vec(0, 100, -100)), [math.log(2), 100, 0])
    check(compute("silu", vec(2, 0)), [2 * sig(2), 0])
    inner = math.sqrt(2 / math.pi) * (2 + 0.044715 * 8)
    check(compute("gelu", vec(2, 0)), [1 + math.tanh(inner), 0])
    check(compute("swiglu", vec(2, 1), vec(3, -1)), [6 * sig(2), -sig(1)])
    out = compute("swiglu_oai", vec(9, -9), vec(-9, 2))
    check(out, [7 * sig(1.702 * 7) * -6, -9 * sig(1.702 * -9) * 3])


def test_order():
    x = vec(3, 1, 3, 2)
    assert compute("argsort", x).tolist() == [1, 3, 0, 2]
    assert compute("argsort", x, descending=True).tolist() == [0, 2, 3, 1]
    top = compute("top_k", np.stack([x, -x]), k=2)
    assert (top.dtype, top.tolist()) == (np.int32, [[0, 2], [1, 3]])


def test_sums_and_tiles():
    x = f32([1, 2], [3, 4])
    check(compute("sum_rows", x), [[3], [7]])
    check(compute("concat", x, x[:1]), [[1, 2], [3, 4], [1, 2]])
    check(compute("concat", x, x[:, :1], axis=1), [[1, 2, 1], [3, 4, 3]])
    check(compute("repeat", x, shape=(2, 4)), [[1, 2, 1, 2], [3, 4, 3, 4]])


def test_conversions_round_to_nearest_even():
    # 2049 and 2051 lie halfway between numbers of f16.
    half = compute("cont", vec(2049, 2051, 0.1), dtype="f16")
    assert half.dtype == np.float16
    assert half.tolist() == [2048, 2052, np.float16(0.1)]
    assert compute("cont", i32([1, -2])).tolist() == [1, -2]


def test_arithmetic_rounds_to_f32_on_store():
    g = GraphBuilder()
    x = g.input("x", (1,))
    big = g.scale(x, 2.0**24)
    out = g.sub(g.scale(big, 1.0, 1.0), big)
    # In f32 2^24 + 1 is 2^24 again.
    assert run_oracle(g.build(out), {"x": vec(1)})[out.id].tolist() == [0.0]


def test_quantised_operands():
    g = GraphBuilder()
    w, b = g.weight("w", (2, 32), Q8_0), g.weight("b", (1, 32), BF16)
    m = g.weight("m", (1, 32), MXFP4)
    x = g.input("x", (1, 32))
    graph = g.build(g.mul_mat(w, x), g.mul_mat(b, x), g.mul_mat(g.rows(m, 0, 1), x), w)
    raw = np.zeros((2, 34), np.uint8)
    raw[:, :2] = np.array([0.5, 2.0], np.float16).view(np.uint8).reshape(2, 2)
    raw[:, 2:] = 3
    mx = np.full((1, 17), 0x22, np.uint8)  # 1.0 in each half
    mx[0, 0] = 127
    values = {
        "w": raw,
        "b": np.full((1, 32), 0x4000, np.uint16),
        "m": mx,
        "x": np.ones((1, 32), np.float32),
    }
    first, second, third, whole = run_oracle(graph, values).values()
    assert first.tolist() == [[48.0, 192.0]]
    assert second.tolist() == [[64.0]]
    assert third.tolist() == [[32.0]]
    assert (whole.dtype, whole.shape, whole[1, 0]) == (np.float32, (2, 32), 6.0)


# --- aliasing --------------------------------------------------------------------------------


def test_set_rows_is_seen_by_every_view_and_leaves_other_rows_alone():
    g = GraphBuilder()
    cache = g.state("kv", (4, 2), F16)
    x, ids = g.input("x", (2, 2)), g.input("ids", (2,), I32)
    before = g.cont(g.rows(cache, 1, 4), F32)
    g.set_rows(g.rows(cache, 1, 4), x, ids)
    columns = g.cont(g.transpose(cache), F32)
    graph = g.build(before, columns)
    states = {"kv": np.arange(8, dtype=np.float16).reshape(4, 2)}
    kept = states["kv"]
    values = {"x": f32([10, 11], [12, 13]), "ids": i32([2, 0])}
    out = run_oracle(graph, values, states=states)
    assert out[before.id].tolist() == [[2, 3], [4, 5], [6, 7]]
    assert out[columns.id].tolist() == [[0, 12, 4, 10], [1, 13, 5, 11]]
    assert states["kv"] is kept
    assert kept.tolist() == [[0, 1], [12, 13], [4, 5], [10, 11]]


def test_states_start_as_zeros_and_persist():
    g = GraphBuilder()
    s = g.state("s", (2,))
    out = g.add(s, g.input("x", (2,)), inplace=True)
    graph, states = g.build(out), {}
    for n in (1, 2, 3):
        result = run_oracle(graph, {"x": vec(1, 2)}, states=states)
        assert result[out.id].tolist() == [n, 2 * n]
    assert states["s"].tolist() == [3, 6]
    assert states["s"].dtype == np.float32


def test_without_states_each_run_starts_afresh():
    g = GraphBuilder()
    out = g.scale(g.state("s", ()), 1.0, 1.0, inplace=True)
    graph = g.build(out)
    assert run_oracle(graph, {})[out.id] == run_oracle(graph, {})[out.id] == 1.0


def test_cpy_into_a_strided_window():
    g = GraphBuilder()
    x, s = g.input("x", (2, 3)), g.state("s", (3, 4))
    g.cpy(x, g.view(g.transpose(s), (2, 3), (8, 16), 4))  # columns 1 and 3
    states = {}
    run_oracle(g.build(s), {"x": f32([1, 2, 3], [4, 5, 6])}, states=states)
    assert states["s"].tolist() == [[0, 1, 0, 4], [0, 2, 0, 5], [0, 3, 0, 6]]


def test_in_place_changes_what_earlier_tensors_show():
    g = GraphBuilder()
    x = g.input("x", (2, 2))
    t = g.scale(x, 2.0)
    row = g.rows(t, 1, 2)
    g.scale(row, 10.0, inplace=True)
    source = f32([1, 2], [3, 4])
    g.scale(x, 0.0, inplace=True)
    out = run_oracle(g.build(t, x), {"x": source})
    assert out[t.id].tolist() == [[2, 4], [60, 80]]
    assert out[x.id].tolist() == [[0, 0], [0, 0]]
    assert source.tolist() == [[1, 2], [3, 4]]  # the caller's array is not the storage


def test_outputs_are_copies():
    g = GraphBuilder()
    s = g.state("s", (2,))
    out = run_oracle(g.build(s), {}, states=(states := {}))
    out[s.id][:] = 7
    assert states["s"].tolist() == [0, 0]


def test_strided_and_broadcast_operands():
    g = GraphBuilder()
    x = g.input("x", (2, 3))
    wide = g.view(x, (2, 2, 3), (0, 12, 4))
    out = g.add(wide, g.view(x, (2, 3), (12, 0)))
    result = run_oracle(g.build(out), {"x": f32([1, 2, 3], [4, 5, 6])})[out.id]
    assert result.tolist() == [[[2, 3, 4], [8, 9, 10]]] * 2


def test_empty_tensors():
    g = GraphBuilder()
    w, x = g.weight("w", (3, 4)), g.input("x", (0, 4))
    y, z = g.mul_mat(w, x), g.get_rows(w, g.input("ids", (0,), I32))
    values = {
        "w": np.ones((3, 4), np.float32),
        "x": np.ones((0, 4), np.float32),
        "ids": i32([]),
    }
    out = run_oracle(g.build(y, z, x), values)
    assert [a.shape for a in out.values()] == [(0, 3), (0, 4), (0, 4)]


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [[0, 4], [-1, 0], [1, 1]])
def test_bad_rows_are_refused_and_states_stay(ids):
    g = GraphBuilder()
    s = g.state("s", (4, 2))
    g.scale(s, 1.0, 1.0, inplace=True)
    graph = g.build(g.set_rows(s, g.input("x", (2, 2)), g.input("ids", (2,), I32)))
    states = {"s": np.zeros((4, 2), np.float32)}
    with pytest.raises(UsageError) as caught:
        run_oracle(graph, {"x": f32([1, 1], [1, 1]), "ids": i32(ids)}, states=states)
    assert "n1 set_rows" in caught.value.__notes__[0]
    assert not states["s"].any()


@pytest.mark.parametrize("op", ["get_rows", "mul_mat_id", "add_id"])
def test_ids_out_of_range_are_refused(op):
    g = GraphBuilder()
    ids = g.input("ids", (1, 1), I32)
    x, w = g.input("x", (1, 1, 4)), g.weight("w", (2, 3, 4))
    table = g.reshape(g.rows(w, 0, 1), 3, 4)
    y = {
        "get_rows": lambda: g.get_rows(table, ids),
        "mul_mat_id": lambda: g.mul_mat_id(w, x, ids),
        "add_id": lambda: g.add_id(x, table, ids),
    }[op]()
    values = {"x": np.ones((1, 1, 4), np.float32), "w": np.ones((2, 3, 4), np.float32)}
    with pytest.raises(UsageError, match="rows"):
        run_oracle(g.build(y), {**values, "ids": i32([[3]])})


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((2, 2)),
        np.zeros((4,), np.float32),
        np.zeros((2, 2), np.int32),
        np.zeros((2, 2), np.uint8),
        None,
    ],
)
def test_values_of_another_form_are_refused(value):
    g = GraphBuilder()
    graph = g.build(g.silu(g.input("x", (2, 2))))
    with pytest.raises(UsageError):
        run_oracle(graph, {} if value is None else {"x": value})


def test_states_must_be_contiguous():
    g = GraphBuilder()
    graph = g.build(g.silu(g.state("s", (2, 2))))
    with pytest.raises(UsageError, match="C-contiguous"):
        run_oracle(graph, {}, states={"s": np.zeros((2, 2), np.float32).T[:, ::-1]})


def test_packed_bytes_are_accepted_for_every_type():
    g = GraphBuilder()
    out = g.scale(g.input("x", (2,)), 2.0)
    graph = g.build(out)
    x = vec(1, 2)
    assert run_oracle(graph, {"x": x.view(np.uint8)})[out.id].tolist() == [2, 4]
