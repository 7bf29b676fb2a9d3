"""Models of real shapes over a GPU and a CPU: what is copied, waited for and overlapped.

The machine is a recorded one (``tests/data/topologies/h200-cpu.json``), the rates are guesses.
"""

from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.ir.dtype import BF16, MXFP4
from ggsched.passes import make_plan
from ggsched.passes.cost.predict import predict_step
from ggsched.passes.place import Constraints
from ggsched.plan.command import Copy, CopyRows, Download, HostSync, Launch, Upload, Wait
from ggsched.plan.splits import HOST
from ggsched.sanitize import check_plan
from ggsched.topology.codec import topology_from_text
from ggsched.topology.cost import KernelRate, Link, guessed_rates, with_kernel
from ggsched_llm.batches import BatchSize
from ggsched_llm.offload import Offload, copied_output, find_homes, wants_copy
from ggsched_offload.find import DENSE, DENSE_NBYTES
from ggsched_offload.offload import ExpertPolicy
from ggsched_testing.generators.strategies import graphs, seeds
from tests.passes.machines import machine
from tests.properties.test_end_to_end import run_and_compare
from tests.support.shapes import GPT_OSS_20B, LLAMA_1B, spec_of
from tests.support.verified_plans import verified_plan

FILE = Path(__file__).parent.parent / "data" / "topologies" / "h200-cpu.json"
TOPOLOGY = topology_from_text(FILE.read_text())
RATES = guessed_rates(TOPOLOGY)
GPU, CPU = 0, 1
LLAMA = replace(LLAMA_1B, n_layer=6)
MOE = replace(GPT_OSS_20B, n_layer=6)
PREFILL = 512
ANY_TWO = machine("gpu:0", "cpu:0")


@cache
def planned(hp, n_tokens, offload):
    """Return graph and plan of a micro-batch at the beginning of a sequence."""
    spec = spec_of(hp, BF16, MXFP4 if hp.n_expert else None)
    if wants_copy(spec, TOPOLOGY, offload):
        spec = copied_output(spec)
    graph = BatchSize(n_tokens, PREFILL, 1).graph(spec, PREFILL)
    constraints = find_homes(spec, TOPOLOGY, offload).constraints(RATES)
    plan = verified_plan(graph, TOPOLOGY, constraints)
    assert check_plan(plan).is_clean
    return graph, plan


def copies_between(plan):
    """Return the copies from device to device, as (source, target, bytes, stream)."""
    arenas, found = plan.memory.arenas, []
    for c in plan.commands:
        if isinstance(c, Copy):
            ends = arenas[c.src.arena].device, arenas[c.dst.arena].device
            found.append((*ends, c.dst.nbytes, c.stream))
    return found


def count(plan, kind):
    return sum(isinstance(c, kind) for c in plan.commands)


def weights_on_cpu(graph, plan):
    homes = plan.placement.homes
    return [t for t in graph.tensors if t.role.value == "weight" and homes.get(t.id) == CPU]


@pytest.mark.parametrize("layers", range(1, LLAMA.n_layer + 1))
def test_decoding_crosses_once_from_cpu_to_gpu(layers):
    """The hidden state crosses, in one copy; nothing else is waited for."""
    _, plan = planned(LLAMA, 1, Offload(n_gpu_layers=layers))
    assert [s.device for s in plan.splits.splits] == [CPU, GPU]
    row = 4 * LLAMA.n_embd
    assert [(a, b, n) for a, b, n, _ in copies_between(plan)] == [(CPU, GPU, row)]
    assert count(plan, Launch) == 2
    assert count(plan, Wait) == 1
    assert count(plan, HostSync) == 1
    assert count(plan, Download) == 1
    assert not any(o.is_taken for o in plan.placement.offloads)


@pytest.mark.parametrize(("measured", "is_moved"), [(110e9, False), (20e9, True)])
def test_decoding_stays_on_a_cpu_that_reads_weights_faster_than_they_are_copied(measured, is_moved):
    """Sixteen cores read 110 GB/s, a link 55; what is guessed of a CPU (33) counts no more then."""
    cpu = with_kernel(RATES.devices[CPU], KernelRate("mul_mat:bf16", 1e12, measured))
    link = {(CPU, GPU): Link(1e-5, 55e9)}
    rates = replace(RATES, devices=(RATES.devices[GPU], cpu), links={**RATES.links, **link})
    spec = spec_of(LLAMA, BF16, None)
    offload = Offload(4)
    graph = BatchSize(1, PREFILL, 1).graph(spec, PREFILL)
    plan = make_plan(graph, TOPOLOGY, find_homes(spec, TOPOLOGY, offload).constraints(rates))
    moved = {o.is_taken for o in plan.placement.offloads}
    assert moved == {is_moved}


@pytest.mark.parametrize("layers", [1, 3, 6])
def test_decoding_with_experts_on_the_cpu_crosses_twice_a_layer(layers):
    """There go the state and the ids, back go the results of the experts that were chosen."""
    _, plan = planned(MOE, 1, Offload(n_cpu_moe=layers))
    devices = [s.device for s in plan.splits.splits]
    assert devices == [CPU, GPU] * (layers + 1), "the embedding, then the experts of each layer"
    there = Counter((a, b, n) for a, b, n, _ in copies_between(plan))
    row, used = 4 * MOE.n_embd, MOE.n_expert_used
    assert there == {
        (CPU, GPU, row): 1,
        (GPU, CPU, row): layers,
        (GPU, CPU, 4 * used): layers,
        (CPU, GPU, row * used): layers,
    }
    assert count(plan, Wait) == 2 * layers + 1
    assert count(plan, HostSync) == 1
    assert count(plan, CopyRows) == 0
    assert count(plan, Upload) <= 5, "inputs, each once for each device that reads it"


@pytest.mark.parametrize("ring", [1, 2, 3])
def test_a_prompt_is_computed_by_the_gpu_with_each_weight_copied_once(ring):
    graph, plan = planned(LLAMA, PREFILL, Offload(4, experts=ExpertPolicy("auto", ring)))
    products = [n.id for n in graph.nodes if n.op == "mul_mat"]
    assert {plan.placement.choices[i].device for i in products} == {GPU}
    ringed = [t for t in plan.splits.transfers if plan.splits.values[t.dst].ring >= 0]
    copied = Counter(plan.splits.values[t.src].bound for t in ringed)
    matrices = {t.name for t in weights_on_cpu(graph, plan) if t.name != "token_embd.weight"}
    assert copied == dict.fromkeys(matrices, 1)
    assert count(plan, HostSync) == 1
    layers = 3  # 7 in all, of which 4 are on the GPU
    crossings = [c for c in copies_between(plan) if c[0] == GPU]
    assert len(crossings) == 2 * layers, "new rows of the caches of K and V"
    assert count(plan, Launch) <= 3 * layers + 2


def test_weights_are_copied_while_the_gpu_computes():
    """On a stream of their own; the step takes as long as the copies, not as all in a row."""
    graph, plan = planned(LLAMA, PREFILL, Offload(2))
    lanes = {c.stream for c in plan.commands if isinstance(c, Launch)}
    ringed = [c for c in copies_between(plan) if c[3] not in lanes]
    link = RATES.link(CPU, GPU)
    copying = sum(link.seconds(n) for _, _, n, _ in ringed)
    assert sum(n for _, _, n, _ in ringed) == sum(
        t.nbytes for t in weights_on_cpu(graph, plan) if t.name != "token_embd.weight"
    )
    timeline = predict_step(graph, plan, RATES)
    assert timeline.seconds < 1.6 * copying
    _, alone = planned(LLAMA, PREFILL, Offload(2, experts=ExpertPolicy("auto", 1)))
    assert timeline.seconds < predict_step(graph, alone, RATES).seconds
    _, off = planned(LLAMA, PREFILL, Offload(2, experts=ExpertPolicy("off")))
    assert timeline.seconds < predict_step(graph, off, RATES).seconds / 10


def test_experts_of_a_prompt_go_ahead_by_layer():
    graph, plan = planned(MOE, PREFILL, Offload(n_cpu_moe=4))
    taken = [o for o in plan.placement.offloads if o.is_taken]
    assert [o.way for o in taken] == ["layer"] * 4
    experts = [t for t in weights_on_cpu(graph, plan) if "_exps" in t.name]
    lanes = {c.stream for c in plan.commands if isinstance(c, Launch)}
    ahead = [n for _, _, n, stream in copies_between(plan) if stream not in lanes]
    assert sum(ahead) == sum(t.nbytes for t in experts)
    assert count(plan, HostSync) == 1
    assert {s.device for s in plan.splits.splits[1:]} == {GPU}, "the CPU looks up the embedding"


@pytest.mark.parametrize(("left", "is_taken"), [(1 << 28, False), (1 << 30, True)])
def test_a_ring_that_would_not_fit_is_not_asked_for(left, is_taken):
    """What ran before with all of a GPU's memory in use still runs."""
    spec, offload = copied_output(spec_of(LLAMA, BF16)), Offload(4)
    graph = BatchSize(PREFILL, PREFILL, 1).graph(spec, PREFILL)
    constraints = find_homes(spec, TOPOLOGY, offload).constraints(RATES)
    homes = constraints.homes
    used = sum(graph.named(n).nbytes for n in homes if n in graph and homes[n] == GPU)
    gpu = replace(TOPOLOGY.devices[GPU], memory_nbytes=used + left, max_allocation_nbytes=0)
    machine = replace(TOPOLOGY, devices=(gpu, TOPOLOGY.devices[CPU]))
    plan = make_plan(graph, machine, constraints)
    layers = [o for o in plan.placement.offloads if o.here_s > 0.1]
    assert layers
    assert {o.is_taken for o in layers} == {is_taken}


def test_a_block_is_no_longer_than_a_ring_should_be():
    graph, plan = planned(LLAMA, PREFILL, Offload(0))
    dense = [o for o in plan.placement.offloads if o.ids == DENSE]
    assert len(dense) > LLAMA.n_layer
    (ring,) = {plan.memory.regions[v.id].arena for v in plan.splits.values if v.ring >= 0}
    largest = max(t.nbytes for t in weights_on_cpu(graph, plan) if t.name != "token_embd.weight")
    assert plan.memory.arenas[ring].nbytes <= 2 * max(DENSE_NBYTES, largest)


def test_caches_stay_where_they_are():
    graph, plan = planned(LLAMA, PREFILL, Offload(2))
    for node in graph.nodes:
        storage = graph.tensors[graph.tensors[node.output].storage]
        if storage.role.value == "state":
            here = plan.placement.homes[storage.id]
            assert plan.placement.choices[node.id].device == here


@given(drawn=graphs(max_nodes=16), seed=seeds(), ring=st.integers(1, 3), data=st.data())
def test_results_of_what_is_moved_equal_the_oracle(drawn, seed, ring, data):
    """Weights and states of random graphs on the CPU; all that can move does."""
    graph = drawn.graph
    lasting = [t.name for t in graph.tensors if t.role.value in ("weight", "state") and t.name]
    homes = {name: data.draw(st.sampled_from((1, 1, 0)), label=name) for name in lasting}
    constraints = Constraints(homes=homes, offload=ExpertPolicy("on", ring))
    plan = verified_plan(graph, ANY_TWO, constraints)
    check_plan(plan).raise_if_findings()
    assert all(o.is_taken for o in plan.placement.offloads)
    run_and_compare(drawn, ANY_TWO, plan, seed)


@pytest.mark.parametrize("n_tokens", [1, PREFILL])
def test_nothing_is_staged_in_host_memory(n_tokens):
    """What crosses goes straight from memory to memory; the host has inputs and outputs."""
    _, plan = planned(MOE, n_tokens, Offload(n_cpu_moe=4))
    arenas, regions = plan.memory.arenas, plan.memory.regions
    on_host = {arenas[regions[v.id].arena].kind for v in plan.splits.values if v.device == HOST}
    assert on_host <= {"input", "output"}
