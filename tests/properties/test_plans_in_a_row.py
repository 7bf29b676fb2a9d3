"""Runs of several plans that share states, one behind the other: right, and without a race.

Where a state is touched by one stream in all of them nobody waits between two plans; what is
recorded of the calls is checked by the checker of traces, which knows no plan.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from ggsched.config import Settings
from ggsched.errors import GraphError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.join import join_graphs
from ggsched.ir.tensor import Role
from ggsched.passes.place import Constraints
from ggsched.run.following import state_streams
from ggsched.run.run_order import StartedRun
from ggsched.sanitize import check_trace
from ggsched.scheduler import Scheduler
from ggsched.trace.recorder import Recorder
from ggsched_testing.generators.strategies import ATOL, RTOL, graphs, seeds, values_for
from ggsched_testing.generators.topologies import ALL_OPS, constraints, topologies
from ggsched_testing.oracle.interpreter import run_oracle
from ggsched_testing.schedule_policy import RandomPolicy
from ggsched_testing.sim.world import SimWorld

RUNS = 6


def joined_ways(graph):
    """Return the graph once and twice, with its outputs and without any but states."""
    ways = []
    for count, keep in ((1, ()), (2, ()), (1, graph.outputs)):
        try:
            ways.append(join_graphs([graph] * count, keep=[()] * (count - 1) + [keep]))
        except GraphError:
            assume(False)  # it has no state to write
    return ways


class Overlapping(Scheduler):
    """A scheduler whose runs go on while the caller does, although they are recorded."""

    overlaps = True


class Results:
    """Runs and what they should compute; outputs are taken ``late`` runs after a start."""

    def __init__(self, scheduler, late):
        self._scheduler, self._late, self._kept = scheduler, late, []
        self.most = 0

    def add(self, run, wanted):
        self._kept.append((run, wanted))
        self.most = max(self.most, len(self._scheduler._order._started))
        self.check(self._late)

    def check(self, late=0):
        while len(self._kept) > late:
            got, wanted = self._kept.pop(0)
            got = got.outputs() if isinstance(got, StartedRun) else got
            for tid, array in wanted.items():
                np.testing.assert_allclose(got[tid], array, rtol=RTOL, atol=ATOL)


@st.composite
def machines(draw):
    """Draw a machine whose devices copy in both directions or in none, as they can say."""
    found = draw(topologies(max_devices=3, events=True))
    copies = {}
    for path in found.copy_paths.values():
        for a, b in ((path.src, path.dst), (path.dst, path.src)):
            copies.setdefault((a, b), replace(path, src=a, dst=b))
    return replace(found, copy_paths=copies)


@settings(max_examples=20, deadline=None)
@given(
    drawn=graphs(max_nodes=14, min_nodes=3), topology=machines(),
    seed=seeds(), data=st.data(),
)  # fmt: skip
def test_plans_in_any_order_compute_the_same(drawn, topology, seed, data):
    assume(drawn.graph.roots(Role.STATE))
    ways = joined_ways(drawn.graph)
    wanted = data.draw(constraints(drawn.graph, topology))
    homes = {t.name: 0 for t in drawn.graph.roots(Role.WEIGHT)}
    device = len(topology.devices) - 1
    homes |= {t.name: device for t in drawn.graph.roots(Role.STATE)}
    wanted = Constraints({**homes, **wanted.homes}, reads_peers=wanted.reads_peers)
    order = data.draw(st.lists(st.sampled_from(range(3)), min_size=2, max_size=RUNS))
    late = data.draw(st.sampled_from([None, 0, 1, 2]), "runs are awaited, or so much later")
    weights = {
        name: value
        for name, value in values_for(drawn, seed).items()
        if drawn.graph.named(name).role is Role.WEIGHT
    }
    world = SimWorld.of_topology(topology, policy=RandomPolicy(seed))
    recorder = Recorder()
    chosen = Settings(streams=data.draw(st.integers(1, 3)), timeout_s=30)
    states = {}
    with Overlapping(
        world.open_all(), weights=weights, settings=chosen, recorder=recorder, placement="ggml"
    ) as scheduler:
        results = Results(scheduler, late or 0)
        call = scheduler.run if late is None else scheduler.start
        for run, way in enumerate([*order, 2]):
            joined = ways[way]
            given_values = {}
            for part in range(len(joined.firsts)):
                values = {**values_for(drawn, seed + run + part), **weights}
                found = run_oracle(drawn.graph, values, states=states)
                for name, value in values.items():
                    if name not in weights and joined.input_name(part, name) in joined.graph:
                        given_values[joined.input_name(part, name)] = value
            got = call(joined.graph, given_values, wanted)
            kept = found if way == 2 else {}
            results.add(got, {joined.outputs[0, tid]: array for tid, array in kept.items()})
        results.check()
        known = Counter(
            state_streams(scheduler.plan(way.graph, wanted)) is not None for way in ways
        )
    event(f"follow each other: {known[True]} of 3")
    event(f"under way: {results.most}")
    assert not world.violations
    report = check_trace(recorder.trace("in a row"))
    assert report.is_clean, report.to_text()


@st.composite
def pipelines(draw):
    """Draw a graph of stages that add to a state each, a machine, and the homes of the states."""
    found = draw(machines())
    found = replace(found, devices=tuple(replace(d, ops=ALL_OPS) for d in found.devices))
    places = st.integers(0, len(found.devices) - 1)
    homes = {f"s{k}": d for k, d in enumerate(draw(st.lists(places, min_size=2, max_size=5)))}
    g = GraphBuilder("stages")
    y = g.input("x", (4,))
    for name in homes:
        y = g.silu(g.add(g.state(name, (4,)), y, inplace=True))
    return g.build(y), found, homes


@settings(max_examples=40, deadline=None)
@given(
    drawn=pipelines(), seed=seeds(), streams=st.integers(1, 2),
    order=st.lists(st.sampled_from([0, 0, 1, 1, 2]), min_size=2, max_size=RUNS),
)  # fmt: skip
def test_plans_that_follow_themselves_compute_the_same(drawn, seed, streams, order):
    """Each way as often as it comes: two in a row have an alternate, where that is of use."""
    graph, topology, homes = drawn
    ways = joined_ways(graph)
    world = SimWorld.of_topology(topology, policy=RandomPolicy(seed))
    recorder = Recorder()
    states, rng = {}, np.random.default_rng(seed)
    with Scheduler(
        world.open_all(), settings=Settings(streams=streams, timeout_s=30), recorder=recorder,
        placement="ggml",
    ) as scheduler:  # fmt: skip
        for way in [*order, *order, 2]:
            joined = ways[way]
            given_values = {}
            for part in range(len(joined.firsts)):
                x = rng.normal(size=4).astype(np.float32)
                found = run_oracle(graph, {"x": x}, states=states)
                given_values[joined.input_name(part, "x")] = x
            got = scheduler.run(joined.graph, given_values, Constraints(homes))
            if way == 2:
                for tid, array in found.items():
                    np.testing.assert_allclose(
                        got[joined.outputs[0, tid]], array, rtol=RTOL, atol=ATOL
                    )
        alternates = sum(e.alternate is not None for e in scheduler._executors.values())
    event(f"alternates: {alternates}")
    assert not world.violations
    report = check_trace(recorder.trace("in a row"))
    assert report.is_clean, report.to_text()


@settings(max_examples=40, deadline=None)
@given(
    drawn=pipelines(), seed=seeds(), streams=st.integers(1, 2),
    order=st.lists(
        st.tuples(st.sampled_from([0, 1, 2, 2, 2]), st.sampled_from([True, True, False])),
        min_size=3, max_size=2 * RUNS,
    ),
    late=st.sampled_from([0, 1, 2, 2, 3]),
)  # fmt: skip
def test_runs_that_are_started_compute_the_same(drawn, seed, streams, order, late):
    """Some are started and their outputs taken some runs later, others are awaited at once."""
    graph, topology, homes = drawn
    ordered = tuple(replace(d, copy_order="stream") for d in topology.devices)
    topology = replace(topology, devices=ordered)
    ways = joined_ways(graph)
    world = SimWorld.of_topology(topology, policy=RandomPolicy(seed))
    recorder = Recorder()
    states, rng = {}, np.random.default_rng(seed)
    with Overlapping(
        world.open_all(), settings=Settings(streams=streams, timeout_s=30), recorder=recorder,
        placement="ggml",
    ) as scheduler:  # fmt: skip
        results = Results(scheduler, late)
        for way, is_started in order:
            joined = ways[way]
            given_values = {}
            for part in range(len(joined.firsts)):
                x = rng.normal(size=4).astype(np.float32)
                found = run_oracle(graph, {"x": x}, states=states)
                given_values[joined.input_name(part, "x")] = x
            call = scheduler.start if is_started else scheduler.run
            got = call(joined.graph, given_values, Constraints(homes))
            given_values.clear()  # inputs are copied
            kept = found if way == 2 else {}
            results.add(got, {joined.outputs[0, tid]: a for tid, a in kept.items()})
        results.check()
    event(f"under way: {results.most}")
    assert not world.violations
    report = check_trace(recorder.trace("started"))
    assert report.is_clean, report.to_text()
