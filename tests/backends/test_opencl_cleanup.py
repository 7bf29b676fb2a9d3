"""How streams of OpenCL fail and how they end, also with work under way. Nothing sleeps."""

import gc
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest

from ggsched.errors import DeviceFault, SyncTimeout, UsageError
from tests.backends.device_settings import Latch, download, ids_of, node, upload, vector
from tests.backends.opencl_devices import TIMEOUT_S, doubler, opencl_device, recorded, waiters

pytestmark = pytest.mark.opencl


@pytest.fixture
def device():
    made = opencl_device()
    yield made
    made.close()


@pytest.mark.parametrize("is_early", [True, False])
def test_a_failed_event_fails_all_who_wait(device, is_early):
    stream, second, bystander = (device.create_stream() for _ in range(3))
    latch, buffer = Latch(), device.allocate(16)
    if is_early:
        latch.open(DeviceFault("it broke"))
    stream.wait(latch)
    event, after = device.create_event(), device.create_event()
    with suppress(DeviceFault):  # an early one may show at once
        stream.record(event)
    with suppress(DeviceFault):
        second.wait(event)
        second.record(after)
    latch.open(DeviceFault("it broke"))
    for waiting in (event.sync, after.sync, second.sync, stream.sync):
        with pytest.raises(DeviceFault, match="it broke"):
            waiting(TIMEOUT_S)
    for poisoned in (stream, second):
        with pytest.raises(DeviceFault, match="it broke"):
            upload(poisoned, buffer, np.ones(4, np.float32))
        late = device.create_event()
        with pytest.raises(DeviceFault):
            poisoned.record(late)
        with pytest.raises(DeviceFault):
            late.sync(TIMEOUT_S)
    bystander.sync(TIMEOUT_S)


# --- bad ids ---------------------------------------------------------------------------------


def gather(device, stream, ids):
    table, out = device.allocate(4 * 32), device.allocate(4 * 8 * len(ids))
    upload(stream, table, np.arange(32, dtype=np.float32))
    rows = vector(table, 32)
    rows = type(rows)(table, 0, 128, rows.dtype, (4, 8), (32, 4))
    result = type(rows)(out, 0, out.nbytes, rows.dtype, (len(ids), 8), (32, 4))
    nodes = [node("get_rows", [rows, ids_of(device, stream, ids)], result, number=7)]
    return device.compile(nodes, stream), out


def test_bad_ids_travel_with_events(device):
    first, second, third = (device.create_stream() for _ in range(3))
    good, _ = gather(device, first, [0, 3])
    bad, out = gather(device, first, [1, 4])
    first.launch(good)
    early = recorded(first)
    first.launch(bad)
    late = recorded(first)
    second.wait(late)
    third.wait(early)
    third.sync(TIMEOUT_S)
    early.sync(TIMEOUT_S)
    for waiting in (second.sync, late.sync, first.sync):
        with pytest.raises(DeviceFault, match=r"n7 get_rows failed.*row 4 .* 4 rows"):
            waiting(TIMEOUT_S)
    expected = [[*range(8, 16)], [0] * 8]
    np.testing.assert_array_equal(download(third, out, 16).reshape(2, 8), expected)


def test_a_record_in_the_backlog_of_a_device_that_is_being_closed(device, monkeypatch):
    """Its thread asks for memory for fault words when the device takes no calls any more."""
    stream = device.create_stream()
    bad, _ = gather(device, stream, [1, 4])
    stream.launch(bad)
    monkeypatch.setattr(device, "is_closed", True)
    with pytest.raises(DeviceFault, match="n7 get_rows"):
        stream.queue.point().require(TIMEOUT_S)


def test_a_command_that_has_failed_fails_who_waits_for_it(device):
    from ggsched_opencl.driver import cl
    from ggsched_opencl.event import Point

    stream, event = device.create_stream(), device.create_event()
    failed = cl.UserEvent(device.context)
    failed.set_status(-5)
    event.mark(Point(failed, (), "opencl:0 stream 9"))
    stream.wait(event)
    for use in (stream.sync, event.sync):
        with pytest.raises(DeviceFault, match="OpenCL status -5"):
            use(TIMEOUT_S)


def test_verdicts_do_not_pile_up(device):
    stream, other = device.create_stream(), device.create_stream()
    program, _ = gather(device, stream, [0, 3])
    for _ in range(100):
        stream.launch(program)
        event = recorded(stream)
        other.wait(event)
        event.sync(TIMEOUT_S)
    assert len(stream.faults) < 40
    assert len(other.faults) < 40
    other.sync(TIMEOUT_S)


# --- cleanup ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fails", "comes too late", "is given up"])
def test_nothing_behind_a_wait_that_fails_takes_effect(how):
    """Neither on its stream nor on one that waits for an event behind it (EVT-2, ERR-2)."""
    device = opencl_device(timeout_s=0.01 if how == "comes too late" else TIMEOUT_S)
    first, second, third = (device.create_stream() for _ in range(3))
    latch, buffers, out = Latch(), [device.allocate(16) for _ in range(3)], np.zeros(4, np.float32)
    for buffer in buffers:
        upload(third, buffer, np.ones(4, np.float32))
    third.sync(TIMEOUT_S)
    program = doubler(device, first, buffers[0])
    first.wait(latch)
    first.launch(program)
    program.close()
    first.copy(buffers[0], 0, buffers[1], 0, 16)
    first.download(buffers[0], 0, memoryview(out).cast("B"))
    event = recorded(first)
    second.wait(event)
    upload(second, buffers[2], np.zeros(4, np.float32))
    behind = recorded(second)
    if how == "fails":
        latch.open(DeviceFault("it broke"))
    elif how == "is given up":
        first.cancel()
    why = {"fails": "it broke", "comes too late": "SyncTimeout", "is given up": "closed before"}
    for waiting in (first.sync, event.sync, second.sync, behind.sync):
        with pytest.raises(DeviceFault, match=f"wait for an event failed.*{why[how]}"):
            waiting(TIMEOUT_S)
    latch.open()
    assert event.is_done
    assert first.is_done
    for buffer in buffers:
        assert (download(third, buffer, 4) == 1).all()
    assert not out.any()
    device.close()


def test_a_closed_stream_keeps_its_wait(device):
    """What is behind the wait runs when the event is done, and not before (ERR-3, EVT-2)."""
    first, second, latch = device.create_stream(), device.create_stream(), Latch()
    buffer, out = device.allocate(16), np.zeros(4, np.float32)
    upload(second, buffer, np.full(4, 7, np.float32))
    second.sync(TIMEOUT_S)
    first.wait(latch)
    program = doubler(device, first, buffer)
    first.launch(program)
    first.download(buffer, 0, memoryview(out).cast("B"))
    event = recorded(first)
    first.close()
    program.close()
    other = doubler(device, second, device.allocate(16))  # takes kernels that were given back
    with pytest.raises(SyncTimeout):
        event.sync(0.05)
    assert (download(second, buffer, 4) == 7).all()
    assert not out.any()
    latch.open()
    event.sync(TIMEOUT_S)
    assert (out == 14).all()
    assert (download(second, buffer, 4) == 14).all()
    other.close()


def test_closing_a_device_gives_up_its_waits(device):
    first, second, latch = device.create_stream(), device.create_stream(), Latch()
    buffer = device.allocate(16)
    upload(second, buffer, np.ones(4, np.float32))
    second.sync(TIMEOUT_S)
    first.wait(latch)
    event = recorded(first)
    second.wait(event)
    out = np.zeros(4, np.float32)
    second.download(buffer, 0, memoryview(out).cast("B"))
    second.close()
    assert not event.is_done
    device.close()
    device.close()
    assert event.is_done
    with pytest.raises(DeviceFault, match="closed before"):
        event.sync(TIMEOUT_S)
    assert not waiters()
    latch.open()
    assert not out.any()


def test_nothing_works_after_close(device):
    stream, event, buffer = device.create_stream(), device.create_event(), device.allocate(16)
    program = doubler(device, stream, buffer)
    program.close()
    with pytest.raises(UsageError, match="closed"):
        stream.launch(program)
    buffer.close()
    buffer.close()
    with pytest.raises(UsageError, match="closed"):
        upload(stream, buffer, np.zeros(4, np.float32))
    event.close()
    event.close()
    for call in (lambda: event.is_done, lambda: event.is_recorded, lambda: event.sync(1.0)):
        with pytest.raises(UsageError, match="closed"):
            call()
    stream.close()
    stream.close()
    calls = [
        lambda: stream.sync(1.0),
        lambda: stream.is_done,
        lambda: stream.record(device.create_event()),
        lambda: stream.launch(program),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="closed"):
            call()
    device.close()
    for call in (device.create_stream, device.create_event, lambda: device.allocate(1)):
        with pytest.raises(UsageError, match="closed"):
            call()


def test_a_forgotten_stream_runs_to_its_end(device):
    stream, other, latch = device.create_stream(), device.create_stream(), Latch()
    buffer = device.allocate(16)
    upload(other, buffer, np.zeros(4, np.float32))
    other.sync(TIMEOUT_S)
    stream.wait(latch)
    upload(stream, buffer, np.ones(4, np.float32))
    thread = waiters()[0]
    del stream
    gc.collect()
    assert (download(other, buffer, 4) == 0).all()
    latch.open()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    assert (download(other, buffer, 4) == 1).all()


def test_a_process_ends_with_everything_open():
    opencl_device().close()
    code = """
import numpy as np
from tests.backends.opencl_devices import opencl_device
from tests.backends.device_settings import Latch, upload
device = opencl_device()
stream = device.create_stream()
stream.wait(Latch())
upload(stream, device.allocate(16), np.ones(4, np.float32))
print("end", flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


FORK = """
import os, signal
from ggsched import open_devices
for device in open_devices(["opencl:0"]):
    device.close()
child = os.fork()
if child == 0:
    signal.alarm(20)  # PoCL hangs at a kernel
    try:
        open_devices(["opencl:0"])
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1])
for device in open_devices(["opencl:0"]):
    device.close()
"""


def test_a_forked_process_cannot_open_devices_that_its_parent_used():
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    child, status = done.stdout.splitlines()
    assert child.startswith(
        "BackendUnavailable opencl: cannot be used in a forked process: process"
    )
    assert status == "0"
