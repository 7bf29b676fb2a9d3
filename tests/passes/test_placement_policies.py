"""Placement policies: valid placements, constraints kept, and predictions that bound the search."""

from dataclasses import dataclass, replace
from itertools import product

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from ggsched.errors import PlanError, UsageError
from ggsched.ids import show
from ggsched.ir.builder import GraphBuilder
from ggsched.passes import make_plan
from ggsched.passes.cost.predict import predict_step
from ggsched.passes.place import Constraints
from ggsched.passes.placement.cost import CostBased
from ggsched.passes.placement.ggml import GgmlRules, place
from ggsched.passes.placement.named import PLACEMENTS
from ggsched.passes.placement.pinned import Pinned
from ggsched.plan.placement import Placement, PlacementChoice
from ggsched.plan.text import plan_text
from ggsched.sanitize import check_plan
from ggsched.topology.caps import op_key
from ggsched.topology.cost import Link, MachineRates, Rates, guessed_rates
from ggsched_commands.explain import explain_home, explain_node
from ggsched_testing.generators.strategies import graphs, seeds
from ggsched_testing.generators.topologies import constraints, topologies
from tests.passes.machines import device, machine, pinned
from tests.passes.test_plans import content
from tests.properties.test_end_to_end import run_and_compare
from tests.support.verified_plans import verified_plan

WIDTH = 256


def predicted(graph, plan, rates):
    return predict_step(graph, plan, rates).seconds


@st.composite
def machine_rates(draw, topology):
    """Draw rates of devices and links that differ by up to a factor of a thousand."""
    count = len(topology.devices)
    pace = st.sampled_from((1e9, 1e10, 1e11, 1e12))
    times = st.sampled_from((1e-6, 5e-6, 5e-5))
    devices = tuple(
        Rates(draw(pace), draw(pace), draw(pace), 1, draw(times), draw(times), draw(times))
        for _ in range(count)
    )
    links = {
        (a, b): Link(draw(times), draw(pace))
        for a in range(-1, count)
        for b in range(-1, count)
        if a != b
    }
    return MachineRates(devices, links, draw(st.sampled_from((0.0, 2e-6))), "drawn")


def runs_alone(graph, device):
    return all(
        op_key(n.op, graph.tensors[n.inputs[0]].dtype.name) in device.ops for n in graph.nodes
    )


def policies(graph, topology):
    """Draw any of the policies that ggsched has."""
    names = [show("node", n.id) for n in graph.nodes] + ["*", "n?", "n1*", "w*"]
    pins = st.dictionaries(
        st.sampled_from(names), st.sampled_from([d.name for d in topology.devices]), max_size=2
    )
    base = st.sampled_from((GgmlRules(), CostBased()))
    return st.one_of(base, st.builds(Pinned, pins, base))


@settings(deadline=None)
@given(drawn=graphs(max_nodes=10), topology=topologies(max_devices=3), seed=seeds(), data=st.data())
def test_every_policy_gives_plans_that_are_right(drawn, topology, seed, data):
    graph = drawn.graph
    wanted = data.draw(constraints(graph, topology))
    if data.draw(st.booleans()):
        wanted = replace(wanted, rates=data.draw(machine_rates(topology)))
    policy = data.draw(policies(graph, topology))
    event(type(policy).__name__)
    try:
        plan = verified_plan(graph, topology, wanted, placement=policy)
    except PlanError as error:
        if not isinstance(policy, Pinned) or "pinned to" not in str(error):
            raise  # constraints that were drawn can be kept; patterns may contradict them
        return
    check_plan(plan).raise_if_findings()
    assert content(make_plan(graph, topology, wanted, placement=policy)) == content(plan)
    for node, where in wanted.pins.items():
        assert plan.placement.choices[node].device == where
    for name, where in wanted.homes.items():
        assert plan.placement.homes[graph.named(name).id] == where
    run_and_compare(drawn, topology, plan, seed)


@settings(deadline=None)
@given(drawn=graphs(max_nodes=10), topology=topologies(2, 3), data=st.data())
def test_cost_is_never_worse_than_a_single_device_or_the_rules(drawn, topology, data):
    graph = drawn.graph
    rates = data.draw(machine_rates(topology))
    free = Constraints(rates=rates)
    plan = make_plan(graph, topology, free, placement="cost")
    found = predicted(graph, plan, rates)
    rules = predicted(graph, make_plan(graph, topology, free), rates)
    assert found <= rules
    for number, facts in enumerate(topology.devices):
        if runs_alone(graph, facts):
            pins = dict.fromkeys(range(len(graph.nodes)), number)
            alone = make_plan(graph, topology, replace(free, pins=pins))
            assert found <= predicted(graph, alone, rates)
    event("over several devices" if len({c.device for c in plan.placement.choices}) > 1 else "one")


@settings(deadline=None, max_examples=12)
@given(drawn=graphs(max_nodes=6), topology=topologies(2, 2), data=st.data())
def test_cost_finds_the_best_of_all_placements_of_small_graphs(drawn, topology, data):
    graph = drawn.graph
    out = [graph.tensors[n.output].storage for n in graph.nodes]
    if len(set(out)) > 7:
        return
    rates = data.draw(machine_rates(topology))
    best = float("inf")
    for where in product(range(2), repeat=len(set(out))):
        device_of = dict(zip(dict.fromkeys(out), where, strict=True))
        pins = {n.id: device_of[s] for n, s in zip(graph.nodes, out, strict=True)}
        try:
            plan = make_plan(graph, topology, Constraints(pins=pins, rates=rates))
        except PlanError:
            continue
        best = min(best, predicted(graph, plan, rates))
    plan = make_plan(graph, topology, Constraints(rates=rates), placement="cost")
    found = predicted(graph, plan, rates)
    event(f"{len(set(out))} storages")
    assert found == best


@settings(deadline=None)
@given(drawn=graphs(max_nodes=14), topology=topologies(1, 3), data=st.data())
def test_pins_by_pattern_are_pins(drawn, topology, data):
    """A pattern for each node and a constraint for each node give the same devices."""
    graph = drawn.graph
    wanted = data.draw(constraints(graph, topology, pin_all=True))
    names = [d.name for d in topology.devices]
    patterns = {show("node", n): names[d] for n, d in wanted.pins.items()}
    patterns |= {name: names[d] for name, d in wanted.homes.items()}
    assumed = {t.name for t in graph.tensors if t.name} & set(patterns)
    if any(name.startswith("n") and name[1:].isdigit() for name in assumed):
        return
    explicit = verified_plan(graph, topology, wanted)
    others = replace(wanted, homes={}, pins={})
    by_name = verified_plan(graph, topology, others, placement=Pinned(patterns))
    assert by_name.placement.homes == explicit.placement.homes
    assert [c.device for c in by_name.placement.choices] == [
        c.device for c in explicit.placement.choices
    ]
    assert by_name.commands == explicit.commands


def branches():
    """Two chains of products over weights that meet at the end."""
    g = GraphBuilder("branches")
    ends = []
    for name in "ab":
        x = g.input(f"x{name}", (64, WIDTH))
        for k in range(3):
            x = g.silu(g.mul_mat(g.weight(f"{name}{k}", (WIDTH, WIDTH)), x, name=f"{name}.{k}"))
        ends.append(x)
    return g.build(g.add(*ends, name="sum"))


def even_rates(count=2):
    rates = Rates(1e10, 1e10, 1e10, 1, 1e-6, 1e-6)
    ends = range(-1, count)
    links = {(a, b): Link(1e-6, 1e11) for a in ends for b in ends if a != b}
    return MachineRates((rates,) * count, links, 1e-6, "made")


class TestCost:
    def test_branches_run_beside_each_other(self):
        graph, two = branches(), machine("gpu:0", "gpu:1")
        wanted = Constraints(rates=even_rates())
        plan = verified_plan(graph, two, wanted, placement="cost")
        alone = make_plan(graph, two, wanted)
        assert {c.device for c in plan.placement.choices} == {0, 1}
        took = predicted(graph, plan, even_rates())
        assert took < 0.65 * predicted(graph, alone, even_rates())
        homes = {graph.tensors[t].name: d for t, d in plan.placement.homes.items()}
        assert len({homes[f"a{k}"] for k in range(3)}) == 1
        assert homes["a0"] != homes["b0"]

    def test_a_chain_stays_where_it_is_fastest(self):
        graph, two = branches(), machine("cpu:0", "gpu:0")
        plan = make_plan(graph, two, placement="cost")
        assert {c.device for c in plan.placement.choices} == {1}

    def test_memory_limits_spread_what_one_device_does_not_hold(self):
        graph = branches()
        nbytes = 4 * WIDTH * WIDTH
        small = [device(f"gpu:{i}", memory_nbytes=4 * nbytes) for i in range(2)]
        slow = replace(even_rates(), links={k: Link(1e-3, 1e8) for k in even_rates().links})
        for rates in (even_rates(), slow):
            plan = verified_plan(graph, machine(*small), Constraints(rates=rates), placement="cost")
            for d, facts in enumerate(plan.devices):
                used = sum(a.nbytes for a in plan.memory.arenas if a.device == d)
                assert used <= facts.memory_nbytes
        names = {c.name: c for c in plan.placement.candidates}
        assert names["gpu:0 alone"].shortage_nbytes > 0

    def test_homes_that_are_given_are_kept(self):
        graph, two = branches(), machine("gpu:0", "gpu:1")
        homes = {f"{name}{k}": 1 for name in "ab" for k in range(3)}
        plan = verified_plan(graph, two, Constraints(homes=homes), placement="cost")
        assert {c.device for c in plan.placement.choices} == {1}

    def test_candidates_say_what_was_compared(self):
        graph, two = branches(), machine("gpu:0", "gpu:1")
        plan = make_plan(graph, two, Constraints(rates=even_rates()), placement="cost")
        found = {c.name: c for c in plan.placement.candidates}
        assert {"gpu:0 alone", "gpu:1 alone", "ggml's rules", "list schedule"} <= set(found)
        (taken,) = [c for c in plan.placement.candidates if c.is_taken]
        assert taken.seconds == min(c.seconds for c in plan.placement.candidates)
        assert taken.seconds == predicted(graph, plan, even_rates())
        assert {c.cause for c in plan.placement.choices} == {"cost"}
        assert {c.detail for c in plan.placement.choices} == {taken.name}
        text = plan_text(plan)
        assert "placements" in text
        assert "gpu:0 alone" in text

    def test_what_one_device_cannot_run_goes_elsewhere(self):
        g = GraphBuilder()
        x = g.input("x", (64, WIDTH))
        for k in range(3):
            x = g.gelu(g.mul_mat(g.weight(f"w{k}", (WIDTH, WIDTH)), x))
        graph = g.build(x)
        two = machine(device("gpu:0", lacks=["gelu"]), device("cpu:0", lacks=["mul_mat"]))
        plan = verified_plan(graph, two, placement="cost")
        assert [c.device for c in plan.placement.choices] == [0, 1, 0, 1, 0, 1]
        names = [c.name for c in plan.placement.candidates]
        assert "gpu:0 as far as it can" in names

    def test_nobody_can(self):
        g = GraphBuilder()
        graph = g.build(g.gelu(g.input("x", (4,))))
        two = machine(device("gpu:0", lacks=["gelu"]), device("gpu:1", lacks=["gelu"]))
        with pytest.raises(PlanError, match="no device supports gelu:f32"):
            make_plan(graph, two, placement="cost")

    def test_a_large_graph_takes_a_bounded_number_of_plans(self):
        g = GraphBuilder()
        x = g.input("x", (4, 32))
        for k in range(200):
            x = g.silu(g.mul_mat(g.weight(f"w{k}", (32, 32)), x))
        graph = g.build(x)
        plan = make_plan(graph, machine("gpu:0", "gpu:1", "cpu:0"), placement="cost")
        assert len({c.device for c in plan.placement.choices}) == 1


class TestPinned:
    GRAPH = branches()
    TWO = machine("gpu:0", "gpu:1")

    def devices(self, policy, wanted=None):
        plan = verified_plan(self.GRAPH, self.TWO, wanted, placement=policy)
        return {
            n.name: c.device for n, c in zip(self.GRAPH.nodes, plan.placement.choices, strict=True)
        }, plan

    def test_patterns_of_nodes_and_weights(self):
        found, plan = self.devices(Pinned({"b[0-9]": "gpu:1", "sum": 0}))
        assert [found[f"b.{k}"] for k in range(3)] == [1, 1, 1]
        assert found["sum"] == 0
        causes = {n.name: c for n, c in zip(self.GRAPH.nodes, plan.placement.choices, strict=True)}
        assert causes["b.0"].cause == "weights"
        assert (causes["sum"].cause, causes["sum"].detail) == ("pin", "by 'sum'")

    def test_the_first_pattern_counts(self):
        assert self.devices(Pinned({"a.1": 1, "a.*": 0}))[0]["a.1"] == 1
        assert self.devices(Pinned({"a.*": 0, "a.1": 1}))[0]["a.1"] == 0

    def test_constraints_win(self):
        policy = Pinned({"a*": 1})
        found, _ = self.devices(policy, Constraints(homes={"a0": 0}, pins={0: 0}))
        assert found["a.0"] == 0
        assert found["a.1"] == 1

    def test_the_rest_by_another_policy(self):
        found, _ = self.devices(
            Pinned({"sum": "gpu:1"}, CostBased()), Constraints(rates=even_rates())
        )
        assert found["sum"] == 1
        assert set(found.values()) == {0, 1}

    @pytest.mark.parametrize("device", ["gpu:7", 2, -1])
    def test_of_a_device_that_is_not_there(self, device):
        with pytest.raises(UsageError, match=r"'a\*' is pinned to .*devices: gpu:0, gpu:1"):
            self.devices(Pinned({"a*": device}))


@dataclass(frozen=True)
class Careless:
    """A policy of a caller that places everything on one device."""

    device: int
    key: str = "careless"

    def place(self, problem):
        choice = PlacementChoice(self.device, "policy", "without a look")
        homes = {problem.graph.tensors[n.output].storage: self.device for n in problem.graph.nodes}
        rest = {t.id: 0 for t in problem.graph.tensors if t.role.value == "weight"}
        return Placement((choice,) * len(problem.graph.nodes), {**rest, **homes})


class TestPolicies:
    @pytest.mark.parametrize("wanted", ["heft", 3, None, object()])
    def test_what_is_not_one(self, wanted):
        with pytest.raises(UsageError, match="use 'auto' or 'autotune' or 'ggml' or 'cost', or"):
            make_plan(branches(), machine("gpu:0"), placement=wanted)

    def test_keys_name_parameters(self):
        keys = [
            *(make().key for make in PLACEMENTS.values()),
            CostBased(2).key,
            Pinned({"a": 0}).key,
            Pinned({"a": 1}).key,
            Pinned({"a": 0}, CostBased()).key,
            Pinned({"a": 0, "b": 0}).key,
            Pinned({"b": 0, "a": 0}).key,
        ]
        assert len(set(keys)) == len(keys)

    def test_a_policy_of_the_caller(self):
        plan = make_plan(branches(), machine("gpu:0", "gpu:1"), placement=Careless(1))
        assert {c.device for c in plan.placement.choices} == {1}
        check_plan(plan).raise_if_findings()

    def test_is_not_trusted(self):
        two = machine("gpu:0", device("gpu:1", lacks=["silu"]))
        with pytest.raises(PlanError, match="placed on gpu:1: it does not support silu"):
            make_plan(branches(), two, placement=Careless(1))
        with pytest.raises(PlanError, match="pinned to gpu:0, but placed on gpu:1"):
            make_plan(branches(), machine("gpu:0", "gpu:1"), pinned(0), placement=Careless(1))
        for nobody in (Constraints(pins={99: 0}), Constraints(pins={0: 9}), Constraints({"a0": 9})):
            with pytest.raises(PlanError, match="does not exist"):
                make_plan(branches(), two, nobody, placement=Careless(0))
        homes = Constraints(homes={"a0": 1})
        with pytest.raises(PlanError, match="a0: .*given as gpu:1, but placed on gpu:0"):
            make_plan(branches(), machine("gpu:0", "gpu:1"), homes, placement=Careless(0))

    def test_the_default_is_that_of_ggml(self):
        graph, two = branches(), machine("gpu:0", "cpu:0")
        plan = make_plan(graph, two)
        assert msgspec.structs.replace(plan.placement) == place(graph, two, Constraints())
        assert content(make_plan(graph, two, placement="ggml")) == content(plan)
        assert plan.placement.candidates == ()

    @pytest.mark.parametrize(
        "policy", [GgmlRules(), CostBased(), Pinned({"b.*": 1})], ids=lambda p: type(p).__name__
    )
    def test_explain_works_for_each(self, policy):
        graph, two = branches(), machine("gpu:0", "gpu:1")
        free, rates = Constraints(), guessed_rates(two)
        plan = make_plan(graph, two, free, placement=policy)

        def replan(wanted):
            return graph, verified_plan(graph, two, wanted, placement=policy)

        for node in (graph.nodes[0], graph.nodes[-1]):
            found = explain_node(graph, plan, node, free, rates, replan)
            assert found.candidates == plan.placement.candidates
            (other,) = found.alternatives
            _, moved = replan(pinned(**{}) if other.step_s is None else Constraints(
                pins={node.id: 1 - plan.placement.choices[node.id].device}
            ))  # fmt: skip
            assert other.step_s == predicted(graph, moved, rates) - found.step_s
        _, (other,) = explain_home(graph, plan, graph.named("a0"), free, rates, replan)
        assert other.step_s is not None
