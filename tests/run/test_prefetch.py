"""Whole layers that are copied while earlier ones compute: what it gains in simulated time."""

from dataclasses import replace

import numpy as np
import pytest

from ggsched.backend.probe import probe
from ggsched.passes.place import Constraints
from ggsched.sanitize import check_plan
from ggsched.scheduler import Scheduler
from ggsched.topology.cost import Link, guessed_rates
from ggsched_offload.offload import ExpertPolicy
from ggsched_testing.generators.expert_graphs import (
    INPUT,
    expert_graph,
    expert_homes,
    expert_values,
)
from ggsched_testing.oracle.interpreter import run_oracle
from ggsched_testing.schedule_policy import EagerPolicy
from ggsched_testing.sim.config import SimConfig
from ggsched_testing.sim.costs import Costs
from ggsched_testing.sim.world import SimWorld

LAYERS = 32
GRAPH = expert_graph(LAYERS, tokens=32, experts=4, used=4)
LAYER_NBYTES = 2 * GRAPH.named("blk.0.ffn_up_exps.weight").nbytes
COMPUTE_S = 1e-3
COSTS = Costs(
    enqueue_s=0.0,
    launch_s=0.0,
    node_s=COMPUTE_S / (len(GRAPH.nodes) / LAYERS),
    flops_per_s=1e30,
    memory_bytes_per_s=1e30,
    transfer_s=0.0,
    upload_bytes_per_s=1e30,
    download_bytes_per_s=1e30,
    copy_bytes_per_s=LAYER_NBYTES / COMPUTE_S,
    record_s=0.0,
    wait_s=0.0,
)


def simulated_seconds(ring, copy_s=COMPUTE_S, streams=8):
    """Return simulated seconds of one run, whose results and plan are checked.

    Every expert is used, so rows and layers are the same bytes.
    """
    costs = replace(COSTS, copy_bytes_per_s=LAYER_NBYTES / copy_s)
    here = SimConfig(is_host=True, kind="cpu", costs=costs)
    there = SimConfig(max_streams=streams, costs=costs)
    world = SimWorld([there, here], policy=EagerPolicy())
    devices = world.open_all()
    rates = guessed_rates(probe(devices))
    quick = Link(0.0, 1e30)
    links = {**rates.links, (1, 0): Link(0.0, LAYER_NBYTES / copy_s), (0, -1): quick}
    constraints = Constraints(
        expert_homes(GRAPH, here=1, there=0),
        rates=replace(rates, links=links),
        offload=ExpertPolicy("on", ring),
    )
    values = expert_values(GRAPH, 0)
    with Scheduler(devices, weights=values) as scheduler:
        plan = scheduler.plan(GRAPH, constraints)
        assert check_plan(plan).is_clean
        ways = {o.way for o in plan.placement.offloads if o.is_taken}
        assert ways == ({"layer"} if ring > 1 else {"rows"})
        scheduler.prepare(GRAPH, constraints)
        began = world.host_s
        out = scheduler.run(GRAPH, {INPUT: values[INPUT]}, constraints)
        seconds = world.host_s - began
        total = scheduler.expert_ledger.total
        assert total.layer_nbytes + total.uploaded_nbytes == LAYERS * LAYER_NBYTES
    expected = run_oracle(GRAPH, values)[GRAPH.outputs[0]]
    np.testing.assert_allclose(out[GRAPH.outputs[0]], expected, rtol=1e-4, atol=1e-5)
    return seconds


def test_copies_that_take_as_long_as_computing_are_hidden():
    """Serial, on one stream: each layer is copied, then computed. Ahead: about 2 L / (L + 1)."""
    serial, ahead = simulated_seconds(1, streams=1), simulated_seconds(2)
    assert serial == pytest.approx(LAYERS * 2 * COMPUTE_S, rel=0.01)
    assert serial / ahead >= 1.9
    assert serial / ahead < 2


@pytest.mark.parametrize("copy_s", [0.25 * COMPUTE_S, 4 * COMPUTE_S])
def test_the_longer_of_the_two_is_what_counts(copy_s):
    ahead = simulated_seconds(2, copy_s)
    longer, shorter = max(copy_s, COMPUTE_S), min(copy_s, COMPUTE_S)
    assert LAYERS * longer <= ahead <= LAYERS * longer + 2 * shorter


def test_rows_of_one_weight_are_copied_while_those_of_another_are_used():
    """What little can overlap where the router has to be waited for."""
    assert simulated_seconds(1) < simulated_seconds(1, streams=1)


def test_more_slots_do_no_harm():
    assert simulated_seconds(4) <= simulated_seconds(2) * 1.001
