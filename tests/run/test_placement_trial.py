"""``placement="autotune"``: the first run measures each device alone, and the faster one stays."""

from dataclasses import replace
from math import inf
from threading import Thread

import numpy as np
import pytest

from ggsched.backend.base import BaseDevice, host_facts
from ggsched.config import Settings
from ggsched.errors import OutOfDeviceMemory, PlanError, UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.passes.place import Constraints
from ggsched.plan.text import plan_text
from ggsched.run.placement_trial import kept_placement
from ggsched.run.store import TensorStore
from ggsched.scheduler import Scheduler
from ggsched.topology.cost import KernelRate, guessed_rates
from tests.run.devices import TestDevice, assert_released
from tests.run.graphs import X, counter


class Timed:
    """Two devices whose node takes as many seconds as they say, on a clock of their own."""

    def __init__(self, *seconds):
        self.now = 0.0
        self.on_run = lambda number: None
        self.ran = [0 for _ in seconds]
        self.devices = [
            TestDevice(f"test:{i}", gelu=self.kernel(i, s)) for i, s in enumerate(seconds)
        ]

    def kernel(self, number, seconds):
        def gelu(out, inputs, params):
            self.on_run(number)
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


@pytest.mark.parametrize("at", range(1, 6))
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_a_placement_that_fails_at_any_of_its_runs_is_left_out(at, scale):
    """It was the fastest until then."""
    made = Timed(2.0 * scale, 1.0 * scale)

    def fail(number):
        if number == 1 and made.ran[1] == at - 1:
            raise ValueError("a kernel that fails")

    made.on_run = fail
    with made.scheduler() as scheduler:
        graph, wanted = one_node(), made.rates(scheduler, 1.0 * scale, 3.0 * scale)
        np.testing.assert_array_equal(scheduler.run(graph, {"x": X}, wanted)["y"], X)
        assert place_of(scheduler, graph, wanted) == ["test:0"]
    assert_released(*made.devices)


@pytest.mark.parametrize("placement", ["auto", "cost"])
def test_other_policies_measure_nothing(placement):
    made = Timed(2.0, 1.0)
    with made.scheduler(placement) as scheduler:
        graph, wanted = one_node(), made.rates(scheduler, 1.0, 3.0)
        scheduler.run(graph, {"x": X}, wanted)
    assert made.ran == [1, 0]


def test_inputs_that_do_not_fit_decide_nothing():
    made = Timed(2.0, 1.0)
    with made.scheduler() as scheduler:
        graph, wanted = one_node(), made.rates(scheduler, 1.0, 3.0)
        with pytest.raises(UsageError, match="no value for input 'x'"):
            scheduler.run(graph, {}, wanted)
        assert made.ran == [0, 0]
        scheduler.run(graph, {"x": X}, wanted)
        assert place_of(scheduler, graph, wanted) == ["test:1"]


def test_a_graph_that_no_device_can_run_is_an_error_of_its_plan():
    devices = [TestDevice(f"test:{i}") for i in range(2)]
    g = GraphBuilder("products")
    graph = g.build(g.mul_mat(g.weight("w", (2, 2)), g.input("x", (1, 2))))
    with (
        Scheduler(devices, placement="autotune") as scheduler,
        pytest.raises(PlanError, match="mul_mat"),
    ):
        scheduler.prepare(graph)


def test_one_placement_is_not_measured():
    made = Timed(2.0, 1.0)
    made.devices[0] = BaseDevice(host_facts("test", ["add:f32"]), {"add": np.add})
    with made.scheduler() as scheduler:
        graph = one_node()
        scheduler.run(graph, {"x": X})
        assert place_of(scheduler, graph, None) == ["test:1"]
    assert made.ran == [0, 1]


def test_with_a_memory_budget_nothing_is_measured():
    """A placement that is tried takes memory of its own."""
    made = Timed(2.0, 1.0)
    settings = Settings(rates="off", memory_budget=(("test:0", 1 << 20),))
    with Scheduler(made.devices, settings=settings, placement="autotune") as scheduler:
        scheduler.run(one_node(), {"x": X}, made.rates(scheduler, 1.0, 3.0))
    assert made.ran == [1, 0]


@pytest.mark.parametrize("plans", [Scheduler.plan, Scheduler.planned_graph])
def test_a_source_of_weights_may_plan_what_is_being_measured(plans):
    made = Timed(2.0, 1.0)
    graph = one_node(weight=True)

    def source(name):
        plans(scheduler, graph, wanted)
        return np.ones(X.shape, np.float32)

    with made.scheduler(weights=source) as scheduler:
        wanted = made.rates(scheduler, 9.0, 20.0)
        np.testing.assert_array_equal(scheduler.run(graph, {"x": X}, wanted)["y"], X + 1)
        assert set(place_of(scheduler, graph, wanted)) == {"test:1"}
        assert scheduler.resident_nbytes("weight") == {"test:1": X.nbytes}


def test_weights_have_a_home_once_a_graph_was_measured():
    """What is planned between its measurement and its first run goes by that."""
    made = Timed(2.0, 1.0)
    w = np.ones(X.shape, np.float32)
    with made.scheduler(weights={"w": w}) as scheduler:
        graph, wanted = one_node(weight=True), made.rates(scheduler, 9.0, 20.0)
        scheduler.planned_graph(graph, wanted)
        g = GraphBuilder("other")
        other = g.build(z=g.add(g.input("x", X.shape), g.weight("w", X.shape)))
        scheduler.run(other, {"x": X}, wanted)
        np.testing.assert_array_equal(scheduler.run(graph, {"x": X}, wanted)["y"], X + 1)
        assert scheduler.resident_nbytes("weight") == {"test:1": w.nbytes}


@pytest.mark.parametrize("where", ["kernel", "drain"])
def test_an_interrupt_while_placements_are_measured_changes_nothing(where, monkeypatch):
    made = Timed(2.0, 1.0)
    graph, weight = one_node(weight=True), {"w": np.ones(X.shape, np.float32)}
    drain, interrupts = TensorStore.drain, [KeyboardInterrupt()]

    def interrupt(*_):
        if interrupts:
            raise interrupts.pop()

    def drained(store, **how):
        interrupt()
        return drain(store, **how)

    with made.scheduler(weights=weight) as scheduler:
        wanted = made.rates(scheduler, 9.0, 20.0)
        if where == "kernel":
            made.on_run = interrupt
        else:
            monkeypatch.setattr(TensorStore, "drain", drained)
        with pytest.raises(KeyboardInterrupt):
            scheduler.run(graph, {"x": X}, wanted)
        assert not any(d.open_buffers or d.open_streams for d in made.devices)
        np.testing.assert_array_equal(scheduler.run(graph, {"x": X}, wanted)["y"], X + 1)
        assert set(place_of(scheduler, graph, wanted)) == {"test:1"}
    assert_released(*made.devices)


def test_another_thread_plans_nothing_while_placements_are_measured():
    made = Timed(2.0, 1.0)
    refused = []

    def plan():
        try:
            scheduler.planned_graph(graph, wanted)
        except UsageError as error:
            refused.append(error)

    def source(name):
        other = Thread(target=plan)
        other.start()
        other.join()
        return np.ones(X.shape, np.float32)

    graph = one_node(weight=True)
    with made.scheduler(weights=source) as scheduler:
        wanted = made.rates(scheduler, 9.0, 20.0)
        scheduler.run(graph, {"x": X}, wanted)
    assert refused


def test_a_started_run_measures_and_takes_effect_once():
    made = Timed(1.0, 1.0)
    with made.scheduler() as scheduler:
        started = [scheduler.start(counter(), {}) for _ in range(3)]
        found = [[y.copy() for y in run.outputs().values()] for run in started]
    with Scheduler(made.devices[:1], settings=Settings()) as alone:
        expected = [list(alone.run(counter(), {}).values()) for _ in range(3)]
    for some, others in zip(found, expected, strict=True):
        np.testing.assert_array_equal(some, others)


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
