"""Micro-batches over 2 to 8 GPUs: the default plan is a pipeline whose stages overlap.

Machines are made of the recorded topology of two H200s. Nothing here runs on a GPU: plans are made
for devices of a file, times are the cost model's or simulated.
"""

import json
import re
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.gpu.stages import measure
from ggsched.backend.offline_device import paper_devices
from ggsched.config import Settings
from ggsched.ir.dtype import BF16, F32
from ggsched.passes.cost.predict import predict_step
from ggsched.plan.command import Copy, Launch, Record, Upload, Wait
from ggsched.sanitize import check_plan
from ggsched.topology.codec import topology_from_text
from ggsched.topology.cost import guessed_rates
from ggsched.topology.model import CopyPath, Topology
from ggsched_llm.batches import MicroBatch, MicroBatches
from ggsched_llm.load import Model, load_model
from ggsched_llm.offload import Offload, OverrideRule, find_homes, source_name
from ggsched_llm.session import Session, SessionOptions
from ggsched_llm.spec import ModelSpec, WeightSpec
from ggsched_testing.sim.world import SimWorld
from tests.models.helpers import tiny_gguf
from tests.support.shapes import LLAMA_1B, LLAMA_8B, spec_of
from tests.testing.sims import FREE

FOLDER = Path(__file__).parent.parent / "data" / "topologies"
STEP, PARTS = 512, 8
STAGES = [2, 3, 4, 8]


def recorded(name):
    return topology_from_text((FOLDER / f"{name}.json").read_bytes())


def gpus(p, *, cpu=False):
    """Return p GPUs like those that were recorded, all paths between them, and perhaps a CPU."""
    pair = recorded("h200-two-gpus")
    facts = [replace(pair.devices[0], name=f"cuda:{i}") for i in range(p)]
    every = list(product(range(p), repeat=2))
    copies = {(a, b): CopyPath(a, b, a) for a, b in every if a != b}
    waits = dict.fromkeys(every, "native")
    if cpu:
        beside = recorded("h200-cpu")
        facts.append(beside.devices[1])
        copies |= {(a, p): CopyPath(a, p, a) for a in range(p) if (0, 1) in beside.copy_paths}
        copies |= {(p, a): CopyPath(p, a, a) for a in range(p) if (1, 0) in beside.copy_paths}
        waits |= {(a, p): beside.wait_path(0, 1) for a in range(p) if beside.wait_path(0, 1)}
        waits |= {(p, a): beside.wait_path(1, 0) for a in range(p) if beside.wait_path(1, 0)}
        waits[p, p] = beside.wait_path(1, 1)
    return Topology(tuple(facts), copies, waits)


def model_of(spec):
    file = SimpleNamespace(path="shape only", tensors={})
    return Model(file, spec, None)


def session(spec, topology, **options):
    """Return a session that plans and does not run."""
    sizes = {"n_ctx": PARTS * STEP, "n_batch": PARTS * STEP, "n_ubatch": STEP}
    return Session(
        model_of(spec), paper_devices(topology), SessionOptions(**{**sizes, **options}),
        settings=Settings(sanitize="off"),
    )  # fmt: skip


def micro_batches(s, count=PARTS):
    """Return the micro-batches of a prompt; logits of its last token are wanted."""
    return [MicroBatch(s.graph(STEP, k * STEP, 1), k == count - 1) for k in range(count)]


LLAMA = spec_of(replace(LLAMA_8B, n_layer=16), BF16)
TIED = spec_of(replace(LLAMA_1B, n_layer=16), BF16)
WITH_FACTORS = ModelSpec(
    LLAMA.hparams, {**LLAMA.weights, "rope_freqs.weight": WeightSpec((64,), F32)}
)
MODELS = {"own output": LLAMA, "tied": TIED, "rope factors": WITH_FACTORS}


class TestHomes:
    @pytest.mark.parametrize("p", STAGES)
    @pytest.mark.parametrize("model", ["own output", "rope factors"])
    def test_the_embedding_lives_with_the_first_stage(self, p, model):
        homes = find_homes(MODELS[model], gpus(p), Offload())
        assert homes.devices["token_embd.weight"] == homes.devices["blk.0.attn_q.weight"] == 0
        assert "block 0" in homes.reasons["token_embd.weight"]
        assert homes.devices["output.weight"] == homes.devices["output_norm.weight"] == p - 1
        assert homes.devices.get("rope_freqs.weight", 0) == 0

    @pytest.mark.parametrize("p", STAGES)
    def test_or_stays_on_a_cpu(self, p):
        homes = find_homes(WITH_FACTORS, gpus(p, cpu=True), Offload())
        assert homes.devices["token_embd.weight"] == p
        assert homes.devices["rope_freqs.weight"] == p
        assert homes.devices["output.weight"] == p - 1

    def test_the_first_stage_is_where_block_0_is(self):
        """Devices that get no layers are not stages."""
        homes = find_homes(LLAMA, gpus(3), Offload(tensor_split=(0.0, 1.0, 1.0)))
        assert homes.devices["token_embd.weight"] == homes.devices["blk.0.attn_q.weight"] == 1

    def test_a_rule_of_the_caller_wins(self):
        rule = OverrideRule(re.compile("token_embd"), "cuda:1")
        homes = find_homes(LLAMA, gpus(2), Offload(overrides=(rule,)))
        assert homes.devices["token_embd.weight"] == 1


class TestTied:
    """An embedding that is the output matrix too is there twice, where memory allows."""

    @pytest.mark.parametrize("cpu", [False, True])
    @pytest.mark.parametrize("p", STAGES)
    def test_a_copy_with_the_first_and_one_with_the_last_stage(self, p, cpu):
        with session(TIED, gpus(p, cpu=cpu)) as s:
            assert s.homes.devices["token_embd.weight"] == 0
            assert s.homes.devices["output.weight"] == p - 1
            assert "copy" in s.homes.reasons["output.weight"]
            assert source_name(s.spec, "output.weight") == "token_embd.weight"
            assert source_name(s.spec, "blk.0.attn_q.weight") == "blk.0.attn_q.weight"

    def test_one_matrix_on_one_device(self):
        for topology in (gpus(1), gpus(1, cpu=True)):
            with session(TIED, topology) as s:
                assert s.spec.weights == TIED.weights
                assert s.homes.devices["token_embd.weight"] == 0

    def test_one_matrix_where_the_caller_says_where(self):
        offload = Offload(overrides=(OverrideRule(re.compile("token_embd"), "cuda:0"),))
        with session(TIED, gpus(2), offload=offload) as s:
            assert s.spec.weights == TIED.weights

    @pytest.mark.parametrize(("spare", "copies"), [(0.5, False), (1.5, True)])
    def test_one_matrix_where_the_first_device_has_no_room(self, spare, copies):
        table = 2 * TIED.hparams.n_vocab * TIED.hparams.n_embd
        with session(TIED, gpus(2)) as s:
            need = s.memory_need(PARTS * STEP, 1).least[0]
            own = need.weights + need.states - table
        topology = gpus(2)
        room = int((own + spare * table) / 0.9)
        small = replace(topology.devices[0], memory_nbytes=room)
        devices = (small, topology.devices[1])
        offload = Offload(tensor_split=(1.0, 1.0))
        with session(TIED, replace(topology, devices=devices), offload=offload) as s:
            assert s.spec.has_copied_output == copies
            if not copies:
                assert "tied" in s.homes.reasons["token_embd.weight"]


class Batch:
    """A prompt as one plan over some GPUs, and what it is predicted to take."""

    def __init__(self, spec, topology, count=PARTS):
        rates = guessed_rates(topology)
        with session(spec, topology) as s:
            together = MicroBatches(s.scheduler, s.constraints, rates, mode="on")
            parts = micro_batches(s, count)
            self.plan = together.plan(parts)
            self.graph = together._batch(parts).joined.graph
        self.seconds = predict_step(self.graph, self.plan, rates).seconds

    def launches(self, device):
        """Return the launches of a device, in order."""
        return [c for c in self.work(device) if isinstance(c, Launch)]

    def work(self, device):
        """Return the commands of a device, in order."""
        streams = self.plan.streams.streams
        return [c for c in self.plan.commands if streams[c.stream].device == device]

    def part_of(self, launch):
        """Return the micro-batch that the nodes of a launch belong to."""
        (found,) = {self.plan.nodes[step.node].label.rpartition("@")[2] for step in launch.steps}
        return int(found)


def each_alone_s(spec, topology):
    """Return the predicted seconds of the micro-batches one after another."""
    with session(spec, topology) as s:
        parts = [s.graph(STEP, k * STEP, 1) for k in range(PARTS)]
        return sum(predict_step(g, s.plan_of(g), guessed_rates(topology)).seconds for g in parts)


@pytest.fixture(scope="module")
def batches():
    known = {}

    def batch(model, p, cpu=False):
        if (model, p, cpu) not in known:
            known[model, p, cpu] = Batch(MODELS[model], gpus(p, cpu=cpu))
        return known[model, p, cpu]

    return batch


@pytest.mark.parametrize("p", STAGES)
@pytest.mark.parametrize("model", MODELS)
class TestOrder:
    def test_each_stage_is_one_launch_on_one_stream(self, batches, model, p):
        """No device has a stage of two micro-batches at once, nor one of them twice."""
        batch = batches(model, p)
        assert [s.device for s in batch.plan.streams.streams] == [*range(p)]
        for device in range(p):
            assert [batch.part_of(c) for c in batch.launches(device)] == [*range(PARTS)]

    def test_the_first_stage_waits_for_buffers_only(self, batches, model, p):
        """Nothing that a later stage made is read by an earlier one."""
        batch = batches(model, p)
        for c in batch.plan.commands:
            if not isinstance(c, Wait):
                continue
            recorded = next(
                r for r in batch.plan.commands if isinstance(r, Record) and r.event == c.event
            )
            here, there = (batch.plan.streams.streams[e.stream].device for e in (c, recorded))
            assert (c.hazard.kind == "RAW") == (there < here), "data go to later stages only"

    def test_what_the_next_stage_waits_for_is_enqueued_first(self, batches, model, p):
        """A hand-over stands right behind the stage, and uploads do not stand behind a wait."""
        batch = batches(model, p)
        for device in range(p - 1):
            work = [c for c in batch.work(device) if not isinstance(c, Wait | Record)]
            for before, after in pairwise(work):
                if isinstance(before, Launch):
                    assert isinstance(after, Copy)
        for device in range(1, p):
            for before, after in pairwise(batch.work(device)):
                if isinstance(before, Wait):
                    assert not isinstance(after, Upload)

    def test_the_hidden_state_is_handed_over_once(self, batches, model, p):
        """The norm behind a boundary runs there; rotation factors are copied once a batch."""
        batch = batches(model, p)
        copies = sum(isinstance(c, Copy) for c in batch.plan.commands)
        assert copies == (p - 1) * (PARTS + (model == "rope factors"))

    def test_the_plan_is_clean(self, batches, model, p):
        assert check_plan(batches(model, p).plan).is_clean


class TestPrediction:
    @pytest.mark.parametrize("p", STAGES)
    @pytest.mark.parametrize("model", MODELS)
    def test_stages_overlap_as_the_closed_form_says(self, batches, model, p):
        """m micro-batches over p equal stages take (m + p - 1) / (m p) of the time of one GPU."""
        ideal = PARTS * p / (PARTS + p - 1)
        found = each_alone_s(MODELS[model], gpus(1)) / batches(model, p).seconds
        assert found == pytest.approx(ideal, rel=0.15)

    @pytest.mark.parametrize("p", [2, 4])
    def test_a_cpu_beside_them_does_not_slow_them_down(self, batches, p):
        alone, beside = batches("own output", p), batches("own output", p, cpu=True)
        assert beside.seconds == pytest.approx(alone.seconds, rel=0.05)


COSTS = replace(FREE, node_s=1)
"""Each node takes a second, and nothing else takes any time."""


def flow_shop_s(seconds):
    """Return when the last micro-batch leaves: each stage takes them in order, one at a time."""
    ends = [0.0] * len(seconds[0])
    for row in seconds:
        arrived = 0.0
        for stage, took in enumerate(row):
            arrived = ends[stage] = max(ends[stage], arrived) + took
    return ends[-1]


@pytest.mark.parametrize(
    ("p", "m"), [(2, 1), (2, 3), (2, 32), (3, 16), (5, 2), (6, 1), (7, 4), (8, 1), (8, 6)]
)
def test_devices_idle_as_the_closed_form_says(p, m):
    """With the embedding and the output layer, which make stages not quite equal."""
    spec, step = spec_of(replace(LLAMA_8B, n_layer=4 * p), BF16), 64
    topology, sizes = gpus(p), dict.fromkeys(("n_ctx", "n_batch"), m * step)
    rates = guessed_rates(topology)
    with session(spec, topology, **sizes, n_ubatch=step) as s:
        together = MicroBatches(s.scheduler, s.constraints, rates, mode="on")
        parts = [MicroBatch(s.graph(step, k * step, 1), k == m - 1) for k in range(m)]
        plan = together.plan(parts)
        made = predict_step(together._batch(parts).joined.graph, plan, rates)
    by_stage = [[] for _ in range(p)]
    for span in made.timeline.spans:
        command, took = plan.commands[span.command], span.end_s - span.start_s
        own = by_stage[plan.streams.streams[command.stream].device]
        if isinstance(command, Launch):
            own.append(took)
        elif isinstance(command, Copy):  # behind the launch, on its stream
            own[-1] += took
    ideal_s = flow_shop_s(list(zip(*by_stage, strict=True)))
    busy = sum(map(sum, by_stage))
    assert made.seconds == pytest.approx(ideal_s, rel=0.01)
    idle = 1 - busy / (p * made.seconds)
    # Of four blocks a stage, one may have half a block more than its share.
    assert idle == pytest.approx((p - 1) / (m + p - 1), abs=0.13)


@pytest.mark.parametrize(
    ("p", "drop"),
    [
        pytest.param(p, drop, marks=() if (i + k) % 2 == 0 else pytest.mark.slow)
        for i, p in enumerate(STAGES)
        for k, drop in enumerate(((), ("output.weight",)))
    ],
)
class TestRun:
    """The same on simulated devices, by run: of a default session, with real numbers."""

    def test_stages_overlap(self, p, drop, tmp_path):
        path = tiny_gguf(tmp_path / "m.gguf", layers=2 * p, vocab=16, drop=drop)
        model = load_model(path)
        tokens = [t % 16 for t in range(2 * PARTS)]
        options = SessionOptions(n_ctx=32, n_batch=2 * PARTS, n_ubatch=2, pipelining="on")
        with Session(model, SimWorld.of_topology(gpus(1)).open_all(), options) as s:
            expected = s.feed(tokens)
        world = SimWorld.of_topology(gpus(p), costs=COSTS)
        with Session(model, world.open_all(), options) as s:
            np.testing.assert_allclose(s.feed(tokens), expected, rtol=1e-4, atol=1e-5)
            s.reset()
            began = world.host_s
            s.feed(tokens)
            took = world.host_s - began
            assert check_plan(s.last_plan).is_clean
        launches = [e for e in world.timeline() if e.kind == "launch" and e.start_s >= began]
        by_stage = [
            [e.end_s - e.start_s for e in launches if e.device == f"cuda:{d}"] for d in range(p)
        ]
        ideal = flow_shop_s(list(zip(*by_stage, strict=True)))
        assert took == pytest.approx(ideal, rel=0.01)
        # Nodes of a stage are balanced by what they cost on a GPU, not by their number here.
        assert sum(map(sum, by_stage)) / took >= 0.8 * PARTS * p / (PARTS + p - 1)
        assert not world.violations


@pytest.mark.parametrize("hp", [LLAMA_1B, LLAMA_8B], ids=["tied", "own output"])
def test_the_benchmark_measures_both_sides(hp):
    """``python -m benchmarks.gpu.stages``, of a tiny model on simulated devices."""
    tiny = replace(
        hp, n_layer=4, n_vocab=64, n_embd=64, n_head=2, n_head_kv=1, head_dim=32, n_ff=64,
        rope=replace(hp.rope, n_dims=32),
    )  # fmt: skip
    one, two = (SimWorld.of_topology(gpus(p)).open_all() for p in (1, 2))
    found = measure(spec_of(tiny, BF16), one, two, n_tokens=16, ubatch=4, rounds=1)
    assert found["difference"] < 1e-4
    assert (found["micro_batches"], found["devices"]) == (4, 2)
    assert found["embedding_on"] == 0
    assert found["closed_form"] == pytest.approx(8 / 5)
    assert found["predicted_ratio"] > 0
    assert sum(found["layers"]) == 5
    json.dumps(found)


class TestMemory:
    """A joined batch needs the arena of one micro-batch on each device, and pipeline buffers."""

    def arenas(self, plan, p):
        """Return bytes of intermediate results by accelerator."""
        sizes = dict.fromkeys(range(p), 0)
        for arena in plan.memory.arenas:
            if arena.kind == "compute" and arena.device in sizes:
                sizes[arena.device] += arena.nbytes
        return sizes

    def check(self, spec, topology, p, parts, step=STEP):
        tokens = parts * step
        s = session(spec, topology, n_ctx=tokens, n_batch=tokens, n_ubatch=step, pipelining="on")
        each = [MicroBatch(s.graph(step, k * step, 1), k == parts - 1) for k in range(parts)]
        alone = s.plan_of(each[-1].graph)
        largest = self.arenas(alone, p)
        inputs = sum(a.nbytes for a in alone.memory.arenas if a.kind == "input")
        joined = self.arenas(s.batches.micro_batches.plan(each), p)
        handed_over = 4 * step * spec.hparams.n_embd
        # At each boundary of a stage: a ring on each side, and the one that is being
        # written. Inputs of the next micro-batch arrive while this one runs.
        buffers = (2 * s.batches.micro_batches.slots + 1) * handed_over
        for device, nbytes in joined.items():
            boundaries = (device > 0 or topology.devices[-1].kind == "cpu") + (device < p - 1)
            assert nbytes <= largest[device] + boundaries * buffers + inputs

    @pytest.mark.parametrize("cpu", [False, True])
    @pytest.mark.parametrize("p", STAGES)
    def test_of_a_model_of_8_billion(self, p, cpu):
        spec = spec_of(replace(LLAMA_8B, n_layer=8), BF16)
        self.check(spec, gpus(p, cpu=cpu), p, 16)

    @settings(max_examples=15, deadline=None)
    @given(
        layers=st.integers(2, 6),
        width=st.sampled_from([64, 256, 1024]),
        heads=st.sampled_from([1, 2, 4]),
        parts=st.integers(2, 24),
        step=st.sampled_from([8, 64, 512]),
        p=st.integers(2, 4),
        cpu=st.booleans(),
    )
    def test_of_random_models(self, layers, width, heads, parts, step, p, cpu):
        shape = replace(
            LLAMA_8B, n_layer=layers, n_embd=width, n_head=2 * heads, n_head_kv=heads,
            n_ff=2 * width, n_vocab=1000,
        )  # fmt: skip
        self.check(spec_of(shape, BF16), gpus(p, cpu=cpu), p, parts, step)
