"""Which experts move to another device, by which way, and what is predicted of it."""

import dataclasses
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.backend.probe import probe
from ggsched.errors import PlanError
from ggsched.ir.join import join_graphs
from ggsched.passes import make_plan
from ggsched.passes.cost.predict import predict_step
from ggsched.passes.cost.work_size import expected_rows
from ggsched.passes.place import Constraints
from ggsched.plan.command import Copy, CopyRows
from ggsched.plan.splits import Rows
from ggsched.sanitize import check_plan
from ggsched.topology.cost import Link, guessed_rates
from ggsched_offload.offload import ExpertPolicy
from ggsched_testing.generators.expert_graphs import expert_graph, expert_homes, expert_names
from ggsched_testing.sim.config import SIM_OPS, SimConfig
from ggsched_testing.sim.world import SimWorld
from tests.support.verified_plans import verified_plan


def topology_of(**config):
    configs = [SimConfig(**config), SimConfig(is_host=True, kind="cpu", **config)]
    return probe(SimWorld(configs).open_all())


TOPOLOGY = topology_of()
RATES = guessed_rates(TOPOLOGY)


def slow_link(factor):
    """Return rates with a link to the accelerator that is slower by a factor."""
    links = dict(RATES.links)
    links[1, 0] = Link(RATES.links[1, 0].latency_s * factor, RATES.links[1, 0].bandwidth / factor)
    return dataclasses.replace(RATES, links=links)


def planned(graph, policy, rates=RATES, topology=TOPOLOGY, pins=None):
    homes = expert_homes(graph, here=1, there=0)
    constraints = Constraints(homes, pins or {}, rates, policy)
    plan = verified_plan(graph, topology, constraints)
    assert check_plan(plan).is_clean
    return plan


def taken(plan):
    return [o for o in plan.placement.offloads if o.is_taken]


def test_off_changes_nothing():
    graph = expert_graph(2)
    without = make_plan(graph, TOPOLOGY, Constraints(expert_homes(graph, 1, 0), rates=RATES))
    assert planned(graph, ExpertPolicy()).placement == without.placement
    assert without.placement.offloads == ()


def test_on_moves_every_block_and_nothing_else():
    graph = expert_graph(3, biases=True)
    off, on = (planned(graph, ExpertPolicy(w)) for w in ("off", "on"))
    assert len(taken(on)) == 3
    moved = {i for o in taken(on) for i in range(o.first, o.end)}
    for i, (a, b) in enumerate(zip(off.placement.choices, on.placement.choices, strict=True)):
        assert (b.cause == "offload") == (i in moved)
        assert a == b or i in moved
    for o in taken(on):
        takers = [i for i in range(o.first, o.end) if graph.nodes[i].op in ("mul_mat_id", "add_id")]
        assert len(takers) == 3
        assert graph.nodes[o.first].op == "mul_mat_id"
        assert on.placement.choices[o.first].detail.startswith("rows in ")


def test_auto_takes_what_is_predicted_to_be_faster():
    graph = expert_graph(3, tokens=16, experts=16, width=64, hidden=256)
    for factor in (0.01, 1, 10, 1000):
        plan = planned(graph, ExpertPolicy("auto", ring=2), slow_link(factor))
        offloads = plan.placement.offloads
        assert len(offloads) == 3
        assert all(o.is_taken == (o.there_s < o.here_s) for o in offloads)
    near = planned(graph, ExpertPolicy("auto"), slow_link(0.01))
    far = planned(graph, ExpertPolicy("auto"), slow_link(1000))
    assert len(taken(near)) == 3
    assert taken(far) == []


@pytest.mark.parametrize("factor", [0.01, 1000])
def test_the_choice_is_the_one_whose_plan_is_predicted_to_be_faster(factor):
    """The simulation of the whole plan, which knows more, agrees where much is at stake."""
    graph = expert_graph(4, tokens=64, experts=16, width=64, hidden=256)
    rates = slow_link(factor)
    seconds = {
        w: predict_step(graph, planned(graph, ExpertPolicy(w), rates), rates).seconds
        for w in ("off", "on", "auto")
    }
    assert seconds["auto"] == min(seconds["off"], seconds["on"])


def test_pins_and_reachability_win():
    graph = expert_graph(2)
    first = next(n.id for n in graph.nodes if n.op == "mul_mat_id")
    assert len(taken(planned(graph, ExpertPolicy("on"), pins={first: 1}))) == 1
    alone = probe(
        SimWorld([SimConfig(copies=frozenset()), SimConfig(copies=frozenset())]).open_all()
    )
    assert alone.copy_paths == {}
    rates = guessed_rates(alone)
    assert planned(graph, ExpertPolicy("on"), rates, alone).placement.offloads == ()


def test_a_device_that_lacks_an_op_is_not_asked():
    graph = expert_graph(2)
    ops = SIM_OPS - {"mul_mat_id:f32"}
    topology = probe(SimWorld([SimConfig(ops=ops), SimConfig(is_host=True, kind="cpu")]).open_all())
    plan = planned(graph, ExpertPolicy("on"), guessed_rates(topology), topology)
    assert plan.placement.offloads == ()


def test_large_batches_go_ahead_by_layer_and_small_ones_by_rows():
    few = planned(
        expert_graph(4, tokens=1, experts=64, width=64, hidden=256), ExpertPolicy("on", 2)
    )
    many = planned(expert_graph(4, tokens=512, experts=8), ExpertPolicy("on", 2))
    alone = planned(expert_graph(4, tokens=512, experts=8), ExpertPolicy("on", 1))
    assert {o.way for o in taken(few)} == {"rows"}
    assert {o.way for o in taken(many)} == {"layer"}
    assert {o.way for o in taken(alone)} == {"rows"}
    assert not any(isinstance(c, CopyRows) for c in many.commands)


def test_no_layer_goes_ahead_for_rows_that_nobody_chooses():
    for tokens in (1, 2, 4, 8, 16):
        plan = planned(expert_graph(4, tokens=tokens, experts=16), ExpertPolicy("on", 2))
        expected = expected_rows(16, 2 * tokens) / 16
        assert {o.way for o in taken(plan)} == ({"layer"} if expected >= 0.75 else {"rows"})


@pytest.mark.parametrize("ring", [2, 3, 4])
def test_a_ring_has_as_many_slots_as_asked_and_is_filled_as_early_as_it_allows(ring):
    graph = expert_graph(6, tokens=512)
    plan = planned(graph, ExpertPolicy("on", ring))
    values, regions = plan.splits.values, plan.memory.regions
    inside = [v for v in values if v.ring >= 0]
    assert {v.ring for v in inside} == set(range(ring))
    (arena,) = {regions[v.id].arena for v in inside}
    weights = [graph.named(n).nbytes for n in expert_names(graph) if n.startswith("blk.0.")]
    assert plan.memory.arenas[arena].nbytes == ring * sum(weights)
    starts = [o.first for o in taken(plan)]
    for t in plan.splits.transfers:
        if values[t.dst].ring >= 0:
            block = int(values[t.src].bound.split(".")[1])
            behind = block - ring + 1
            due = plan.splits.splits[t.before].first
            assert due == (starts[behind] if behind >= 0 else 0)


def test_a_cache_is_shared_evenly_whatever_the_batch():
    for tokens in (1, 8):
        graph = expert_graph(3, tokens=tokens, experts=8)
        row = sum(graph.named(n).strides[0] for n in expert_names(graph))
        plan = planned(graph, ExpertPolicy("on", 1, 3 * row + row // 2))
        assert {o.cached for o in taken(plan)} == {3}
        caches = [a for a in plan.memory.arenas if a.kind == "cache"]
        assert sorted(a.name for a in caches) == sorted(expert_names(graph))
        assert sum(a.nbytes for a in caches) == 3 * row
        whole = planned(graph, ExpertPolicy("on", 1, 1 << 30))
        assert {o.cached for o in taken(whole)} == {8}


def test_parts_of_a_joined_graph_share_the_cache_of_each_weight():
    graph = expert_graph(2)
    row = sum(graph.named(n).strides[0] for n in expert_names(graph))
    for parts in (1, 3):
        joined = join_graphs([graph] * parts).graph
        plan = planned(joined, ExpertPolicy("on", 1, 3 * row))
        assert {o.cached for o in taken(plan)} == {3}
        assert len([a for a in plan.memory.arenas if a.kind == "cache"]) == len(expert_names(graph))


@given(count=st.integers(1, 200), draws=st.integers(0, 500))
def test_expected_rows_are_between_one_and_all(count, draws):
    rows = expected_rows(count, draws)
    assert 0 <= rows <= min(count, draws) + 1e-9
    assert rows >= min(1, draws) - 1e-9


def test_a_policy_makes_sense():
    for ring, cache in ((0, 0), (1, -1)):
        with pytest.raises(PlanError, match="a ring of"):
            ExpertPolicy("on", ring, cache)


def test_verifying_finds_rows_that_make_no_sense():
    graph = expert_graph(2)
    plan = planned(graph, ExpertPolicy("on"))
    number, t = next((i, t) for i, t in enumerate(plan.splits.transfers) if t.rows is not None)
    rows, other = t.rows, plan.splits.transfers[-1]
    wrong = [
        (Rows(t.src, rows.nbytes), "reads ids at"),
        (Rows(rows.ids, rows.nbytes - 1), "copies rows of"),
        (Rows(rows.ids, 0), "instead of 0"),
        (Rows(other.dst, rows.nbytes), "by other ids"),
    ]
    for bad, message in wrong:
        transfers = list(plan.splits.transfers)
        transfers[number] = msgspec.structs.replace(t, rows=bad)
        splits = msgspec.structs.replace(plan.splits, transfers=tuple(transfers))
        report = check_plan(msgspec.structs.replace(plan, splits=splits), graph=graph)
        assert any(re.search(message, f.what) for f in report.findings), report.to_text()


def test_whole_layers_are_plain_copies():
    plan = planned(expert_graph(2, tokens=512), ExpertPolicy("on", 2))
    rings = [v.id for v in plan.splits.values if v.ring >= 0]
    filled = [plan.splits.transfers[c.transfer].dst for c in plan.commands if isinstance(c, Copy)]
    assert set(rings) <= set(filled)
