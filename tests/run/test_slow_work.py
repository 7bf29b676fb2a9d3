"""Timeouts count from the last progress: slow work is not ended, work that stands still is."""

import itertools
import re
import threading

import numpy as np
import pytest

from ggsched import GraphBuilder
from ggsched.backend import base_worker
from ggsched.backend.progress import PARTS, progress_of, wait_patiently
from ggsched.backend.registry import open_devices
from ggsched.config import Settings
from ggsched.errors import SyncTimeout
from ggsched.passes.place import Constraints
from ggsched.run.executor import Executor
from ggsched.scheduler import Scheduler
from tests.run.devices import Latch, TestDevice, after_the_first

TIMEOUT_S = 0.4
STEP_S = 0.1
STEPS = 10
X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


class Slow:
    """A kernel that takes its time."""

    def __call__(self, out, inputs, params):
        threading.Event().wait(STEP_S)
        np.copyto(out, inputs[0])


def slow_graph():
    """Return a graph of slow nodes, then one of another op."""
    g = GraphBuilder("slow")
    y = g.input("x", X.shape)
    for _ in range(STEPS):
        y = g.gelu(y)
    return g.build(g.scale(y, 2.0))


@pytest.mark.parametrize("checked", [False, True])
def test_a_long_launch_whose_nodes_complete_is_not_ended(checked):
    """All nodes are one launch, which takes more than twice the timeout."""
    device = TestDevice(gelu=Slow(), is_async=True)
    graph = slow_graph()
    settings = Settings(timeout_s=TIMEOUT_S, checked=checked)
    with Scheduler([device], settings=settings) as scheduler:
        (out,) = scheduler.run(graph, {"x": X}).values()
    np.testing.assert_array_equal(out, 2 * X)


def test_a_stream_waits_for_another_one_that_works():
    """The second device's stream waits for an event of the first for twice its timeout."""
    devices = [TestDevice(f"test:{i}", gelu=Slow(), is_async=True) for i in range(2)]
    for device in devices:
        device.event_timeout_s = TIMEOUT_S
    pins = Constraints(pins={**dict.fromkeys(range(STEPS), 0), STEPS: 1})
    with Scheduler(devices, settings=Settings(timeout_s=TIMEOUT_S)) as scheduler:
        (out,) = scheduler.run(slow_graph(), {"x": X}, pins).values()
    np.testing.assert_array_equal(out, 2 * X)


def test_work_that_stands_still_is_ended_and_named():
    latch = Latch()
    device = TestDevice(gelu=latch, is_async=True)
    scheduler = Scheduler([device], settings=Settings(timeout_s=0.05))
    device.on_sync = after_the_first(device, latch)
    try:
        with pytest.raises(SyncTimeout, match=r"no progress for 0.05 s: .* running: n0 gelu"):
            scheduler.run(slow_graph(), {"x": X})
    finally:
        latch.free.set()
        scheduler.close()


class Held:
    """A kernel that is held until its thread's clock was read a number of times."""

    def __init__(self, reads, is_computing):
        self.reads, self.is_computing = reads, is_computing
        self.latch = Latch()

    def __call__(self, out, inputs, params):
        self.latch(out, inputs, params)

    def clock(self):
        """Return the processor time of the kernel's thread."""
        self.reads -= 1
        if not self.reads:
            self.latch.free.set()
        return 1.0 * self.reads if self.is_computing else 0.0


@pytest.fixture
def held(monkeypatch, caplog):
    """Run one node on a worker whose processor time is the kernel's; return what was logged."""

    def run(kernel):
        def progress(executor):
            assert kernel.latch.reached.wait(60)
            return look(executor)

        look = Executor._progress
        monkeypatch.setattr(Executor, "_progress", progress)
        monkeypatch.setattr(base_worker, "thread_clock", lambda: kernel.clock)
        device = TestDevice(gelu=kernel, is_async=True)
        g = GraphBuilder("held")
        graph = g.build(g.gelu(g.input("x", X.shape), name="slow"))
        scheduler = Scheduler([device], settings=Settings(timeout_s=0.02))
        scheduler.prepare(graph)
        try:
            (out,) = scheduler.run(graph, {"x": X}).values()
        finally:
            kernel.latch.free.set()
            scheduler.close()
        np.testing.assert_array_equal(out, X)
        return caplog.text

    caplog.set_level("WARNING", "ggsched")
    return run


def test_a_node_that_computes_is_waited_for_and_named(held):
    """One node takes five times the timeout."""
    log = held(Held(5 * PARTS, is_computing=True))
    assert re.search(r"still running: n0 gelu 'slow' for \d+(\.\d+)? m?s", log)


def test_a_node_that_neither_computes_nor_ends_is_given_up(held):
    words = r"no progress for 0.02 s: .*running: n0 gelu 'slow' for .*it does not compute"
    with pytest.raises(SyncTimeout, match=words):
        held(Held(50 * PARTS, is_computing=False))


def test_the_worker_of_a_cpu_knows_its_processor_time():
    (device,) = open_devices(["cpu:0"])
    worker, done = device.create_stream(), threading.Event()
    worker._submit("here", done.set)
    assert done.wait(60)
    clock = worker.progress.clock
    assert clock is None or clock() > 0
    worker.close()
    device.close()


@pytest.mark.parametrize(("state", "is_progress"), [(1, True), (2, False), (3, False)])
def test_a_kernel_that_a_driver_reports_as_running_is_progress(monkeypatch, state, is_progress):
    """The other states are: given to the device, and in the queue."""
    command_count = pytest.importorskip("ggsched_opencl.command_count")
    monkeypatch.setattr(command_count, "status_of", lambda kernel: kernel)
    now = itertools.count()
    monkeypatch.setattr(command_count, "monotonic", lambda: next(now))
    counted = command_count.CommandCount()
    counted.launch()((state, "n3 gelu"))
    first, second = (counted.mark((0, 0)) for _ in range(2))
    assert (first != second) == is_progress
    assert first.doing == "n3 gelu"


def test_the_wait_of_a_function():
    """It is given up after the timeout without progress, and progress is reported otherwise."""
    waited, beats, marks = [], [], iter([0, 1, 1, 2, *[3] * 20])

    def wait(seconds):
        waited.append(seconds)
        raise SyncTimeout("late")

    with pytest.raises(SyncTimeout):
        wait_patiently(wait, lambda: next(marks), 8.0, beat=lambda: beats.append(len(waited)))
    assert set(waited) == {1.0}
    assert beats == [2, 4, 5]
    assert len(waited) == 5 + 8
    waited.clear()
    with pytest.raises(SyncTimeout):
        wait_patiently(wait, lambda: next(marks), 0.0)
    assert waited == [0.0]


@pytest.mark.opencl
def test_opencl_counts_kernels():
    (device,) = open_devices(["opencl:0"])
    g = GraphBuilder("counted")
    x = g.input("x", (256, 256))
    for _ in range(5):
        x = g.mul_mat(x, x)
    graph = g.build(x)
    with Scheduler([device], settings=Settings()) as scheduler:
        scheduler.prepare(graph)
        (stream,) = scheduler._store.streams
        before = progress_of(stream)
        scheduler.run(graph, {"x": np.ones((256, 256), np.float32)})
        assert progress_of(stream).done >= before.done + 5
    device.close()
