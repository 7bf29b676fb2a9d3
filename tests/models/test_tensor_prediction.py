"""GPUs that share layers: what is predicted, sent and planned. Nothing here runs on a GPU.

Machines are made of the recorded topology of two H200s, as in ``test_stages``; times are the cost
model's, with rates guessed by kind of device: 800 GB/s of memory and links of 20 GB/s, 8 us each
copy. Faster links and slower memory gain more, so the bounds are those of a modest machine.
"""

import json
from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.gpu import tensor
from ggsched.ir.dtype import BF16
from ggsched.passes.cost.predict import predict_step
from ggsched.plan.command import Copy, HostSync
from ggsched.sanitize import check_plan
from ggsched.topology.cost import HOST, guessed_rates
from ggsched_llm.batches import MicroBatches
from ggsched_testing.sim import SimConfig, SimWorld
from tests.models.test_stages import gpus, micro_batches, session
from tests.support.shapes import LLAMA_8B, spec_of

LAYERS = 8
LLAMA = spec_of(replace(LLAMA_8B, n_layer=LAYERS), BF16)
ROW_NBYTES = 4 * LLAMA.hparams.n_embd


class Step:
    """A micro-batch on some GPUs, and what it is predicted to take."""

    def __init__(self, p, n_tokens, n_past, *, cpu=False, peers=False, **options):
        topology = gpus(p, cpu=cpu)
        facts = tuple(replace(d, reads_peers=peers) for d in topology.devices)
        self.topology = topology = replace(topology, devices=facts)
        with session(LLAMA, topology, **options) as s:
            self.graph = s.graph(n_tokens, n_past, 1)
            self.plan = s.plan_of(self.graph)
            self.need = s.memory_need(n_tokens, 1)
        self.seconds = predict_step(self.graph, self.plan, guessed_rates(topology)).seconds

    def sent(self):
        """Return the bytes that go from device to device."""
        arenas, moved = self.plan.memory.arenas, Counter()
        for c in self.plan.commands:
            if isinstance(c, Copy):
                moved[arenas[c.src.arena].device, arenas[c.dst.arena].device] += c.dst.nbytes
        return moved


@pytest.fixture(scope="module")
def steps():
    known = {}

    def step(p, n_tokens, n_past, **options):
        key = (p, n_tokens, n_past, *sorted(options.items()))
        if key not in known:
            known[key] = Step(p, n_tokens, n_past, **options)
        return known[key]

    return step


@pytest.mark.parametrize(
    ("p", "n_tokens", "n_past", "least"),
    [(2, 1, 511, 1.45), (4, 1, 511, 1.4), (2, 512, 0, 1.45), (4, 512, 0, 1.8)],
)
def test_sharing_is_predicted_to_pay(steps, p, n_tokens, n_past, least):
    """In decoding with four, copies of 8 us each take what smaller matrices gain."""
    alone = steps(1, n_tokens, n_past)
    together = steps(p, n_tokens, n_past, split_mode="tensor")
    by_layers = steps(p, n_tokens, n_past)
    assert alone.seconds / together.seconds >= least
    assert by_layers.seconds >= 0.95 * alone.seconds  # of one micro-batch one device works


@pytest.mark.parametrize(
    ("p", "n_tokens", "n_past", "least"),
    [(2, 1, 511, 1.65), (4, 1, 511, 2.4), (2, 512, 0, 1.65), (4, 512, 0, 2.4)],
)
def test_reading_peers_is_predicted_to_pay_more(steps, p, n_tokens, n_past, least):
    """Sums without copies; the same GPUs, if they could read each other's buffers."""
    alone = steps(1, n_tokens, n_past)
    reading = steps(p, n_tokens, n_past, peers=True, split_mode="tensor")
    copying = steps(p, n_tokens, n_past, split_mode="tensor")
    assert alone.seconds / reading.seconds >= least
    assert reading.seconds < 0.9 * copying.seconds
    assert check_plan(reading.plan).is_clean
    assert not reading.sent()


@pytest.mark.parametrize("p", [2, 4])
def test_a_step_sends_a_row_per_exchange_and_pair(steps, p):
    """Two exchanges a layer, the embedding and its norm, and at the end parts of the logits."""
    sent = steps(p, 1, 511, split_mode="tensor").sent()
    assert len(sent) == p * (p - 1)
    for (src, dst), nbytes in sent.items():
        exchanges = 2 * LAYERS
        expected = exchanges * ROW_NBYTES
        if src == 0:
            expected += 2 * ROW_NBYTES
        if dst == 0:
            expected += 4 * LLAMA.hparams.n_vocab // p
        assert nbytes == expected, (src, dst)


def test_many_rows_are_sent_in_parts(steps):
    """Four devices: each sends a quarter to each of three, twice, in the place of all."""
    sent = steps(4, 512, 0, split_mode="tensor").sent()
    each = 2 * 512 // 4 * ROW_NBYTES
    # The last exchange is of one row; device 0 hands out the embedding and its norm.
    exchanges = 2 * LAYERS - 2
    assert sent[1, 2] <= exchanges * each + 4 * 512 // 4 * ROW_NBYTES
    assert sent[1, 2] >= exchanges * each


def test_messages_grow_with_the_devices_and_not_with_their_square(steps):
    """Of many devices one adds up: a row from each of the others and to each, for each exchange."""
    small, large = (steps(p, 1, 511, split_mode="tensor") for p in (8, 32))
    for p, step in ((8, small), (32, large)):
        copies = [c for c in step.plan.commands if isinstance(c, Copy)]
        assert len(copies) <= 2 * (p - 1) * (2 * LAYERS + 2)
        assert check_plan(step.plan).is_clean
    assert len(large.plan.commands) < 4.5 * len(small.plan.commands)
    assert small.seconds < 1.1 * steps(4, 1, 511, split_mode="tensor").seconds


@pytest.mark.parametrize(("n_tokens", "adding", "least"), [(64, 2, 1.15), (512, 5, 1.6)])
def test_of_many_rows_some_devices_add_up_parts(steps, n_tokens, adding, least):
    """Two messages for each of them and each device; more would cost more than the bytes."""
    step = steps(8, n_tokens, 0, split_mode="tensor")
    copies = [c for c in step.plan.commands if isinstance(c, Copy)]
    assert len(copies) <= 2 * adding * 8 * (2 * LAYERS + 2)
    assert steps(1, n_tokens, 0).seconds / step.seconds >= least


# Of one GPU, with rates like an H200's and 350 GB/s between each two. Sums are launches of their
# own here; where products push rows (ADR 59), four GPUs were measured at 2.55 of one in decoding.
NVLINK = [(4, 1, 511, 2.0), (8, 1, 511, 2.15), (4, 512, 0, 1.75), (8, 512, 0, 1.8)]


@pytest.mark.parametrize(("p", "n_tokens", "n_past", "least"), NVLINK)
def test_more_gpus_that_read_each_other(steps, p, n_tokens, n_past, least):
    alone, together = (
        steps(n, n_tokens, n_past, peers=True, split_mode="tensor" if n > 1 else "layer")
        for n in (1, p)
    )
    seconds = [
        predict_step(s.graph, s.plan, like_h200(s.topology)).seconds for s in (alone, together)
    ]
    assert seconds[0] / seconds[1] >= least


@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize("n_tokens", [1, 64])
@pytest.mark.parametrize("cpu", [False, True])
def test_plans_are_clean_and_the_host_waits_once(steps, p, n_tokens, cpu):
    step = steps(p, n_tokens, 0, cpu=cpu, split_mode="tensor")
    assert check_plan(step.plan).is_clean
    waits = [c for c in step.plan.commands if isinstance(c, HostSync)]
    assert len(waits) <= (3 if cpu else 1)  # the CPU has the embedding
    of_weights = [step.need.least[d].weights for d in range(p)]
    table = 2 * LLAMA.hparams.n_vocab * LLAMA.hparams.n_embd
    whole = sum(w.nbytes for w in LLAMA.weights.values()) - table
    norms = 4 * LLAMA.hparams.n_embd * (2 * LAYERS + 1)
    for d, nbytes in enumerate(of_weights):
        own = whole / p + norms + (table if d == 0 and not cpu else 0)
        assert abs(nbytes - own) < 0.001 * whole


def test_stages_of_two_pipeline_a_prompt():
    """Two groups of two overlap micro-batches, and beat one group of two."""
    seconds = {}
    for p, options in ((2, {}), (4, {"group_size": 2})):
        topology = gpus(p)
        rates = guessed_rates(topology)
        with session(LLAMA, topology, split_mode="tensor", **options) as s:
            parts = micro_batches(s, 4)
            if p == 2:
                plans = [(g := s.graph(512, 512 * k, 1), s.plan_of(g)) for k in range(4)]
            else:
                together = MicroBatches(s.scheduler, s.constraints, rates, mode="on")
                joined = together._batch(parts).joined.graph
                plans = [(joined, together.plan(parts))]
        assert all(check_plan(plan).is_clean for _, plan in plans)
        seconds[p] = sum(predict_step(g, plan, rates).seconds for g, plan in plans)
    assert seconds[2] / seconds[4] > 1.4  # ideal for four micro-batches: 1.6


def like_h200(topology):
    """Return rates with which one GPU takes what an H200 was measured to take, 3.6 and 16 ms."""
    guessed = guessed_rates(topology)
    devices = [
        replace(
            d, bandwidth=4.3e12, total_bandwidth=4.3e12, flops=5.2e14, node_s=1.3e-6,
            event_s=1.5e-6, parallel=1,
        )
        for d in guessed.devices
    ]  # fmt: skip
    links = {
        ends: link if HOST in ends else replace(link, bandwidth=3.5e11, latency_s=3e-6)
        for ends, link in guessed.links.items()
    }
    return replace(guessed, devices=tuple(devices), links=links, enqueue_s=1e-7)


def test_two_micro_batches_at_once_are_predicted_to_pay():
    """Streams share the rates of their device, so what is gained is time of links and events."""
    topology = gpus(2)
    facts = tuple(replace(d, reads_peers=True) for d in topology.devices)
    topology = replace(topology, devices=facts)
    rates, seconds = like_h200(topology), {}
    for how in ("off", "on"):
        with session(LLAMA, topology, split_mode="tensor", pipelining=how) as s:
            parts = micro_batches(s, 4)[2:]
            batches = s.batches.micro_batches
            assert batches.pays(parts) == (how == "on")
            plans = [(m.graph, s.plan_of(m.graph)) for m in parts]
            if how == "on":
                plans = [(batches._batch(parts).joined.graph, batches.plan(parts))]
                assert len(plans[0][1].streams.streams) == 4
            assert all(check_plan(plan, graph=graph).is_clean for graph, plan in plans)
        seconds[how] = sum(predict_step(g, plan, rates).seconds for g, plan in plans)
    assert seconds["off"] / seconds["on"] > 1.1


@pytest.mark.parametrize("peers", [True, False])
def test_two_at_once_are_the_default_where_gpus_read_each_other(peers):
    """Measured on two H200, 8B: 1.68 of one GPU for 8,192 tokens, and 1.49 one by one."""
    topology = gpus(2)
    facts = tuple(replace(d, reads_peers=peers) for d in topology.devices)
    with session(LLAMA, replace(topology, devices=facts), split_mode="tensor") as s:
        parts = micro_batches(s, 4)
        pays = [s.batches.micro_batches.pays(parts[at : at + 2]) for at in (0, 2)]
    assert pays == [peers, peers]


@pytest.mark.parametrize(("p", "split_mode"), [(2, "layer"), (4, "layer"), (2, "tensor")])
def test_batches_that_nobody_waits_for_are_predicted_in_full(p, split_mode):
    """The host is through with them at once, the devices are not."""
    topology = gpus(p)
    facts = tuple(replace(d, reads_peers=True) for d in topology.devices)
    with session(LLAMA, replace(topology, devices=facts), split_mode=split_mode) as s:
        parts = [replace(part, is_wanted=False) for part in micro_batches(s, 2 * p)[:p]]
        forecast = s.batches.micro_batches.forecast(parts)
    gain = p if split_mode == "layer" else 2.1  # streams of a GPU are guessed to be independent
    assert forecast.sequential_s / gain < forecast.together_s < forecast.sequential_s


def test_the_benchmark_measures_all_ways(monkeypatch):
    """``python -m benchmarks.gpu.tensor``, of a tiny model on simulated devices."""
    tiny = replace(
        LLAMA_8B, n_layer=2, n_vocab=64, n_embd=64, n_head=4, n_head_kv=2, head_dim=32, n_ff=128,
        rope=replace(LLAMA_8B.rope, n_dims=32),
    )  # fmt: skip
    monkeypatch.setattr(tensor, "CHAINS", (1, 3))
    sims = [SimConfig(reads_peers=True)] * 2
    found = {
        how: tensor.exchange(SimWorld(sims).open_all(), 8, peers=how == "peers")
        for how in ("peers", "copies")
    }
    assert [f["reads_peers"] for f in found.values()] == [True, False]
    cases = {"sums": {**found, "apart": found["peers"]}}
    sides = tensor.Sides(spec_of(tiny, BF16), SimWorld(sims).open_all(), 12, 4)
    for way in ("one", "layer", "tensor"):
        cases[f"llama-8b {way}"] = figures = sides.measure(way, 1, 8)
        assert figures["difference"] < 1e-5
    assert cases["llama-8b tensor"]["step_plan"]["reads_peers"]
    made = tensor.ratios(cases)
    missing = {t for t in set(tensor.TARGETS) - set(made) if not t.startswith("gpt-oss-20b")}
    assert missing <= {"link with a sum of 16 KiB, us"}
    assert "tensor decode" in tensor.table(made, cases, 12)
    json.dumps(cases)
