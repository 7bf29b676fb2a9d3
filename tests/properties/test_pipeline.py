"""Micro-batches over devices: as fast as the closed form says, right, and within its slots."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from ggsched.backend.probe import probe
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.join import join_graphs
from ggsched.ir.schedule import apply_schedule, rounds
from ggsched.ir.tensor import Role
from ggsched.passes import Constraints
from ggsched.passes.memory.rings import Slots
from ggsched.passes.options import PlanOptions, StreamPolicy
from ggsched.plan.command import HostSync
from ggsched.plan.text import plan_text
from ggsched.run.executor import Executor
from ggsched.run.resources import Resources
from ggsched.run.store import TensorStore
from ggsched.sanitize import check_plan
from ggsched.topology.model import CopyPath
from ggsched_llm.stage_balance import split_layers
from ggsched_testing.generators.strategies import DrawnGraph, graphs, seeds
from ggsched_testing.generators.topologies import constraints, topologies
from ggsched_testing.sim import SimConfig, SimWorld
from tests.passes.machines import machine
from tests.properties.test_end_to_end import run_and_compare
from tests.support.verified_plans import verified_plan
from tests.testing.sims import FREE

COSTS = replace(FREE, node_s=1)


DEFAULTS = PlanOptions()


def layers(costs, size=4):
    """A chain of layers; layer k takes ``costs[k]`` nodes and remembers what came by."""
    g = GraphBuilder("layers")
    x = g.input("x", (size,))
    for k, cost in enumerate(costs):
        for _ in range(cost):
            x = g.op("silu", x, name=f"l{k}")
        g.op("cpy", x, g.state(f"s{k}", (size,)), name=f"l{k}")
    return g.build(g.op("cont", x, name=f"l{len(costs) - 1}"))


def pipelined(costs, m, stage_of, slots=None, keep_all=True):
    """Return m micro-batches as one graph, and where its nodes go."""
    parts = [layers(costs)] * m
    wanted = [parts[0].outputs if keep_all or k + 1 == m else () for k in range(m)]
    joined = join_graphs(parts, keep=wanted, name="pipeline")
    pins = {n.id: stage_of[int(n.name[1:].split("@")[0])] for n in joined.graph.nodes}
    return joined, Constraints(
        pins=pins, slots=None if slots is None else Slots(slots, joined.firsts)
    )


def idle_share(joined, wanted, p, options=DEFAULTS):
    """Run on p simulated devices; return the share of time they do nothing, and the time."""
    world = SimWorld([SimConfig(costs=COSTS)] * p)
    devices = world.open_all()
    plan = verified_plan(joined.graph, probe(devices), wanted, options)
    store = TensorStore(devices, {}, timeout_s=30)
    executor = Executor(joined.graph, plan, Resources(joined.graph, plan, store), timeout_s=30)
    executor.run({t.name: np.ones(t.shape, np.float32) for t in joined.graph.roots(Role.INPUT)})
    executor.close()
    store.close()
    spans = [s for s in world.timeline() if s.kind == "launch"]
    total = max(s.end_s for s in spans) - min(s.start_s for s in spans)
    busy = sum(s.end_s - s.start_s for s in spans)
    return 1 - busy / (p * total), total


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("m", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("slots", [None, 1, 2])
def test_equal_stages_idle_as_the_closed_form_says(p, m, slots):
    costs = [2] * (p - 1) + [1]  # the last has one node more than its layer
    joined, wanted = pipelined(costs, m, list(range(p)), slots)
    idle, _ = idle_share(joined, wanted, p)
    bubble = (p - 1) / (m + p - 1)
    if slots == 1:  # the writer of a hand-over waits for its reader
        assert idle >= bubble - 0.01
    else:
        assert idle == pytest.approx(bubble, abs=0.01)


def test_interleaved_stages_idle_less():
    """Two stages on each of two devices, in turns: half the bubble of one large stage each."""
    p, m, per = 2, 8, 2
    costs = [2] * (p * per - 1) + [1]
    device_of = [k % p for k in range(p * per)]
    joined, wanted = pipelined(costs, m, device_of)
    stage_of = [int(n.name[1:].split("@")[0]) for n in joined.graph.nodes]
    stages_of = [[k for k in range(p * per) if device_of[k] == d] for d in range(p)]
    joined = apply_schedule(joined, stage_of, rounds(m, stages_of, p))
    stage_of = [int(n.name[1:].split("@")[0]) for n in joined.graph.nodes]
    pins = {i: device_of[s] for i, s in enumerate(stage_of)}
    apart = PlanOptions(StreamPolicy(has_copy_stream=True))  # else copies wait for later launches
    interleaved, _ = idle_share(joined, replace(wanted, pins=pins), p, apart)
    plain, _ = idle_share(*pipelined(costs, m, [0, 0, 1, 1]), p)
    assert plain == pytest.approx((p - 1) / (m + p - 1), abs=0.01)
    assert interleaved == pytest.approx((p - 1) / (per * m + p - 1), abs=0.01)


UNEQUAL = [(1, 5, 2, 2, 7, 1, 3, 3), (9, 1, 1, 1, 1, 1), (1, 1, 1, 1, 8, 8)]


@pytest.mark.parametrize("costs", UNEQUAL)
@pytest.mark.parametrize("p", [2, 3])
def test_unequal_layers_are_split_nearly_as_well_as_can_be(costs, p):
    m, n = 12, len(costs)
    work = [float(c + 1) for c in costs]
    work[-1] += 1
    found = split_layers([work] * p)
    assert found is not None
    stage_of = [s for s, count in enumerate(found.counts) for _ in range(count)]
    _, ours = idle_share(*pipelined(costs, m, stage_of), p)
    every = (
        [sum(k >= cut for cut in cuts) for k in range(n)]
        for cuts in combinations(range(1, n), p - 1)
    )
    best = min(idle_share(*pipelined(costs, m, stages), p)[1] for stages in every)
    assert ours <= 1.03 * best


@pytest.mark.parametrize("slots", [None, 1, 2, 3])
def test_the_host_waits_once_however_many_micro_batches(slots):
    topology = machine("gpu:0", "gpu:1", "gpu:2")
    for m in (2, 5, 16):
        joined, wanted = pipelined([1, 1, 1], m, [0, 1, 2], slots, keep_all=False)
        plan = verified_plan(joined.graph, topology, wanted)
        assert check_plan(plan).is_clean
        assert sum(isinstance(c, HostSync) for c in plan.commands) == 1


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_as_many_buffers_as_slots(slots):
    topology = machine("gpu:0", "gpu:1")
    joined, wanted = pipelined([1, 1], 8, [0, 1], slots)
    plan = verified_plan(joined.graph, topology, wanted)
    storages = {t.src: 0 for t in plan.splits.transfers}
    handed = [
        v
        for v in plan.splits.values
        if v.kind == "replica" and v.device == 1 and storages.get(v.id) is None
    ]
    regions = Counter(plan.memory.regions[v.id] for v in handed)
    assert len(handed) == 8
    assert len(regions) == slots


@pytest.mark.parametrize("copies", [False, True], ids=["one stream", "a stream for copies"])
@pytest.mark.parametrize("by", [0, 1], ids=["writer copies", "reader copies"])
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_arenas_do_not_grow_with_micro_batches(slots, by, copies):
    """A device that does not copy its results itself is held back before it has one of each."""
    topology = machine("gpu:0", "gpu:1", "gpu:2")
    paths = {pair: CopyPath(*pair, pair[by]) for pair in topology.copy_paths}
    topology = replace(topology, copy_paths=paths)
    options = PlanOptions(StreamPolicy(has_copy_stream=copies))
    found = []
    for m in (6, 12):
        joined, wanted = pipelined([2, 2, 2], m, [0, 1, 2], slots, keep_all=False)
        plan = verified_plan(joined.graph, topology, wanted, options)
        assert check_plan(plan).is_clean
        found.append([a.nbytes for a in plan.memory.arenas if a.kind == "compute"])
    assert found[0] == found[1]


@given(
    drawn=graphs(max_nodes=10, write_inputs=False),
    topology=topologies(min_devices=2, max_devices=3, events=True, max_streams=4),
    m=st.integers(2, 4),
    slots=st.none() | st.integers(1, 3),
    copies=st.booleans(),
    seed=seeds(),
    data=st.data(),
)
def test_joined_graphs_on_any_machine(drawn, topology, m, slots, copies, seed, data):
    joined = join_graphs([drawn.graph] * m)
    wanted = data.draw(constraints(joined.graph, topology, pin_all=data.draw(st.booleans())))
    if slots is not None:
        wanted = replace(wanted, slots=Slots(slots, joined.firsts))
    options = PlanOptions(StreamPolicy(2, True, has_copy_stream=copies))
    plan = verified_plan(joined.graph, topology, wanted, options)
    assert check_plan(plan).is_clean, plan_text(plan, verbose=True)
    rules = {f"{name}@{k}": rule for k in range(m) for name, rule in drawn.rules.items()}
    event(f"transfers: {min(9, len(plan.splits.transfers)) // 3 * 3}")
    run_and_compare(DrawnGraph(joined.graph, {**drawn.rules, **rules}), topology, plan, seed)
