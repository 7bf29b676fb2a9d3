"""Worker threads: order, true asynchrony, waiting, faults, cleanup. Nothing here sleeps."""

import gc
import subprocess
import sys
import threading
import weakref
from contextlib import suppress

import numpy as np
import pytest

from ggsched.backend.probe import probe
from ggsched.errors import BackendUnavailable, DeviceFault, SyncTimeout, UsageError
from ggsched_cpu import open_backend
from tests.backends.device_settings import (
    TIMEOUT_S,
    Latch,
    base_device,
    cpu_device,
    download,
    far_device,
    node,
    upload,
    vector,
)
from tests.support.errors import refused

SHORT_S = 0.01


@pytest.fixture
def device():
    made = cpu_device(sync=False)
    yield made
    made.close()


def workers():
    return [t for t in threading.enumerate() if t.name.startswith("ggsched cpu")]


def test_commands_run_behind_the_callers_back(device):
    stream, buffer, latch = device.create_stream(), device.allocate(16), Latch()
    view = np.frombuffer(buffer.host_view(), np.float32)
    view[:] = 0
    stream.wait(latch)
    upload(stream, buffer, np.ones(4, np.float32))
    event = device.create_event()
    stream.record(event)
    assert not stream.is_done
    assert not event.is_done
    assert not view.any()
    latch.open()
    event.sync(TIMEOUT_S)
    assert event.is_done
    assert stream.is_done
    assert view.all()


def test_order_of_a_stream(device):
    stream, latch = device.create_stream(), Latch()
    a, b = device.allocate(16), device.allocate(16)
    double = device.compile([node("add", [vector(a, 4)] * 2, vector(b, 4))], stream)
    stream.wait(latch)
    seen = []
    for i in range(50):
        upload(stream, a, np.full(4, i, np.float32))
        stream.launch(double)
        out = np.empty(4, np.float32)
        stream.download(b, 0, memoryview(out).cast("B"))
        seen.append(out)
    latch.open()
    stream.sync(TIMEOUT_S)
    np.testing.assert_array_equal(np.array(seen)[:, 0], 2 * np.arange(50))


def test_an_enqueued_launch_outlives_its_program_and_buffers(device):
    stream, latch = device.create_stream(), Latch()
    a, b = device.allocate(16), device.allocate(16)
    upload(stream, a, np.ones(4, np.float32))
    program = device.compile([node("add", [vector(a, 4)] * 2, vector(b, 4))], stream)
    out = np.empty(4, np.float32)
    stream.wait(latch)
    stream.launch(program)
    stream.download(b, 0, memoryview(out).cast("B"))
    for thing in (program, a, b):
        thing.close()
    latch.open()
    stream.sync(TIMEOUT_S)
    np.testing.assert_array_equal(out, 2)


def test_streams_are_independent(device):
    held, free, latch = device.create_stream(), device.create_stream(), Latch()
    buffer = device.allocate(16)
    held.wait(latch)
    upload(free, buffer, np.arange(4, dtype=np.float32))
    np.testing.assert_array_equal(download(free, buffer, 4), range(4))
    assert not held.is_done
    latch.open()


def test_wait_for_another_stream(device):
    other = cpu_device(sync=False, index=1)
    assert device.wait_path(other.facts) == "native"
    first, second, latch = other.create_stream(), device.create_stream(), Latch()
    source, target = other.allocate(16), device.allocate(16)
    event = other.create_event()
    first.wait(latch)
    upload(first, source, np.arange(4, dtype=np.float32))
    first.record(event)
    second.wait(event)
    event.close()
    second.copy(source, 0, target, 0, 16)
    assert not second.is_done
    latch.open()
    np.testing.assert_array_equal(download(second, target, 4), range(4))
    other.close()


def test_wait_paths(device):
    assert device.wait_path(Latch().device.facts) == "thread"
    topology = probe([device, base_device(), far_device()])
    assert topology.wait_path(0, 0) == "native"
    assert topology.wait_path(0, 1) == "thread"
    assert topology.wait_path(1, 0) == "host"
    assert (0, 1) in topology.copy_paths
    assert topology.copy_paths[0, 2].by == 2


def test_timeout_leaves_the_stream_usable(device):
    stream, latch, event = device.create_stream(), Latch(), device.create_event()
    stream.wait(latch)
    stream.record(event)
    for call in (lambda: stream.sync(SHORT_S), lambda: event.sync(SHORT_S), lambda: stream.sync(0)):
        with pytest.raises(SyncTimeout):
            call()
    latch.open()
    stream.sync(float("inf"))
    event.sync(0.0)
    buffer = device.allocate(16)
    upload(stream, buffer, np.arange(4, dtype=np.float32))
    np.testing.assert_array_equal(download(stream, buffer, 4), range(4))


def test_an_event_that_never_comes_is_a_fault_not_a_hang():
    device, latch = cpu_device(sync=False, timeout_s=SHORT_S), Latch()
    stream = device.create_stream()
    stream.wait(latch)
    with pytest.raises(DeviceFault, match="wait for an event failed") as caught:
        stream.sync(TIMEOUT_S)
    assert isinstance(caught.value.__cause__, SyncTimeout)
    device.close()


def test_failure_of_a_foreign_event(device):
    stream, latch = device.create_stream(), Latch()
    stream.wait(latch)
    latch.open(DeviceFault("the other device is on fire"))
    with pytest.raises(DeviceFault, match="on fire"):
        stream.sync(TIMEOUT_S)


def test_a_fault_skips_what_follows_and_wakes_who_waits(device):
    stream, other, latch = device.create_stream(), device.create_stream(), Latch()
    buffer, event = device.allocate(16), device.create_event()
    view = np.frombuffer(buffer.host_view(), np.float32)
    view[:] = 0
    stream.wait(latch)
    upload(stream, buffer, np.ones(4, np.float32))
    stream.record(event)
    other.wait(event)
    waiter = threading.Thread(target=lambda: latch.open(DeviceFault("late")))
    assert latch.entered.wait(TIMEOUT_S)
    waiter.start()
    with pytest.raises(DeviceFault, match="late"):
        event.sync(TIMEOUT_S)
    with pytest.raises(DeviceFault, match="late"):
        other.sync(TIMEOUT_S)
    waiter.join()
    assert event.is_done
    assert not view.any()


def test_memory_is_not_kept(device):
    stream, buffer, source = device.create_stream(), device.allocate(16), np.zeros(16, np.uint8)
    event, gone = device.create_event(), weakref.ref(source)
    stream.upload(source.data, buffer, 0)
    stream.record(event)
    event.sync(TIMEOUT_S)
    del source
    assert gone() is None


def test_memory_is_not_kept_by_a_fault(device):
    stream, latch = device.create_stream(), Latch()
    a, source = device.allocate(16), np.zeros(16, np.uint8)
    gone = weakref.ref(source)
    stream.wait(latch)
    stream.upload(source.data, a, 0)
    latch.open(DeviceFault("first"))
    with pytest.raises(DeviceFault):
        stream.sync(TIMEOUT_S)
    stream.close()
    del source
    gc.collect()
    assert gone() is None


def test_close_finishes_what_was_enqueued():
    device, latch = cpu_device(sync=False), Latch()
    stream, buffer, event = device.create_stream(), device.allocate(16), device.create_event()
    view = np.frombuffer(buffer.host_view(), np.float32)
    stream.wait(latch)
    upload(stream, buffer, np.ones(4, np.float32))
    stream.record(event)
    latch.open()
    stream.close()
    assert not workers()
    event.sync(0.0)
    assert view.all()
    device.close()


def test_close_does_not_wait_for_ever():
    device, latch = cpu_device(sync=False, timeout_s=SHORT_S), Latch()
    # The latch lets its own worker wait longer than the device does.
    patient = type("Patient", (Latch,), {"sync": lambda self, _: Latch.sync(self, TIMEOUT_S)})()
    stream, event = device.create_stream(), device.create_event()
    stream.wait(patient)
    upload(stream, device.allocate(16), np.ones(4, np.float32))
    stream.record(event)
    assert patient.entered.wait(TIMEOUT_S)
    device.close()
    patient.open()
    with pytest.raises(DeviceFault, match="closed with"):
        event.sync(TIMEOUT_S)
    assert not latch.is_done


def test_a_forgotten_stream_ends_its_worker():
    device = cpu_device(sync=False)
    stream = device.create_stream()
    upload(stream, device.allocate(16), np.ones(4, np.float32))
    stream.sync(TIMEOUT_S)
    (worker,) = workers()
    del stream
    gc.collect()
    worker.join(TIMEOUT_S)
    assert not worker.is_alive()


def test_no_worker_without_commands(device):
    stream = device.create_stream()
    event = device.create_event()
    stream.record(event)
    stream.wait(event)
    event.sync(0.0)
    stream.sync(0.0)
    assert not workers()


def test_each_stream_has_its_thread(device):
    latch, streams = Latch(), [device.create_stream() for _ in range(4)]
    for stream in streams:
        stream.wait(latch)
    assert len(workers()) == 4
    latch.open()


def test_exit_with_a_worker_at_work():
    code = (
        "from tests.backends.device_settings import Latch, cpu_device\n"
        "stream = cpu_device(sync=False).create_stream()\n"
        "latch = Latch()\n"
        "stream.wait(latch)\n"
        "latch.entered.wait()\n"
        "print('bye')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "bye\n", "")


def test_synchronous_mode_needs_no_threads():
    device, latch = cpu_device(sync=True, timeout_s=SHORT_S), Latch()
    stream, buffer = device.create_stream(), device.allocate(16)
    upload(stream, buffer, np.arange(4, dtype=np.float32))
    assert stream.is_done
    assert not device.facts.is_async
    other = cpu_device(sync=True, index=1)
    event = other.create_event()
    other.create_stream().record(event)
    stream.wait(event)
    with refused("EVT-4"):
        stream.wait(latch)
    assert device.wait_path(cpu_device(sync=False).facts) == "host"
    stream.sync(TIMEOUT_S)
    assert not workers()


@pytest.mark.parametrize(("text", "sync"), [("1", True), ("", False), ("0", False)])
def test_settings_come_from_the_environment(monkeypatch, text, sync):
    monkeypatch.setenv("GGSCHED_CPU_SYNC", text)
    monkeypatch.setenv("GGSCHED_TIMEOUT_S", "7.5")
    device = open_backend().open_device(0)
    assert device.settings.sync is sync
    assert device.facts.is_async is not sync
    assert device.event_timeout_s == 7.5
    monkeypatch.setenv("GGSCHED_TIMEOUT_S", "soon")
    with pytest.raises(UsageError, match="GGSCHED_TIMEOUT_S"):
        open_backend()


def test_logical_devices():
    backend = open_backend()
    assert (backend.name, backend.device_count()) == ("cpu", 1)
    assert backend.open_device(63).facts.name == "cpu:63"
    for index in (64, -1):
        with pytest.raises(BackendUnavailable):
            backend.open_device(index)


def test_threads_of_many_streams_make_progress(device):
    """Streams wait for each other in a ring, many times; a lost wake-up would end in a timeout."""
    streams = [device.create_stream() for _ in range(3)]
    buffer = device.allocate(4)
    upload(streams[0], buffer, np.zeros(1, np.float32))
    one = device.allocate(4)
    upload(streams[0], one, np.ones(1, np.float32))
    step = node("add", [vector(buffer, 1), vector(one, 1)], vector(buffer, 1))
    programs = [device.compile([step], stream) for stream in streams]
    event = device.create_event()
    streams[0].record(event)
    for turn in range(300):
        stream = streams[turn % 3]
        stream.wait(event)
        stream.launch(programs[turn % 3])
        event = device.create_event()
        stream.record(event)
    event.sync(TIMEOUT_S)
    assert download(streams[0], buffer, 1)[0] == 300


def test_numpy_warnings_are_silent(device):
    from tests.backends.device_settings import cpu_device as make

    for dev in (device, make(sync=True)):
        stream, a, b = dev.create_stream(), dev.allocate(16), dev.allocate(16)
        upload(stream, a, np.array([1e38, -np.inf, 0, -200], np.float32))
        nodes = [
            node("add", [vector(a, 4)] * 2, vector(b, 4)),
            node("div", [vector(a, 4)] * 2, vector(b, 4)),
            node("silu", [vector(a, 4)], vector(b, 4)),
        ]
        stream.launch(dev.compile(nodes, stream))
        result = download(stream, b, 4)
        assert result[2] == 0
        with suppress(DeviceFault):
            stream.close()
