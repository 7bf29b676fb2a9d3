"""Batches of a prompt in a row: the pipeline of one goes on with the next, whose plan is another.

On simulated devices with real numbers, where each node takes a second and nothing else takes any.
"""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gpu.shapes import LLAMA_8B, spec_of
from ggsched.errors import OutOfDeviceMemory
from ggsched.ir.dtype import BF16
from ggsched.models.load import load_model
from ggsched.models.session import Session, SessionOptions
from ggsched.scheduler import Scheduler
from ggsched.testing.sim.world import SimWorld
from tests.models.helpers import tiny_gguf
from tests.models.test_stages import COSTS, flow_shop_s, gpus, session

STEP, TOGETHER = 16, 2
OPTIONS = SessionOptions(n_ctx=1024, n_batch=STEP * TOGETHER, n_ubatch=STEP, pipelining="on")


def model(folder, p):
    return load_model(tiny_gguf(folder / "m.gguf", layers=2 * p, vocab=16))


def fed(s, tokens):
    s.reset()
    return s.feed(tokens)


@pytest.mark.parametrize(("p", "batches"), [(2, 2), (3, 2), (4, 2), (2, 6), (3, 5)])
def test_batches_in_a_row_do_not_drain_the_pipeline(p, batches, tmp_path):
    """Two of them have plans of their own; of more some have the plan of the one before."""
    made, tokens = model(tmp_path, p), [t * t % 16 for t in range(batches * TOGETHER * STEP)]
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
    assert len(rows) == batches * TOGETHER
    each = (rows[k : k + TOGETHER] for k in range(0, len(rows), TOGETHER))
    drained = sum(map(flow_shop_s, each))
    assert took == pytest.approx(flow_shop_s(rows), rel=0.01)
    assert took < 0.9 * drained


@pytest.mark.parametrize("refused", ["a twin", "the plan behind"])
def test_without_memory_for_a_twin_a_plan_waits_for_itself(refused, tmp_path, monkeypatch):
    """Neither the twin nor, with it, another plan has room: then there is none from there on."""
    made, tokens = model(tmp_path, 2), [t * t % 16 for t in range(5 * TOGETHER * STEP)]
    with Session(made, SimWorld.of_topology(gpus(1)).open_all(), OPTIONS) as s:
        expected = s.feed(tokens)
    bound, asked = Scheduler._bound, []

    def with_little_memory(scheduler, graph, plan):
        asked.append(plan.name if plan.outputs else f"{plan.name} and on")
        has_twin = any(e.twin for e in scheduler._executors.values())
        if asked.count(asked[-1]) == 2 if refused == "a twin" else has_twin:
            raise OutOfDeviceMemory("no room", where="cuda:1")
        return bound(scheduler, graph, plan)

    monkeypatch.setattr(Scheduler, "_bound", with_little_memory)
    world = SimWorld.of_topology(gpus(2), costs=COSTS)
    with Session(made, world.open_all(), OPTIONS) as s:
        for _ in range(3):
            np.testing.assert_allclose(fed(s, tokens), expected, rtol=1e-4, atol=1e-5)
        assert not any(e.twin for e in s.scheduler._executors.values())
    assert len(asked) == {"a twin": 4, "the plan behind": 7}[refused]
    assert not world.violations


def test_planning_grows_with_the_logarithm_of_a_prompt():
    """A prompt has a plan for each size of the cache, and one for its end."""
    spec = spec_of(replace(LLAMA_8B, n_layer=2, n_vocab=256), BF16)
    made = []
    for batches in (4, 8, 16, 32):
        n = batches * 2048
        with session(spec, gpus(2), n_ctx=n, n_batch=2048, pipelining="on") as s:
            s.memory_need(n, 1)
            made.append(s.scheduler.plan_cache.misses)
    assert made == [4, 5, 6, 7]
