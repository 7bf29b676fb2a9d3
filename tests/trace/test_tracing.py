"""Traces of live devices: they say what happened, and the sanitizer checks what might have."""

import time

import msgspec
import numpy as np
import pytest

from ggsched.backend.protocols import Buffer, Device, Event, Program, Stream
from ggsched.config import Settings
from ggsched.errors import DeviceFault, UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.passes.place import Constraints
from ggsched.sanitize import check_trace
from ggsched.scheduler import Scheduler
from ggsched.trace.export import trace_from_lines, trace_to_lines
from ggsched.trace.recorder import Recorder
from ggsched.trace.schema import Record, Sync, Wait, Work
from ggsched.trace.tracing import traced
from tests.backends.device_settings import TIMEOUT_S, Latch, cpu_device, node, upload, vector
from tests.run.devices import TestDevice
from tests.run.graphs import W, X, chain, only

MACHINES = {
    "cpu": lambda: [cpu_device(sync=False, index=i) for i in range(2)],
    "cpu sync": lambda: [cpu_device(sync=True, index=i) for i in range(2)],
}


@pytest.fixture(params=MACHINES)
def machine(request):
    devices = MACHINES[request.param]()
    yield devices
    for device in devices:
        device.close()


def kinds(trace):
    return [type(entry).__name__ for entry in trace.entries]


def without(trace, *gone):
    entries = tuple(e for i, e in enumerate(trace.entries) if i not in gone)
    return msgspec.structs.replace(trace, entries=entries)


def there_and_back():
    """Return a graph whose middle node is on the other device, and ``x -> 2 x + silu(x)``."""
    g = GraphBuilder("there and back")
    x = g.input("x", (16,))
    graph = g.build(g.add(g.scale(x, 2.0), g.silu(x)))
    return graph, Constraints(pins={0: 1, 1: 0, 2: 0}), lambda x: 2 * x + x / (1 + np.exp(-x))


def run_chain(devices, runs=3):
    graph, pins, result = there_and_back()
    recorder = Recorder()
    with Scheduler(devices, settings=Settings(), recorder=recorder) as scheduler:
        for i in range(runs):
            found = only(graph, scheduler.run(graph, {"x": X + i}, pins))
            np.testing.assert_allclose(found, result(X + i), rtol=1e-5)
    return recorder.trace("chain")


def test_runs_over_two_devices_are_clean(machine):
    trace = run_chain(machine)
    assert {a.kind for a in trace.actors} == {"host", "stream"}
    assert {"Alloc", "Work", "Record", "Wait", "Sync", "Free"} <= set(kinds(trace))
    report = check_trace(trace)
    assert report.is_clean, report.to_text()
    again = trace_from_lines(trace_to_lines(trace))
    assert again == trace


def test_what_a_run_does_is_in_it(machine):
    trace = run_chain(machine, runs=1)
    labels = [e.label for e in trace.entries if isinstance(e, Work)]
    assert labels[0] == "write inputs"
    assert labels[-1] == "read outputs"
    assert [label.split()[1] for label in labels if label[0] == "n"] == [
        "scale",
        "silu",
        "add",
    ]


def test_each_wait_that_is_left_out_is_missed(machine):
    """No run went wrong, and the checker sees all the same that it might have."""
    trace = run_chain(machine)
    waits = [i for i, e in enumerate(trace.entries) if isinstance(e, Wait)]
    assert waits
    for i in waits:
        report = check_trace(without(trace, i))
        assert {f.kind for f in report.findings} == {"race"}
        assert all(f.earlier and f.later and f.fix for f in report.findings)


def test_host_that_does_not_wait(machine):
    trace = run_chain(machine, runs=1)
    syncs = [i for i, e in enumerate(trace.entries) if isinstance(e, Sync)]
    findings = check_trace(without(trace, *syncs)).findings
    assert "read outputs" in {f.later.action for f in findings if f.later}
    assert "free" in {f.later.action for f in findings if f.later}


def test_states_and_weights():
    g = GraphBuilder("state")
    s = g.state("s", (16,))
    total = g.cpy(g.add(s, g.weight("w", (16,))), s)
    graph = g.build(total)
    recorder = Recorder()
    device = cpu_device(sync=False)
    with Scheduler([device], weights={"w": W}, settings=Settings(), recorder=recorder) as scheduler:
        for k in range(1, 4):
            np.testing.assert_array_equal(only(graph, scheduler.run(graph, {})), W * k)
    device.close()
    report = check_trace(recorder.trace("state"))
    assert report.is_clean, report.to_text()


class TestOneDevice:
    @pytest.fixture
    def recorder(self):
        return Recorder()

    @pytest.fixture
    def device(self, recorder):
        (made,) = traced([cpu_device(sync=False)], recorder)
        yield made
        made.close()

    def test_protocols(self, device):
        stream = device.create_stream()
        buffer, event = device.allocate(16), device.create_event()
        program = device.compile([node("add", [vector(buffer, 4)] * 2, vector(buffer, 4))], stream)
        assert isinstance(device, Device)
        assert isinstance(stream, Stream)
        assert isinstance(buffer, Buffer)
        assert isinstance(event, Event)
        assert isinstance(program, Program)
        assert buffer.nbytes == 16
        assert stream.device is buffer.device is event.device is device
        assert not event.is_recorded
        stream.record(event)
        event.sync(TIMEOUT_S)
        assert event.is_recorded
        assert event.is_done
        assert stream.is_done
        with pytest.raises(AttributeError):
            stream.nothing_of_this_name  # noqa: B018
        assert len(buffer.host_view()) == 16
        for thing in (event, program, buffer, buffer, stream):
            thing.close()

    def test_fresh_memory_is_undefined(self, device, recorder):
        stream, out = device.create_stream(), bytearray(16)
        buffer = device.allocate(16)
        stream.download(buffer, 0, memoryview(out))
        stream.sync(TIMEOUT_S)
        (finding,) = check_trace(recorder.trace("t")).findings
        assert finding.kind == "undefined"

    def test_freed_while_it_is_used(self, device, recorder):
        stream, buffer = device.create_stream(), device.allocate(16)
        upload(stream, buffer, X[:4])
        buffer.close()
        stream.sync(TIMEOUT_S)
        (finding,) = check_trace(recorder.trace("t")).findings
        assert (finding.kind, finding.hazard, finding.later.action) == ("race", "WAW", "free")
        assert finding.fix.startswith("let host wait for cpu:0 q0")

    @pytest.mark.parametrize("what", ["stream", "event"])
    def test_asking_is_as_good_as_waiting(self, device, recorder, what):
        stream, buffer, event = device.create_stream(), device.allocate(16), device.create_event()
        upload(stream, buffer, X[:4])
        stream.record(event)
        asked = stream if what == "stream" else event
        while not asked.is_done:
            time.sleep(0.001)
        buffer.close()
        assert check_trace(recorder.trace("t")).is_clean

    def test_source_rewritten_under_an_upload(self, device, recorder):
        stream, buffer = device.create_stream(), device.allocate(16)
        source = device.allocate_host(16)
        recorder.add(recorder.host_work("fill", writes=[source]))
        stream.upload(source, buffer, 0)
        recorder.add(recorder.host_work("fill again", writes=[source]))
        report = check_trace(recorder.trace("t"))
        assert [f.hazard for f in report.findings] == ["WAR"]
        stream.sync(TIMEOUT_S)

    def test_what_is_refused_is_not_recorded(self, device, recorder):
        stream, buffer, event = device.create_stream(), device.allocate(16), device.create_event()
        before = kinds(recorder.trace("t"))
        with pytest.raises(UsageError):
            stream.upload(memoryview(bytes(32)), buffer, 0)
        with pytest.raises(UsageError):
            stream.wait(event)
        stream.record(event)
        with pytest.raises(UsageError):
            stream.record(event)
        assert kinds(recorder.trace("t")) == [*before, "Record"]

    def test_objects_of_others(self, device, recorder):
        stream = device.create_stream()
        other = cpu_device(sync=True)
        with pytest.raises(UsageError):
            stream.upload(memoryview(bytes(8)), other.allocate(16), 0)
        with pytest.raises(UsageError):
            stream.record(other.create_event())
        latch = Latch()
        latch.open()
        stream.wait(latch)
        assert not [e for e in recorder.trace("t").entries if isinstance(e, Wait | Record)]
        other.close()


def test_snapshots_are_read_by_the_host():
    recorder = Recorder()
    (device,) = traced([cpu_device(sync=True)], recorder)
    assert device.facts.snapshots_uploads
    stream, buffer, source = device.create_stream(), device.allocate(16), device.allocate_host(16)
    stream.upload(source, buffer, 0)
    recorder.add(recorder.host_work("fill again", writes=[source]))
    report = check_trace(recorder.trace("t"))
    assert report.is_clean, report.to_text()
    device.close()


def test_imported_memory_is_host_memory():
    recorder = Recorder()
    (device,) = traced([cpu_device(sync=False)], recorder)
    array = np.zeros(4, np.float32)
    stream, y = device.create_stream(), device.allocate(16)
    x = device.import_host(memoryview(array).cast("B").toreadonly())
    stream.launch(device.compile([node("add", [vector(x, 4)] * 2, vector(y, 4))], stream))
    recorder.add(recorder.host_work("change", writes=[memoryview(array).cast("B")]))
    stream.sync(TIMEOUT_S)
    (finding,) = check_trace(recorder.trace("t")).findings
    assert (finding.kind, finding.hazard) == ("race", "WAR")
    device.close()


def test_trace_of_a_run_that_fails():
    def fail(out, inputs, params):
        raise ValueError("boom")

    graph, pins = chain(device_of_boom=1)
    recorder = Recorder()
    devices = [TestDevice("test:0"), TestDevice("test:1", gelu=fail)]
    scheduler = Scheduler(devices, settings=Settings(), recorder=recorder)
    with pytest.raises(DeviceFault):
        scheduler.run(graph, {"x": X}, pins)
    scheduler.close()
    trace = recorder.trace("failed")
    assert trace.entries
    assert "event" not in {f.kind for f in check_trace(trace).findings}
    for device in devices:
        device.close()


@pytest.mark.opencl
def test_over_opencl_and_cpu():
    pytest.importorskip("pyopencl")
    trace = run_chain(["opencl:0", "cpu:0"])
    report = check_trace(trace)
    assert report.is_clean, report.to_text()
    assert {a.device for a in trace.actors} == {"", "opencl:0", "cpu:0"}
