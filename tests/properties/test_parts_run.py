"""Plans that are cut over machines give what the nodes give one after another."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st

from ggsched_cluster.machines import cut_by_machine
from ggsched_cpu import open_backend
from ggsched_testing.generators.strategies import ATOL, RTOL, graphs, seeds, values_for
from ggsched_testing.generators.topologies import constraints, topologies
from ggsched_testing.oracle.interpreter import run_oracle
from ggsched_testing.restricted_device import limited_devices
from tests.cluster.machines import MachineThread, Post, apart
from tests.support.verified_plans import verified_plan

RUNS = 2


@settings(max_examples=max(5, settings().max_examples // 4))
@given(drawn=graphs(max_nodes=20), topology=topologies(min_devices=2), seed=seeds(), data=st.data())
def test_results_equal_the_oracle(drawn, topology, seed, data):
    count = len(topology.devices)
    others = data.draw(st.lists(st.integers(0, 2), min_size=count - 2, max_size=count - 2))
    machines = [0, 1, *others]
    topology = apart(topology, machines)
    wanted = data.draw(constraints(drawn.graph, topology))
    plan = verified_plan(drawn.graph, topology, wanted)
    graph, post = drawn.graph, Post()
    inner = [open_backend().open_device(i) for i in range(count)]
    weights = values_for(drawn, seed)
    names = {t.name for t in graph.tensors if t.role.value == "weight"}
    fixed = {n: v for n, v in weights.items() if n in names}
    devices, parts = limited_devices(inner, topology), []
    try:
        for part in cut_by_machine(plan, machines):
            parts += [MachineThread(graph, plan, part, machines, devices, weights, post)]
        states = {}
        for run in range(RUNS):
            values = {**values_for(drawn, seed + run), **fixed}
            expected = run_oracle(graph, values, states=states)
            with ThreadPoolExecutor(len(parts) or 1) as pool:
                futures = [pool.submit(part.run, values) for part in parts]
                got = {k: v for future in futures for k, v in future.result().items()}
            for tid, array in expected.items():
                np.testing.assert_allclose(got[tid], array, rtol=RTOL, atol=ATOL, err_msg=str(tid))
    finally:
        for part in parts:
            part.close()
        for device in inner:
            device.close()
    event(f"messages: {min(post.sent // RUNS, 4)}")
