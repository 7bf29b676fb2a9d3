"""What devices that share layers are given: how often they are launched, and what that leads to.

Real shapes on the recorded topology of two H200s; nothing here runs on a GPU. A launch is compiled
as one program, so what one of its kernels leaves to the next is there within a launch only.
"""

from collections import Counter
from dataclasses import replace

import pytest

from ggsched.backend.program import Group
from ggsched.ir.dtype import BF16
from ggsched.plan.command import Download, HostSync, Launch, Record, Wait
from ggsched.plan.stats import plan_stats
from ggsched.run.following import first_wait_at_end, state_streams
from ggsched.sanitize import check_plan
from ggsched_kernels import warp_profile
from ggsched_llm.token_inputs import NEXT_TOKEN
from ggsched_shard.names import part_of
from ggsched_testing.eager import bound_nodes
from tests.models.test_stages import gpus, session
from tests.passes.test_cuda_fusions import Memory
from tests.support.shapes import LLAMA_8B, spec_of

LAYERS = 4
LLAMA = spec_of(replace(LLAMA_8B, n_layer=LAYERS, n_vocab=1024), BF16)
INNER = range(1, LAYERS - 1)
"""Blocks whose neighbours are blocks, where every output has all tokens."""


def planned(p, n_tokens, *, peers=True):
    """Return graph and plan of a micro-batch that p GPUs share."""
    pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")
    from ggsched_cuda_kernels.kernel_selection import fusions_of

    topology, fusions = gpus(p), fusions_of(warp_profile(132, 232448, True))
    facts = tuple(replace(d, reads_peers=peers, fusions=fusions) for d in topology.devices)
    with session(LLAMA, replace(topology, devices=facts), split_mode="tensor") as s:
        graph = s.graph(n_tokens, 512, 1)
        return graph, s.plan_of(graph)


@pytest.mark.parametrize("p", [2, 4])
def test_a_greedy_step_ends_in_one_launch_and_one_wait(p):
    """Logits are joined and looked through where they are; the host is given eight bytes."""
    topology = gpus(p)
    with session(LLAMA, topology, split_mode="tensor") as s:
        graph, logits = s.step_graph(512), s.graph(1, 512, 1)
        plan, whole = s.plan_of(graph), s.plan_of(logits)
    assert check_plan(plan).is_clean
    labels = [part_of(plan.nodes[step.node].label)[0] for step in last_launch(plan).steps]
    chosen = ["result_top", "next_token_set", "result_largest"]
    assert labels == ["result_output_joined"] * (p - 1) + chosen
    found, known = plan_stats(plan).commands, plan_stats(whole).commands
    assert found == {**known, "download": 2, "upload": known["upload"] - 1}  # the token is there
    assert sum(c.src.nbytes for c in plan.commands if isinstance(c, Download)) == 8


@pytest.mark.parametrize("split", ["layer", "tensor"])
@pytest.mark.parametrize("p", [1, 2, 4])
def test_a_greedy_step_can_be_enqueued_ahead(p, split):
    """The host waits at the end, and one stream has the token as it has each row of the cache."""
    if p == 1 and split == "tensor":
        pytest.skip("nothing to share")
    with session(LLAMA, gpus(p), split_mode=split) as s:
        plan = s.plan_of(s.step_graph(512))
        assert s.scheduler.takes_turns(plan, started=True)
    streams = state_streams(plan)
    assert streams is not None
    assert streams[NEXT_TOKEN] == (p - 1 if split == "layer" else 0, 0)  # where the logits are
    assert [type(c) for c in plan.commands[first_wait_at_end(plan) :]] == [HostSync]


def last_launch(plan):
    return [c for c in plan.commands if isinstance(c, Launch)][-1]


def launches_of(plan, block):
    """Return for each participant the launches with something of a block, as lists of labels."""
    found = {}
    for c in plan.commands:
        if isinstance(c, Launch):
            labels = [part_of(plan.nodes[step.node].label) for step in c.steps]
            if any(label.startswith(f"blk.{block}.") for label, _ in labels):
                (part,) = {part for _, part in labels}
                found.setdefault(part, []).append([label for label, _ in labels])
    return found


@pytest.mark.parametrize(("p", "n_tokens"), [(2, 1), (2, 512), (4, 1), (4, 8)])
def test_a_block_is_two_launches_of_each_device(p, n_tokens):
    """From one exchange to the next: the sum, the norm behind it, and its products."""
    _, plan = planned(p, n_tokens)
    assert check_plan(plan).is_clean
    for block in INNER:
        for launches in launches_of(plan, block).values():
            # The last one begins the next block.
            assert len(launches) == 3
            first, second, last = launches
            assert first[-1] == f"blk.{block}.kqv_out"
            assert f"blk.{block}.attn_norm" in first
            assert (second[0], second[-1]) == (f"blk.{block}.kqv_out_sum", f"blk.{block}.ffn_out")
            assert last[0] == f"blk.{block}.ffn_out_sum"


def test_many_rows_on_many_devices_are_exchanged_twice():
    """Each adds up some rows and takes the others' sums, which stand before the products."""
    _, plan = planned(4, 512)
    assert check_plan(plan).is_clean
    for block in INNER:
        for launches in launches_of(plan, block).values():
            sums = [labels for labels in launches if set(labels) == {f"blk.{block}.kqv_out_sum"}]
            assert len(sums) == 1
            assert len(launches) == 5  # the last two belong to the next block too


@pytest.mark.parametrize("n_tokens", [1, 512])
def test_nobody_waits_but_for_summands(n_tokens):
    """One event of each device for an exchange, and one wait for it."""
    _, plan = planned(2, n_tokens)
    streams = plan.streams.streams
    across = [
        c
        for c in plan.commands
        if isinstance(c, Wait)
        for r in plan.commands
        if isinstance(r, Record) and r.event == c.event
        if streams[r.stream].device != streams[c.stream].device
    ]
    exchanges = 2 * LAYERS
    assert len(across) == 2 * exchanges + 2  # the embedding goes out, parts of the logits come back


def test_copies_are_enqueued_before_the_products_behind_them():
    """Where a summand is copied, perhaps by its sender's queue, products stay in a later launch."""
    _, plan = planned(2, 1, peers=False)
    for block in INNER:
        for launches in launches_of(plan, block).values():
            sums = [labels for labels in launches if f"blk.{block}.kqv_out_sum" in labels]
            names = ("kqv_out_sum", "ffn_inp", "ffn_norm_rms", "ffn_norm")
            assert sums == [[f"blk.{block}.{name}" for name in names]]


def kernels_of(graph, plan):
    """Return the kernels of each participant, of one program for each launch, by their nodes."""
    from ggsched_cuda_kernels.kernel_selection import lower

    profile = replace(warp_profile(132, 232448, True), activations="auto")
    memory = {t.id: Memory(t.nbytes) for t in graph.tensors if not t.is_view}
    nodes = bound_nodes(graph, memory, constant_weights=True)
    groups = {n: Group(f.pattern, f.nodes) for f in plan.fusions for n in f.nodes}
    found = {}
    for c in plan.commands:
        if isinstance(c, Launch):
            bound = [replace(nodes[s.node], group=groups.get(s.node)) for s in c.steps]
            for call in lower(bound, profile)[0]:
                base, part = part_of(plan.nodes[int(call.label.split()[0][1:])].label)
                found.setdefault(part, []).append((base, getattr(call, "kernel", "product")))
    return found


@pytest.mark.parametrize("p", [2, 4])
def test_rows_for_products_are_written_by_the_norms(p):
    """No kernel makes rows of bf16 of a block's operands, as on one GPU."""
    kernels_by_part = kernels_of(*planned(p, 512))
    assert len(kernels_by_part) == p
    for kernels in kernels_by_part.values():
        made = Counter(name.split(".")[1] for name, kernel in kernels if kernel == "to_halves")
        # Behind the embedding the norm of the first block is sent, and its products come later.
        assert not made.keys() - {"0"}
        inner = [kernel for name, kernel in kernels if name.startswith("blk.1.")]
        # Keys and values are one product of cuBLAS, gate and up another.
        assert inner.count("product") == 5
        assert {"sum_norm", "gated_rows", "flash_attention"} <= set(inner)


@pytest.mark.parametrize("p", [2, 4])
def test_products_of_a_token_begin_with_the_sum(p):
    """Of each launch of a block: no kernel is between products where rows are pushed."""
    from ggsched_cuda_kernels.kernel_selection import lower

    graph, plan = planned(p, 1)
    profile = replace(warp_profile(132, 232448, True), reads_peers=True)
    memory = {t.id: Memory(t.nbytes) for t in graph.tensors if not t.is_view}
    nodes = bound_nodes(graph, memory, constant_weights=True)
    groups = {n: Group(f.pattern, f.nodes) for f in plan.fusions for n in f.nodes}
    seen = Counter()
    for c in plan.commands:
        first = part_of(plan.nodes[c.steps[0].node].label)[0] if isinstance(c, Launch) else ""
        if first.split(".")[-1] not in ("kqv_out_sum", "ffn_out_sum"):
            continue
        if int(first.split(".")[1]) not in INNER:
            continue
        bound = [replace(nodes[s.node], group=groups.get(s.node)) for s in c.steps]
        calls = lower(bound, profile)[0]
        pushed = calls[0].pushed
        assert pushed.covered == 2
        assert len(pushed.parts) == p
        assert calls[-1].also.places > 1
        seen[first] += 1
    assert len(seen) == 2 * len(INNER)
    assert set(seen.values()) == {p}
