"""Batches of a prompt in a row: the pipeline of one goes on with the next, whose plan is another.

On simulated devices with real numbers, where each node takes a second and nothing else takes any.
"""

import numpy as np
import pytest

from ggsched.models.load import load_model
from ggsched.models.session import Session, SessionOptions
from ggsched.testing.sim.world import SimWorld
from tests.models.helpers import tiny_gguf
from tests.models.test_stages import COSTS, flow_shop_s, gpus

STEP, TOGETHER = 16, 2
OPTIONS = SessionOptions(n_ctx=1024, n_batch=STEP * TOGETHER, n_ubatch=STEP, pipelining="on")


def model(folder, p):
    return load_model(tiny_gguf(folder / "m.gguf", layers=2 * p, vocab=16))


def fed(s, tokens):
    s.reset()
    return s.feed(tokens)


@pytest.mark.parametrize("p", [2, 3, 4])
def test_two_batches_do_not_drain_the_pipeline(p, tmp_path):
    made, tokens = model(tmp_path, p), [t * t % 16 for t in range(2 * TOGETHER * STEP)]
    with Session(made, SimWorld.of_topology(gpus(1)).open_all(), OPTIONS) as s:
        expected = s.feed(tokens)
    world = SimWorld.of_topology(gpus(p), costs=COSTS)
    with Session(made, world.open_all(), OPTIONS) as s:
        for _ in range(2):
            np.testing.assert_allclose(fed(s, tokens), expected, rtol=1e-4, atol=1e-5)
        began = world.host_s
        np.testing.assert_allclose(fed(s, tokens), expected, rtol=1e-4, atol=1e-5)
        took = world.host_s - began
    assert not world.violations
    launches = [e for e in world.timeline() if e.kind == "launch" and e.start_s >= began]
    by_stage = [
        [e.end_s - e.start_s for e in launches if e.device == f"cuda:{d}"] for d in range(p)
    ]
    rows = list(zip(*by_stage, strict=True))
    assert len(rows) == 2 * TOGETHER
    drained = flow_shop_s(rows[:TOGETHER]) + flow_shop_s(rows[TOGETHER:])
    assert took == pytest.approx(flow_shop_s(rows), rel=0.01)
    assert took < 0.9 * drained
