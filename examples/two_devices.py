"""A hand-built graph on two devices: placement, copies and waits, each with its reason.

The first device is simulated, so this runs anywhere; "opencl:0" or "cuda:0" can replace it.
"""

import numpy as np

from ggsched import GraphBuilder, Scheduler
from ggsched.passes import Constraints
from ggsched.plan.text import plan_text
from ggsched.sanitize import check_plan

DEVICES = ["sim:0", "cpu:0"]


def main():
    # Shapes as in numpy; mul_mat(w, x) is x @ w.T.
    g = GraphBuilder("two layers")
    x = g.input("x", (4, 64))
    h = g.silu(g.mul_mat(g.weight("up", (32, 64)), x))
    y = g.mul_mat(g.weight("down", (8, 32)), h)
    graph = g.build(y)

    rng = np.random.default_rng(0)
    up = rng.standard_normal((32, 64)).astype(np.float32)
    down = rng.standard_normal((8, 32)).astype(np.float32)
    inputs = {"x": rng.standard_normal((4, 64)).astype(np.float32)}

    # Nodes run where their weights are: "up" on the first device, "down" on the second.
    where = Constraints(homes={"up": 0, "down": 1})
    with Scheduler(DEVICES, weights={"up": up, "down": down}) as scheduler:
        plan = scheduler.plan(graph, where)
        print(plan_text(plan))
        print("races:", len(check_plan(plan).findings))
        result = scheduler.run(graph, inputs, where)[y.id]

    hidden = inputs["x"] @ up.T
    expected = (hidden / (1 + np.exp(-hidden))) @ down.T
    print("as numpy says:", np.allclose(result, expected, rtol=1e-4, atol=1e-4))


if __name__ == "__main__":
    main()
