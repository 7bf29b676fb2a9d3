"""``--fit`` against brute force: it fits, nothing that fits is missed, nothing is faster."""

import re
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.errors import OutOfDeviceMemory
from ggsched.passes import make_plan
from ggsched.plan.splits import HOST
from ggsched.topology.cost import Link, guessed_rates
from ggsched.topology.model import CopyPath, Topology
from ggsched_llm.fit import (
    DECODING_STEPS,
    FitRequest,
    count_splits,
    every_split,
    fit,
    fit_costs,
    micro_batches,
)
from ggsched_llm.layer_costs import Candidate
from ggsched_llm.load import load_model
from ggsched_llm.memory_need import memory_need
from ggsched_llm.offload import Offload, OverrideRule, find_homes
from ggsched_offload.offload import ExpertPolicy
from ggsched_testing.generators.topologies import ALL_OPS
from ggsched_testing.plan_builder import fake_device
from tests.models.helpers import tiny_gguf

STEP, CONTEXTS, LAYERS = 8, (64, 32), 2
EVERYTHING = FitRequest(CONTEXTS[-1], (0, 0.0))


def machine(accelerators, shared=False, cpu=True):
    facts = [
        fake_device(
            f"gpu:{i}" if i < accelerators else "cpu:0",
            kind="gpu" if i < accelerators else "cpu",
            memory_nbytes=1 << 40,
            max_allocation_nbytes=1 << 40,
            is_host=shared and i == accelerators,
            imports_host_memory=shared and i == 0,
            ops=ALL_OPS,
        )
        for i in range(accelerators + cpu)
    ]
    pairs = [(a, b) for a, b in product(range(len(facts)), repeat=2) if a != b]
    return Topology(tuple(facts), {(a, b): CopyPath(a, b, max(a, b)) for a, b in pairs})


class Case:
    """A model on a machine, with what every choice takes, found out once."""

    def __init__(self, folder, arch, accelerators, shared=False, experts=None, cpu=True):
        self.offload = Offload(experts=experts or ExpertPolicy())
        path = tiny_gguf(folder / f"{arch}-{accelerators}.gguf", arch, layers=LAYERS, vocab=16)
        self.spec = load_model(path).spec
        self.topology = machine(accelerators, shared, cpu)
        self.shared = [accelerators - (not cpu), 0] if shared else []
        self._plans, self._graphs = {}, {}
        on_host = range(LAYERS + 1) if self.spec.hparams.n_expert and accelerators else (0,)
        self.choices = [
            Candidate(n_ctx, counts, n)
            for n_ctx in CONTEXTS
            for wanted in range(LAYERS + 2 if accelerators else 1)
            for counts in every_split(wanted, accelerators)
            for n in on_host
        ]
        self.needs = {c: self.need(c) for c in self.choices}

    def graph(self, size, n_ctx):
        if (size, n_ctx) not in self._graphs:
            self._graphs[size, n_ctx] = size.graph(self.spec, n_ctx)
        return self._graphs[size, n_ctx]

    def make(self, graph, homes):
        key = graph.digest, tuple(sorted(homes.devices.items()))
        if key not in self._plans:
            self._plans[key] = make_plan(graph, self.topology, homes.constraints())
        return self._plans[key]

    def need(self, choice):
        offload = replace(
            self.offload,
            n_gpu_layers=sum(choice.counts) if choice.counts else None,
            n_cpu_moe=choice.n_cpu_moe,
            stage_layers=choice.counts or None,
        )
        homes = find_homes(self.spec, self.topology, offload)
        plans = (
            self.make(self.graph(size, choice.n_ctx), homes)
            for size in micro_batches(choice.n_ctx, STEP)
        )
        return memory_need(
            plans, len(self.topology.devices), plans_kept=1, double_buffered=lambda _: False
        )

    def costs(self, rates, n_ctx):
        return fit_costs(self.spec, self.topology, rates, self.offload, n_ctx, STEP)

    def fits(self, choice, limits):
        need = self.needs[choice].peak
        together = sum(need[d].total for d in (*self.shared, HOST))
        return all(need[d].total <= limits[d] for d in range(len(limits))) and (
            not self.shared or together <= max(limits[d] for d in self.shared)
        )


KINDS = (
    ("llama", 0), ("llama", 1), ("llama", 2), ("qwen3moe", 1), ("qwen3moe", 2), ("shared", 1),
    ("moving", 1), ("alone", 2),
)  # fmt: skip


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")

    @cache
    def case(arch, accelerators):
        if arch == "shared":
            return Case(folder, "qwen3moe", accelerators, shared=True)
        if arch == "moving":
            return Case(folder, "qwen3moe", accelerators, experts=ExpertPolicy("on", 2, 8192))
        if arch == "alone":
            return Case(folder, "llama", accelerators, cpu=False)
        return Case(folder, arch, accelerators)

    return case


def rates_for(draw, topology):
    guesses = guessed_rates(topology)
    factor = st.sampled_from([0.1, 1.0, 7.0])
    devices = tuple(
        replace(
            r, node_s=r.node_s * draw(factor), bandwidth=r.bandwidth * draw(factor),
            event_s=r.event_s * draw(factor),
        )
        for r in guesses.devices
    )  # fmt: skip
    return replace(guesses, devices=devices)


@given(data=st.data())
def test_as_good_as_trying_everything(cases, data):
    case = cases(*data.draw(st.sampled_from(KINDS)))
    rates = rates_for(data.draw, case.topology)
    needed = data.draw(st.sampled_from(case.choices))
    free = []
    for d in range(len(case.topology.devices)):
        some = case.needs[needed].peak[d].total
        free.append(
            max(0, some + data.draw(st.sampled_from([0, 0, 0, -1, 1, 64, 20_000, -20_000])))
        )
    possible = [c for c in case.choices if case.fits(c, free)]
    arguments = (case.spec, case.topology, rates, free, case.offload, EVERYTHING)
    if not possible:
        with pytest.raises(OutOfDeviceMemory, match="comes closest and lacks"):
            fit(*arguments, n_ctx=CONTEXTS[0], step=STEP, make=case.make)
        return
    found = fit(*arguments, n_ctx=CONTEXTS[0], step=STEP, make=case.make)
    counts = found.offload.stage_layers or ()
    chosen = Candidate(found.n_ctx, counts, found.offload.n_cpu_moe)
    assert case.fits(chosen, free)
    assert chosen.n_ctx == max(c.n_ctx for c in possible)
    seconds = case.costs(rates, chosen.n_ctx).estimate
    assert seconds(chosen) == min(seconds(c) for c in possible if c.n_ctx == chosen.n_ctx)
    assert all(need.total <= free[d] for d, need in found.need.peak.items() if d != HOST)
    assert 2 <= len(found.reasons) <= 3
    assert found.reasons[0].startswith(f"fit: {chosen.text()}, predicted ")


def test_the_bound_is_below_what_is_taken(cases):
    for kind in KINDS:
        case = cases(*kind)
        rates = guessed_rates(case.topology)
        costs = {n: case.costs(rates, n) for n in CONTEXTS}
        for choice in case.choices:
            moves = case.offload.experts.offload != "off"
            least = costs[choice.n_ctx].least_bytes(choice, experts_move=moves)
            need = case.needs[choice].peak
            for d, nbytes in least.items():
                assert nbytes <= need[d].total, (kind, choice, d)
                resident = need[d].weights + need[d].states
                assert nbytes >= resident, "weights and KV caches are known exactly"


def test_few_plans_are_made(cases):
    case = cases("qwen3moe", 2)
    made = []

    def make(graph, homes):
        made.append(graph)
        return case.make(graph, homes)

    free = [1 << 40] * 3
    found = fit(
        case.spec, case.topology, guessed_rates(case.topology), free, Offload(), EVERYTHING,
        n_ctx=CONTEXTS[0], step=STEP, make=make,
    )  # fmt: skip
    assert found.tried == 1
    assert len(made) == len(set(micro_batches(64, STEP))) == 4
    assert found.plans_kept == 16
    assert found.reasons[-1] == "nothing that fits is predicted to be faster"


def test_what_is_given_stays(cases):
    case = cases("qwen3moe", 2)
    rates, free = guessed_rates(case.topology), [1 << 40] * 3

    def chosen(offload):
        return fit(
            case.spec, case.topology, rates, free, offload, EVERYTHING,
            n_ctx=CONTEXTS[0], step=STEP, make=case.make,
        ).offload  # fmt: skip

    assert chosen(Offload(n_gpu_layers=1)).n_gpu_layers == 1
    assert chosen(Offload(n_cpu_moe=1)).n_cpu_moe == 1
    fixed = chosen(Offload(n_gpu_layers=2, tensor_split=(1.0, 1.0)))
    assert fixed.stage_layers == (1, 1)
    everything = chosen(Offload(tensor_split=(0.0, 1.0)))
    assert everything.stage_layers[0] == 0
    counts = chosen(Offload(split_by="cost", n_gpu_layers=3)).stage_layers
    assert sum(counts) == 3


def test_overrides_count(cases):
    """With ``-ot`` the quick bounds say nothing, and plans decide."""
    case = cases("llama", 1)
    rules = (OverrideRule(re.compile(r"^blk\.\d+\.(attn|ffn)_.*weight"), "cpu:0"),)
    sizes = micro_batches(64, STEP)
    homes = find_homes(case.spec, case.topology, Offload(n_gpu_layers=3, overrides=rules))
    plans = [case.make(case.graph(size, 64), homes) for size in sizes]
    need = memory_need(plans, 2, plans_kept=1, double_buffered=lambda _: False)
    free = [need.peak[d].total for d in range(2)]
    found = fit(
        case.spec, case.topology, guessed_rates(case.topology), free, Offload(overrides=rules),
        EVERYTHING, n_ctx=CONTEXTS[0], step=STEP, make=case.make,
    )  # fmt: skip
    assert found.n_ctx == 64
    assert all(found.need.peak[d].total <= free[d] for d in range(2))


def test_contexts_are_halved_where_the_caller_leaves_them_open():
    assert [*FitRequest(256).contexts(4096)] == [4096, 2048, 1024, 512, 256]
    assert [*FitRequest(256).contexts(300)] == [300]
    assert [*FitRequest().contexts(4096)] == [4096]


def test_the_margin_is_left(cases):
    case = cases("llama", 1)
    choice = max(case.choices, key=lambda c: c.n_gpu_layers)
    need = [case.needs[choice].peak[d].total for d in range(2)]
    rates = guessed_rates(case.topology)
    slow = replace(rates.devices[1], node_s=1.0)
    rates = replace(rates, devices=(rates.devices[0], slow))

    def layers(free, nbytes=0, share=0.0):
        request = FitRequest(margin=(nbytes, share))
        found = fit(
            case.spec, case.topology, rates, free, Offload(), request,
            n_ctx=choice.n_ctx, step=STEP, make=case.make,
        )  # fmt: skip
        return found.offload.n_gpu_layers

    room = [need[0], 1 << 30]
    assert layers(room) == choice.n_gpu_layers
    assert layers(room, nbytes=1) < choice.n_gpu_layers
    assert layers([need[0] + 1000, 1 << 30], nbytes=1000) == choice.n_gpu_layers
    assert layers([need[0] * 2, 1 << 30], share=0.5) == choice.n_gpu_layers
    assert layers([need[0] * 2 - 2, 1 << 30], share=0.5) < choice.n_gpu_layers


def test_many_splits_are_not_tried_one_by_one(cases, monkeypatch):
    assert count_splits(2, 2) == len([s for w in range(3) for s in every_split(w, 2)]) == 6
    monkeypatch.setattr("ggsched_llm.fit.MAX_CHOICES", 3)
    case = cases("llama", 2)
    free = [case.needs[case.choices[-1]].peak[d].total for d in range(2)] + [1 << 30]
    found = fit(
        case.spec, case.topology, guessed_rates(case.topology), free, Offload(), EVERYTHING,
        n_ctx=CONTEXTS[0], step=STEP, make=case.make,
    )  # fmt: skip
    assert all(found.need.peak[d].total <= free[d] for d in range(3))


def test_a_stage_on_another_machine_costs_the_message(tmp_path):
    spec = load_model(tiny_gguf(tmp_path / "m.gguf", "llama", layers=LAYERS, vocab=16)).spec
    names = ("ray://a/gpu:0", "ray://a/gpu:1", "ray://b/gpu:0")
    topology = Topology(tuple(fake_device(n, kind="gpu", ops=ALL_OPS) for n in names))
    seconds = []
    for latency_s in (0.0, 0.01):
        network = {("ray://a", "ray://b"): Link(latency_s, 1e9)}
        rates = replace(guessed_rates(topology), network=network)
        costs = fit_costs(spec, topology, rates, Offload(), 64, STEP)
        seconds.append([costs.estimate(Candidate(64, c)) for c in ((2, 1, 0), (2, 0, 1))])
    (within, _), (same, across) = seconds
    assert same == within
    assert across - seconds[0][1] == pytest.approx((1 + DECODING_STEPS) * 0.01)
    assert across > same
