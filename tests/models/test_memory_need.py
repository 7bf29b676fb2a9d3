"""What a session is said to take is what is then allocated, to the byte."""

import random
import re
from collections import defaultdict
from itertools import groupby

import pytest

from ggsched.backend.registry import open_devices
from ggsched.config import Settings
from ggsched.errors import UsageError
from ggsched.passes.pipeline import make_plan
from ggsched.plan.splits import HOST
from ggsched.topology.model import Topology
from ggsched_llm.batches import (
    BatchSize,
    batch_schedule,
    batch_starts,
    decoding_starts,
    kv_bucket,
)
from ggsched_llm.graph import build_model_graph
from ggsched_llm.load import load_model
from ggsched_llm.memory_need import Need
from ggsched_llm.offload import Offload, OverrideRule
from ggsched_llm.session import Session, SessionOptions
from ggsched_llm.token_inputs import NEXT_TOKEN
from ggsched_offload.offload import ExpertPolicy
from ggsched_testing.generators.topologies import ALL_OPS
from ggsched_testing.plan_builder import fake_device
from ggsched_testing.sim import SimConfig, SimWorld
from tests.models.helpers import ORACLE, tiny_gguf
from tests.passes.machines import machine
from tests.support.profile import some

FILES = sorted(path.name for path in ORACLE.glob("*.gguf"))
ARCHS = ("llama", "qwen3moe", "gpt-oss")
CONFIGURATIONS = 50


class Meter:
    """Counts what devices hand out and what of it is there at once.

    Scratch that a backend takes while it compiles is its own affair, and left out.
    """

    def __init__(self, devices):
        self.is_compiling = False
        self.buffers = defaultdict(list)
        self.host = 0
        self.peak = defaultdict(int)
        for index, device in enumerate(devices):
            device.allocate = self._counted(index, device.allocate)
            device.import_host = self._counted(index, device.import_host)
            device.allocate_host = self._host(device.allocate_host)
            device.compile = self._compiling(device.compile)

    def _compiling(self, make):
        def call(nodes, stream):
            self.is_compiling = True
            try:
                return make(nodes, stream)
            finally:
                self.is_compiling = False

        return call

    def _counted(self, index, make):
        def call(what):
            buffer = make(what)
            if self.is_compiling:
                return buffer
            self.buffers[index].append(buffer)
            self.peak[index] = max(self.peak[index], self.now(index))
            return buffer

        return call

    def _host(self, make):
        def call(nbytes):
            self.host += nbytes
            return make(nbytes)

        return call

    def now(self, index):
        return sum(b.nbytes for b in self.buffers[index] if not b.is_closed)


def some_devices(rng):
    """Return devices that nothing is known of beforehand, highest priority first."""
    kind = rng.choice(["cpu", "opencl", "sim", "sim"])
    if kind == "cpu":
        return open_devices(["cpu:0", "cpu:1"][: rng.randint(1, 2)])
    if kind == "opencl":
        pytest.importorskip("pyopencl")
        return open_devices(["opencl:0", *["opencl:1"] * rng.randint(0, 1), "cpu:0"])
    count = rng.randint(1, 3)
    configs = [
        SimConfig(
            kind="cpu" if i == count - 1 else rng.choice(["gpu", "accelerator"]),
            alignment=rng.choice([1, 64, 256]),
            has_events=rng.random() < 0.7,
            copy_order=rng.choice(["stream", "barrier", "host"]),
            snapshots_uploads=rng.random() < 0.3,
            copies=rng.choice([None, frozenset()]),
        )
        for i in range(count)
    ]
    return SimWorld(configs, seed=rng.randrange(99)).open_all()


def some_model(rng, folder):
    policy = rng.choice(["expand", "packed"])
    if rng.random() < 0.4:
        return load_model(ORACLE / rng.choice(FILES), weights=policy)
    path = tiny_gguf(folder / "m.gguf", rng.choice(ARCHS), layers=rng.randint(1, 3))
    return load_model(path, weights=policy)


def some_options(rng, model, devices):
    layers = model.hparams.n_layer
    overrides = ()
    if rng.random() < 0.3:
        target = rng.choice(devices).facts.name
        overrides = (OverrideRule(re.compile(r"attn_|_cache"), target),)
    return SessionOptions(
        n_ctx=rng.choice([32, 40, 64]),
        n_batch=rng.choice([4, 8, 2048]),
        n_ubatch=rng.choice([1, 3, 8, 512]),
        offload=Offload(
            n_gpu_layers=rng.choice([None, 0, 1, layers]),
            n_cpu_moe=rng.randint(0, layers),
            overrides=overrides,
            experts=ExpertPolicy(
                rng.choice(["auto", "on", "off"]), rng.randint(1, 3), rng.choice([0, 5000, 10**6])
            ),
        ),
        pipelining=rng.choice(["auto", "on", "off"]),
        pipeline_buffers=rng.choice([None, 1, 2, 4]),
        plans_kept=rng.choice([1, 2, 16]),
    )


def run(session, prompt, n_predict, all_logits):
    tokens = [1 + i % 3 for i in range(prompt)]
    keep = (lambda logits: None) if all_logits else None
    return list(session.generate(tokens, n_predict, on_logits=keep))


@pytest.mark.opencl
@pytest.mark.parametrize("seed", some(20, range(CONFIGURATIONS)))
def test_need_is_what_is_allocated(seed, tmp_path):
    rng = random.Random(seed)
    model, devices = some_model(rng, tmp_path), some_devices(rng)
    try:
        options = some_options(rng, model, devices)
        prompt, n_predict = rng.randint(1, 20), rng.choice([0, 1, 4, 30])
        all_logits = rng.random() < 0.3
        meter = Meter(devices)
        with Session(model, devices, options, settings=Settings(sanitize="off")) as session:
            need = session.memory_need(prompt, n_predict, all_logits=all_logits)
            assert not meter.peak, "nothing is allocated to find out"
            run(session, prompt, n_predict, all_logits)
            check(need, meter, session)
    finally:
        for device in devices:
            device.close()


def check(need, meter, session):
    devices = session.scheduler.topology.devices
    assert {d: need.peak[d].total for d in range(len(devices))} == {
        d: meter.peak[d] for d in range(len(devices))
    }
    for kind in ("weight", "state"):
        resident = session.scheduler.resident_nbytes(kind)
        field = "weights" if kind == "weight" else "states"
        for d, facts in enumerate(devices):
            here = resident.get(facts.name, 0)
            token = session.scheduler._store.resident(NEXT_TOKEN)
            is_late = kind == "state" and token is not None and token.device == d
            # The largest plan may have been replaced when the first step brought this state.
            late = token.nbytes if is_late else 0
            assert getattr(need.peak[d], field) in (here, here - late)
    if need.kept == need.plans:  # nothing was given back
        assert need.peak[HOST].total == meter.host
    assert all(need.least[d].total <= need.peak[d].total for d in need.peak)


def test_with_memory_for_one_plan_at_a_time_it_still_runs(tmp_path):
    """``least`` is enough: plans that are kept give way."""
    model = load_model(tiny_gguf(tmp_path / "m.gguf", layers=2))
    options = SessionOptions(n_ctx=64, n_ubatch=8)

    def session(nbytes):
        facts = fake_device(
            "fake:0", kind="gpu", memory_nbytes=nbytes, max_allocation_nbytes=nbytes, ops=ALL_OPS
        )
        devices = SimWorld.of_topology(Topology((facts,))).open_all()
        return devices, Session(model, devices, options, settings=Settings(sanitize="off"))

    with session(1 << 30)[1] as one:
        need = one.memory_need(30, 20)
        expected = run(one, 30, 20, all_logits=False)
    assert need.least[0].total < need.peak[0].total
    devices, one = session(need.least[0].total)
    meter = Meter(devices)
    with one:
        assert run(one, 30, 20, all_logits=False) == expected
    assert meter.peak[0] <= need.least[0].total


def test_micro_batches_of_a_run():
    sizes = list(batch_schedule(10, 3, n_ctx=64, step=4))
    assert sizes == [BatchSize(4, 32, 1), BatchSize(2, 32, 1), BatchSize(1, 32, 1)]
    assert list(batch_schedule(2, 9, n_ctx=4, step=8, all_logits=True)) == [
        BatchSize(2, 4, 2),
        BatchSize(1, 4, 1),
    ]
    assert list(batch_schedule(1, 0, n_ctx=1, step=1)) == [BatchSize(1, 1, 1)]
    for prompt in (0, 5):
        with pytest.raises(UsageError, match="a prompt of"):
            list(batch_schedule(prompt, 1, n_ctx=4, step=4))


@pytest.mark.parametrize("together", [1, 3, 4])
def test_batches_are_left_out_only_where_they_repeat_the_last(together):
    """Against going through all of them, for every prompt of a context with several buckets."""
    step = 7

    def parts(start, n_prompt, n_ctx):
        out = []
        for at in range(start, min(n_prompt, start + step * together), step):
            n = min(step, n_prompt - at)
            out.append((n, kv_bucket(at + n, n_ctx), at + n == n_prompt))
        return out

    for n_ctx, prompts in ((300, range(1, 301)), (9000, (8999, 9000))):
        for n_prompt in prompts:
            every = [parts(s, n_prompt, n_ctx) for s in range(0, n_prompt, step * together)]
            wanted = [key for key, _ in groupby(every)]
            starts = batch_starts(n_prompt, n_ctx=n_ctx, step=step, together=together)
            found = [key for key, _ in groupby(parts(s, n_prompt, n_ctx) for s in starts)]
            assert found == wanted
        sizes = [kv_bucket(p + 1, n_ctx) for p in range(1, n_ctx)]
        starts = [*decoding_starts(1, n_ctx, n_ctx=n_ctx)]
        assert [kv_bucket(p + 1, n_ctx) for p in starts] == [b for b, _ in groupby(sizes)]


def test_a_context_of_two_billion_tokens_has_few_sizes():
    n_ctx = 2**31 - 1
    sizes = list(batch_schedule(n_ctx - 31, 32, n_ctx=n_ctx, step=512))
    assert len(sizes) < 400
    assert sizes[-1] == BatchSize(1, n_ctx, 1)


def test_needs_add_up():
    a, b = Need(1, 2, 3, 4, 5, 6), Need(10, 20, 30, 40, 50, 60)
    assert (a + b).fields() == (11, 22, 33, 44, 55, 66)
    assert a.total == 21


def test_host_memory_is_told_apart():
    """Inputs and outputs are slots; bytes on their way between devices are staging."""
    world = SimWorld([SimConfig(copies=frozenset()), SimConfig(kind="cpu", copies=frozenset())])
    model = load_model(ORACLE / "llama-tiny-f32.gguf")
    options = SessionOptions(n_ctx=32, offload=Offload(n_gpu_layers=2))
    with Session(model, world.open_all(), options, settings=Settings(sanitize="off")) as session:
        plan, need = session.plan(3), session.memory_need(3, 0).peak[HOST]

        def nbytes(*kinds):
            return sum(a.nbytes for a in plan.memory.arenas if a.kind in kinds)

        assert need.slots == nbytes("input", "output") > 0
        assert need.staging == nbytes("staging") >= 3 * 4 * model.hparams.n_embd
        assert need.total == need.slots + need.staging


def arena_nbytes(spec, n_tokens, n_kv):
    """Return what a plan takes beside weights and states."""
    graph = build_model_graph(spec, n_tokens=n_tokens, n_kv=n_kv, n_out=1, n_ctx=8192)
    plan = make_plan(graph, machine("cpu:0"))
    return sum(a.nbytes for a in plan.memory.arenas if a.kind == "compute")


@pytest.mark.parametrize("name", ["llama-tiny-f32", "gptoss-tiny-f32"])
def test_a_prefill_has_no_table_of_tokens_and_rows(name):
    """Its memory does not depend on the rows that it looks at, and grows as its tokens do."""
    spec = load_model(ORACLE / f"{name}.gguf").spec
    few = arena_nbytes(spec, 64, 64)
    assert few > 0
    assert arena_nbytes(spec, 64, 8192) == few
    many = arena_nbytes(spec, 512, 8192)
    assert many <= 9 * few
    heads = spec.hparams.n_head
    assert many < 4 * 512 * 8192 * heads / 4, "a quarter of one table"
