"""Runs that are started, and whose outputs are taken later."""

import threading

import numpy as np
import pytest

from ggsched.config import Settings
from ggsched.errors import DeviceFault, SyncTimeout, UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.passes.place import Constraints
from ggsched.run.run_order import StartedRun
from ggsched.scheduler import Scheduler
from ggsched.trace.recorder import Recorder
from tests.run.devices import Failing, Latch, TestDevice, assert_released
from tests.run.graphs import N, W, X, chain, chain_result, harmless, only

ZERO = np.zeros(N, np.float32)
LATE_S = 0.2


def sums():
    """Return a graph that adds its input to a state, slowly, and returns the sum."""
    g = GraphBuilder("sums")
    total = g.state("total", (N,))
    return g.build(y=g.cpy(g.gelu(g.add(total, g.input("x", (N,)))), total))


SUMS = sums()


def opened(gelu, devices=1, **options):
    made = [
        TestDevice(f"test:{i}", gelu=gelu, is_async=True, copy_order="stream")
        for i in range(devices)
    ]
    settings = Settings(**options)
    return made, Scheduler(made, weights={"w": W}, settings=settings)


def started(scheduler, graph, value, wanted=None):
    return scheduler.start(graph, {"x": np.full(N, value, np.float32)}, wanted)


def values(*runs):
    """Return what the runs computed, if all elements are alike."""
    rows = [run.outputs()["y"] for run in runs]
    assert all((row == row[0]).all() for row in rows)
    return [float(row[0]) for row in rows]


def test_the_caller_goes_on():
    latch = Latch()
    devices, scheduler = opened(latch)
    with scheduler:
        runs = [started(scheduler, SUMS, value) for value in (1, 2)]
        assert latch.reached.wait(60)
        assert not any(run.is_done for run in runs)
        latch.free.set()
        assert values(*runs) == [1, 3]
        assert all(run.is_done for run in runs)
        assert values(*runs) == [1, 3]  # they are kept
        ((executor),) = scheduler._executors.values()
        assert executor.alternate is not None
    assert_released(*devices)


def test_inputs_are_copied():
    latch = Latch()
    _, scheduler = opened(latch)
    with scheduler:
        x = np.ones(N, np.float32)
        runs = []
        for _ in range(2):
            runs.append(scheduler.start(SUMS, {"x": x}))
            x += 1
        latch.free.set()
        assert values(*runs) == [1, 3]


def test_a_third_run_waits_for_the_first():
    latch = Latch()
    _, scheduler = opened(latch)
    with scheduler:
        runs = [started(scheduler, SUMS, value) for value in (1, 2)]
        threading.Timer(LATE_S, latch.free.set).start()
        runs.append(started(scheduler, SUMS, 3))
        assert runs[0].is_done
        assert values(*reversed(runs)) == [6, 3, 1]  # whatever is taken first


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.run(SUMS, {"x": ZERO}),
        lambda s: s.run(harmless(), {"x": X}),
        lambda s: s.clear_states(),
        lambda s: s.forget(SUMS),
        lambda s: s.exchange.set_state(SUMS.named("total"), X),
        lambda s: s.reset(),
        lambda s: s.close(),
    ],
    ids=["itself", "another", "clear_states", "forget", "set_state", "reset", "close"],
)
def test_other_calls_come_behind(call):
    """The outputs are there afterwards, even if nothing else is."""
    latch = Latch()
    devices, scheduler = opened(latch)
    with scheduler:
        runs = [started(scheduler, SUMS, value) for value in (1, 2)]
        threading.Timer(LATE_S, latch.free.set).start()
        call(scheduler)
        assert values(*runs) == [1, 3]
    assert_released(*devices)


def test_plans_follow_each_other():
    """Runs of several graphs, in the order of their starts, without a wait in between."""
    latch = Latch()
    _, scheduler = opened(latch)
    g = GraphBuilder("twice")
    total = g.state("total", (N,))
    twice = g.build(y=g.cpy(g.scale(total, 2.0), total))
    with scheduler:
        for graph in (SUMS, twice):
            scheduler.prepare(graph)
        runs = [started(scheduler, SUMS, 1), scheduler.start(twice, {})]
        runs.append(started(scheduler, SUMS, 5))
        assert not any(run.is_done for run in runs)
        latch.free.set()
        assert values(*runs) == [1, 2, 7]


def test_over_devices():
    """A run that needs the host to order it waits; all compute what they would one by one."""
    devices, scheduler = opened(lambda out, inputs, _: np.copyto(out, inputs[0]), devices=2)
    graph, wanted = chain(1)
    with scheduler:
        for _ in range(3):
            runs = [scheduler.start(graph, {"x": k * X}, wanted) for k in range(4)]
            for k, run in enumerate(runs):
                np.testing.assert_allclose(only(graph, run.outputs()), chain_result(k * X), 1e-6)
    assert_released(*devices)


class HeldFailure(Failing):
    """Raises once, when it is released: whoever starts runs before cannot see the failure."""

    def __init__(self):
        super().__init__(ZeroDivisionError("by zero"))
        self.free = threading.Event()

    def __call__(self, out, inputs, params):
        assert self.free.wait(60)
        super().__call__(out, inputs, params)


class TestFaults:
    def test_the_error_is_that_of_the_run(self):
        failure = HeldFailure()
        devices, scheduler = opened(failure)
        with scheduler:
            first, second = started(scheduler, SUMS, 1), started(scheduler, SUMS, 2)
            failure.free.set()
            for run in (first, first, second):  # the stream is poisoned
                with pytest.raises(DeviceFault, match="gelu failed: ZeroDivisionError: by zero"):
                    run.outputs()
            scheduler.reset()
            assert values(started(scheduler, SUMS, 5)) == [5]
        assert_released(*devices)

    @pytest.mark.parametrize("end", [Scheduler.close, Scheduler.reset])
    def test_nobody_takes_the_outputs(self, end):
        failure = HeldFailure()
        devices, scheduler = opened(failure)
        with scheduler:
            runs = [started(scheduler, SUMS, k) for k in range(2)]
            failure.free.set()
            end(scheduler)
            for run in runs:
                with pytest.raises(DeviceFault, match="by zero"):
                    run.outputs()
        assert_released(*devices)

    def test_a_device_that_hangs(self):
        latch = Latch()
        devices, scheduler = opened(latch, timeout_s=0.1)
        with scheduler:
            runs = [started(scheduler, SUMS, k) for k in range(2)]
            with pytest.raises(SyncTimeout, match=r"no progress for 0\.1 s"):
                runs[1].outputs()
            with pytest.raises(SyncTimeout):
                runs[0].outputs()
            latch.free.set()
        assert_released(*devices)

    @pytest.mark.parametrize(
        "wrong",
        [{}, {"x": ZERO, "y": ZERO}, {"x": np.zeros(N)}],
        ids=["none", "another", "f64"],
    )
    def test_a_bad_input_changes_nothing(self, wrong):
        latch = Latch()
        devices, scheduler = opened(latch)
        with scheduler:
            run = started(scheduler, SUMS, 1)
            with pytest.raises(UsageError, match="input"):
                scheduler.start(SUMS, wrong)
            latch.free.set()
            assert values(run, started(scheduler, SUMS, 2)) == [1, 3]
        assert_released(*devices)

    def test_an_interrupted_wait(self, monkeypatch):
        latch = Latch()
        devices, scheduler = opened(latch)
        with scheduler:
            run = started(scheduler, SUMS, 1)

            def interrupted(*_, **__):
                raise KeyboardInterrupt

            with monkeypatch.context() as patched:
                patched.setattr("ggsched.run.executor.wait_patiently", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    run.outputs()
            with pytest.raises(UsageError, match="the wait for the run was interrupted"):
                run.outputs()
            latch.free.set()
            assert values(started(scheduler, SUMS, 2)) == [3]  # it was under way
        assert_released(*devices)

    def test_no_memory_for_a_second_one(self):
        """Then the second run waits for the first."""
        latch = Latch()
        latch.free.set()
        (device,), scheduler = opened(latch)
        with scheduler:
            assert values(started(scheduler, SUMS, 1)) == [1]
            nbytes = sum(b.nbytes for b in device.open_buffers)
        sizes = {"memory_nbytes": nbytes, "max_allocation_nbytes": nbytes}
        device = TestDevice(gelu=latch, is_async=True, copy_order="stream", **sizes)
        with Scheduler([device], settings=Settings()) as scheduler:
            runs = [started(scheduler, SUMS, value) for value in (1, 2, 3)]
            assert values(*runs) == [1, 3, 6]
            ((executor),) = scheduler._executors.values()
            assert executor.alternate is None
        assert_released(device)


def test_where_runs_do_not_overlap():
    """They are over when ``start`` returns; ``overlaps`` says so."""
    latch = Latch()
    latch.free.set()
    for settings, recorder in (
        (Settings(streams="autotune"), None),
        (Settings(memory_budget=(("test:0", 1 << 20),)), None),
        (Settings(), Recorder()),
    ):
        device = TestDevice(gelu=latch, is_async=True)
        with Scheduler([device], settings=settings, recorder=recorder) as scheduler:
            assert not scheduler.overlaps
            run = started(scheduler, SUMS, 1)
            assert run.is_done
            assert values(run, started(scheduler, SUMS, 2)) == [1, 3]
        assert_released(device)


def test_outputs_are_taken_by_one_call_at_a_time():
    latch = Latch()
    _, scheduler = opened(latch)
    with scheduler:
        run = started(scheduler, SUMS, 1)
        found = []
        thread = threading.Thread(target=lambda: found.append(values(run)), name="worker-a")
        thread.start()
        while not scheduler.guard._slot:
            pass
        with pytest.raises(UsageError, match="while thread 'worker-a'"):
            run.outputs()
        latch.free.set()
        thread.join(60)
        assert found == [[1]]


def test_many_runs_of_many_graphs():
    """Plans come and go, as few are kept; nothing is left open."""
    rng = np.random.default_rng(1)
    devices, _ = opened(lambda out, inputs, _: np.copyto(out, inputs[0]))
    made = []
    for k in range(5):
        g = GraphBuilder(f"add {k}")
        total = g.state("total", (N,))
        y = g.add(total, g.input("x", (N,)))
        made.append(g.build(y=g.cpy(g.scale(y, 1.0, float(k)), total)))
    total, wanted, runs = 0.0, [], []
    with Scheduler(devices, settings=Settings(), plan_limit=2) as scheduler:
        for k in rng.integers(0, 5, 60):
            total += 1.0 + k
            wanted.append(total)
            runs.append(started(scheduler, made[k], 1))
            assert len(scheduler._order._started) <= 4
        assert values(*runs) == wanted
    assert_released(*devices)


def test_constraints_and_forms():
    """A run says what ``run`` would: outputs by tensor, name and id."""
    graph = harmless()
    with Scheduler(["cpu:0"]) as scheduler:
        run = scheduler.start(graph, {"x": X}, Constraints())
        assert isinstance(run, StartedRun)
        found = run.outputs()
        np.testing.assert_array_equal(found[graph.outputs[0]], 3 * X)
        assert found is run.outputs()
