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
from ggsched.ir.join import join_graphs
from ggsched.ir.tensor import Role
from ggsched.passes.place import Constraints
from ggsched.run.following import state_streams
from ggsched.sanitize import check_trace
from ggsched.scheduler import Scheduler
from ggsched.testing.generators.strategies import ATOL, RTOL, graphs, seeds, values_for
from ggsched.testing.generators.topologies import constraints, topologies
from ggsched.testing.oracle.interpreter import run_oracle
from ggsched.testing.schedule_policy import RandomPolicy
from ggsched.testing.sim.world import SimWorld
from ggsched.trace.recorder import Recorder

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


@st.composite
def machines(draw):
    """Draw a machine whose devices copy in both directions or in none, as they can say."""
    found = draw(topologies(max_devices=3, events=True))
    copies = {(b, a): replace(path, src=b, dst=a) for (a, b), path in found.copy_paths.items()}
    return replace(found, copy_paths={**copies, **found.copy_paths})


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
    weights = {
        name: value
        for name, value in values_for(drawn, seed).items()
        if drawn.graph.named(name).role is Role.WEIGHT
    }
    world = SimWorld.of_topology(topology, policy=RandomPolicy(seed))
    recorder = Recorder()
    chosen = Settings(streams=data.draw(st.integers(1, 3)), timeout_s=30)
    states = {}
    with Scheduler(
        world.open_all(), weights=weights, settings=chosen, recorder=recorder, placement="ggml"
    ) as scheduler:
        for run, way in enumerate([*order, 2]):
            joined = ways[way]
            given_values = {}
            for part in range(len(joined.firsts)):
                values = {**values_for(drawn, seed + run + part), **weights}
                found = run_oracle(drawn.graph, values, states=states)
                for name, value in values.items():
                    if name not in weights and joined.input_name(part, name) in joined.graph:
                        given_values[joined.input_name(part, name)] = value
            got = scheduler.run(joined.graph, given_values, wanted)
            if way == 2:
                for tid, array in found.items():
                    new = joined.outputs[0, tid]
                    np.testing.assert_allclose(got[new], array, rtol=RTOL, atol=ATOL)
        known = Counter(
            state_streams(scheduler.plan(way.graph, wanted)) is not None for way in ways
        )
    event(f"follow each other: {known[True]} of 3")
    assert not world.violations
    report = check_trace(recorder.trace("in a row"))
    assert report.is_clean, report.to_text()
