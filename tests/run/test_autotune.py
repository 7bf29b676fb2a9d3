"""``streams="autotune"``: two plans take turns on runs that are wanted anyway, and one stays."""

import itertools

import numpy as np
import pytest

from ggsched.config import Settings
from ggsched.errors import OutOfDeviceMemory, UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.run.autotune import ROUNDS, Trial
from ggsched.scheduler import Scheduler
from tests.run.devices import TestDevice, assert_released
from tests.run.graphs import N, X, counter, harmless, only

RUNS = 2 * (ROUNDS + 1)


class TestTrial:
    def test_ways_take_turns_and_the_first_run_of_each_does_not_count(self):
        trial = Trial("g", ("a", "b"), rounds=2)
        ways, decided = [], []
        for seconds in (9.0, 0.1, 3.0, 4.0, 5.0, 2.0):
            ways.append(trial.way)
            decided.append(trial.note(seconds))
        assert "".join(ways) == "ababab"
        assert decided == [False] * 5 + [True]
        found = trial.measured
        assert (found.sequential_s, found.streams_s, found.kept) == (3.0, 2.0, "streams")
        assert (found.runs, trial.way, trial.other) == (6, "b", "a")

    @pytest.mark.parametrize(("second", "kept"), [(0.9, "streams"), (1.0, "sequential")])
    def test_equal_is_not_better(self, second, kept):
        trial = Trial("g", (0, 1), rounds=1)
        for seconds in (5.0, 5.0, 1.0, second):
            trial.note(seconds)
        assert trial.measured.kept == kept

    def test_what_is_decided_stays(self):
        trial = Trial("g", (0, 1), rounds=1)
        trial.settle(0, "why not")
        assert not trial.note(1.0)
        trial.settle(1, "because")
        assert (trial.measured.kept, trial.measured.reason) == ("sequential", "why not")

    def test_refuses_to_decide_by_nothing(self):
        with pytest.raises(UsageError, match="at least one"):
            Trial("g", (0, 1), rounds=0)


def branches(step=1.0):
    """Return a graph with a state that counts runs, and two independent branches."""
    g = GraphBuilder("branches")
    x, s = g.input("x", (N,)), g.state("s", (N,))
    count = g.cpy(g.scale(s, 1.0, step), s)
    left, right = g.silu(g.silu(x)), g.silu(g.scale(x, 2.0))
    return g.build(g.add(left, right), count)


class Clock:
    """Says that each run took what the test wants, by the streams of the plan that ran."""

    def __init__(self, sequential_s, streams_s):
        self.seconds = {1: sequential_s, 2: streams_s}
        self.scheduler = None
        self.now = 0.0
        self.plans = []

    def __call__(self):
        last = self.scheduler._order.last
        if last is not None:  # a run has ended
            self.plans.append(last.plan)
            self.now += self.seconds[min(2, len(last.plan.streams.streams))]
        return self.now


def measuring(device, clock, **options):
    settings = Settings(streams="autotune")
    scheduler = Scheduler([device], settings=settings, clock=clock, **options)
    clock.scheduler = scheduler
    return scheduler


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("sequential_s", "streams_s", "kept"), [(2.0, 1.0, "streams"), (1.0, 2.0, "sequential")]
)
def test_the_better_is_kept_and_states_count_each_run_once(is_async, sequential_s, streams_s, kept):
    device, clock = TestDevice(is_async=is_async, max_streams=4), Clock(sequential_s, streams_s)
    with measuring(device, clock) as scheduler:
        graph = branches()
        y, count = graph.outputs
        silu = lambda v: v / (1 + np.exp(-v))  # noqa: E731
        for run in range(1, RUNS + 5):
            planned = scheduler.plan(graph)
            found = scheduler.run(graph, {"x": X * run})
            assert (found[count] == run).all()
            expected = silu(silu(X * run)) + silu(2 * X * run)
            np.testing.assert_allclose(found[y], expected, rtol=1e-5)
            if run <= RUNS:
                assert clock.plans[-1] is planned
        (measured,) = scheduler.measured
        assert (measured.sequential_s, measured.streams_s) == (sequential_s, streams_s)
        assert (measured.kept, measured.runs) == (kept, RUNS)
        turns = [len(plan.streams.streams) > 1 for plan in clock.plans[:RUNS]]
        assert turns == [False, True] * (RUNS // 2)
        assert (len(scheduler.plan(graph).streams.streams) > 1) == (kept == "streams")
        assert len(scheduler._executors) == 1  # the other has been released
    assert_released(device)


def test_nothing_is_measured_where_no_nodes_are_independent():
    with measuring(TestDevice(max_streams=4), Clock(1.0, 2.0)) as scheduler:
        graph = harmless()
        scheduler.run(graph, {"x": X})
        (measured,) = scheduler.measured
        assert (measured.kept, measured.reason) == ("sequential", "no nodes are independent")
        assert measured.runs == 0


def test_graphs_are_measured_apart():
    with measuring(TestDevice(max_streams=4), Clock(2.0, 1.0)) as scheduler:
        a, b = branches(1.0), branches(10.0)
        totals = [
            float(scheduler.run(graph, {"x": X})[graph.outputs[1]][0])
            for graph in itertools.islice(itertools.cycle((a, a, b)), 3 * RUNS)
        ]
        steps = np.diff([0.0, *totals])
        assert steps.tolist() == [1.0, 1.0, 10.0] * RUNS
        assert [m.kept for m in scheduler.measured] == ["streams", "streams"]


def test_memory_for_one_plan_ends_the_trial():
    """The second plan does not fit beside the first, so the sequential one is kept."""
    device = Limited(max_streams=4)
    with measuring(device, Clock(2.0, 1.0)) as scheduler:
        graph = branches()
        totals = [float(scheduler.run(graph, {"x": X})[graph.outputs[1]][0]) for _ in range(RUNS)]
        assert totals == list(range(1, RUNS + 1))
        (measured,) = scheduler.measured
        assert (measured.kept, measured.reason) == (
            "sequential",
            "there is no memory for two plans",
        )
        assert len(scheduler.plan(graph).streams.streams) == 1
    assert_released(device)


class Limited(TestDevice):
    """Has room for a state and one plan."""

    __test__ = False

    def allocate(self, nbytes):
        if len([b for b in self.open_buffers if not b.is_closed]) >= 2:
            raise OutOfDeviceMemory(f"{nbytes} bytes", where=self.facts.name)
        return super().allocate(nbytes)


def test_a_run_that_fails_is_no_measurement():
    with measuring(TestDevice(max_streams=4), Clock(2.0, 1.0)) as scheduler:
        graph = branches()
        with pytest.raises(UsageError, match="no value for input"):
            scheduler.run(graph, {})
        (measured,) = scheduler.measured
        assert measured.runs == 0


@pytest.mark.parametrize("streams", ["auto", 1, 4])
def test_other_settings_measure_nothing(streams):
    settings = Settings(streams=streams)
    with Scheduler([TestDevice(max_streams=8)], settings=settings) as scheduler:
        graph = branches()
        used = len(scheduler.plan(graph).streams.streams)
        assert used == {"auto": 1, 1: 1, 4: 3}[streams] or (streams == 4 and used > 1)
        scheduler.run(graph, {"x": X})
        assert scheduler.measured == ()
        assert only(counter(), scheduler.run(counter(), {}))[0] == 2.0
