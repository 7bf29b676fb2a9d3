"""``placement="autotune"``: the first run measures each device alone, and the faster one stays."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from ggsched.config import Settings
from ggsched.errors import OutOfDeviceMemory
from ggsched.ir.builder import GraphBuilder
from ggsched.passes.place import Constraints
from ggsched.plan.text import plan_text
from ggsched.run.placement_trial import kept_placement
from ggsched.scheduler import Scheduler
from ggsched.topology.cost import KernelRate, guessed_rates
from tests.run.devices import TestDevice, assert_released
from tests.run.graphs import X, counter


class Timed:
    """Two devices whose node takes as many seconds as they say, on a clock of their own."""

    def __init__(self, *seconds):
        self.now = 0.0
        self.ran = [0 for _ in seconds]
        self.devices = [
            TestDevice(f"test:{i}", gelu=self.kernel(i, s)) for i, s in enumerate(seconds)
        ]

    def kernel(self, number, seconds):
        def gelu(out, inputs, params):
            self.now += seconds
            self.ran[number] += 1
            np.copyto(out, inputs[0])

        return gelu

    def scheduler(self, placement="autotune", **more):
        settings = Settings(rates="off")
        return Scheduler(
            self.devices, settings=settings, placement=placement, clock=lambda: self.now, **more
        )

    def rates(self, scheduler, *seconds):
        """Return rates by which a node takes so many seconds on each device."""
        rates = guessed_rates(scheduler.topology)
        known = (
            replace(r, node_s=s, kernels=(KernelRate("gelu", 1e30, 1e30),))
            for r, s in zip(rates.devices, seconds, strict=True)
        )
        return Constraints(rates=replace(rates, devices=tuple(known), source="made"))


def one_node(weight=False):
    g = GraphBuilder("one")
    x = g.input("x", X.shape)
    return g.build(y=g.gelu(g.add(x, g.weight("w", X.shape)) if weight else x))


def place_of(scheduler, graph, wanted):
    plan = scheduler.plan(graph, wanted)
    return [plan.devices[choice.device].name for choice in plan.placement.choices]


@pytest.mark.parametrize(("real", "said", "kept", "ran"), [
    ((2.0, 1.0), (1.0, 3.0), "test:1", [14, 15]),  # the prediction does not hold: both are run
    ((1.0, 9.0), (1.0, 3.0), "test:0", [3, 0]),  # it holds, and the other cannot be faster
    ((1.0, 0.7), (1.0, 2.0), "test:1", [14, 15]),  # it holds, but may be wrong by as much
    ((1.0, 9.0), (9.0, 1.0), "test:0", [3, 2]),  # a slow one is not run again
    ((1.0, 0.99), (1.0, 1.2), "test:0", [7, 6]),  # no clear gain
])  # fmt: skip
def test_what_is_measured_decides(real, said, kept, ran):
    made = Timed(*real)
    with made.scheduler() as scheduler:
        graph, wanted = one_node(), made.rates(scheduler, *said)
        first = scheduler.run(graph, {"x": X}, wanted)["y"]
        np.testing.assert_array_equal(first, X)
        assert place_of(scheduler, graph, wanted) == [kept]
        assert made.ran == ran
        scheduler.run(graph, {"x": X}, wanted)
        assert sum(made.ran) == sum(ran) + 1  # tried once
        plan = scheduler.plan(graph, wanted)
        (taken,) = (c for c in plan.placement.candidates if c.is_taken)
        assert taken.measured_s == pytest.approx(real[int(kept[-1])])
        assert "measured" in plan_text(plan)
    assert_released(*made.devices)


def test_states_keep_what_they_had():
    """Whatever is tried, is tried on states of its own."""
    made = Timed(1.0, 1.0)
    with made.scheduler() as scheduler:
        graph = counter()
        found = [scheduler.run(graph, {}) for _ in range(3)]
    with Scheduler(made.devices[:1], settings=Settings()) as alone:
        expected = [alone.run(graph, {}) for _ in range(3)]
    for a, b in zip(found, expected, strict=True):
        for x, y in zip(a.values(), b.values(), strict=True):
            np.testing.assert_array_equal(x, y)


def test_weights_live_where_the_graph_is_and_others_follow():
    made = Timed(2.0, 1.0)
    w = np.ones(X.shape, np.float32)
    with made.scheduler(weights={"w": w}) as scheduler:
        graph, wanted = one_node(weight=True), made.rates(scheduler, 9.0, 20.0)
        np.testing.assert_array_equal(scheduler.run(graph, {"x": X}, wanted)["y"], X + 1)
        assert scheduler.resident_nbytes("weight") == {"test:1": w.nbytes}
        g = GraphBuilder("other")
        other = g.build(z=g.add(g.input("x", X.shape), g.weight("w", X.shape)))
        np.testing.assert_array_equal(scheduler.run(other, {"x": X}, wanted)["z"], X + 1)
        assert scheduler.resident_nbytes("weight") == {"test:1": w.nbytes}
    assert_released(*made.devices)


def test_weights_stay_where_another_graph_has_put_them():
    """Whatever is measured: they have one home."""
    made = Timed(2.0, 1.0)
    w = np.ones(X.shape, np.float32)
    with made.scheduler(weights={"w": w}) as scheduler:
        g = GraphBuilder("first")
        first = g.build(z=g.add(g.input("x", X.shape), g.weight("w", X.shape)))
        wanted = made.rates(scheduler, 9.0, 20.0)
        scheduler.run(first, {"x": X}, wanted)
        assert scheduler.resident_nbytes("weight") == {"test:0": w.nbytes}
        graph = one_node(weight=True)
        for _ in range(2):
            np.testing.assert_array_equal(scheduler.run(graph, {"x": X}, wanted)["y"], X + 1)
        assert scheduler.resident_nbytes("weight") == {"test:0": w.nbytes}
        assert place_of(scheduler, graph, wanted)[-1] == "test:1"
    assert_released(*made.devices)


def test_prepare_measures_with_zeros():
    made = Timed(2.0, 1.0)
    with made.scheduler() as scheduler:
        graph, wanted = one_node(), made.rates(scheduler, 1.0, 3.0)
        scheduler.prepare(graph, wanted)
        assert place_of(scheduler, graph, wanted) == ["test:1"]


def test_a_placement_that_fails_is_left_out(monkeypatch):
    made = Timed(2.0, 1.0)

    def allocate(nbytes):
        raise OutOfDeviceMemory("full", where="test:1")

    with made.scheduler() as scheduler:
        graph, wanted = one_node(), made.rates(scheduler, 1.0, 3.0)
        monkeypatch.setattr(made.devices[1], "allocate", allocate)
        scheduler.run(graph, {"x": X}, wanted)
        assert place_of(scheduler, graph, wanted) == ["test:0"]


@pytest.mark.parametrize("placement", ["auto", "cost"])
def test_other_policies_measure_nothing(placement):
    made = Timed(2.0, 1.0)
    with made.scheduler(placement) as scheduler:
        graph, wanted = one_node(), made.rates(scheduler, 1.0, 3.0)
        scheduler.run(graph, {"x": X}, wanted)
    assert made.ran == [1, 0]


def test_what_the_caller_pins_is_not_tried():
    made = Timed(2.0, 1.0)
    with made.scheduler() as scheduler:
        scheduler.run(one_node(), {"x": X}, Constraints(pins={0: 0}))
    assert made.ran == [1, 0]


@pytest.mark.parametrize(("found", "kept"), [
    ([inf, inf], 0), ([inf, 2.0], 1), ([1.0, inf], 0), ([1.0, 0.97], 0), ([1.0, 0.5, 0.4], 2),
])  # fmt: skip
def test_the_first_is_kept_unless_another_is_clearly_faster(found, kept):
    assert kept_placement(found) == kept
