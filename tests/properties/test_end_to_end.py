"""Whatever is planned for whatever machine gives what the nodes give one after another."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ggsched.run.executor import Executor
from ggsched.run.resources import Resources
from ggsched.run.store import TensorStore
from ggsched.sanitize import check_plan
from ggsched_cpu import open_backend
from ggsched_testing.generators.strategies import ATOL, RTOL, graphs, seeds, values_for
from ggsched_testing.generators.topologies import constraints, topologies
from ggsched_testing.oracle.interpreter import run_oracle
from ggsched_testing.restricted_device import limited_devices
from tests.support.verified_plans import verified_plan

RUNS = 3


@given(drawn=graphs(max_nodes=20), topology=topologies(), seed=seeds(), data=st.data())
def test_results_equal_the_oracle(drawn, topology, seed, data):
    wanted = data.draw(constraints(drawn.graph, topology))
    plan = verified_plan(drawn.graph, topology, wanted)
    check_plan(plan).raise_if_findings()
    run_and_compare(drawn, topology, plan, seed)


def run_and_compare(drawn, topology, plan, seed, open_backend=open_backend):
    """Run a plan several times, each time with other inputs, beside the oracle."""
    graph = drawn.graph
    backend = open_backend()
    inner = [backend.open_device(i) for i in range(len(topology.devices))]
    weights = values_for(drawn, seed)
    store = TensorStore(limited_devices(inner, topology), weights, timeout_s=30)
    try:
        resources = Resources(graph, plan, store)
        executor = Executor(graph, plan, resources, timeout_s=30)
        used = {slot.name for slot in plan.inputs}
        states = {}
        for run in range(RUNS):
            values = {**values_for(drawn, seed + run), **_weights_of(drawn, weights)}
            for t in plan.splits.transfers:
                if t.pattern is not None:  # the plan clears it, the graph does not
                    states.pop(plan.splits.values[t.dst].bound, None)
            expected = run_oracle(graph, values, states=states)
            got = executor.run({n: v for n, v in values.items() if n in used})
            for tid, array in expected.items():
                np.testing.assert_allclose(got[tid], array, rtol=RTOL, atol=ATOL, err_msg=str(tid))
        executor.close()
    finally:
        store.close()
        for device in inner:
            device.close()


def _weights_of(drawn, values):
    names = {t.name for t in drawn.graph.tensors if t.role.value == "weight"}
    return {n: v for n, v in values.items() if n in names}
