"""States that each run clears: planned as fills, ordered by their bytes, checked, run, traced."""

import msgspec
import numpy as np
import pytest

from ggsched.backend.probe import probe
from ggsched.config import Settings
from ggsched.errors import BackendUnavailable
from ggsched.ir.builder import GraphBuilder
from ggsched.passes import Constraints
from ggsched.passes.cost.predict import predict_step
from ggsched.passes.options import PlanOptions, StreamPolicy
from ggsched.plan.codec import plan_from_json, plan_to_json
from ggsched.plan.command import Fill, Launch
from ggsched.plan.memory import Region
from ggsched.plan.stats import plan_stats
from ggsched.plan.text import plan_text
from ggsched.run.capture_plan import plan_capture
from ggsched.run.runtime import open_devices
from ggsched.sanitize import check_plan, check_trace
from ggsched.scheduler import Scheduler
from ggsched.topology.cost import guessed_rates
from ggsched.trace.recorder import Recorder
from ggsched.trace.schema import Expected
from ggsched.trace.unroll import unroll
from ggsched_commands.expected_trace import expected_timeline
from ggsched_testing.explore import PlanProgram, explore
from ggsched_testing.sim import SimConfig, SimWorld
from tests.support.verified_plans import verified_plan

N = 8
ONE = PlanOptions()
MANY = PlanOptions(StreamPolicy(limit=2, is_forced=True, has_copy_stream=True))
X = np.arange(N, dtype=np.float32)
CLEARS = frozenset({"s", "no such state"})


def graph():
    """Two devices: the first adds the input to its state, the second reads that state twice."""
    g = GraphBuilder("sequence")
    x, s, other = g.input("x", (N,)), g.state("s", (N,)), g.state("kept", (N,))
    total = g.add(x, s)
    saved = g.op("cpy", total, s)
    there = g.add(saved, other)
    g.op("cpy", there, other)
    return g.build(g.add(there, total))


GRAPH = graph()
PINS = {0: 0, 1: 0, 2: 1, 3: 1, 4: 1}


def world(**changes):
    return SimWorld([SimConfig(**changes), SimConfig(**changes)])


def plan_on(topology, options=ONE, clears=CLEARS):
    wanted = Constraints(pins=PINS, clears=clears)
    return verified_plan(GRAPH, topology, wanted, options)


def fills(plan):
    return [c for c in plan.commands if isinstance(c, Fill)]


def expected(runs):
    kept, out = np.zeros(N, np.float32), []
    for k in range(runs):
        x = X + k
        kept = x + kept  # the state "s" is zero in each run
        out.append(kept + x)
    return out


KINDS = (
    {},
    {"copy_order": "barrier", "transfer_queues": 2},
    {"copy_order": "host", "transfer_queues": 1},
    {"has_events": False},
    {"snapshots_uploads": True},
)
each_kind = pytest.mark.parametrize("changes", KINDS, ids=str)
each_policy = pytest.mark.parametrize("options", [ONE, MANY], ids=["one stream", "many"])


@each_kind
@each_policy
def test_a_plan_that_clears_is_sound(changes, options):
    topology = probe(world(**changes).open_all())
    plan = plan_on(topology, options)
    (fill,) = fills(plan)
    assert plan.memory.arenas[fill.dst.arena].name == "s"
    assert fill.id < min(c.id for c in plan.commands if isinstance(c, Launch))
    assert check_plan(plan).is_clean
    assert check_trace(unroll(plan, 2).trace).is_clean
    assert plan_from_json(plan_to_json(plan)) == plan
    program = PlanProgram(GRAPH, plan, [{"x": X}, {"x": X + 1}], topology=topology)
    found = explore(program, limit=50)
    assert found.is_deterministic
    assert found.outcomes[0].observation == program.expected()


@each_kind
def test_each_run_finds_zeros(changes):
    with Scheduler(world(**changes).open_all(), settings=Settings()) as scheduler:
        for k, wanted in enumerate(expected(3)):
            wanted_by = Constraints(pins=PINS, clears=CLEARS)
            (found,) = scheduler.run(GRAPH, {"x": X + k}, wanted_by).values()
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("backend", ["cpu", "opencl"])
def test_on_devices(backend):
    try:
        devices = open_devices([f"{backend}:0", f"{backend}:1"])
    except BackendUnavailable as error:
        pytest.skip(str(error))
    with Scheduler(devices, settings=Settings()) as scheduler:
        for k, wanted in enumerate(expected(4)):  # captured from the second run on
            wanted_by = Constraints(pins=PINS, clears=CLEARS)
            (found,) = scheduler.run(GRAPH, {"x": X + k}, wanted_by).values()
            np.testing.assert_array_equal(found, wanted)


def test_without_clears_nothing_is_filled():
    topology = probe(world().open_all())
    plain = plan_on(topology, clears=frozenset())
    assert not fills(plain)
    assert plan_on(topology, clears=frozenset({"other"})).commands == plain.commands


def test_text_numbers_and_costs():
    topology = probe(world().open_all())
    plan = plan_on(topology)
    (fill,) = fills(plan)
    assert f"fill a{fill.dst.arena}[0:{4 * N}] with 00" in plan_text(plan)
    stats = plan_stats(plan)
    assert stats.commands["fill"] == 1
    assert stats.copied == plan_stats(plan_on(topology, clears=frozenset())).copied
    spans = predict_step(GRAPH, plan, guessed_rates(topology)).timeline.spans
    (span,) = [s for s in spans if s.command == fill.id]
    assert span.end_s > span.start_s
    times = [Expected(s.command, s.start_s, s.end_s) for s in spans]
    (shown,) = [s for s in expected_timeline(plan, times).spans if s.command == fill.id]
    assert (shown.kind, shown.nbytes, shown.src) == ("copy", 4 * N, shown.dst)
    assert "fill" in shown.label


def test_a_fill_is_captured():
    plan = plan_on(probe(world().open_all()))
    (fill,) = fills(plan)
    segments = plan_capture(plan, {0, 1}).segments
    assert any(s.start <= fill.id < s.stop for s in segments)


def test_a_fill_is_traced():
    recorder = Recorder()
    with Scheduler(world().open_all(), settings=Settings(), recorder=recorder) as scheduler:
        for k in range(2):
            scheduler.run(GRAPH, {"x": X + k}, Constraints(pins=PINS, clears=CLEARS))
    trace = recorder.trace("clears")
    assert check_trace(trace).is_clean
    assert sum(getattr(e, "label", "") == "fill" for e in trace.entries) == 2 + 2  # two new states


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pattern": b"a"}, "the pattern of c0"),
        ({"dst": Region(0, 0, 4)}, "fills"),
    ],
)
def test_a_wrong_fill_is_found(changes, message):
    plan = plan_on(probe(world().open_all()))
    (fill,) = fills(plan)
    commands = list(plan.commands)
    commands[fill.id] = msgspec.structs.replace(fill, **changes)
    broken = msgspec.structs.replace(plan, commands=tuple(commands))
    assert any(message in f.what for f in check_plan(broken).findings)
