"""Parts of plans on simulated machines: right, as idle as the closed form says, and never stuck."""

from dataclasses import replace

import numpy as np
import pytest

from ggsched.errors import DeviceFault
from ggsched.ir.tensor import Role
from ggsched.passes import make_plan
from ggsched.plan.parts import Send
from ggsched.topology.cost import Link
from ggsched_cluster.machines import cut_by_machine
from ggsched_testing.generators.clusters import one_machine, several_machines, staged_model
from ggsched_testing.oracle.interpreter import run_oracle
from ggsched_testing.sim.cluster import ClusterFaults, SimCluster
from tests.testing.sims import FREE

GROUP, TOKENS, WIDTH = 2, 2, 8
COSTS = replace(FREE, node_s=1)
AT_ONCE = Link(0.0, float("inf"))


def cluster_of(stages, batches, *, link=AT_ONCE, costs=None, faults=None):
    """Return a cluster, the inputs of its plan, the graph and the weights."""
    joined, wanted = staged_model(stages, GROUP, tokens=TOKENS, width=WIDTH).micro_batches(batches)
    graph, machines = joined.graph, several_machines(one_machine(GROUP), stages)
    plan = make_plan(graph, machines.topology, wanted)
    parts = cut_by_machine(plan, machines.machine_of)
    rng = np.random.default_rng(1)
    weights, inputs = (
        {t.name: rng.standard_normal(t.shape, np.float32) for t in graph.roots(role)}
        for role in (Role.WEIGHT, Role.INPUT)
    )
    costs = dict.fromkeys(range(stages), COSTS) | (costs or {})
    cluster = SimCluster(
        graph,
        plan,
        parts,
        machines.machine_of,
        machines.topology,
        weights=weights,
        link=link,
        costs=costs,
        faults=faults,
    )
    return cluster, inputs, graph, weights


def span_of(cluster):
    """Return from when to when there were launches, and the seconds of each device's."""
    spans = [s for _, s in cluster.timeline() if s.kind == "launch"]
    total = max(s.end_s for s in spans) - min(s.start_s for s in spans)
    return total, sum(s.end_s - s.start_s for s in spans)


def test_results_are_those_of_the_graph():
    cluster, inputs, graph, weights = cluster_of(3, 3, link=Link(0.5, 100.0))
    found = cluster.run(inputs)
    expected = run_oracle(graph, {**weights, **inputs}, states={})
    assert found.keys() == expected.keys()
    for tensor, array in expected.items():
        np.testing.assert_allclose(found[tensor], array, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("p", "m"), [(2, 1), (2, 4), (4, 3), (4, 8)])
def test_stages_idle_as_the_closed_form_says(p, m):
    cluster, inputs, *_ = cluster_of(p, m)
    cluster.run(inputs)
    # Of the last stage one device adds up the output, and no others have to.
    assert cluster.idle_share(range(p - 1)) == pytest.approx((p - 1) / (m + p - 1))
    assert cluster.idle_share() == pytest.approx((p - 1) / (m + p - 1), abs=0.03)


def test_a_link_delays_each_stage_once():
    """With a latency shorter than a stage, p - 1 of them are added to the time of the pipeline."""
    p, m, latency_s = 4, 6, 3.0
    times = []
    for link in (AT_ONCE, Link(latency_s, float("inf"))):
        cluster, inputs, *_ = cluster_of(p, m, link=link)
        cluster.run(inputs)
        times.append(span_of(cluster)[0])
    assert times[1] - times[0] == pytest.approx((p - 1) * latency_s)


def test_a_slow_machine_sets_the_pace_of_all():
    """One that takes twice as long adds its surplus once for each micro-batch."""
    p, m = 4, 6
    cluster, inputs, *_ = cluster_of(p, m)
    cluster.run(inputs)
    even, _ = span_of(cluster)
    stage = even / (m + p - 1)
    cluster, inputs, *_ = cluster_of(p, m, costs={2: replace(COSTS, node_s=2)})
    cluster.run(inputs)
    assert span_of(cluster)[0] == pytest.approx(even + m * stage, rel=0.02)


def test_bytes_over_each_link_are_those_of_the_plan():
    p, m = 3, 2
    cluster, inputs, *_ = cluster_of(p, m)
    cluster.run(inputs)
    value = TOKENS * WIDTH * 4
    assert cluster.nbytes == {(s, s + 1): m * GROUP * value for s in range(p - 1)}


def test_a_machine_that_is_lost_at_any_command_ends_the_run_with_one_error():
    whole, inputs, *_ = cluster_of(2, 2)
    whole.run(inputs)
    for machine, world in whole._worlds.items():
        for command in range(0, world.enqueued, 7):
            cluster, inputs, *_ = cluster_of(2, 2, faults=ClusterFaults({machine: command}))
            with pytest.raises(DeviceFault, match=f"machine {machine}"):
                cluster.run(inputs)


def test_a_message_that_never_comes_is_named():
    cluster, inputs, *_ = cluster_of(3, 2, faults=ClusterFaults(drop=frozenset({3})))
    with pytest.raises(DeviceFault, match="message #3 of machine . never came"):
        cluster.run(inputs)


def test_a_message_that_comes_twice_is_a_fault():
    cluster, inputs, *_ = cluster_of(3, 2, faults=ClusterFaults(repeat=frozenset({1})))
    with pytest.raises(DeviceFault, match="message #1 of machine . came twice"):
        cluster.run(inputs)


def test_a_message_that_is_late_and_overtaken_changes_times_and_no_results():
    cluster, inputs, *_ = cluster_of(3, 2)
    found = cluster.run(inputs)
    tags = [c.tag for part in cluster._parts for c in part.commands if isinstance(c, Send)]
    late, inputs, *_ = cluster_of(3, 2, faults=ClusterFaults(delay={tags[1]: 100.0}))
    for tensor, array in late.run(inputs).items():
        np.testing.assert_array_equal(array, found[tensor])
    assert span_of(late)[0] > span_of(cluster)[0] + 50
