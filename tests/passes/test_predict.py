"""Predictions by rates: by hand on a small plan, and launches that share a device."""

from dataclasses import replace

import pytest

from ggsched.ir.builder import GraphBuilder
from ggsched.ops.record import ELEMENTS, FUNCTIONS
from ggsched.passes import make_plan
from ggsched.passes.cost.predict import _company, predict_step
from ggsched.passes.cost.simulate import PredictedSpan
from ggsched.passes.cost.work_size import node_cost, node_work
from ggsched.passes.place import Constraints
from ggsched.topology.cost import (
    GUESSES,
    HOST,
    KernelRate,
    Link,
    MachineRates,
    Rates,
    Work,
    guessed_rates,
    node_seconds,
)
from ggsched.topology.model import CopyPath, Topology
from ggsched_testing.generators.topologies import ALL_OPS
from ggsched_testing.plan_builder import fake_device

PLAIN = Rates(flops=100.0, bandwidth=1e9, total_bandwidth=1e9, parallel=1, node_s=1.0, event_s=0.0)


def product():
    g = GraphBuilder("product")
    x, w = g.input("x", (2, 8)), g.weight("w", (4, 8))
    return g.build(g.silu(g.mul_mat(w, x)))


def machine(**facts):
    return Topology((fake_device("fake:0", ops=ALL_OPS, **facts),))


def test_one_device_by_hand():
    graph, topology = product(), machine()
    rates = MachineRates(
        (PLAIN,), {(HOST, 0): Link(10.0, 64.0), (0, HOST): Link(20.0, 32.0)}, enqueue_s=0.0
    )
    plan = make_plan(graph, topology)
    prediction = predict_step(graph, plan, rates)
    upload, download = 10 + 64 / 64, 20 + 32 / 32
    nodes = 1 + 2 * 8 * 8 / 100 + 1 + 2 * 8 / 100
    assert prediction.seconds == pytest.approx(upload + nodes + download)
    assert prediction.timeline.busy_s == pytest.approx({0: nodes})
    assert prediction.source == GUESSES


def test_a_copy_goes_by_its_link():
    graph = product()
    topology = Topology(
        tuple(fake_device(f"fake:{i}", ops=ALL_OPS) for i in range(2)),
        {(0, 1): CopyPath(0, 1, 1)},
        {(1, 0): "native"},
    )
    plan = make_plan(graph, topology, Constraints(pins={0: 0, 1: 1}))
    free = dict.fromkeys(((HOST, 0), (0, HOST), (HOST, 1), (1, HOST)), Link(0.0, 1e30))

    def seconds(link):
        rates = MachineRates((PLAIN, PLAIN), {**free, (0, 1): link}, enqueue_s=0.0)
        return predict_step(graph, plan, rates).seconds

    assert seconds(Link(7.0, 32.0)) - seconds(Link(0.0, 1e30)) == pytest.approx(8.0)


def test_a_cpu_alone_has_no_events_and_a_crossing_has_those_of_both():
    graph = product()
    topology = Topology(
        (fake_device("fake:0", ops=ALL_OPS), fake_device("cpu:0", ops=ALL_OPS, is_host=True)),
        {(0, 1): CopyPath(0, 1, 0), (1, 0): CopyPath(1, 0, 0)},
        {(1, 0): "native", (0, 1): "native"},
    )
    ends = (HOST, 0, 1)
    free = {(a, b): Link(0.0, 1e30) for a in ends for b in ends if a != b}

    def events(first, second):
        """Return the seconds of events alone, where nodes are on these devices."""
        plan = make_plan(graph, topology, Constraints(pins={0: first, 1: second}))

        def seconds(*event_s):
            devices = tuple(replace(PLAIN, event_s=s) for s in event_s)
            return predict_step(graph, plan, MachineRates(devices, free, 0.0)).seconds

        return round(seconds(100.0, 1000.0) - seconds(0.0, 0.0))

    assert events(1, 1) == 0
    assert events(0, 0) == 100
    assert events(0, 1) >= 1100


def test_measured_kernels_replace_the_general_rate():
    graph = product()
    mul_mat, silu = graph.nodes
    measured = Rates(1.0, 1.0, 1.0, 1, 0.0, 0.0, kernels=(
        KernelRate("mul_mat:f32", 2.0, 1e9), KernelRate(ELEMENTS, 1e9, 4.0),
    ))  # fmt: skip
    assert [node_work(graph, n).family for n in graph.nodes] == ["mul_mat:f32", FUNCTIONS]
    assert node_cost(measured, graph, mul_mat) == pytest.approx((8 + 16 + 32) * 4 / 1.0)
    assert node_cost(measured, graph, silu) == pytest.approx(2 * 32 / 1.0)
    wide = Rates(1.0, 1.0, 1e9, 1, 0.0, 0.0, kernels=measured.kernels)
    assert node_cost(wide, graph, mul_mat) == pytest.approx(2 * 8 * 8 / 2.0)
    assert node_cost(wide, graph, silu) == pytest.approx(2 * 32 / 4.0)


def test_streams_share_a_device():
    assert node_seconds(PLAIN, Work("add", ELEMENTS, 100.0, 0.0), 2) == 1 + 2.0
    assert node_seconds(PLAIN, Work("add", ELEMENTS, 0.0, 1e9), 2) == 1 + 2.0
    spans = [PredictedSpan(0, 0.0, 4.0), PredictedSpan(1, 2.0, 4.0), PredictedSpan(2, 4.0, 5.0)]
    assert _company(spans) == {0: 1.5, 1: 2.0}


def test_guesses_cover_every_link_and_tell_machines_apart():
    topology = machine(kind="gpu")
    rates = guessed_rates(topology)
    assert rates.link(HOST, 0) == rates.link(0, HOST)
    assert rates.digest == guessed_rates(topology).digest
    assert rates.digest != guessed_rates(machine(kind="cpu")).digest
    over_host = MachineRates((PLAIN, PLAIN), {(0, HOST): Link(1.0, 4.0), (HOST, 1): Link(2.0, 4.0)})
    assert over_host.link(0, 1) == Link(3.0, 2.0)
