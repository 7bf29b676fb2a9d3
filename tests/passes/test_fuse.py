"""Which nodes become a group, where a group runs, and what the checks say of wrong ones."""

import msgspec
import pytest

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import I32
from ggsched.ir.fusion import PATTERNS
from ggsched.passes import make_plan
from ggsched.passes.options import PlanOptions, StreamPolicy
from ggsched.plan.codec import plan_from_json, plan_to_json
from ggsched.plan.command import Launch
from ggsched.plan.fusions import Fusion, run_order
from ggsched.sanitize import check_plan
from ggsched.topology.codec import topology_from_text, topology_to_text
from ggsched.topology.model import Topology
from ggsched_testing.plan_mutants_fusion import cut_groups
from tests.passes.machines import device, machine
from tests.support.verified_plans import verified_plan

FUSING = device("gpu:0", fusions=frozenset(PATTERNS))


def builder():
    g = GraphBuilder("g")
    return g, g.input("x", (2, 16))


def plan_of(g, *results, facts=FUSING, **options):
    return verified_plan(g.build(*results), machine(facts), options=PlanOptions(**options))


def groups(plan):
    return [(f.pattern, f.nodes) for f in plan.fusions]


def test_norm_and_weight():
    g, x = builder()
    plan = plan_of(g, g.mul(g.rms_norm(x), g.weight("w", (16,))))
    assert groups(plan) == [("rms_norm+mul", (0, 1))]


def test_what_is_read_twice_is_no_group():
    g, x = builder()
    normed = g.rms_norm(x)
    assert not plan_of(g, g.mul(normed, g.weight("w", (16,))), g.silu(normed)).fusions


def test_what_is_an_output_is_no_group():
    g, x = builder()
    normed = g.rms_norm(x)
    assert not plan_of(g, g.mul(normed, g.weight("w", (16,))), normed).fusions


def test_a_device_that_declares_nothing_fuses_nothing():
    g, x = builder()
    assert not plan_of(g, g.mul(g.rms_norm(x), g.weight("w", (16,))), facts=device("gpu:0")).fusions


def test_fusion_can_be_switched_off():
    g, x = builder()
    assert not plan_of(g, g.mul(g.rms_norm(x), g.weight("w", (16,))), fuse=False).fusions


def test_both_halves_of_a_gate_need_the_same_vectors():
    g, x = builder()
    w, v, y = g.weight("w", (8, 16)), g.weight("v", (8, 16)), g.input("y", (2, 16))
    same = g.swiglu(g.mul_mat(w, x), g.mul_mat(v, x))
    other = g.swiglu(g.mul_mat(w, x), g.mul_mat(v, y))
    assert groups(plan_of(g, same, other)) == [("mul_mat*2+swiglu", (0, 1, 2))]


def experts(g, ids, *, columns=8, name=""):
    """Return rows for experts, and what adds a product and a bias."""
    x = g.input(f"rows{name}", (2, 1, 16))

    def side(name, by=ids):
        made = g.mul_mat_id(g.weight(name, (4, columns, 16)), x, ids)
        return g.add_id(made, g.weight(f"{name}.bias", (4, columns)), by)

    return side


def test_a_larger_pattern_wins_where_a_smaller_one_ends_before_it():
    g, x = builder()
    made = g.add(g.mul_mat(g.weight("w", (16, 16)), x), g.weight("b", (16,)))
    assert groups(plan_of(g, g.add(x, made))) == [("mul_mat+add+add", (0, 1, 2))]


def test_a_sum_that_others_read_ends_a_group():
    g, x = builder()
    made = g.add(g.mul_mat(g.weight("w", (16, 16)), x), g.weight("b", (16,)))
    plan = plan_of(g, g.add(made, x), g.silu(made))
    assert groups(plan) == [("mul_mat+add", (0, 1))]


def test_results_of_experts_and_their_weights():
    g = GraphBuilder("g")
    side = experts(g, g.input("ids", (2, 3), I32))
    plan = plan_of(g, g.mul(side("down"), g.input("weights", (2, 3, 1))))
    assert groups(plan) == [("mul_mat_id+add_id+mul", (0, 1, 2))]


def gated_experts(g, other=None):
    ids = g.input("ids", (2, 3), I32)
    side = experts(g, ids)
    up, gate = side("up"), side("gate", ids if other is None else other)
    return g.swiglu_oai(gate, up)


def test_both_halves_of_a_gate_of_experts_with_biases():
    g = GraphBuilder("g")
    plan = plan_of(g, gated_experts(g))
    assert groups(plan) == [("(mul_mat_id+add_id)*2+swiglu_oai", (2, 3, 0, 1, 4))]
    assert check_plan(plan).is_clean


def test_all_of_a_gate_is_chosen_by_the_same_ids():
    g = GraphBuilder("g")
    plan = plan_of(g, gated_experts(g, g.input("others", (2, 3), I32)))
    assert [name for name, _ in groups(plan)] == ["mul_mat_id+add_id"] * 2


@pytest.mark.parametrize("is_second", [False, True])
def test_sums_of_a_few_and_what_they_are_added_to(is_second):
    g, x = builder()
    total = g.sum_rows(g.permute(g.input("some", (2, 3, 16)), 0, 2, 1))
    sides = (x, g.reshape(total, 2, 16)) if is_second else (g.reshape(total, 2, 16), x)
    assert groups(plan_of(g, g.add(*sides))) == [("sum_rows+add", (0, 1))]


def rope_and_store(g, between):
    x = g.input("heads", (2, 2, 8))
    turned = g.rope(x, g.input("positions", (2,), I32), n_dims=8)
    also = between(x)
    cache = g.state("cache", (4, 16))
    return g.set_rows(cache, g.reshape(turned, 2, 16), g.input("rows", (2,), I32)), also


def test_a_group_runs_where_its_last_node_is():
    g = GraphBuilder("g")
    stored, also = rope_and_store(g, g.silu)
    plan = plan_of(g, stored, also)
    assert groups(plan) == [("rope+set_rows", (0, 2))]
    assert [[s.node for s in c.steps] for c in plan.commands if isinstance(c, Launch)] == [
        [1, 0, 2]
    ]
    assert check_plan(plan).is_clean


def test_nothing_moves_behind_a_write_of_its_operand():
    g = GraphBuilder("g")
    stored, also = rope_and_store(g, lambda x: g.silu(x, inplace=True))
    assert not plan_of(g, stored, also).fusions


def test_a_result_is_not_written_over_what_the_group_reads():
    g = GraphBuilder("g")
    cache = g.state("cache", (4, 16))
    x = g.reshape(g.rows(cache, 0, 2), 2, 2, 8)
    turned = g.rope(x, g.input("positions", (2,), I32), n_dims=8)
    assert not plan_of(
        g, g.set_rows(cache, g.reshape(turned, 2, 16), g.input("rows", (2,), I32))
    ).fusions


def test_groups_share_a_stream():
    g, x = builder()
    products = [g.mul_mat(g.weight(f"w{i}", (16, 16)), x) for i in range(3)]
    sides = [g.add(made, g.weight(f"b{i}", (16,))) for i, made in enumerate(products)]
    plan = plan_of(g, *sides, streams=StreamPolicy(3, is_forced=True))
    assert len(plan.fusions) == len(sides)
    assert len({plan.streams.of_node[f.nodes[0]] for f in plan.fusions}) == len(sides)
    for f in plan.fusions:
        assert len({plan.streams.of_node[n] for n in f.nodes}) == 1


def test_order_of_interleaved_groups():
    assert list(run_order(6, (Fusion("p", (0, 3)), Fusion("p", (1, 4))))) == [2, 0, 3, 1, 4, 5]
    assert list(run_order(3, ())) == [0, 1, 2]


@pytest.mark.parametrize(
    "wrong",
    [
        Fusion("rms_norm+mul", (1, 0)),
        Fusion("rms_norm+mul", (0,)),
        Fusion("mul_mat+add", (0, 1)),
        Fusion("no such pattern", (0, 1)),
        Fusion("rms_norm+mul", (0, 2)),
        Fusion("rms_norm+mul", (0, 9)),
    ],
)
def test_wrong_groups_are_found(wrong):
    g, x = builder()
    normed = g.mul(g.rms_norm(x), g.weight("w", (16,)))
    graph = g.build(g.mul(normed, g.weight("v", (16,))))
    topology = Topology((FUSING,))
    plan = make_plan(graph, topology, options=PlanOptions(fuse=False))
    assert check_plan(plan, graph=graph).is_clean
    broken = msgspec.structs.replace(plan, fusions=(wrong,))
    assert not check_plan(broken, graph=graph).is_clean


def test_a_cut_group_is_found():
    g, x = builder()
    plan = plan_of(g, g.mul(g.rms_norm(x), g.weight("w", (16,))))
    ((_, mutant),) = cut_groups(plan)
    assert any("is not launched as one" in f.what for f in check_plan(mutant).findings)


def test_facts_and_groups_survive_files():
    g, x = builder()
    plan = plan_of(g, g.mul(g.rms_norm(x), g.weight("w", (16,))))
    assert plan_from_json(plan_to_json(plan)) == plan
    topology = Topology((FUSING, device("cpu:0")))
    assert topology_from_text(topology_to_text(topology)) == topology
    assert topology.digest != Topology((device("gpu:0"), device("cpu:0"))).digest
    plain = topology.to_json()["devices"]
    assert "fusions" in plain[0]
    assert "fusions" not in plain[1]
