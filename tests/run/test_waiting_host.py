"""The host runs commands of a stream with a thread of its own where it would only wait for them."""

import signal
import threading

import numpy as np
import pytest

from ggsched.config import Settings
from ggsched.errors import DeviceFault
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import I32
from ggsched.passes.place import Constraints
from ggsched.scheduler import Scheduler
from ggsched_cpu import stream as cpu_stream
from ggsched_cpu.program import Segment
from tests.backends.device_settings import Latch, cpu_device, node, upload, vector
from tests.run.devices import TestDevice
from tests.run.graphs import X, chain, only, plus_weight

RUNS = 4


class Launches(list):
    """Whether launches were run here."""

    def __init__(self):
        super().__init__()
        self.by_node = {}


@pytest.fixture
def launches(monkeypatch):
    """Return whether each launch on ``cpu`` ran on the thread of the test, also by its node."""
    found, run, here = Launches(), Segment.run, threading.get_ident()

    def noted(self):
        is_here = threading.get_ident() == here
        found.append(is_here)
        found.by_node.setdefault(self.pieces[0].labels[0].split()[1], []).append(is_here)
        run(self)

    monkeypatch.setattr(Segment, "run", noted)
    return found


def run(devices, graph, constraints=None, *, runs=RUNS, inputs=None):
    """Return the outputs of some runs."""
    inputs = inputs or {"x": X}
    weights = {"w": np.ones(X.size, np.float32)}
    with Scheduler(devices, settings=Settings(), weights=weights.__getitem__) as scheduler:
        return [only(graph, scheduler.run(graph, inputs, constraints)) for _ in range(runs)]


def forked():
    """Return a graph of two branches that are joined, and pins of one branch to each device."""
    g = GraphBuilder("forked")
    x = g.input("x", X.shape)
    y = g.build(g.add(g.gelu(x), g.silu(x)))
    return y, Constraints(pins={0: 0, 1: 1, 2: 0})


class TestWhoRuns:
    def test_one_device_from_the_second_run_on(self, launches):
        outputs = run(["cpu:0"], plus_weight())
        assert launches == [False] + [True] * (RUNS - 1)
        for out in outputs:
            np.testing.assert_array_equal(out, (X + 1) * 2)

    def test_a_chain_through_two_devices(self, launches):
        graph, pins = chain(1)
        outputs = run(["cpu:0", "cpu:1"], graph, pins)
        assert launches == [False] * 3 + [True] * 3 * (RUNS - 1)
        for out in outputs[1:]:
            np.testing.assert_array_equal(out, outputs[0])

    def test_a_chain_through_a_device_that_is_not_asked(self, launches):
        graph, pins = chain(1)
        outputs = run([cpu_device(sync=False), TestDevice(is_async=True)], graph, pins)
        assert launches == [False] * 2 + [True] * 2 * (RUNS - 1)
        for out in outputs[1:]:
            np.testing.assert_array_equal(out, outputs[0])

    def test_not_what_another_device_could_work_beside(self, launches):
        graph, pins = forked()
        outputs = run(["cpu:0", "cpu:1"], graph, pins)
        assert not any(launches.by_node["gelu"])
        assert any(launches.by_node["silu"])
        for out in outputs[1:]:
            np.testing.assert_array_equal(out, outputs[0])

    def test_not_what_takes_long(self, launches, monkeypatch):
        monkeypatch.setattr(cpu_stream, "BRIEF_S", 0.0)
        run(["cpu:0"], plus_weight())
        assert not any(launches)


def test_a_fault_is_that_of_the_worker():
    g = GraphBuilder("rows")
    ids = g.input("ids", (2,), I32)
    graph = g.build(g.get_rows(g.weight("w", (3, 16)), ids, name="rows"))
    weights = {"w": np.ones((3, 16), np.float32)}
    with Scheduler(["cpu:0"], settings=Settings(), weights=weights.__getitem__) as scheduler:
        for _ in range(RUNS):
            scheduler.run(graph, {"ids": np.array([0, 0], np.int32)})
        with pytest.raises(DeviceFault, match="n0 get_rows 'rows' failed: UsageError: row 7"):
            scheduler.run(graph, {"ids": np.array([0, 7], np.int32)})


class TestStream:
    """What a stream does with what it is offered; ``Latch`` is an event that is not done yet."""

    def test_nothing_before_its_turn(self):
        device, latch = cpu_device(sync=False), Latch()
        stream, buffer = device.create_stream(), device.allocate(4)
        stream.wait(latch)
        stream.__run_here__(lambda: upload(stream, buffer, np.ones(1, np.float32)), [])
        assert not stream.is_done
        latch.open()
        stream.sync(10)
        assert np.frombuffer(buffer.host_view(), np.float32) == 1
        device.close()

    def test_an_interrupted_wait_is_left_to_the_worker(self):
        device, latch = cpu_device(sync=False), Latch()
        stream = device.create_stream()

        def interrupt():
            latch.entered.wait(10)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            stream.__run_here__(lambda: stream.wait(latch), [])
        signal.signal(signal.SIGINT, before)
        thread.join()
        assert not stream.is_done
        latch.open()
        stream.sync(10)
        device.close()

    def test_what_fails_poisons_it(self):
        device, latch = cpu_device(sync=False), Latch()
        stream = device.create_stream()
        latch.open(DeviceFault("elsewhere"))
        stream.__run_here__(lambda: stream.wait(latch), [])
        with pytest.raises(DeviceFault, match="elsewhere"):
            stream.sync(10)
        device.close()

    def test_an_unknown_program_is_not_run_here(self, launches):
        device = cpu_device(sync=False)
        stream = device.create_stream()
        x, y = vector(device.allocate(16), 4), vector(device.allocate(16), 4)
        program = device.compile([node("silu", (x,), y)], stream)
        for _ in range(2):
            stream.__run_here__(lambda: stream.launch(program), [program])
            stream.sync(10)
        assert launches == [False, True]
        device.close()
