"""GPUs that read each other's memory, and such that cannot; in software.

The software's GPUs refuse kernels and copies whose operands they cannot access, so what is tested
is who is given which address, behind which event, and how long memory stays.
"""

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")

from benchmarks.gpu import tensor
from ggsched import Scheduler
from ggsched.config import Settings
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16
from ggsched.passes.place import Constraints
from ggsched.plan.stats import plan_stats
from ggsched_testing.conformance import ConformanceRunner, Harness, all_cases
from ggsched_testing.conformance.harness import adapted
from tests.backends.software_cuda import SoftwareDriver
from tests.backends.software_kernels import in_software
from tests.kernels.test_fibers import NEEDS, Runner
from tests.support.shapes import GPT_OSS_20B, LLAMA_8B, spec_of

pytestmark = NEEDS

TINY = replace(
    LLAMA_8B, n_layer=2, n_vocab=64, n_embd=64, n_head=4, n_head_kv=2, head_dim=32, n_ff=128,
    rope=replace(LLAMA_8B.rope, n_dims=32),
)  # fmt: skip
NBYTES, PATIENCE_S = 1 << 12, 60.0
PEERS = ("COL-1", "COL-2", "COL-3", "COL-4")
BETWEEN = (*PEERS, "BUF-2", "CPY-3", "CPY-6", "EVT-1", "EVT-6")
"""Rules that have cases of two devices."""

UNDECLARED = {"col1_undeclared", "col4_undeclared"}


@pytest.fixture(scope="module")
def runner(compiled_kernels):
    return Runner(compiled_kernels)


def verdicts(rules):
    """Run cases of rules on GPUs; return the cases that passed."""
    from ggsched_cuda.harness import CudaHarness

    own = CudaHarness(gpus=True)
    harness = adapted(Harness("cuda", own.open, timeout_s=PATIENCE_S), own)
    kit, passed = ConformanceRunner(harness, max_examples=5), set()
    for case in all_cases():
        if case.rule in rules:
            result = kit.run(case)
            assert result.verdict in ("pass", "skip"), f"{case.name}: {result.reason}"
            if result.verdict == "pass":
                passed.add(case.name)
    return passed


@pytest.mark.parametrize("arch", [80, 90])
def test_two_gpus_keep_the_contract(runner, arch):
    with in_software(runner, gpus=2, arch=arch):
        passed = verdicts(BETWEEN)
    own = [c for c in all_cases() if c.rule in PEERS and "third peer" not in c.needs]
    assert {c.name for c in own} - UNDECLARED <= passed


def test_gpus_without_access_do_not_declare_it(runner):
    """One of them is enough: what a device declares holds for all others of its backend."""
    with in_software(runner, gpus=2, apart=[(1, 0)]):
        passed = verdicts(PEERS)
    assert passed == {"col1_writes_no_peer", *UNDECLARED}


def graph():
    """Return a graph in which device 0 adds what both have computed."""
    g = GraphBuilder("sum")
    x = g.input("x", (64,))
    parts = [g.scale(x, 2.0 + i, name=f"part.{i}") for i in range(2)]
    return g.build(g.add(*parts, name="sum"))


@pytest.mark.parametrize("apart", [(), [(0, 1), (1, 0)]], ids=["peers", "apart"])
def test_a_sum_over_two_gpus(runner, apart):
    """Steps behind the first two are replayed; without access the summand is copied."""
    wanted = Constraints(pins={0: 0, 1: 1, 2: 0}, reads_peers=True)
    made = graph()
    with (
        in_software(runner, gpus=2, apart=apart) as driver,
        Scheduler(["cuda:0", "cuda:1"], settings=Settings()) as scheduler,
    ):
        for k in range(4):
            before = driver.counts["graph"]
            x = np.arange(64, dtype=np.float32) + k
            found = scheduler.run(made, {"x": x}, wanted)[made.outputs[0]]
            np.testing.assert_array_equal(found, 5 * x)
        graphs = driver.counts["graph"] - before
        stats = plan_stats(scheduler.plan(made, wanted))
    assert bool(stats.peer_reads) == (not apart)
    if not apart:
        assert graphs == 1, "a step of both GPUs is one graph"


def product_graph(readers):
    """Return a graph in which device 0 multiplies a row, and pins of those that read the result."""
    g = GraphBuilder("product")
    x, w = g.input("x", (1, 64)), g.weight("w", (96, 64), BF16)
    y = g.mul_mat(w, x, name="y")
    read = [g.scale(y, 2.0 + i, name=f"read.{i}") for i in range(len(readers))]
    return g.build(y, *read), {0: 0} | {1 + i: device for i, device in enumerate(readers)}


@pytest.mark.parametrize("readers", [(1,), (0, 1), (1, 0), (1, 1, 0)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_a_row_that_could_be_pushed(runner, readers, seed):
    """Whoever waits for the product that made it finds it complete, on all GPUs."""
    made, pins = product_graph(readers)
    w = np.random.default_rng(2).integers(-8, 8, (96, 64)).astype(np.float32)
    weights = {"w": (w.view(np.uint32) >> 16).astype(np.uint16)}
    wanted = Constraints(pins=pins, reads_peers=True)
    with (
        in_software(runner, seed, arch=90, gpus=2) as driver,
        Scheduler(["cuda:0", "cuda:1"], weights=weights, settings=Settings()) as scheduler,
    ):
        for k in range(5):
            x = np.arange(64, dtype=np.float32)[None] % 7 + k
            found = scheduler.run(made, {"x": x}, wanted)
            y, *read = (found[tid] for tid in made.outputs)
            np.testing.assert_array_equal(y, x @ w.T)
            for i, r in enumerate(read):
                np.testing.assert_array_equal(r, (2 + i) * (x @ w.T))
        assert driver.counts["graph"] > 0


def test_memory_that_a_peer_reads_is_not_handed_out(runner):
    """BUF-2 between GPUs: what frees memory knows of the streams of all of them."""
    with in_software(runner, gpus=2) as driver:
        from ggsched_cuda import open_backend
        from ggsched_cuda.harness import KernelLatch

        devices = [open_backend().open_device(i) for i in range(2)]
        source, target = (device.allocate(NBYTES) for device in devices)
        own, reader = (device.create_stream() for device in devices)
        wanted = np.random.default_rng(1).integers(0, 256, NBYTES, np.uint8)
        found = np.zeros(NBYTES, np.uint8)
        own.upload(wanted.data, source, 0)
        own.sync(PATIENCE_S)
        latch = KernelLatch(reader)
        reader.copy(source, 0, target, 0, NBYTES)
        address = source.memory
        source.close()
        driver.drain(devices[0].gpu._idle)  # frees what nobody uses
        assert address in driver._memory
        latch.release()
        reader.download(target, 0, found.data)
        reader.sync(PATIENCE_S)
        for device in devices:
            device.close()
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("arch", "gpus"),
    [(80, 4), (90, 2), *(pytest.param(*p, marks=pytest.mark.slow) for p in ((80, 2), (90, 4)))],
)
def test_layers_that_gpus_share(runner, monkeypatch, arch, gpus):
    """A step is one graph, and an exchange one kernel: the sum, the residual, the norm."""
    seen = Counter()
    make = SoftwareDriver.function

    def function(self, cache, name, defines, *rest, **more):
        seen[name] += ("THIRD", "1") in defines  # not a sum of a product and the residual alone
        return make(self, cache, name, defines, *rest, **more)

    monkeypatch.setattr(SoftwareDriver, "function", function)
    monkeypatch.setattr(tensor, "_enqueue_s", partial(tensor._enqueue_s, steps=2))  # untimed here
    tiny = replace(TINY, n_layer=gpus // 2, n_head_kv=gpus, n_ff=64 * gpus)
    with in_software(runner, arch=arch, gpus=gpus) as driver:
        sides = tensor.Sides(spec_of(tiny, BF16), [f"cuda:{i}" for i in range(gpus)], 8, 8)
        one = sides.measure("one", 0, 6)
        assert not seen["sum_norm"]
        both = sides.measure("tensor", 0, 6)
    assert one["difference"] < both["difference"] + 1e-9 < 1e-4
    assert both["step_plan"]["reads_peers"]
    assert (both["segments"], both["obstacles"], both["refused"]) == (1, 2, [])
    exchanges = 2 * tiny.n_layer * gpus  # in each plan, of all devices
    assert driver.counts["rendezvous"] >= exchanges, "sums wait for edges of the graph"
    assert driver.counts["rendezvous"] % exchanges == 0
    assert seen["sum_norm"] >= exchanges
    assert seen["sum_norm"] % exchanges == 0
    # Products begin with all sums of a step but the last, whose product is the logits', which the
    # host is given; of four GPUs the products behind the first sum are launches of their own.
    # Prompts have many rows, whose sums are kernels.
    steps = driver.counts["rendezvous"] // exchanges - 2 if arch >= 90 else 0  # but two prompts
    assert driver.counts["pushed"] == steps * (exchanges - gpus * gpus // 2)


def test_sums_of_experts_are_pushed(runner):
    """The last call of a layer writes its row to the other GPU, and products begin with the sum."""
    tiny = replace(
        GPT_OSS_20B, name="gpt-oss-tiny", n_layer=3, n_vocab=64, n_embd=64, n_head=4, n_head_kv=2,
        head_dim=32, n_ff=128, n_expert=4, n_expert_used=2, rope=replace(TINY.rope, n_dims=32),
    )  # fmt: skip
    tokens, pushed, predict = {}, {}, 4
    with in_software(runner, arch=90, gpus=2) as driver:
        sides = tensor.Sides(spec_of(tiny, BF16), ["cuda:0", "cuda:1"], 8, 8)
        for side in ("one", "tensor"):
            with sides.session(side, predict) as session:
                tokens[side] = list(session.generate(sides.tokens, predict))
            pushed[side] = driver.counts["pushed"]
    assert tokens["one"] == tokens["tensor"]
    # Of a captured step all but two: behind the experts of the first layer the embedding is sent,
    # and the logits, which follow the last ones, go to the host.
    assert not pushed["one"]
    assert pushed["tensor"] > 0
    assert pushed["tensor"] % (2 * (2 * tiny.n_layer - 2)) == 0
