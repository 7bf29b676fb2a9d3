"""Graphs beside commands that are enqueued one by one, on streams that are not a graph's first.

A replay is a command of its first stream (CAP-1), so on the others nothing but events orders it.
"""

import threading

import numpy as np
import pytest

from ggsched.config import Settings
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.join import join_graphs
from ggsched.passes.place import Constraints
from ggsched.run import graph_order
from ggsched.scheduler import Scheduler
from tests.run.devices import TestDevice


class Meeting:
    """A kernel that notices if it runs twice at a time, on whatever streams."""

    def __init__(self):
        self._alone, self._met = threading.Lock(), threading.Event()

    def __call__(self, out, inputs, params):
        if self._alone.acquire(blocking=False):
            with_other = self._met.wait(0.1)
            self._alone.release()
        else:
            with_other = True
            self._met.set()
        assert not with_other, "runs twice at a time"
        np.copyto(out, inputs[0])


def two_states(extra=0):
    """Two states that have nothing to do with each other; ``gelu`` is what changes the second."""
    g = GraphBuilder("two states")
    a, b = g.state("a", (8,)), g.state("b", (8,))
    g.op("cpy", g.silu(a), a)
    y = g.gelu(b)
    for _ in range(extra):
        y = g.silu(y)
    return join_graphs([g.build(g.op("cpy", y, b))], keep=[()]).graph


def run(scheduler, graph):
    """Run it with the second state on the last device."""
    last = len(scheduler.devices) - 1
    scheduler.run(graph, {}, Constraints(pins={n.id: last * (n.id > 1) for n in graph.nodes}))


@pytest.fixture(params=[1, 2], ids=["one device", "peers"])
def scheduler(request):
    """A scheduler whose plans have two streams, of one device or of one each of two."""
    devices = [
        TestDevice(
            f"test:{i}", gelu=Meeting(), is_async=True, is_host=False, max_streams=2,
            reads_peers=True,
        )
        for i in range(request.param)
    ]  # fmt: skip
    with Scheduler(devices, settings=Settings(streams=2)) as scheduler:
        yield scheduler
        assert not scheduler._store.drain()


def test_a_graph_comes_behind_the_run_before_it_was_captured(scheduler):
    graph = two_states()
    for _ in range(3):
        run(scheduler, graph)
    (executor,) = scheduler._executors.values()
    (segment,) = executor.captured.report.plan.segments
    assert len(segment.streams) == 2
    assert not segment.tied
    assert executor.captured.report.replays == 2


def test_plans_that_follow_each_other_come_behind_graphs_and_before(scheduler):
    first, second, third = two_states(), two_states(1), two_states(2)
    for graph in (first, first, second, first, second, second, third, first):
        run(scheduler, graph)
    made = scheduler._executors.values()
    assert all(e.state_streams is not None for e in made), "nobody waits between them"
    assert sum(e.captured.report.replays for e in made) == 5


def with_output():
    """``two_states`` with the first one as an output, which the host waits for."""
    g = GraphBuilder("two states, one is seen")
    a, b = g.state("a", (8,)), g.state("b", (8,))
    seen = g.op("cpy", g.silu(a), a)
    return join_graphs([g.build(seen, g.op("cpy", g.gelu(b), b))], keep=[(seen.id,)]).graph


@pytest.fixture
def joins(monkeypatch):
    """Return the numbers of streams that were joined so far."""
    found = []
    join = graph_order._join

    def counted(earlier, later):
        found.append(len(later))
        join(earlier, later)

    monkeypatch.setattr(graph_order, "_join", counted)
    return found


def start(scheduler, graph):
    last = len(scheduler.devices) - 1
    pins = {n.id: last * (n.id > 1) for n in graph.nodes}
    return scheduler.start(graph, {}, Constraints(pins=pins))


def test_a_graph_comes_right_behind_the_graph_of_its_alternate(scheduler, joins):
    """Once both are captured nothing but their origin's order is between them."""
    graph, runs = with_output(), []
    for step in range(10):
        runs.append(start(scheduler, graph))
        if step:
            runs[step - 1].outputs()
        if step == 5:
            joins.clear()
    runs[-1].outputs()
    assert not joins
    (executor,) = scheduler._executors.values()
    replays = [e.captured.report.replays for e in (executor, executor.alternate)]
    assert replays == [4, 4]


@pytest.mark.parametrize("seed", range(2))
def test_started_runs_come_behind_other_plans_and_before(scheduler, joins, seed):
    graphs = [with_output(), two_states(), two_states(1)]
    rng, last = np.random.default_rng(seed), None
    for k in rng.choice(3, 16, p=[0.6, 0.2, 0.2]):
        run_of_it = start(scheduler, graphs[k])
        if last is not None:
            last.outputs()
        last = run_of_it
    last.outputs()
    assert joins
    assert all(e.state_streams is not None for e in scheduler._executors.values())
