"""Through how many modules a run goes: the first one, a cached one, and a captured replay.

Who wants to know what happens in a run has to read these. The numbers may only shrink.
"""

import numpy as np

from ggsched.backend.arrays import aligned_bytes
from ggsched.config import Settings
from ggsched.ir.builder import GraphBuilder
from ggsched.run.capture import MEASURED_RUNS
from ggsched.scheduler import Scheduler
from tests.run.devices import TestDevice
from tests.support.call_path import modules_of

FIRST_RUN = 136
CACHED_RUN = 17
CAPTURED_REPLAY = 18
"""Modules today, each named once. Whoever makes a way shorter lowers its number.

The first run visits one more where it compiles kernels.
"""

SETTINGS = Settings(rates="off")


def check(call, most):
    found = sorted(set(modules_of(call)))
    assert found, "the hook has seen nothing"
    assert len(found) <= most, "\n".join(found)


def test_of_two_nodes_on_a_cpu():
    g = GraphBuilder()
    x, w = g.input("x", (1, 4)), g.weight("w", (3, 4))
    graph, inputs = g.build(y=g.silu(g.mul_mat(w, x))), {"x": np.ones((1, 4), np.float32)}
    w_bytes = aligned_bytes(48, 64)  # imported as they are, in each process
    w_bytes[:] = 0
    weights = {"w": w_bytes.view(np.float32).reshape(3, 4)}
    with Scheduler(["cpu:0"], weights=weights, settings=SETTINGS) as scheduler:
        check(lambda: scheduler.run(graph, inputs), FIRST_RUN)
        scheduler.run(graph, inputs)
        check(lambda: scheduler.run(graph, inputs), CACHED_RUN)


def test_a_captured_replay():
    g = GraphBuilder()
    graph = g.build(y=g.silu(g.scale(g.input("x", (2, 8)), 2.0)))
    inputs = {"x": np.ones((2, 8), np.float32)}
    device = TestDevice(is_host=False, snapshots_uploads=False)
    with Scheduler([device], settings=SETTINGS) as scheduler:
        for _ in range(MEASURED_RUNS + 2):
            scheduler.run(graph, inputs)
        (executor,) = scheduler._executors.values()
        assert executor.captured is not None
        check(lambda: scheduler.run(graph, inputs), CAPTURED_REPLAY)
