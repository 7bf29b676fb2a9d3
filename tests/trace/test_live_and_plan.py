"""What the checker says about a plan it says about the trace of its runs, too.

The devices are simulated and as harmless as can be, so that every run goes well, also that of a
plan which lacks a wait.
"""

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from ggsched.errors import GgschedError
from ggsched.passes import make_plan
from ggsched.run.executor import Executor
from ggsched.run.resources import Resources
from ggsched.run.store import TensorStore
from ggsched.sanitize import check_plan, check_trace
from ggsched.trace.recorder import Recorder
from ggsched.trace.tracing import traced
from ggsched_testing.generators.strategies import graphs, seeds, values_for
from ggsched_testing.generators.topologies import constraints, topologies
from ggsched_testing.plan_mutants import ALL_MUTATIONS
from ggsched_testing.schedule_policy import EagerPolicy
from ggsched_testing.sim import SimWorld

RUNS = 2
LACKING = ("drop_waits", "drop_host_syncs", "drop_barriers", "wait_later")


def live_trace(plan, drawn, topology, seed):
    """Run a plan on recorded devices; return the trace, also if the run was cut short."""
    world = SimWorld.of_topology(topology, policy=EagerPolicy())
    recorder = Recorder()
    values = [values_for(drawn, seed + run) for run in range(RUNS)]
    store = TensorStore(traced(world.open_all(), recorder), values[0], timeout_s=30.0)
    resources = Resources(drawn.graph, plan, store)
    executor = Executor(drawn.graph, plan, resources, timeout_s=30.0, recorder=recorder)
    for run in values:
        executor.run({slot.name: run[slot.name] for slot in plan.inputs})
    trace = recorder.trace("live")
    store.drain()
    executor.close()
    store.close()
    return trace


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=settings().max_examples // 2)
@given(data=st.data())
def test_races_of_a_plan_are_those_of_its_trace(data):
    drawn = data.draw(graphs(max_nodes=6, min_nodes=4))
    events = data.draw(st.sampled_from((None, True)))
    topology = data.draw(topologies(min_devices=2, max_devices=3, events=events))
    wanted = data.draw(constraints(drawn.graph, topology, pin_all=True))
    plan = make_plan(drawn.graph, topology, wanted)
    seed = data.draw(seeds())
    report = check_trace(live_trace(plan, drawn, topology, seed))
    assert report.is_clean, report.to_text()
    for name in LACKING:
        for what, mutant in list(ALL_MUTATIONS[name](plan))[:3]:
            stated = {f.kind for f in check_plan(mutant, runs=RUNS).findings}
            try:
                trace = live_trace(mutant, drawn, topology, seed)
            except GgschedError as error:
                pytest.fail(f"{what}: {error}")
            found = check_trace(trace)
            assert ("race" in stated) == ("race" in {f.kind for f in found.findings}), (
                what,
                stated,
                found.to_text(),
            )
            event(f"{name}: {sorted(stated)}")
