"""The simulation of a plan's commands gives the time of the simulated devices."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.join import join_graphs
from ggsched.passes import make_plan
from ggsched.passes.cost.simulate import simulate
from ggsched.passes.place import Constraints
from ggsched.plan.command import Copy, Download, Upload
from ggsched.run.executor import Executor
from ggsched.run.resources import Resources
from ggsched.run.store import TensorStore
from ggsched.topology.model import CopyPath, Topology
from ggsched_testing.generators.strategies import graphs, seeds, values_for
from ggsched_testing.generators.topologies import ALL_OPS, constraints, topologies
from ggsched_testing.plan_builder import fake_device
from ggsched_testing.sim import Costs, SimWorld

WORK = ("upload", "download", "copy", "launch")
SECONDS = st.sampled_from([0.0, 1e-6, 3e-5, 0.25, 1.75])
PER_SECOND = st.sampled_from([1e3, 7e9, math.inf])
SLOW_EVENTS = Costs(record_s=1.75)
SLOW_THREADS = Costs(thread_wait_s=1.75)


class SimCosts:
    """The simulator's ``Costs`` for the commands of a plan."""

    def __init__(self, graph, plan, topology, costs):
        self.graph, self.plan, self.topology, self.costs = graph, plan, topology, costs

    def enqueue_s(self, device):
        return self.costs.enqueue_s

    def record_s(self, device):
        return self.costs.record_s

    def notice_s(self, waiter, recorder):
        is_thread = self.topology.wait_path(waiter, recorder) == "thread"
        return self.costs.thread_wait_s if is_thread and waiter != recorder else None

    def wait_s(self, waiter, recorder):
        return self.costs.wait_s

    def work_s(self, command):
        c = self.costs
        match command:
            case Upload():
                return c.transfer_s + command.dst.nbytes / c.upload_bytes_per_s
            case Download():
                return c.transfer_s + command.dst.nbytes / c.download_bytes_per_s
            case Copy():
                return c.transfer_s + command.dst.nbytes / c.copy_bytes_per_s
        return c.launch_s + sum(self._node(step) for step in command.steps)

    def _node(self, step):
        tensors, node = self.graph.tensors, self.graph.nodes[step.node]
        operations = tensors[node.output].size
        if node.op in ("mul_mat", "mul_mat_id"):
            operations *= 2 * tensors[node.inputs[0]].shape[-1]
        if node.op == "attention":
            rows, _, width = tensors[node.inputs[0]].shape
            across = tensors[node.output].shape[-1]
            operations = 2 * operations * rows * (width + across) // max(1, across)
        touched = sum(region.nbytes for region in step.operands)
        c = self.costs
        return c.node_s + operations / c.flops_per_s + touched / c.memory_bytes_per_s


@st.composite
def costs(draw):
    rates = {
        name: draw(PER_SECOND if name.endswith("per_s") else SECONDS) for name in Costs.__slots__
    }
    return Costs(**rates)


@given(
    drawn=graphs(max_nodes=20, min_nodes=6),
    topology=st.one_of(topologies(), topologies(min_devices=2, max_devices=3, events=True)),
    costs=costs() | st.sampled_from([SLOW_EVENTS, SLOW_THREADS]),
    seed=seeds(),
    runs=st.integers(1, 3),
    data=st.data(),
)
def test_equals_the_timeline_of_simulated_devices(drawn, topology, costs, seed, runs, data):
    wanted = data.draw(constraints(drawn.graph, topology, pin_all=True))
    compare(drawn.graph, topology, wanted, costs, runs, values_for(drawn, seed), seed)


def test_a_plan_without_commands_takes_no_time():
    g = GraphBuilder("nothing is wanted")
    joined = join_graphs([g.build(g.silu(g.input("x", (4,))))], keep=[()])
    plan = make_plan(joined.graph, Topology((fake_device("fake:0"),)))
    assert not plan.commands
    timeline = simulate(plan, SimCosts(joined.graph, plan, None, Costs()), steps=2)
    assert (timeline.step_s, timeline.period_s, timeline.spans) == (0.0, 0.0, ())


@pytest.mark.parametrize("costs", [SLOW_EVENTS, SLOW_THREADS, Costs(wait_s=1.75)])
@pytest.mark.parametrize("path", ["native", "thread"])
@pytest.mark.parametrize("order", ["stream", "barrier"])
def test_many_events_between_few_streams(costs, path, order):
    g = GraphBuilder("crossing")
    x = g.input("x", (8,))
    a, b, c = (g.gelu(g.silu(x)) for _ in range(3))  # each silu is a split, and each gelu
    graph = g.build(g.add(g.add(a, b), c))
    facts = tuple(
        replace(fake_device(f"fake:{i}"), copy_order=order, ops=ALL_OPS) for i in range(2)
    )
    pairs = ((0, 1), (1, 0))
    topology = Topology(
        facts, {(a, b): CopyPath(a, b, b) for a, b in pairs}, dict.fromkeys(pairs, path)
    )
    pins = {n.id: int(n.op == "gelu") for n in graph.nodes}
    compare(graph, topology, Constraints(pins=pins), costs, 3, {"x": np.ones(8, np.float32)}, 0)


def compare(graph, topology, wanted, costs, runs, values, seed):
    """Run a plan on simulated devices, simulate it, and compare all times."""
    plan = make_plan(graph, topology, wanted)
    world = SimWorld.of_topology(topology, seed=seed, costs=costs)
    store = TensorStore(world.open_all(), values, timeout_s=1e6)
    executor = Executor(graph, plan, Resources(graph, plan, store), timeout_s=1e6)
    used = {slot.name for slot in plan.inputs}
    loading, first = {s.command for s in world.timeline()}, world.host_s
    for _ in range(runs):
        executor.run({n: v for n, v in values.items() if n in used})
    taken = world.host_s - first
    store.drain()
    noted = [s for s in world.timeline() if s.kind in WORK and s.command not in loading]
    mine = [
        simulate(plan, SimCosts(graph, plan, topology, costs), steps=n + 1) for n in range(runs)
    ]
    assert_equal(
        [(s.start_s - first, s.end_s - first) for s in sorted(noted, key=number_of)],
        [(s.start_s, s.end_s) for timeline in mine for s in timeline.spans],
    )
    assert sum(timeline.step_s for timeline in mine) == pytest.approx(taken, rel=1e-9, abs=1e-12)
    ends = [taken, *(s.end_s - first for s in noted)]
    assert sum(timeline.period_s for timeline in mine) >= max(ends) * (1 - 1e-9)
    executor.close()
    store.close()


def number_of(span):
    """The number of a simulated command. The host enqueues run by run, in the order of the plan."""
    return int(re.match(r"c(\d+) ", span.command)[1])


def assert_equal(a, b):
    """Compare spans of the same command and run: equal times may differ in the last bit."""
    assert len(a) == len(b)
    for one, other in zip(a, b, strict=True):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-9)
