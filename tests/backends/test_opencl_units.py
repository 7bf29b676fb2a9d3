"""What OpenCL GPUs run for products of few and of many rows, on PoCL with groups of many lanes.

Units that multiply matrices, and values of other lanes, are emulated there by local memory
(``warp_opencl.h``); kernels, their indices and the lowering are those of a GPU.
"""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from ggsched.backend.program import Group
from ggsched.errors import DeviceFault, GgschedError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F16, F32, I32, MXFP4, Q4_0, Q4_K, Q6_K, Q8_0
from ggsched.ir.tensor import Role
from ggsched.scheduler import Scheduler
from ggsched_kernels import GPU, lower_nodes, supported_fusions, supported_ops
from ggsched_kernels.calls import JOINED_NBYTES
from ggsched_llm.graph import build_model_graph
from ggsched_opencl.device import NEIGHBOURS
from ggsched_testing.conformance import ConformanceRunner, all_cases
from ggsched_testing.eager import bound_nodes, run_direct
from ggsched_testing.generators.values import LeafRule
from ggsched_testing.oracle.interpreter import run_oracle
from ggsched_testing.sim.config import SimConfig
from ggsched_testing.sim.device import SimDevice
from ggsched_testing.sim.harness import sim_harness
from tests.backends import opencl_devices
from tests.backends.against_oracle import check, tame, whole
from tests.backends.op_graphs import attention_graph
from tests.backends.test_cuda_rope_kv_write import layer
from tests.kernels.test_fibers import Memory
from tests.support.shapes import SMALL, random_weights, spec_of

pytestmark = pytest.mark.opencl

slow = pytest.mark.slow  # each is a program, which takes PoCL seconds to compile
PLAIN = replace(GPU, num_sms=2, few_rows=8, joins=True)
UNITS = replace(PLAIN, matrix_units=True, activations="auto")
TYPES = (Q8_0, Q4_K, *(pytest.param(t, marks=slow) for t in (Q4_0, MXFP4, Q6_K)))


@pytest.fixture(scope="module")
def device():
    made = opencl_devices.opencl_device(profile="gpu")
    yield made
    made.close()


def calls(graph, profile=UNITS):
    memory = {t.id: Memory(t.nbytes) for t in graph.tensors if not t.is_view}
    return lower_nodes(bound_nodes(graph, memory), profile).calls


def kernels(graph, profile=UNITS):
    return [call.kernel for call in calls(graph, profile)]


def product(dtype, n, k, m):
    g = GraphBuilder()
    return g.build(g.mul_mat(g.weight("w", (n, k), dtype), g.input("x", (m, k))))


# --- few rows ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("n", "k", "m"), [(21, 256, 1), pytest.param(5, 768, 3, marks=slow)])
def test_blocks_are_read_in_place(device, dtype, n, k, m):
    device.profile = PLAIN
    graph = product(dtype, n, k, m)
    assert kernels(graph, PLAIN) == ["matvec_rows"]
    check(device, graph, tame(graph), atol=1e-3)


def decoder_step(dtype, tokens):
    """Return a norm with three products, a product with a sum, and a norm with a gated product."""
    g = GraphBuilder()
    x = g.input("x", (tokens, 64))
    normed = g.mul(g.rms_norm(x), g.weight("norm", (64,)))
    q, k, v = (
        g.mul_mat(g.weight(n, (rows, 64), dtype), normed)
        for n, rows in (("q", 64), ("k", 5), ("v", 9))
    )
    x = g.add(g.mul_mat(g.weight("o", (64, 64), dtype), q), x)
    normed = g.mul(g.rms_norm(x), g.weight("norm2", (64,)))
    gate, up = (g.mul_mat(g.weight(n, (40, 64), dtype), normed) for n in ("gate", "up"))
    return g.build(k, v, normed, g.swiglu(gate, up))


def lowered_by(monkeypatch, profile, *, runs=True):
    """Let devices have this profile; return a list of definitions and names of their kernels.

    If nothing ``runs``, nothing is compiled either.
    """
    from ggsched_opencl import device as devices
    from ggsched_opencl import program

    made = []

    def lowering(nodes, profile):
        lowered = lower_nodes(nodes, profile)
        made.extend(dict(call.defines) | {"kernel": call.kernel} for call in lowered.calls)
        return lowered if runs else replace(lowered, calls=())

    monkeypatch.setattr(program, "lower_nodes", lowering)
    monkeypatch.setattr(devices, "profile_of", lambda found: profile)
    return made


def run_step(monkeypatch, graph, profile):
    """Run a step by a device of this profile, compare it with the oracle, return its calls."""
    made = lowered_by(monkeypatch, profile)
    values = tame(graph)
    weights = {t.name: values[t.name] for t in graph.roots(Role.WEIGHT)}
    with Scheduler(["opencl:0"], weights=weights) as scheduler:
        found = scheduler.run(graph, {"x": values["x"]})
    for tid, wanted in run_oracle(graph, values).items():
        np.testing.assert_allclose(found[tid], wanted, rtol=1e-4, atol=1e-4)
    return made


@pytest.mark.parametrize(
    ("dtype", "tokens"), [(BF16, 1), (Q8_0, 2), pytest.param(F32, 8, marks=slow)]
)
def test_neighbours_of_few_rows_are_three_kernels(monkeypatch, dtype, tokens):
    made = run_step(monkeypatch, decoder_step(dtype, tokens), PLAIN)
    assert [call["kernel"] for call in made] == ["matvec_rows"] * 3
    assert [[n for n in ("NORMED", "ADDED", "GATED") if call.get(n) == "1"] for call in made] == [
        ["NORMED"], ["ADDED"], ["NORMED", "GATED"],
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", [BF16, pytest.param(Q8_0, marks=slow)], ids=str)
def test_neighbours_with_addends_are_two_kernels(monkeypatch, dtype):
    g = GraphBuilder()
    x = g.input("x", (1, 64))

    def added(name, rows, x):
        return g.add(g.mul_mat(g.weight(name, (rows, 64), dtype), x), g.weight(f"{name}b", (rows,)))

    normed = g.mul(g.rms_norm(x), g.weight("norm", (64,)))
    q, k, v = (added(name, rows, normed) for name, rows in (("q", 64), ("k", 5), ("v", 9)))
    again = g.mul(g.rms_norm(q), g.weight("norm2", (64,)))
    made = run_step(monkeypatch, g.build(k, v, again, added("o", 7, again)), UNITS)
    names = ("NORMED", "ADDED", "WEIGHTS")
    assert [[call.get(n) for n in names] for call in made] == [["1", "1", "3"], ["1", "1", None]]


def test_a_norm_in_place_stays_alone():
    g = GraphBuilder()
    x = g.input("x", (1, 64))
    graph = g.build(g.mul_mat(g.weight("w", (9, 64)), g.mul(g.rms_norm(x), g.weight("n", (64,)))))
    memory = {t.id: Memory(t.nbytes) for t in graph.tensors}
    nodes = bound_nodes(graph, memory)
    group = Group("rms_norm+mul", (0, 1))
    nodes = [replace(n, group=group) if n.node in group.nodes else n for n in nodes]
    assert [c.kernel for c in lower_nodes(nodes, PLAIN).calls] == ["matvec_rows"]
    x = nodes[0].inputs[0]
    nodes[1] = replace(nodes[1], output=x)
    nodes[2] = replace(nodes[2], inputs=(nodes[2].inputs[0], x))
    assert [c.kernel for c in lower_nodes(nodes, PLAIN).calls] == ["norm_mul_rows", "matvec_rows"]


def test_rotations_and_copies_into_caches_are_one_kernel(device):
    assert kernels_of(layer(3)) == kernels_of(layer(3)[:1]) == ["rope_kv_write"]
    assert "rope_kv_write" not in kernels_of(layer(65))
    device.profile = PLAIN
    g = GraphBuilder()
    positions, rows = g.input("positions", (3,), I32), g.input("rows", (3,), I32)
    turned = g.rope(g.input("q", (3, 4, 16)), positions, n_dims=16)
    values = g.set_rows(g.state("values", (8, 6), F16), g.input("v", (3, 6)), rows)
    graph = g.build(turned, values)
    assert kernels(graph, PLAIN) == ["rope_kv_write"]
    given = tame(graph) | {
        "rows": np.array([5, 0, 2], np.int32),
        "positions": np.arange(3, dtype=np.int32),
    }
    check(device, graph, given, states={"values": np.zeros((8, 6), np.float16)})
    given["rows"][1] = 8
    with pytest.raises(DeviceFault, match=r"set_rows.*row 8 was requested.*8 rows"):
        run_direct(device, graph, given, {"values": np.zeros((8, 6), np.float16)})


def decoding(tokens=1, n=40, heads=4, kv=F16):
    """Return the nodes of a layer between its products, up to attention over rows 2 to 2 + n."""
    g = GraphBuilder()
    positions, rows = g.input("positions", (tokens,), I32), g.input("rows", (tokens,), I32)
    q, k = g.input("q", (tokens, heads, 16)), g.input("k", (tokens, heads // 2, 16))
    wide = heads // 2 * 64
    turned = g.rope(q, positions, n_dims=16)
    k = g.reshape(g.rope(k, positions, n_dims=16), tokens, heads // 2 * 16)
    keys = g.set_rows(g.state("keys", (n + 5, heads // 2 * 16), kv), k, rows)
    values = g.set_rows(g.state("values", (n + 5, wide), kv), g.input("v", (tokens, wide)), rows)
    k = g.reshape(g.rows(keys, 2, n + 2), n, heads // 2, 16)
    v = g.reshape(g.rows(values, 2, n + 2), n, heads // 2, 64)
    bounds = g.input("bounds", (tokens, 2), I32)
    return g.build(g.attention(turned, k, v, bounds=bounds, scale=0.2))


def nodes_of(graph):
    """Return bound nodes, with the rotation of keys in a group with the copy behind it."""
    nodes = bound_nodes(graph, {t.id: Memory(t.nbytes) for t in graph.tensors if not t.is_view})
    group = Group("rope+set_rows", (1, 2))
    return [replace(n, group=group) if n.node in group.nodes else n for n in nodes]


@pytest.mark.parametrize(("kv", "kernel"), [(F16, "attention_blocks"), (F32, "attention_row")])
def test_rotations_and_attention_of_one_token_are_one_kernel(monkeypatch, kv, kernel):
    made, graph, states = lowered_by(monkeypatch, PLAIN), decoding(kv=kv), {}
    given = tame(graph)
    with Scheduler(["opencl:0"]) as scheduler:
        for row in (37, 38, 39, 45):
            given["positions"][:], given["rows"][:], given["bounds"][:] = row, row, [1, row - 1]
            if row == 45:
                with pytest.raises(DeviceFault, match=r"set_rows.*row 45 was requested.*45 rows"):
                    scheduler.run(graph, given)
                break
            found = scheduler.run(graph, given)
            for tid, wanted in run_oracle(graph, given, states=states).items():
                np.testing.assert_allclose(found[tid], wanted, rtol=1e-4, atol=1e-4)
    assert [(call["kernel"], call["ROPE"]) for call in made] == [(kernel, "1")]


def test_arguments_of_attention_with_rotations_are_counted():
    (call,) = lower_nodes(nodes_of(decoding()), PLAIN).calls
    assert (call.source, call.groups) == ("rope_attention", (1, 2, 1))
    assert sum(len(arg) if isinstance(arg, bytes) else 8 for arg in call.args) <= JOINED_NBYTES


def test_attention_that_stays_apart_from_rotations():
    apart = ["rope_kv_write", "attention_blocks"]
    assert kernels_of(nodes_of(decoding(tokens=2))) == apart
    assert kernels_of(nodes_of(decoding(n=600))) == [*apart, "attention_join"]
    *others, last = nodes_of(decoding())
    for output in (others[0].inputs[0], others[0].output):
        moved = replace(last.output, buffer=output.buffer, offset=output.offset)
        assert kernels_of([*others, replace(last, output=moved)]) == apart
    k, v, *more = last.inputs
    moved = replace(k, offset=k.offset + k.strides[1])
    assert kernels_of([*others, replace(last, inputs=(moved, v, *more))]) == apart


def kernels_of(nodes):
    return [call.kernel for call in lower_nodes(nodes, PLAIN).calls]


@pytest.mark.parametrize(
    "dtype", [Q8_0, *(pytest.param(t, marks=slow) for t in (Q4_0, Q4_K, Q6_K, MXFP4))]
)
def test_blocks_of_one_row_are_copied_first(device, dtype):
    """Warps share rows of more than two steps; nothing behind the weight is read."""
    device.profile = profile = replace(UNITS, lanes=64)
    graph = product(dtype, 3, whole(2100, dtype), 1)
    (call,) = calls(graph, profile)
    assert [dict(call.defines)[name] for name in ("STAGED", "SPLIT")] == ["1", "2"]
    check(device, graph, tame(graph))


def test_each_multiprocessor_has_one_group_of_rows_that_are_copied_first():
    """Several weights, whose rows are counted by themselves, and those of a gated product."""
    profile = replace(UNITS, lanes=512, num_sms=132, staged_nbytes=180 << 10)
    for n in (2048, 3072, 14336, 128256):
        (call,) = calls(product(Q8_0, n, 2048, 1), profile)
        assert 96 <= call.groups[0] <= 132
    made = calls(decoder_step(Q8_0, 1), profile)
    assert all(dict(call.defines)["STAGED"] == "1" for call in made if "matvec" in call.kernel)
    assert all(call.groups[0] <= 132 for call in made)


@pytest.mark.parametrize(("dtype", "way"), [(Q8_0, "STAGED"), (BF16, "STREAMED")])
def test_neighbours_of_one_row_are_copied_first(monkeypatch, dtype, way):
    """Rows of blocks are, and of plain types that of x."""
    made = run_step(monkeypatch, decoder_step(dtype, 1), UNITS)
    assert [call.get(way) for call in made] == ["1", "1", "1"]


@pytest.mark.parametrize("dtype", [BF16, pytest.param(F32, marks=slow)], ids=str)
def test_rows_of_plain_weights_pass_by_x(device, dtype):
    """A row of several stretches, the last one cut short, and more rows than warps."""
    device.profile = profile = replace(UNITS, lanes=64)
    graph = product(dtype, 11, 2 * 8 * 8 * 32 + 40, 1)
    (call,) = calls(graph, profile)
    assert dict(call.defines)["STREAMED"] == "1"
    assert call.groups == (2, 1, 1)
    check(device, graph, tame(graph), atol=1e-3)


@pytest.mark.parametrize("dtype", [BF16, Q8_0], ids=str)
def test_a_layer_of_decoding_is_five_kernels(monkeypatch, dtype):
    made = lowered_by(monkeypatch, UNITS, runs=False)
    sizes = {"n_layer": 3, "n_vocab": 96, "n_embd": 128, "n_head": 4, "n_head_kv": 2, "n_ff": 160}
    spec = spec_of(replace(SMALL, **sizes), dtype)
    graph = build_model_graph(spec, n_tokens=1, n_kv=64, n_out=1, n_ctx=64)
    with Scheduler(["opencl:0"], weights=random_weights(spec)) as scheduler:
        scheduler.prepare(graph)
    products, attention = ["matvec_rows"], ["attention_row"]
    layer = [*products, *attention, *products * 3]
    assert [call["kernel"] for call in made] == ["get_rows", *layer * 3, *products]


# --- many rows --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [BF16, Q8_0, *(pytest.param(t, marks=slow) for t in (F16, Q4_K, Q6_K, MXFP4))]
)
def test_many_rows_in_16_bits(device, dtype):
    device.profile = UNITS
    k = 67 if dtype.block == 1 else max(64, dtype.block)
    graph = product(dtype, 40, k, 9)
    assert kernels(graph) == ["halve_rows", "matmul_halves"]
    check(device, graph, tame(graph))


def test_experts_in_16_bits(device):
    device.profile = UNITS
    g = GraphBuilder()
    w, ids = g.weight("w", (3, 33, 64), BF16), g.input("ids", (40, 2), I32)
    graph = g.build(g.mul_mat_id(w, g.input("x", (40, 2, 64)), ids))
    assert kernels(graph) == ["halve_rows", "list_rows", "matmul_halves_id"]
    check(device, graph, tame(graph, ids=LeafRule("ids", bound=3)))
    with pytest.raises(DeviceFault, match=r"row 3 was requested.*3 rows"):
        run_direct(device, graph, tame(graph) | {"ids": np.full((40, 2), 3, np.int32)})


def test_rows_of_x_are_prepared_once_for_each_kind():
    g = GraphBuilder()
    x = g.input("x", (20, 256))
    kinds = (BF16, Q8_0, Q4_K, MXFP4, BF16)
    graph = g.build(*(g.mul_mat(g.weight(f"w{i}", (64, 256), t), x) for i, t in enumerate(kinds)))
    halves, product = "halve_rows", "matmul_halves"
    wanted = [halves, product, halves, product, product, halves, product, halves, product]
    assert kernels(graph) == wanted


def test_what_units_do_not_take():
    graph = product(BF16, 64, 64, 20)
    assert kernels(graph, replace(UNITS, activations="f32")) == ["matmul"]
    assert kernels(graph, PLAIN) == ["matmul"]
    assert kernels(product(F32, 64, 64, 20)) == ["matmul"]


def test_tiles_are_smaller_where_groups_are_few():
    def tile(n, m, num_sms):
        profile = replace(UNITS, num_sms=num_sms)
        memory = dict.fromkeys(range(9), Memory(1 << 24))
        *_, call = lower_nodes(bound_nodes(product(BF16, n, 64, m), memory), profile).calls
        return tuple(int(dict(call.defines)[name]) for name in ("MT", "NT")), call.groups

    assert tile(8192, 512, 132) == ((4, 4), (64, 4, 1))
    assert tile(2048, 512, 132) == ((4, 2), (32, 4, 1))
    assert tile(512, 512, 132) == ((2, 2), (8, 8, 1))


# --- attention --------------------------------------------------------------------------------

QUERIES = (37, 4, 2, 16, 32, 70, None, True, True, 0.0)


@pytest.mark.parametrize("kv", [F32, *(pytest.param(t, marks=slow) for t in (F16, BF16))], ids=str)
def test_attention_of_many_queries(device, kv):
    device.profile = UNITS
    graph = attention_graph(QUERIES, kv)
    assert kernels(graph) == ["attention_halves", "attention_blocks"]
    values = tame(graph, bounds=LeafRule("bounds", bound=70))
    check(device, graph, values, runs=4)  # groups of several threads
    values["k"] = values["k"].copy()
    values["k"][5, 3] = -np.inf if kv is not BF16 else 0xFF80  # of a row that is computed again
    check(device, graph, values)


ONE_TOKEN = (
    (F32, (1, 8, 2, 64, 64, 300, None, True, True, 0.0), ["attention_row"]),
    (F16, (1, 6, 2, 32, 64, 70, "heads", False, False, 3.0), ["attention_row"]),
    (BF16, (1, 4, 4, 32, 32, 20, "mask", True, True, 0.0), ["attention_row"]),
    (F16, (1, 16, 2, 64, 128, 600, None, True, False, 0.0), ["attention_row", "attention_join"]),
)


@pytest.mark.parametrize(
    ("kv", "case", "made"), [ONE_TOKEN[0], *(pytest.param(*c, marks=slow) for c in ONE_TOKEN[1:])]
)
def test_attention_of_one_token(device, kv, case, made):
    """Queries that share keys, none or several of the other operands, and shares of the rows."""
    device.profile = replace(PLAIN, lanes=64)
    graph = attention_graph(case, kv)
    assert kernels(graph, PLAIN) == made
    given = tame(graph, mask=LeafRule("mask"), bounds=LeafRule("bounds", bound=case[5]))
    check(device, graph, given, runs=2)


def test_attention_of_one_token_that_has_no_pieces():
    def kernel(kv=F32, **changed):
        given = {"tokens": 1, "heads": 4, "groups": 2, "width": 64, "across": 64, "rows": 20}
        case = (*(given | changed).values(), None, False, False, 0.0)
        return kernels(attention_graph(case, kv), PLAIN)[0]

    assert kernel() == kernel(width=16) == "attention_row"
    more = kernel(F16, width=16), kernel(across=96), kernel(across=256), kernel(heads=18)
    assert {kernel(Q8_0), kernel(tokens=2), *more} == {"attention_blocks"}


def test_attention_of_one_token_fits_local_memory():
    """Devices that were not probed have 32 KiB, less than sums of wide heads for many queries."""
    graph = attention_graph((1, 16, 2, 256, 256, 20, None, False, False, 0.0), F16)
    assert kernels(graph, PLAIN) == ["attention_blocks"]
    assert kernels(graph, UNITS) == ["attention_row"]
    assert kernels(graph, replace(UNITS, lanes=512)) == ["attention_blocks"]
    assert kernels(graph, replace(UNITS, lanes=512, staged_nbytes=180 << 10)) == ["attention_row"]


def test_attention_that_units_do_not_take():
    def kernel(profile=UNITS, kv=F32, **changed):
        names = ("tokens", "heads", "groups", "width", "across")
        case = (*({**dict(zip(names, QUERIES, strict=False)), **changed}.values()), *QUERIES[5:])
        return kernels(attention_graph(case, kv), profile)[0]

    assert kernel() == "attention_halves"
    assert {kernel(PLAIN), kernel(kv=Q8_0, across=32, width=32)} == {"attention_blocks"}
    assert {kernel(tokens=31), kernel(width=20), kernel(across=144)} == {"attention_blocks"}


# --- what a device can --------------------------------------------------------------------------


def test_a_device_without_ptx_has_no_units(device):
    from ggsched_opencl import backend, driver, matrix_units
    from ggsched_opencl.device import profile_of

    found = driver.find_devices().devices[0]
    assert not matrix_units.has_ptx(found.handle)
    assert not any(each.has_ptx for each in backend.OpenClBackend()._found if each.is_cpu)
    gpu = replace(found, is_cpu=False, parameter_nbytes=JOINED_NBYTES, has_ptx=True)
    assert (profile_of(gpu).matrix_units, profile_of(gpu).joins) == (True, True)
    assert not profile_of(replace(gpu, parameter_nbytes=1024)).joins
    assert profile_of(replace(gpu, local_nbytes=96 << 10)).merged_lanes == 256
    assert profile_of(replace(gpu, local_nbytes=200 << 10)).merged_lanes == 512


def test_units_are_used_if_products_and_exchanges_are_right(monkeypatch):
    from ggsched_opencl import driver, matrix_units

    i, k, j = np.arange(16), np.arange(16), np.arange(8)
    a, b = (2 * i[:, None] + 3 * k) % 7 - 3, (5 * k[:, None] + j) % 11 - 5
    lane = np.arange(32)
    words = [(0x5566778811223344 >> int(i)) % 2**32 // 256 for i in lane]
    right = np.concatenate([(a @ b).ravel(), lane ^ 5, 1 + lane / 1024, 254 + lane, words])
    right = right.astype(np.float32)
    for at, wanted in ((None, True), (5, False), (140, False), (170, False), (200, False)):
        given = right.copy()
        if at is not None:
            given[at] += 1
        monkeypatch.setattr(driver, "probe", lambda *_, given=given: given.tobytes())
        assert matrix_units.has_ptx.__wrapped__(None) is wanted
    monkeypatch.setattr(driver, "probe", lambda *_: None)
    assert not matrix_units.has_ptx.__wrapped__(None)


@pytest.mark.slow
@pytest.mark.parametrize("profile", [PLAIN, UNITS], ids=["plain", "units"])
def test_all_that_the_kit_launches_is_lowered(monkeypatch, profile):
    """Its cases run on a simulated device that declares what an OpenCL GPU does."""
    compile_, count = SimDevice.compile, 0

    def compiled(self, nodes, stream):
        nonlocal count
        count += 1
        made = compile_(self, nodes, stream)
        with suppress(GgschedError):  # as the device refuses, too
            lower_nodes(nodes, profile)
        return made

    monkeypatch.setattr(SimDevice, "compile", compiled)
    declared = {
        "ops": supported_ops("opencl", has_f64=True),
        "fusions": supported_fusions(profile),
        "neighbours": NEIGHBOURS,
    }
    kit = ConformanceRunner(sim_harness(SimConfig(**declared)), max_examples=25)
    for case in all_cases():
        if case.rule.startswith("LCH") or case.rule == "ALL-1":
            result = kit.run(case)
            assert result.verdict in ("pass", "skip"), f"{case.name}: {result.reason}"
    assert count > 1000
