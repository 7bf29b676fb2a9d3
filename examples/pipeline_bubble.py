"""A pipeline over eight simulated GPUs: their idle time, compared with the closed form.

With p equal stages and m micro-batches each device is idle for (p - 1) / (m + p - 1) of the time
(Huang et al., GPipe, 2019). There is no pipeline mode: the micro-batches are joined into one graph,
and the pipeline follows from its data flow.
"""

import math

import numpy as np

from ggsched import GraphBuilder, Scheduler
from ggsched.ir.join import join_graphs
from ggsched.passes import Constraints
from ggsched.passes.memory.rings import Slots
from ggsched.sanitize import check_plan
from ggsched_testing.sim import Costs, SimConfig, SimWorld

P = 8
FREE = dict.fromkeys(("enqueue_s", "launch_s", "transfer_s", "record_s", "wait_s"), 0.0)
FREE |= {"thread_wait_s": 0.0, "flops_per_s": math.inf, "memory_bytes_per_s": math.inf}
FREE |= dict.fromkeys(("upload_bytes_per_s", "download_bytes_per_s", "copy_bytes_per_s"), math.inf)
COSTS = Costs(node_s=1.0, **FREE)  # each node takes a second, everything else no time


def stages():
    """One node for each device, so that the stages are equal."""
    g = GraphBuilder("stages")
    x = g.input("x", (16,))
    for _ in range(P):
        x = g.silu(x)
    return g.build(x)


def idle_share(m):
    """Run m micro-batches; return the share of the time that the devices do nothing."""
    graph = stages()
    joined = join_graphs([graph] * m)
    # Node k of each part runs on device k. Two buffers: one is read, the other is written.
    pins = {n.id: n.id % P for n in joined.graph.nodes}
    where = Constraints(pins=pins, slots=Slots(2, joined.firsts))
    world = SimWorld([SimConfig(costs=COSTS)] * P)
    inputs = {joined.input_name(k, "x"): np.full(16, k, np.float32) for k in range(m)}
    with Scheduler(world.open_all()) as scheduler:
        scheduler.run(joined.graph, inputs, where)
        assert check_plan(scheduler.plan(joined.graph, where)).is_clean
    spans = [s for s in world.timeline() if s.kind == "launch"]
    total = max(s.end_s for s in spans) - min(s.start_s for s in spans)
    return 1 - sum(s.end_s - s.start_s for s in spans) / (P * total)


def main():
    print("micro-batches  idle   closed form")
    for m in (1, 2, 4, 8, 16, 32):
        print(f"{m:13}  {idle_share(m):5.1%}  {(P - 1) / (m + P - 1):5.1%}")


if __name__ == "__main__":
    main()
