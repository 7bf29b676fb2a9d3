"""Explanations: names, alternatives that were really planned, and locations of bytes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.errors import UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.tensor import Role
from ggsched.passes import make_plan
from ggsched.passes.cost.predict import predict_step
from ggsched.passes.order.liveness import liveness
from ggsched.passes.place import Constraints
from ggsched.plan.stats import plan_stats
from ggsched.topology.cost import guessed_rates
from ggsched.topology.model import CopyPath, Topology
from ggsched_commands.explain import explain_home, explain_node, find_subject
from ggsched_commands.tensor_locations import places_of
from ggsched_testing.generators.strategies import graphs
from ggsched_testing.generators.topologies import ALL_OPS, constraints, topologies
from ggsched_testing.plan_builder import fake_device


def machine(ops=ALL_OPS):
    facts = (
        fake_device("gpu:0", kind="gpu", ops=ops),
        fake_device("cpu:0", kind="cpu", ops=ALL_OPS),
    )
    return Topology(facts, {(0, 1): CopyPath(0, 1, 0), (1, 0): CopyPath(1, 0, 0)})


def layer():
    g = GraphBuilder("layer")
    x = g.input("x", (4, 64))
    w = g.weight("w", (32, 64))
    return g.build(g.silu(g.mul_mat(w, x, name="up"), name="act"))


HOMES = Constraints(homes={"w": 0})


class TestNames:
    def test_ids_labels_and_names(self):
        graph = layer()
        assert find_subject(graph, "n1") is graph.nodes[1]
        assert find_subject(graph, "up") is graph.nodes[0]
        assert find_subject(graph, "w") is graph.named("w")
        assert find_subject(graph, "t0") is graph.tensors[0]

    @pytest.mark.parametrize(
        ("name", "hint"), [("upp", "close: up"), ("n7", "close: n1"), ("qqq", "nodes are n0")]
    )
    def test_unknown(self, name, hint):
        with pytest.raises(UsageError, match=f"no node and no tensor '{name}'.*{hint}"):
            find_subject(layer(), name)


class TestAlternatives:
    def test_are_the_plans_with_the_node_elsewhere(self):
        graph, topology = layer(), machine()
        rates = guessed_rates(topology)
        plan = make_plan(graph, topology, HOMES)

        def replan(wanted):
            return graph, make_plan(graph, topology, wanted)

        found = explain_node(graph, plan, graph.nodes[0], HOMES, rates, replan)
        assert (found.device, found.cause, found.detail) == ("gpu:0", "weights", "w")
        assert found.step_s == predict_step(graph, plan, rates).seconds
        (other,) = found.alternatives
        _, moved = replan(replace(HOMES, pins={0: 1}))
        assert other.device == "cpu:0"
        assert other.step_s == predict_step(graph, moved, rates).seconds - found.step_s
        before, after = plan_stats(plan), plan_stats(moved)
        assert other.copied == sum(after.copied.values()) - sum(before.copied.values()) > 0
        assert other.arenas == sum(after.compute.values()) - sum(before.compute.values())

    def test_of_a_weight_are_other_homes(self):
        graph, topology = layer(), machine()
        rates = guessed_rates(topology)
        plan = make_plan(graph, topology, HOMES)
        now, (other,) = explain_home(
            graph,
            plan,
            graph.named("w"),
            HOMES,
            rates,
            lambda c: (graph, make_plan(graph, topology, c)),
        )
        moved = make_plan(graph, topology, Constraints(homes={"w": 1}))
        assert other.step_s == predict_step(graph, moved, rates).seconds - now
        x = graph.named("x")
        assert explain_home(graph, plan, x, HOMES, rates, make_plan)[1] == ()

    def test_what_is_not_possible_says_why(self):
        graph = layer()
        topology = machine(ops=frozenset({"silu:f32"}))
        plan = make_plan(graph, topology, Constraints())
        rates = guessed_rates(topology)
        found = explain_node(
            graph, plan, graph.nodes[0], Constraints(), rates,
            lambda c: (graph, make_plan(graph, topology, c)),
        )  # fmt: skip
        (other,) = found.alternatives
        assert (other.device, other.step_s) == ("gpu:0", None)
        assert "does not support" in other.reason


@given(drawn=graphs(max_nodes=12), topology=topologies(), data=st.data())
def test_locations_agree_with_the_plan(drawn, topology, data):
    graph = drawn.graph
    plan = make_plan(graph, topology, data.draw(constraints(graph, topology)))
    timeline = liveness(graph, plan.splits)
    step_of = {f"n{i}": s for i, s in enumerate(timeline.node_step)}
    for t in plan.splits.transfers:
        step_of[f"the transfer to v{t.dst}"] = timeline.transfer_step[t.id]
    places = {}
    for root in (t for t in graph.tensors if not t.is_view):
        for place in places_of(plan, root.id):
            places[place.value] = place
    assert len(places) == len(plan.splits.values)
    for v in plan.splits.values:
        place, region = places[f"v{v.id}"], plan.memory.regions[v.id]
        assert place.nbytes == region.nbytes
        if place.first == "always":
            assert v.bound or v.kind in ("input", "output") or not _is_used(plan, v.id)
        else:
            life = timeline.lives[v.id]
            assert (step_of[place.first], step_of[place.last]) == (life.birth, life.death)
        for other in place.shared_with:
            assert place.value in places[other].shared_with
            assert places[other].device == place.device
        if graph.tensors[v.storage].role in (Role.WEIGHT, Role.STATE) and v.bound:
            assert place.shared_with == ()


def _is_used(plan, value):
    return any(value in bound for bound in plan.splits.bindings) or any(
        value in (t.src, t.dst) for t in plan.splits.transfers
    )
