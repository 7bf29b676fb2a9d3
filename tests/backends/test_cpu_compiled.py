"""Compiled kernels of the CPU: teams, faults, times, rounding, and what happens without them."""

import os
import subprocess
import sys
import threading
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.errors import DeviceFault, UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F16, F32, FLOAT_DTYPES, I32, Q4_K, QUANTIZED_DTYPES
from ggsched.ir.ops import OPS
from ggsched_cpu import native, supported
from ggsched_cpu.device import CpuDevice, CpuSettings
from ggsched_cpu.kernels.compiler import host_target
from ggsched_cpu.kernels.int_dot import has_fours
from ggsched_cpu.kernels.target import Target
from ggsched_cpu.program import Calls, Stretch, compile_steps, segment
from ggsched_cpu.threads import _quota, default_threads, warn_of_crowd
from ggsched_testing.eager import bound_nodes, run_direct
from ggsched_testing.generators.strategies import graphs, seeds
from ggsched_testing.generators.values import LeafRule, values_for
from ggsched_testing.oracle.interpreter import run_oracle
from tests.backends import against_oracle
from tests.backends.against_oracle import tame, whole

TIMEOUT_S = 20.0
PACKED = QUANTIZED_DTYPES


def device(**settings):
    return CpuDevice(0, CpuSettings(timeout_s=TIMEOUT_S, **settings))


TEAM = device(threads=3)
LONE = device(threads=1)
ROUNDED = device(threads=2, activations="auto")

pytestmark = pytest.mark.skipif(native.library() is None, reason="no compiled kernels here")


def split_everything(monkeypatch):
    """Cut even the smallest tasks into parts, so that the team has something to do."""
    monkeypatch.setattr("ggsched_cpu.lowering.tasks.PART_NBYTES", 64)
    monkeypatch.setattr("ggsched_cpu.lowering.tasks.SHARED_NBYTES", 64)
    monkeypatch.setattr("ggsched_cpu.lowering.tasks.SERIAL_NBYTES", 0)
    monkeypatch.setattr("ggsched_cpu.lowering.products.SERIAL_NBYTES", 0)


# --- against the oracle ---------------------------------------------------------------------


@given(drawn=graphs(), seed=seeds())
def test_random_graphs_in_many_parts(drawn, seed):
    with pytest.MonkeyPatch.context() as patch:
        split_everything(patch)
        against_oracle.check(TEAM, drawn.graph, values_for(drawn, seed), runs=2)


@given(drawn=graphs(), seed=seeds())
def test_random_graphs_with_rounded_activations(drawn, seed):
    against_oracle.check(ROUNDED, drawn.graph, values_for(drawn, seed))


@given(data=st.data(), seed=seeds())
def test_rounded_products(data, seed):
    g = GraphBuilder()
    dtype = data.draw(st.sampled_from(PACKED))
    n, m, blocks = (data.draw(st.integers(1, k)) for k in (40, 9, 5))
    k = dtype.block * blocks
    w, x = g.weight("w", (n, k), dtype), g.input("x", (m, k))
    graph = g.build(g.mul_mat(w, x))
    against_oracle.check(ROUNDED, graph, tame(graph, seed))


@pytest.mark.parametrize("dtype", PACKED, ids=str)
@pytest.mark.parametrize("blocks", [15, 16, 17, 34])
@pytest.mark.parametrize("m", [1, 3, 8])
def test_rounded_products_of_long_rows(dtype, blocks, m):
    """Rows with whole groups of 16 blocks or of 4 of 256, with some more, and with fewer."""
    g = GraphBuilder()
    k = 32 * blocks if dtype.block == 32 else dtype.block * (1 + blocks % 7)
    graph = g.build(g.mul_mat(g.weight("w", (37, k), dtype), g.input("x", (m, k))))
    values = tame(graph, m + blocks)
    against_oracle.check(ROUNDED, graph, values)
    (wanted,) = run_oracle(graph, values).values()
    (found,) = run_direct(ROUNDED, graph, values).values()
    assert 1e-4 < np.linalg.norm(found - wanted) / np.linalg.norm(wanted) < 2e-2


@pytest.mark.parametrize(
    "dtype", [*(d for d in PACKED if d.block == 32 and d.layout.min is None), Q4_K], ids=str
)
def test_each_block_has_its_own_scale(dtype):
    """One block of activations at a time, by far the largest: whose scale counts is seen.

    Activations are numbers that rounding leaves as they are, so that results are those of f32.
    """
    g = GraphBuilder()
    blocks = 37 if dtype.block == 32 else 40
    k = 32 * blocks
    graph = g.build(g.mul_mat(g.weight("w", (5, k), dtype), g.input("x", (1, k))))
    values = tame(graph, 3)
    for block in range(blocks):
        x = np.full((1, k), 2.0**-10, np.float32)
        codes = np.random.default_rng(block).integers(-127, 128, 32)
        codes[5] = 127
        x[0, 32 * block : 32 * block + 32] = codes
        (wanted,) = run_oracle(graph, values | {"x": x}).values()
        (found,) = run_direct(ROUNDED, graph, values | {"x": x}).values()
        assert np.linalg.norm(found - wanted) < 1e-4 * np.linalg.norm(wanted)


@pytest.mark.parametrize("dtype", PACKED, ids=str)
def test_rounding_is_seen(dtype):
    """The kernels with rounded activations are used: the result is off by more than f32 is."""
    g = GraphBuilder()
    graph = g.build(g.mul_mat(g.weight("w", (64, 256), dtype), g.input("x", (1, 256))))
    values = tame(graph)
    (wanted,) = run_oracle(graph, values).values()
    found = {d: next(iter(run_direct(d, graph, values).values())) for d in (LONE, ROUNDED)}
    size = np.linalg.norm(wanted)
    assert np.linalg.norm(found[LONE] - wanted) < 1e-5 * size
    assert 1e-4 * size < np.linalg.norm(found[ROUNDED] - wanted) < 2e-2 * size


@pytest.mark.parametrize("dtype", [F32, F16, BF16, *PACKED], ids=str)
@pytest.mark.parametrize(("m", "n", "k"), [(9, 16, 32), (33, 101, 320), (530, 49, 64)])
def test_products_of_many_rows(dtype, m, n, k):
    g = GraphBuilder()
    k = whole(k, dtype)
    x = g.input("x", (m, k))
    first = g.mul_mat(g.weight("a", (n, k), dtype), x)
    graph = g.build(g.add(first, g.mul_mat(g.weight("b", (n, k), dtype), x)))
    for made in (TEAM, LONE):
        against_oracle.check(made, graph, tame(graph, m))


@pytest.mark.parametrize(("m", "n", "k"), [(9, 16, 32), (33, 101, 320), (45, 50, 24)])
def test_bf16_products_of_many_rows(m, n, k):
    """Activations may be rounded like the weight, as far as there are instructions for that."""
    g = GraphBuilder()
    graph = g.build(g.mul_mat(g.weight("w", (n, k), BF16), g.input("x", (m, k))))
    values = tame(graph, m)
    against_oracle.check(ROUNDED, graph, values)
    (wanted,) = run_oracle(graph, values).values()
    (found,) = run_direct(LONE, graph, values).values()
    assert np.linalg.norm(found - wanted) < 1e-5 * np.linalg.norm(wanted)


@pytest.mark.parametrize(("m", "k"), [(1, 32), (1, 1056), (3, 96), (8, 4160), (2, 45)])
@pytest.mark.parametrize("threads", [1, 2])
def test_bf16_products_of_few_rows(monkeypatch, m, k, threads):
    """Activations are rounded like the weight where the processor multiplies pairs of bf16."""
    split_everything(monkeypatch)
    g = GraphBuilder()
    graph = g.build(g.mul_mat(g.weight("w", (37, k), BF16), g.input("x", (m, k))))
    values = tame(graph, m)
    made = device(threads=threads, activations="auto")
    against_oracle.check(made, graph, values)
    (found,) = run_direct(made, graph, values).values()
    if native.library().target.has("avx512bf16") and k % 32 == 0:
        bits = values["x"].view(np.uint32).astype(np.uint64)
        nearest = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
        values |= {"x": nearest.astype(np.uint32).view(np.float32)}
    (wanted,) = run_oracle(graph, values).values()
    assert np.linalg.norm(found - wanted) < 1e-5 * np.linalg.norm(wanted)
    made.close()


def test_bf16_products_with_few_experts():
    g = GraphBuilder()
    w, x = g.weight("w", (7, 50, 64), BF16), g.input("x", (3, 1, 64))
    graph = g.build(g.mul_mat_id(w, x, g.input("ids", (3, 2), I32)))
    values = tame(graph, ids=LeafRule("ids", bound=7))
    for made in (LONE, ROUNDED):
        against_oracle.check(made, graph, values)


@pytest.mark.parametrize("dtype", PACKED, ids=str)
@pytest.mark.parametrize(("m", "n", "k"), [(9, 16, 32), (33, 101, 320), (530, 49, 64)])
def test_rounded_products_of_many_rows(dtype, m, n, k):
    """Each element alone is within its bound, and together they are off by as much as expected.

    Processors without products of fours of bytes (VNNI) compute with rows as they are.
    """
    g = GraphBuilder()
    k = whole(k, dtype)
    graph = g.build(g.mul_mat(g.weight("w", (n, k), dtype), g.input("x", (m, k))))
    values = tame(graph, m)
    against_oracle.check(ROUNDED, graph, values)
    (wanted,) = run_oracle(graph, values).values()
    (found,) = run_direct(ROUNDED, graph, values).values()
    error = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
    if has_fours(host_target()):
        assert 1e-4 < error < 2e-2
    else:
        assert error < 1e-5


@pytest.mark.parametrize("dtype", [F32, F16, BF16, *PACKED], ids=str)
@pytest.mark.parametrize(("tokens", "rows"), [(40, 1), (300, 3)])
def test_many_rows_with_experts(dtype, tokens, rows):
    """Experts that nobody chooses, and one that has more than a part takes."""
    g = GraphBuilder()
    k = whole(64, dtype)
    w, x = g.weight("w", (7, 50, k), dtype), g.input("x", (tokens, rows, k))
    graph = g.build(g.mul_mat_id(w, x, g.input("ids", (tokens, 3), I32)))
    values = tame(graph, ids=LeafRule("ids", bound=7))
    few = np.where(values["ids"] % 2, 5, values["ids"]).astype(np.int32)
    for ids in (values["ids"], few, np.full_like(few, 6)):
        for made in (TEAM, LONE, ROUNDED):
            against_oracle.check(made, graph, values | {"ids": ids})


@pytest.mark.parametrize("shape", [(3, 64), (1, 1000), (2, 3, 4, 33), (5, 1), (1, 7)])
@pytest.mark.parametrize("strided", [False, True])
def test_arithmetic_of_any_shape(monkeypatch, shape, strided):
    split_everything(monkeypatch)
    g = GraphBuilder()
    wide = (*shape[:-1], 2 * shape[-1])
    a, b = (g.input(name, wide if strided else shape) for name in "ab")
    if strided:
        a, b = (g.view(t, shape, t.strides) for t in (a, b))
    x = g.swiglu(g.gelu(g.silu(g.add(a, b))), g.scale(g.mul(a, b), 0.5, 1.0))
    y = g.soft_max(g.norm(g.rms_norm(g.sub(x, g.sum_rows(a)))))
    graph = g.build(g.swiglu_oai(g.clamp(y, -0.5, 0.25), x))
    against_oracle.check(TEAM, graph, tame(graph))


def test_extremes_of_exp():
    """Masks are -inf, and e^x must neither overflow early nor be off at the ends."""
    x = np.array([-np.inf, -1e30, -104, -87.4, -87, -1, -0.0, 0, 1, 87, 88.7, 1e3, np.inf, np.nan])
    g = GraphBuilder()
    graph = g.build(g.silu(g.input("x", (1, x.size))))
    values = {"x": x.astype(np.float32)[None]}
    (found,) = run_direct(LONE, graph, values).values()
    with np.errstate(all="ignore"):
        wanted = x / (1 + np.exp(-x))
    np.testing.assert_allclose(found[0], wanted.astype(np.float32), rtol=2e-6, atol=1e-35)


def test_exp_is_exact_enough():
    x = np.linspace(-87, 0, 20_000, dtype=np.float32)
    g = GraphBuilder()
    graph = g.build(g.soft_max(g.input("x", (1, x.size))))
    (found,) = run_direct(LONE, graph, {"x": x[None]}).values()
    power = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(found[0], power / power.sum(), rtol=2e-6, atol=1e-37)


@pytest.mark.parametrize("n", [1, 7, 32, 128, 2000])
def test_top_k_orders_ties_and_nan(n):
    rng = np.random.default_rng(n)
    x = rng.choice([-1.0, -0.0, 0.0, 2.0, np.nan, np.inf, -np.inf], (5, n)).astype(np.float32)
    k = min(n, 64)
    g = GraphBuilder()
    graph = g.build(g.top_k(g.input("x", x.shape), k))
    (found,) = run_direct(LONE, graph, {"x": x}).values()
    np.testing.assert_array_equal(found, np.argsort(-x, -1, "stable")[:, :k])


# --- programs -------------------------------------------------------------------------------


def decoder(tokens=1):
    """A block of a transformer without its products: norms, rotation, caches, attention."""
    g = GraphBuilder()
    x = g.input("x", (tokens, 64))
    ids, positions = g.input("ids", (tokens,), I32), g.input("positions", (tokens,), I32)
    normed = g.mul(g.rms_norm(x), g.weight("norm", (64,)))
    q = g.mul_mat(g.weight("wq", (64, 64), QUANTIZED_DTYPES[0]), normed)
    k = g.mul_mat(g.weight("wk", (64, 64), QUANTIZED_DTYPES[1]), normed)
    q = g.rope(g.reshape(q, tokens, 4, 16), positions, n_dims=16)
    k = g.rope(g.reshape(k, tokens, 4, 16), positions, n_dims=16, pairing="halves")
    cache = g.set_rows(g.state("cache", (32, 64)), g.reshape(k, tokens, 64), ids)
    keys = g.permute(g.reshape(cache, 32, 4, 16), 1, 0, 2)
    scores = g.mul_mat(keys, g.permute(q, 1, 0, 2))
    weights = g.soft_max(scores, g.input("mask", (tokens, 32)), scale=0.25)
    sums = g.mul_mat(g.permute(keys, 0, 2, 1), weights)
    merged = g.reshape(g.cont(g.permute(sums, 1, 0, 2)), tokens, 64)
    return g.build(g.add(merged, x))


RULES_OF_DECODER = {
    "ids": LeafRule("ids", bound=32, distinct=True),
    "positions": LeafRule("ids", bound=1000),
    "mask": LeafRule("mask"),
}


def steps_of(graph):
    """Return the steps of a program that is compiled for one thread."""
    buffers = {t.id: LONE.allocate(t.nbytes) for t in graph.tensors if not t.is_view}
    return compile_steps(bound_nodes(graph, buffers), LONE.kernels_used)


@pytest.mark.parametrize("dtype", [F32, F16, BF16, *PACKED], ids=str)
@pytest.mark.parametrize("n", [1, 5, 15])
def test_weights_of_few_rows_have_kernels(dtype, n):
    """As the weights of a router of a few experts, with the rows of a prompt."""
    g = GraphBuilder()
    k = whole(64, dtype)
    graph = g.build(g.mul_mat(g.weight("w", (n, k), dtype), g.input("x", (20, k))))
    for made in (TEAM, LONE, ROUNDED):
        against_oracle.check(made, graph, tame(graph))
    assert not any(step.by_reference for step in steps_of(graph))


@pytest.mark.parametrize("dtype", [F32, I32], ids=str)
def test_joining_and_tiling_have_kernels(dtype):
    g = GraphBuilder()
    x, y = (g.input(name, (3, n, 7), dtype) for name, n in (("x", 4), ("y", 2)))
    turned = g.permute(g.input("z", (7, 6, 3), dtype), 2, 1, 0)
    outs = [g.concat(g.concat(x, y, 1), turned, 2)]
    if dtype is F32:
        outs += [g.repeat(x, (6, 4, 21)), g.repeat(g.permute(x, 0, 2, 1), (3, 14, 4))]
    graph = g.build(*outs)
    against_oracle.check(TEAM, graph, tame(graph, **{n: LeafRule(bound=9) for n in "xyz"}))
    assert not any(step.by_reference for step in steps_of(graph))


@pytest.mark.parametrize("tokens", [1, 3])
def test_a_decoder_is_one_native_call(tokens):
    graph = decoder(tokens)
    steps = steps_of(graph)
    assert not any(step.by_reference for step in steps)
    body = segment(steps, LONE._runner(LONE.create_stream()))
    assert [type(piece) for piece in body.pieces] == [Stretch]
    against_oracle.check(TEAM, graph, tame(graph, **RULES_OF_DECODER))


def test_what_has_no_kernel_is_a_call_between_tables():
    g = GraphBuilder()
    x = g.input("x", (3, 40))
    graph = g.build(g.get_rows(g.add(x, x), g.view(g.argsort(x), (2,), (4,))))
    body = segment(steps_of(graph), LONE._runner(LONE.create_stream()))
    assert {type(piece) for piece in body.pieces} == {Stretch, Calls}


@pytest.mark.parametrize("threads", [1, 2])
def test_faults_name_node_and_row(threads):
    """In the middle of a table; what follows does not run, and the device can go on."""
    g = GraphBuilder()
    ids, x = g.input("ids", (2,), I32), g.input("x", (2, 32))
    rows = g.get_rows(g.weight("w", (4, 32)), ids)
    graph = g.build(g.add(g.add(rows, x), x))
    values = tame(graph) | {"ids": np.array([1, -7], np.int32)}
    made = device(threads=threads)
    with pytest.raises(DeviceFault, match=r"n0 get_rows.*row -7 was requested.*4 rows"):
        run_direct(made, graph, values)
    values["ids"] = np.array([1, 3], np.int32)
    against_oracle.check(made, graph, values)
    made.close()


@pytest.mark.parametrize("threads", [1, 2])
def test_times_of_nodes(monkeypatch, threads):
    split_everything(monkeypatch)
    made, graph = device(threads=threads), decoder()
    stream = made.create_stream()
    latest = stream.__take_times__()
    buffers = {t.id: made.allocate(t.nbytes) for t in graph.tensors if not t.is_view}
    for t in graph.tensors:
        if not t.is_view:
            buffers[t.id].host_view()[:] = bytes(t.nbytes)
    nodes = bound_nodes(graph, buffers)
    stream.launch(made.compile(nodes, stream))
    taken = latest()
    stream.sync(TIMEOUT_S)
    parts = taken.parts()
    assert [part.label for part in parts] == [node.label for node in nodes]
    assert all(part.start_s <= part.end_s for part in parts)
    assert all(a.end_s == b.start_s for a, b in pairwise(parts))
    made.close()


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_each_node_sees_all_parts_of_the_one_before(monkeypatch, threads):
    """Permutations: a row that is read before it was written, or written twice, is out of place."""
    split_everything(monkeypatch)
    rng = np.random.default_rng(threads)
    g, weights = GraphBuilder(), {}
    order, x = np.arange(28), g.input("x", (1, 28))
    for i in range(120):
        turn = rng.permutation(28)
        order = order[turn]
        weights[f"w{i}"] = np.eye(28, dtype=np.float32)[turn]
        x = g.mul_mat(g.weight(f"w{i}", (28, 28)), x)
        if i % 3 == 0:
            x = g.scale(x, 1.0, 0.0)  # of one part
    graph = g.build(x)
    team = device(threads=threads)
    for run in range(5):
        values = weights | {"x": np.arange(28, dtype=np.float32)[None] + run}
        (found,) = run_direct(team, graph, values).values()
        np.testing.assert_array_equal(found[0], order + run)


def test_several_streams_share_the_team(monkeypatch):
    split_everything(monkeypatch)
    made, graph = device(threads=2), decoder(3)
    values = tame(graph, **RULES_OF_DECODER)
    wanted = run_oracle(graph, values)
    failed = []

    def work():
        for _ in range(20):
            for tid, found in run_direct(made, graph, values).items():
                if not np.allclose(found, wanted[tid], 1e-4, 1e-4):
                    failed.append(tid)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    made.close()


def test_threads_end_with_the_last_stream(monkeypatch):
    split_everything(monkeypatch)
    before = set(threading.enumerate())
    made, graph = device(threads=3), decoder()
    stream = made.create_stream()
    buffers = {t.id: made.allocate(t.nbytes) for t in graph.tensors if not t.is_view}
    program = made.compile(bound_nodes(graph, buffers), stream)
    stream.launch(program)
    stream.sync(TIMEOUT_S)
    team = [t for t in set(threading.enumerate()) - before if t.name.startswith("ggsched team")]
    assert len(team) == 2
    stream.close()
    made.close()
    assert not any(t.is_alive() for t in team)


FORK = """
import os, numpy as np
from ggsched.ir.builder import GraphBuilder
from ggsched_testing.eager import run_direct
from ggsched_cpu.device import CpuDevice, CpuSettings
g = GraphBuilder()
graph = g.build(g.mul_mat(g.weight("w", (512, 256)), g.input("x", (1, 256))))
values = {"w": np.ones((512, 256), np.float32), "x": np.ones((1, 256), np.float32)}
device = CpuDevice(0, CpuSettings(threads=2))
def run(device):
    (found,) = run_direct(device, graph, values).values()
    assert (found == 256).all()
stream = device.create_stream()
run(device)
child = os.fork()
if child == 0:
    run(CpuDevice(0, CpuSettings(threads=2)))
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
run(device)
device.close()
"""


def python(code, **environment):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_fork():
    python(FORK)


def test_one_core_and_more_threads_than_cores():
    """Limited to one core there is one thread by default, and three take turns on it."""
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from ggsched_cpu.threads import default_threads; assert default_threads() == 1\n"
    )
    python(code + FORK.replace("threads=2", "threads=3"))


# --- settings -------------------------------------------------------------------------------


def test_threads_setting(monkeypatch):
    monkeypatch.setenv("GGSCHED_THREADS", "5")
    assert "5 threads" in CpuDevice(0, CpuSettings.from_environment()).facts.description
    for text in ("0", "-1", "many", "513"):
        monkeypatch.setenv("GGSCHED_THREADS", text)
        with pytest.raises(UsageError, match="GGSCHED_THREADS.*from 1 to 512"):
            CpuSettings.from_environment()


def test_default_is_what_the_process_may_use():
    assert 1 <= default_threads() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "150000 100000"}, 2),
        ({"a/b/cpu.max": "800000 100000", "a/cpu.max": "300000 100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu.max": "nonsense"}, None),
    ],
)
def test_quota_of_control_groups(tmp_path, files, expected):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    own = tmp_path / "own"
    own.write_text("0::/a/b\n4:memory:/x\n3:cpu,cpuacct:/\n")
    assert _quota(tmp_path, own) == expected


@pytest.mark.parametrize(
    ("threads", "quota", "said"),
    [
        (2, None, ""),
        (3, None, "3 threads share 2 processors"),
        (2, 1, "2 threads share 1 processor,"),
    ],
)
def test_more_threads_than_processors_are_told(monkeypatch, caplog, threads, quota, said):
    """They work, but slowly: each waits for others that have no processor."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr("ggsched_cpu.threads._quota", lambda: quota)
    warn_of_crowd(threads)
    assert caplog.text.count("WARNING") == bool(said)
    assert said in caplog.text


def test_a_processor_without_kernels(monkeypatch, caplog):
    old = Target("x86_64-unknown-linux-gnu", "nehalem", "+sse4.2")
    monkeypatch.setattr("ggsched_cpu.kernels.compiler.host_target", lambda: old)
    assert native.library.__wrapped__() is None
    (record,) = caplog.records
    assert "there are no kernels for nehalem" in record.message
    assert "by the reference arithmetic" in record.message


def test_the_reference_arithmetic_when_asked(monkeypatch):
    monkeypatch.setenv("GGSCHED_CPU_KERNELS", "numpy")
    made = CpuDevice(0, CpuSettings.from_environment())
    assert made.kernels_used is None
    assert made.facts.description.startswith("reference arithmetic in numpy on")
    assert not made.facts.rounds_to_8_bits
    monkeypatch.setenv("GGSCHED_CPU_KERNELS", "fast")
    with pytest.raises(UsageError, match="GGSCHED_CPU_KERNELS"):
        CpuSettings.from_environment()


WITHOUT = """
import sys, logging
sys.modules["llvmlite"] = None
logging.basicConfig(format="%(message)s")
from ggsched_cpu.device import CpuDevice, CpuSettings
for i in range(2):
    made = CpuDevice(i, CpuSettings(activations="auto"))
    assert made.facts.description.startswith("reference arithmetic in numpy on")
"""


def test_without_llvmlite():
    """One warning that says what is lost, and the reference arithmetic."""
    said = python(WITHOUT)
    assert said.count("by the reference arithmetic") == 1
    assert "llvmlite" in said


def test_declared_kernels_are_those_that_there_are():
    """Devices declare ops without a kernel from tables, which do not load the kernels."""
    from ggsched_cpu.lowering import EMITTERS

    assert set(OPS) & set(EMITTERS) == supported.BUILT_IN_WITH_KERNEL
    assert set(EMITTERS) - set(OPS) == set(supported.LIBRARY_WITH_KERNEL)


def test_types_with_kernels():
    """Every type of weights that a graph can have is compiled."""
    from ggsched_cpu.kernels.elements import COMPILED

    left = {t.name for t in FLOAT_DTYPES if t not in COMPILED}
    assert not left
    assert F32 in COMPILED


@pytest.mark.parametrize("kind", [F32, F16], ids=str)
@pytest.mark.parametrize("tokens", [1, 3, 20, 45])
@pytest.mark.parametrize("flags", [(True, True), (True, False), (False, True)])
def test_attention_with_bounds(kind, tokens, flags):
    bounded, sinks = flags
    g = GraphBuilder("attention")
    q = g.input("q", (tokens, 6, 16))
    k, v = (g.reshape(g.input(n, (70, 2 * m), kind), 70, 2, m) for n, m in (("k", 16), ("v", 24)))
    made = g.attention(
        q, k, v, scale=0.3,
        sinks=g.input("sinks", (6,)) if sinks else None,
        bounds=g.input("bounds", (tokens, 2), I32) if bounded else None,
    )  # fmt: skip
    graph = g.build(made)
    for device in (TEAM, LONE):
        values = tame(graph, bounds=LeafRule("bounds", bound=70))
        against_oracle.check(device, graph, values, runs=2)
