"""STR-7: what the planner makes of lanes that devices propose."""

import msgspec
import numpy as np
import pytest

from ggsched import GraphBuilder, Scheduler, Settings
from ggsched.passes import Constraints, make_plan
from ggsched.passes.options import PlanOptions, StreamPolicy
from ggsched.plan.text import gain_text
from ggsched.sanitize import check_plan
from ggsched.topology import Topology
from ggsched_testing.generators.topologies import ALL_OPS
from ggsched_testing.oracle.interpreter import run_oracle
from ggsched_testing.plan_builder import fake_device
from ggsched_testing.sim import SimConfig, SimWorld

MACHINE = Topology((fake_device("gpu:0", kind="gpu", max_streams=8, ops=ALL_OPS),))
AUTO, FORCED = (PlanOptions(StreamPolicy(2, is_forced=forced)) for forced in (False, True))


def products(*rows):
    """Return a graph of independent products, which take as long as they have rows."""
    g = GraphBuilder("products")
    x = g.input("x", (4096, 4096))
    return g.build(*(g.mul_mat(g.weight(f"w{i}", (n, 4096)), x) for i, n in enumerate(rows)))


GRAPH = products(4096, 4096, 8192)
"""In program order the long one begins last; both short ones beside it would end earlier."""


def planned(lanes, options=AUTO, graph=GRAPH):
    wanted = Constraints(lanes={} if lanes is None else {0: lanes})
    plan = make_plan(graph, MACHINE, wanted, options)
    check_plan(plan, graph=graph).raise_if_findings()
    return plan


@pytest.mark.parametrize("options", [AUTO, FORCED], ids=["auto", "forced"])
def test_a_faster_proposal_is_taken(options):
    (ours,), (gain,) = (planned(n, options).streams.gains for n in (None, (5, 5, 2)))
    assert planned((5, 5, 2), options).streams.of_node == (0, 0, 1)
    assert gain.is_taken
    assert gain.proposed_s == gain.concurrent_s < ours.concurrent_s
    assert gain_text(gain).endswith("; the lanes that the device proposes are these")


def test_a_slower_proposal_is_named_and_not_taken():
    graph = products(4096, 4096, 4096, 4096)
    plan, ours = planned((0, 1, 1, 1), graph=graph), planned(None, graph=graph)
    (gain,) = plan.streams.gains
    assert plan.streams.of_node == ours.streams.of_node
    assert gain.concurrent_s < gain.proposed_s
    assert "; the lanes that the device proposes would take " in gain_text(gain)


def test_a_proposal_passes_the_gate_as_ours_do():
    plan = planned((0, 1), graph=products(4, 4))
    assert not any(gain.is_taken for gain in plan.streams.gains)


def test_lanes_without_a_stream_share_those_that_are_there():
    plan = planned((7, 4, 9), graph=products(8192, 4096, 4096))
    assert plan.streams.of_node == (0, 1, 1)
    assert plan.streams.gains[0].proposed_s > plan.streams.gains[0].concurrent_s


@pytest.mark.parametrize(
    "lanes", [(), (1,), (0, 0, 1, 1), (0, 0, -1), "aab", (0.0, 0.0, 1.0), (3, 3, 3)]
)
@pytest.mark.parametrize("options", [AUTO, FORCED], ids=["auto", "forced"])
def test_nonsense_is_ignored(lanes, options):
    """What is not a lane for each node, and one lane for all."""
    plan, ours = (msgspec.structs.replace(planned(n, options), planning_s=0) for n in (lanes, None))
    assert plan == ours


def test_the_scheduler_asks_devices_once_for_a_plan():
    g = GraphBuilder("branches")
    x = g.input("x", (4, 8))
    graph = g.build(*(g.silu(g.scale(x, scale=float(n))) for n in range(1, 5)))
    values = {"x": np.linspace(-2, 2, 32, dtype=np.float32).reshape(4, 8)}
    devices = SimWorld([SimConfig(proposes_lanes=True)]).open_all()
    asked = []
    propose = devices[0].propose_lanes
    devices[0].propose_lanes = lambda graph: asked.append(graph) or propose(graph)
    with Scheduler(devices, settings=Settings(streams=4)) as scheduler:
        for _ in range(2):
            got = scheduler.run(graph, values)
        plan = scheduler.plan(graph)
    assert asked == [graph]
    assert plan.streams.gains[0].proposed_s is not None
    for tensor, array in run_oracle(graph, values, states={}).items():
        np.testing.assert_allclose(got[tensor], array, rtol=1e-6)


def test_one_stream_asks_nobody():
    devices = SimWorld([SimConfig(proposes_lanes=True)]).open_all()
    devices[0].propose_lanes = None
    with Scheduler(devices, settings=Settings(streams=1)) as scheduler:
        assert scheduler.plan(products(2, 2)).streams.gains == ()
