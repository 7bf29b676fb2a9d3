"""Splits of layers: as good as the best of all contiguous ones, and within memory."""

import re
from dataclasses import replace
from itertools import combinations_with_replacement, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.errors import UsageError
from ggsched.topology.cost import guessed_rates
from ggsched_llm.batches import BatchSize
from ggsched_llm.layer_costs import layer_costs
from ggsched_llm.load import load_model
from ggsched_llm.offload import Offload, find_homes
from ggsched_llm.stage_balance import balanced_layers, split_layers, split_reasons
from tests.models.helpers import ORACLE, tiny_gguf
from tests.models.test_offload import machine, where

SIZE = BatchSize(8, 32, 1)


def costs_of(spec, topology, rates):
    return layer_costs(spec, topology, rates, Offload(), [(SIZE, 1)], 64)


def every_split(stages, layers):
    for cuts in combinations_with_replacement(range(layers + 1), stages - 1):
        ends = [0, *cuts, layers]
        yield tuple(b - a for a, b in pairwise(ends))


def of(counts, costs):
    """The cost of each stage."""
    at, out = 0, []
    for stage, count in enumerate(counts):
        out.append(sum(costs[stage][at : at + count]))
        at += count
    return out


def fits(counts, nbytes, limits):
    used = of(counts, [nbytes] * len(counts))
    return all(limit is None or n <= limit for n, limit in zip(used, limits, strict=True))


@st.composite
def cases(draw):
    stages, layers = draw(st.integers(1, 4)), draw(st.integers(0, 7))
    cost = st.integers(0, 20) | st.integers(0, 3)
    costs = [draw(st.lists(cost, min_size=layers, max_size=layers)) for _ in range(stages)]
    nbytes = draw(st.lists(st.integers(0, 9), min_size=layers, max_size=layers))
    limits = [draw(st.none() | st.integers(0, 30)) for _ in range(stages)]
    return costs, nbytes, limits


@given(case=cases())
def test_as_good_as_the_best_of_all(case):
    costs, nbytes, limits = case
    stages, layers = len(costs), len(nbytes)
    possible = [s for s in every_split(stages, layers) if fits(s, nbytes, limits)]
    found = split_layers(costs, nbytes, limits)
    if not possible:
        assert found is None
        return
    assert found is not None
    assert sum(found.counts) == layers
    assert fits(found.counts, nbytes, limits)
    own = of(found.counts, costs)
    assert (found.slowest, found.total) == (max(own), sum(own))
    best = min((max(of(s, costs)), sum(of(s, costs))) for s in possible)
    # Of the splits with the best slowest stage, one whose prefixes are best, too, is taken.
    assert found.slowest == best[0]


def test_unequal_stages():
    assert split_layers([[1.0] * 9, [2.0] * 9]).counts == (6, 3)
    assert split_layers([[1.0] * 8] * 4).counts == (2, 2, 2, 2)
    assert split_layers([[5.0, 1, 1, 1, 1, 1]] * 2).counts == (1, 5)
    assert split_layers([]) is None


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    path = tmp_path_factory.mktemp("m") / "m.gguf"
    return load_model(tiny_gguf(path, layers=7)).spec


class TestOfAModel:
    def test_costs_of_layers_add_up(self, llama):
        topology = machine("gpu:0", "cpu:0")
        rates = guessed_rates(topology)
        costs = costs_of(llama, topology, rates)
        assert len(costs.seconds) == 2
        for row in costs.seconds:
            assert len(row) == 8
            assert max(row[:6]) == pytest.approx(min(row[:6]))
            assert row[7] > 0
        blocks = costs.nbytes[:7]
        assert set(blocks) == {blocks[0]}
        weights = sum(4 * w.shape[0] * (w.shape[1] if len(w.shape) > 1 else 1)
                      for n, w in llama.weights.items() if n != "token_embd.weight")  # fmt: skip
        assert sum(costs.nbytes) == weights + 7 * 2 * 64 * 16 * 4

    def test_experts_on_the_host_cost_the_same_everywhere(self):
        spec = load_model(ORACLE / "qwen3moe-tiny-f32.gguf").spec
        topology = machine("gpu:0", "cpu:0")
        costs = costs_of(spec, topology, guessed_rates(topology))
        assert costs.seconds_on(1, 2) == costs.seconds_on(1, 0)
        none, some = costs.seconds_on(0, 0), costs.seconds_on(0, 2)
        assert some[0] > none[0]
        assert some[2] == none[2]
        nbytes = zip(costs.nbytes_with(0), costs.nbytes_with(2), strict=True)
        assert [a - b > 0 for a, b in nbytes] == [True, True, False, False]

    def test_balance_follows_the_rates(self, llama):
        topology = machine("gpu:0", "gpu:1", "cpu:0")
        rates = guessed_rates(topology)
        equal = balanced_layers(costs_of(llama, topology, rates), 8, 0)
        assert sum(equal.counts) == 8
        assert abs(equal.counts[0] - equal.counts[1]) <= 1
        slow = replace(rates.devices[1], node_s=3 * rates.devices[0].node_s)
        uneven = replace(rates, devices=(rates.devices[0], slow, rates.devices[2]))
        costs = costs_of(llama, topology, uneven)
        found = balanced_layers(costs, 8, 0)
        assert found.counts == (6, 2)
        reasons = split_reasons(costs, found.counts, 0, (), 8)
        assert re.fullmatch(
            r".*s predicted for \d+ tokens; with block 6 this one would take .*s", reasons[0]
        )
        offload = Offload(split_by="cost", stage_layers=found.counts, stage_reasons=reasons)
        homes = find_homes(llama, topology, offload)
        here = f"stage 1 of 2 (blocks 0 to 5): {reasons[0]}"
        assert homes.reasons["blk.3.attn_q.weight"] == f"block 3 is in {here}"
        there = f"stage 2 of 2 (block 6 and the output layer): {reasons[1]}"
        assert homes.reasons["output.weight"] == f"output layer; {there}"
        assert [where(homes, rf"^blk\.{i}\.") for i in range(7)] == [{0}] * 6 + [{1}]
        assert where(homes, r"^output") == {1}
        assert where(homes, r"^token_embd") == {2}

    def test_memory_limits_a_stage(self, llama):
        topology = machine("gpu:0", "gpu:1", "cpu:0")
        rates = guessed_rates(topology)
        costs = costs_of(llama, topology, rates)
        limits = (2 * costs.nbytes[0], None)
        found = balanced_layers(costs, 8, 0, limits)
        assert found.counts == (2, 6)
        reasons = split_reasons(costs, found.counts, 0, limits, 8)
        assert reasons[0].endswith("with block 2 this one has no room")
        assert re.search("with block 2 stage 1 has no room$", reasons[1])
        assert balanced_layers(costs, 8, 0, (0, 0)) is None

    def test_several_cpus_are_stages_where_a_split_is_asked_for(self, llama):
        topology = machine("cpu:0", "cpu:1")
        assert where(find_homes(llama, topology, Offload()), r"^blk") == {1}
        for offload in (Offload(split_by="equal"), Offload(tensor_split=(1.0, 1.0))):
            homes = find_homes(llama, topology, offload)
            assert [where(homes, rf"^blk\.{i}\.") for i in (0, 3, 4, 6)] == [{0}, {0}, {1}, {1}]
            assert homes.reasons["blk.0.k_cache"].startswith(
                "block 0 is in stage 1 of 2 (blocks 0 to 3): in "
            )
            assert where(homes, r"^token_embd") == {0}  # where a micro-batch enters

    @pytest.mark.parametrize("counts", [(8,), (4, 5), (-1, 9)])
    def test_counts_that_make_no_sense(self, llama, counts):
        with pytest.raises(UsageError, match="one number for each of 2 devices, 8 in all"):
            find_homes(llama, machine("gpu:0", "gpu:1", "cpu:0"), Offload(stage_layers=counts))
