"""What settings ask of a plan, and what the gate makes of it."""

from dataclasses import replace

import pytest

from ggsched.config import Settings
from ggsched.errors import UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.passes import make_plan
from ggsched.passes.options import (
    AUTO_LIMIT,
    PlanOptions,
    StreamPolicy,
    plan_options,
    stream_policy,
)
from ggsched.passes.place import Constraints
from ggsched.topology.cost import MachineRates, guessed_rates
from ggsched.topology.model import Topology
from ggsched_testing.generators.topologies import ALL_OPS
from ggsched_testing.plan_builder import fake_device


def machine(*names, **facts):
    return Topology(tuple(_device(n, facts) for n in names))


def _device(name, facts):
    return fake_device(name, kind=name.partition(":")[0], ops=ALL_OPS, max_streams=8, **facts)


def wide(branches=4, width=512):
    """Return products that are independent and take long, added up in the end."""
    g = GraphBuilder("wide")
    x = g.input("x", (width, width))
    tops = [g.mul_mat(g.weight(f"w{i}", (width, width)), x) for i in range(branches)]
    total = tops[0]
    for top in tops[1:]:
        total = g.add(total, top)
    return g.build(total)


def joined(layers=4, width=512, rows=32):
    """Return layers of two products that are independent, each layer of the sum of the last."""
    g = GraphBuilder("joined")
    x = g.input("x", (rows, width))
    for i in range(layers):
        left, right = (g.mul_mat(g.weight(f"{n}{i}", (width, width)), x) for n in "ab")
        x = g.add(left, right)
    return g.build(x)


@pytest.mark.parametrize(
    ("streams", "policy"),
    [
        (1, StreamPolicy(1)),
        (3, StreamPolicy(3, is_forced=True)),
        ("auto", StreamPolicy(AUTO_LIMIT)),
        ("autotune", StreamPolicy(AUTO_LIMIT)),
    ],
)
def test_policies(streams, policy):
    assert stream_policy(streams) == policy


def test_defaults_are_those_of_a_plan_but_for_streams():
    options = plan_options(Settings(), machine("cpu:0"))
    assert options == PlanOptions(StreamPolicy(AUTO_LIMIT))


def test_budget_is_by_index_and_a_name_wins():
    topology = machine("gpu:0", "gpu:1", "cpu:0")
    settings = Settings(memory_budget=(("", 100), ("gpu:1", 7)), packing_effort=2)
    options = plan_options(settings, topology)
    assert options.memory_budget == ((0, 100), (1, 7), (2, 100))
    assert options.packing_effort == 2
    only = plan_options(Settings(memory_budget=(("cpu:0", 5),)), topology)
    assert only.memory_budget == ((2, 5),)


def test_budget_of_a_device_that_is_not_there():
    settings = Settings(memory_budget=(("gpu:7", 5),))
    with pytest.raises(UsageError, match=r"budget names 'gpu:7'.*devices: cpu:0"):
        plan_options(settings, machine("cpu:0"))


class TestGate:
    def plan(self, topology, graph=None, **changes):
        rates = guessed_rates(topology)
        devices = tuple(replace(r, **{"parallel": 2, **changes}) for r in rates.devices)
        wanted = Constraints(rates=MachineRates(devices, rates.links))
        return make_plan(graph or wide(), topology, wanted, PlanOptions(StreamPolicy(AUTO_LIMIT)))

    def test_opens_for_long_independent_nodes(self):
        plan = self.plan(machine("cpu:0"))
        (gain,) = plan.streams.gains
        assert gain.is_taken
        assert gain.streams == 2  # as many as the rates say run beside each other
        assert len(plan.streams.streams) == 2

    def test_considers_as_many_as_run_at_full_speed(self):
        plan = self.plan(machine("cpu:0"), parallel=3)
        assert [g.streams for g in plan.streams.gains] == [3]
        plan = self.plan(machine("cpu:0"), parallel=16)
        assert [g.streams for g in plan.streams.gains] == [AUTO_LIMIT]

    @pytest.mark.parametrize(
        ("facts", "rates"),
        [
            ({}, {"parallel": 1}),
            ({"is_async": False}, {}),
            ({"has_events": False}, {}),
        ],
    )
    def test_considers_nothing(self, facts, rates):
        plan = self.plan(machine("cpu:0", **facts), **rates)
        assert plan.streams.gains == ()
        assert len(plan.streams.streams) == 1

    def test_stays_closed_for_tiny_nodes(self):
        plan = self.plan(machine("cpu:0"), wide(width=16))
        assert [g.is_taken for g in plan.streams.gains] == [False]
        assert len(plan.streams.streams) == 1

    def test_stays_closed_where_changes_of_stream_take_much_of_the_gain(self):
        closed = self.plan(machine("cpu:0"), joined())
        (gain,) = closed.streams.gains
        assert gain.concurrent_s < 0.75 * gain.sequential_s
        assert not gain.is_taken
        assert len(closed.streams.streams) == 1
        opened = self.plan(machine("cpu:0"), joined(), event_s=6e-6)
        assert [g.is_taken for g in opened.streams.gains] == [True]

    def test_opens_where_the_same_changes_are_little_beside_the_gain(self):
        plan = self.plan(machine("cpu:0"), joined(rows=256))
        assert [g.is_taken for g in plan.streams.gains] == [True]

    def test_the_host_enqueues_a_record_and_a_wait_for_each_change(self):
        topology = machine("cpu:0")
        guessed = guessed_rates(topology)
        (device,) = guessed.devices
        rates = replace(guessed, devices=(replace(device, parallel=2),), enqueue_s=1e-3)
        options = PlanOptions(StreamPolicy(AUTO_LIMIT))
        plan = make_plan(joined(rows=256), topology, Constraints(rates=rates), options)
        assert [g.is_taken for g in plan.streams.gains] == [False]
