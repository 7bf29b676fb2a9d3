"""Batches of a prompt in a row: the pipeline of one goes on with the next, and long ones are cut.

On simulated devices with real numbers, where each node takes a second and nothing else takes any.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched.errors import OutOfDeviceMemory
from ggsched.ir.dtype import BF16
from ggsched.planner import Planner
from ggsched.sanitize import check_trace
from ggsched.scheduler import Scheduler
from ggsched.trace.recorder import Recorder
from ggsched.trace.times import timeline_of
from ggsched.trace.utilization import account
from ggsched_llm.batches import MicroBatch
from ggsched_llm.load import load_model
from ggsched_llm.session import Session, SessionOptions
from ggsched_testing.sim.world import SimWorld
from tests.models.helpers import tiny_gguf
from tests.models.test_stages import COSTS, flow_shop_s, gpus, session
from tests.support.profile import NIGHTLY
from tests.support.shapes import LLAMA_8B, spec_of

STEP, TOGETHER = 16, 2
OPTIONS = SessionOptions(n_ctx=1024, n_batch=STEP * TOGETHER, n_ubatch=STEP, pipelining="on")


def model(folder, p):
    return load_model(tiny_gguf(folder / "m.gguf", layers=2 * p, vocab=16))


def fed(s, tokens):
    s.reset()
    return s.feed(tokens)


def stage_seconds(made, p, tokens, options, prompts=2):
    """Feed prompts to p devices; return what each stage took for each part of the last.

    Returns:
        The seconds of each micro-batch in each stage, and the seconds of the prompt.
    """
    with Session(made, SimWorld.of_topology(gpus(1)).open_all(), options) as s:
        expected = s.feed(tokens)
    world = SimWorld.of_topology(gpus(p), costs=COSTS)
    with Session(made, world.open_all(), options) as s:
        s.feed(tokens[:1])  # weights are loaded
        for _ in range(prompts - 1):
            np.testing.assert_allclose(fed(s, tokens), expected, rtol=1e-4, atol=1e-5)
        began = world.host_s
        np.testing.assert_allclose(fed(s, tokens), expected, rtol=1e-4, atol=1e-5)
        took = world.host_s - began
    assert not world.violations
    launches = [e for e in world.timeline() if e.kind == "launch" and e.start_s >= began]
    by_stage = [
        [e.end_s - e.start_s for e in launches if e.device == f"cuda:{d}"] for d in range(p)
    ]
    return list(zip(*by_stage, strict=True)), took


@pytest.mark.parametrize(("p", "batches"), [(2, 2), (3, 2), (4, 2), (2, 6), (3, 5)])
def test_batches_in_a_row_do_not_drain_the_pipeline(p, batches, tmp_path):
    """Two of them have plans of their own; of more some have the plan of the one before."""
    tokens = [t * t % 16 for t in range(batches * TOGETHER * STEP)]
    rows, took = stage_seconds(model(tmp_path, p), p, tokens, OPTIONS)
    assert len(rows) == batches * TOGETHER
    each = (rows[k : k + TOGETHER] for k in range(0, len(rows), TOGETHER))
    drained = sum(map(flow_shop_s, each))
    assert took == pytest.approx(flow_shop_s(rows), rel=0.01)
    assert took < 0.9 * drained


@pytest.mark.parametrize(("p", "batches"), [(2, 5), (3, 3)])
def test_the_first_prompt_of_a_length_does_not_drain_it_either(p, batches, tmp_path):
    """Plans are bound while others run, for they bring neither weights nor states."""
    tokens = [t * t % 16 for t in range(batches * TOGETHER * STEP)]
    rows, took = stage_seconds(model(tmp_path, p), p, tokens, OPTIONS, prompts=1)
    assert took == pytest.approx(flow_shop_s(rows), rel=0.01)


@settings(max_examples=3, deadline=None)
@given(
    p=st.integers(2, 5),
    m=st.integers(1, 64 if NIGHTLY else 24),
    layers=st.integers(1, 2),
    rest=st.booleans(),
)
def test_a_long_batch_is_cut_and_takes_what_one_plan_would(p, m, layers, rest, tmp_path_factory):
    """All micro-batches in one batch, the last of them whole or not."""
    made = load_model(
        tiny_gguf(tmp_path_factory.mktemp("long") / "m.gguf", layers=layers * p, vocab=16)
    )
    tokens = [t * t % 16 for t in range(m * 4 - rest)]
    options = replace(OPTIONS, n_ctx=256, n_batch=256, n_ubatch=4)
    rows, took = stage_seconds(made, p, tokens, options)
    assert len(rows) == m
    assert took == pytest.approx(flow_shop_s(rows), rel=0.01)


def test_reports_count_what_follows_each_other_as_one_batch(tmp_path):
    """Runs without outputs are over for the host before they begin on devices."""
    made, tokens = model(tmp_path, 2), [t * t % 16 for t in range(5 * TOGETHER * STEP)]
    recorder = Recorder()
    with Session(
        made, SimWorld.of_topology(gpus(2), costs=COSTS).open_all(), OPTIONS, recorder=recorder
    ) as s:
        for _ in range(3):
            fed(s, tokens)
    trace = recorder.trace("three prompts")
    assert check_trace(trace).is_clean
    found = account(timeline_of(trace), trace.plans)
    assert found.batches[-1] == 5 * TOGETHER
    assert sum(found.batches) == 3 * 5 * TOGETHER
    # A run of two micro-batches takes three turns of a stage, whatever was under way before it.
    assert {plan.runs for plan in found.plans} == {3, 9}
    assert max(p.best_s for p in found.plans) < 1.2 * min(p.best_s for p in found.plans)


@pytest.mark.parametrize("refused", ["an alternate", "the plan behind"])
def test_without_memory_for_a_twin_a_plan_waits_for_itself(refused, tmp_path, monkeypatch):
    """Neither the alternate nor another plan beside it has room: there is none from there on."""
    made, tokens = model(tmp_path, 2), [t * t % 16 for t in range(5 * TOGETHER * STEP)]
    with Session(made, SimWorld.of_topology(gpus(1)).open_all(), OPTIONS) as s:
        expected = s.feed(tokens)
    bound, asked = Scheduler._bound, []

    def with_little_memory(scheduler, graph, plan):
        asked.append(plan.name if plan.outputs else f"{plan.name} and on")
        has_alternate = any(e.alternate for e in scheduler._executors.values())
        if asked.count(asked[-1]) == 2 if refused == "an alternate" else has_alternate:
            raise OutOfDeviceMemory("no room", where="cuda:1")
        return bound(scheduler, graph, plan)

    monkeypatch.setattr(Scheduler, "_bound", with_little_memory)
    world = SimWorld.of_topology(gpus(2), costs=COSTS)
    with Session(made, world.open_all(), OPTIONS) as s:
        for _ in range(3):
            np.testing.assert_allclose(fed(s, tokens), expected, rtol=1e-4, atol=1e-5)
        assert not any(e.alternate for e in s.scheduler._executors.values())
    assert len(asked) == {"an alternate": 4, "the plan behind": 7}[refused]
    assert not world.violations


def planned(m, n_batch, monkeypatch, p=2):
    """Return the nodes of each graph that is planned for a prompt of m micro-batches."""
    spec = spec_of(replace(LLAMA_8B, n_layer=2, n_vocab=256), BF16)
    plan, nodes = Planner._make_plan, []

    def noted(planner, graph, *given):
        nodes.append(len(graph.nodes))
        return plan(planner, graph, *given)

    n = m * 512
    with monkeypatch.context() as patch:
        patch.setattr(Planner, "_make_plan", noted)
        with session(spec, gpus(p), n_ctx=n, n_batch=n_batch, pipelining="on") as s:
            s.memory_need(n, 1)
    return nodes


def test_planning_grows_with_the_logarithm_of_a_prompt(monkeypatch):
    """A prompt has a plan for each size of the cache, and one for its end, whatever ``-b``."""
    by_length = {m: planned(m, m * 512, monkeypatch) for m in (8, 16, 64)}
    for m, nodes in by_length.items():
        assert nodes == planned(m, 2048, monkeypatch)
    assert [len(nodes) for nodes in by_length.values()] == [2, 4, 6]
    assert sum(by_length[64]) < 3.1 * sum(by_length[8])
    assert {max(nodes) for nodes in by_length.values()} == {max(by_length[8])}


def test_the_host_makes_no_more_calls_for_micro_batches_of_small_plans():
    """Commands of a micro-batch where 4 are one plan, and where 64 are."""
    spec = spec_of(replace(LLAMA_8B, n_layer=2, n_vocab=256), BF16)
    with session(spec, gpus(2), n_ctx=64 * 512, n_batch=64 * 512) as s:
        part = MicroBatch(s.graph(512, 32 * 512, 1), is_wanted=False)
        few, many = (len(s.batches.micro_batches.plan([part] * m).commands) / m for m in (4, 64))
        assert s.batches.micro_batches.count([part] * 64) == 4
    assert few == pytest.approx(many, rel=0.1)


def test_batches_are_cut_where_that_costs_nothing():
    """Not in front of logits that the host waits for, nor where a plan would wait for itself."""
    spec = spec_of(replace(LLAMA_8B, n_layer=2, n_vocab=256), BF16)
    for p, few in ((2, 4), (3, 6), (4, 4), (5, 5)):
        with session(spec, gpus(p), n_ctx=16384, pipelining="on") as s:
            some = [MicroBatch(s.graph(512, 0, 1), k == 15) for k in range(16)]
            count = s.batches.micro_batches.count
            assert count(some) == few
            assert count(some[:few]) == few
            assert count([replace(some[0], is_wanted=True), *some]) == 17
            budget = (("cuda:0", 1 << 40),)
            s.scheduler.settings = replace(s.scheduler.settings, memory_budget=budget)
            assert count(some) == 16
