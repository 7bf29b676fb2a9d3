"""Experts on the host device while an accelerator computes, in simulated time."""

import numpy as np
import pytest

from ggsched.ir import GraphBuilder
from ggsched.ir.join import join_graphs
from ggsched.passes.memory.rings import Slots
from ggsched.passes.place import Constraints
from ggsched.scheduler import Scheduler
from ggsched_testing.generators.expert_graphs import INPUT, expert_homes, expert_values
from ggsched_testing.schedule_policy import EagerPolicy
from ggsched_testing.sim.config import SimConfig
from ggsched_testing.sim.costs import Costs
from ggsched_testing.sim.world import SimWorld

WIDTH, EXPERTS, TOKENS, NODE_S = 16, 4, 4, 1e-3
COSTS = Costs(
    enqueue_s=0.0,
    launch_s=0.0,
    node_s=NODE_S,
    flops_per_s=1e30,
    memory_bytes_per_s=1e30,
    transfer_s=0.0,
    upload_bytes_per_s=1e30,
    download_bytes_per_s=1e30,
    copy_bytes_per_s=1e30,
    record_s=0.0,
    wait_s=0.0,
    thread_wait_s=0.0,
)


def layer():
    """Return three nodes of dense work and a router, then three of experts."""
    g = GraphBuilder("layer")
    x = g.input(INPUT, (TOKENS, WIDTH))
    dense = g.mul_mat(g.weight("dense", (WIDTH, WIDTH)), x)
    ids = g.top_k(g.mul_mat(g.weight("router", (EXPERTS, WIDTH)), dense), 2)
    rows = g.reshape(dense, -1, 1, WIDTH)
    up = g.mul_mat_id(g.weight("ffn_up_exps.weight", (EXPERTS, WIDTH, WIDTH)), rows, ids)
    return g.build(
        g.mul_mat_id(g.weight("ffn_down_exps.weight", (EXPERTS, WIDTH, WIDTH)), g.silu(up), ids)
    )


@pytest.mark.parametrize("m", [1, 4, 16])
def test_micro_batches_overlap_as_two_equal_stages_do(m):
    graph = layer()
    values = expert_values(graph, 0)
    joined = join_graphs([graph] * m)
    world = SimWorld(
        [SimConfig(costs=COSTS), SimConfig(is_host=True, kind="cpu", costs=COSTS)],
        policy=EagerPolicy(),
    )
    inputs = {joined.input_name(k, INPUT): values[INPUT] for k in range(m)}
    where = Constraints(expert_homes(graph, here=1, there=0)).with_slots(Slots(2, joined.firsts))
    with Scheduler(world.open_all(), weights=values) as scheduler:
        choices = scheduler.plan(joined.graph, where).placement.choices
        devices = [c.device for c in choices[: len(graph.nodes)]]
        assert devices == [0, 0, 0, 1, 1, 1]
        scheduler.prepare(joined.graph, where)
        began = world.host_s
        out = scheduler.run(joined.graph, inputs, where)
        seconds = world.host_s - began
    assert all(np.isfinite(array).all() for array in out.values())
    assert seconds == pytest.approx((m + 1) * 3 * NODE_S, rel=0.01)
