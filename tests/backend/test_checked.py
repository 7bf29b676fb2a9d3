"""The checked layer: what callers do wrong, each reported with object, call and details."""

import threading

import numpy as np
import pytest

from ggsched.backend.checked import checked
from ggsched.backend.program import BoundNode, Operand, full_params
from ggsched.backend.protocols import Buffer, Device, Event, Program, Stream
from ggsched.errors import DeviceFault, OutOfDeviceMemory, UsageError
from ggsched.ir.dtype import F32
from ggsched_cpu.device import CpuDevice, CpuSettings
from ggsched_testing.conformance.latch import HostEvent
from tests.backend.conftest import TIMEOUT_S
from tests.support.errors import refused


def host(nbytes=16, fill=0):
    return np.full(nbytes, fill, np.uint8)


def node(op, inputs, output, count=4, label=""):
    def vector(buffer):
        return Operand(buffer, 0, 4 * count, F32, (count,), (4,))

    operands = tuple(map(vector, inputs))
    return BoundNode(0, op, operands, vector(output), full_params(op, {}), label or f"n0 {op}")


def test_it_is_what_it_wraps(device, stream):
    buffer, event = device.allocate(16), device.create_event()
    for thing, kind in (
        (device, Device),
        (stream, Stream),
        (buffer, Buffer),
        (event, Event),
        (device.compile([], stream), Program),
    ):
        assert isinstance(thing, kind)
    assert buffer.device is stream.device is event.device is device
    assert device.facts.name == "cpu:0"
    assert device.wait_path(device.facts) == "native"
    assert device.copies_with(device.facts)
    assert device.allocate_host(8).nbytes == 8


def test_bytes_and_launches_pass(device, stream):
    x, y = device.allocate(16), device.allocate(16)
    numbers = np.arange(4, dtype=np.float32)
    stream.upload(numbers.view(np.uint8).data, x, 0)
    program = device.compile([node("add", [x, x], y)], stream)
    stream.launch(program)
    stream.copy(y, 0, x, 8, 8)
    out = np.zeros(4, np.float32)
    stream.download(x, 0, out.view(np.uint8).data)
    stream.barrier()
    stream.sync(TIMEOUT_S)
    np.testing.assert_array_equal(out, [0, 1, 0, 2])
    assert np.frombuffer(y.host_view(), np.float32).tolist() == [0, 2, 4, 6]
    for thing in (program, x, y, stream, stream):
        thing.close()


# --- BUF-2 ------------------------------------------------------------------------------------


def test_buffer_closed_under_a_command(device, stream):
    buffer = device.allocate(16)
    stream.upload(host().data, buffer, 0)
    with pytest.raises(
        UsageError, match=r"BUF-2.*cpu:0 q0\.upload\(cpu:0 b0, 0, 16\)|upload.*BUF-2"
    ):
        buffer.close()
    stream.sync(TIMEOUT_S)
    buffer.close()
    buffer.close()


def test_it_does_not_depend_on_how_fast_the_device_is(device, stream):
    """The command is complete by now, but the caller has no way to know."""
    buffer, other = device.allocate(16), device.create_stream()
    stream.upload(host().data, buffer, 0)
    while not stream.inner.is_done:
        pass
    other.sync(TIMEOUT_S)
    with refused("BUF-2"):
        buffer.close()
    assert stream.is_done  # that is as good as a sync
    buffer.close()


def test_what_the_host_knows_passes_through_events(device, stream):
    other, buffer = device.create_stream(), device.allocate(16)
    stream.upload(host().data, buffer, 0)
    event, last = device.create_event(), device.create_event()
    stream.record(event)
    other.wait(event)
    other.record(last)
    with refused("BUF-2"):
        buffer.close()
    last.sync(TIMEOUT_S)
    buffer.close()


def test_is_done_of_an_event_counts(device, stream):
    buffer, event = device.allocate(16), device.create_event()
    assert not event.is_done
    stream.upload(host().data, buffer, 0)
    stream.record(event)
    while not event.is_done:
        pass
    buffer.close()


def test_work_after_the_event_is_not_covered(device, stream):
    early, late, event = device.allocate(16), device.allocate(16), device.create_event()
    stream.upload(host().data, early, 0)
    stream.record(event)
    stream.upload(host().data, late, 0)
    event.sync(TIMEOUT_S)
    early.close()
    with refused("BUF-2"):
        late.close()


def test_launches_and_copies_use_their_buffers(device, stream):
    x, y, z = (device.allocate(16) for _ in range(3))
    stream.launch(device.compile([node("add", [x, x], y)], stream))
    stream.copy(y, 0, z, 0, 16)
    for buffer in (x, y, z):
        with refused("BUF-2"):
            buffer.close()


def test_a_closed_device_takes_everything_along(device, stream):
    buffer = device.allocate(16)
    stream.upload(host().data, buffer, 0)
    device.close()
    buffer.close()
    stream.close()


# --- ERR-3, EVT-3, LCH-5, BUF-3 -----------------------------------------------------------------


def test_use_after_close(device, stream):
    buffer, event, program = device.allocate(16), device.create_event(), device.compile([], stream)
    other = device.create_stream()
    for thing in (buffer, event, program, other):
        thing.close()
    for call in (
        lambda: stream.upload(host().data, buffer, 0),
        lambda: stream.download(buffer, 0, host().data),
        lambda: stream.copy(buffer, 0, buffer, 8, 8),
        buffer.host_view,
        lambda: device.compile([node("add", [buffer, buffer], buffer)], stream),
        lambda: stream.record(event),
        lambda: stream.wait(event),
        lambda: event.sync(1.0),
        lambda: event.is_done,
        lambda: event.is_recorded,
        lambda: stream.launch(program),
        lambda: other.sync(1.0),
        lambda: other.is_done,
        lambda: device.compile([], other),
    ):
        with pytest.raises(UsageError, match="closed"):
            call()
    device.close()
    for call in (
        lambda: device.allocate(4),
        device.create_stream,
        device.create_event,
        lambda: device.allocate_host(4),
        lambda: stream.sync(1.0),
        lambda: stream.is_done,
    ):
        with pytest.raises(UsageError, match="closed"):
            call()


def test_a_program_whose_buffer_is_gone(device, stream):
    x, y = device.allocate(16), device.allocate(16)
    program = device.compile([node("add", [x, x], y)], stream)
    y.close()
    with pytest.raises(UsageError, match=r"buffer cpu:0 b1 is closed"):
        stream.launch(program)


def test_misused_events(device, stream):
    event = device.create_event()
    with refused("EVT-3"):
        stream.wait(event)
    with refused("EVT-3"):
        event.sync(1.0)
    stream.record(event)
    with refused("EVT-3"):
        stream.record(event)
    event.sync(TIMEOUT_S)


def test_program_of_another_stream(device, stream):
    other = device.create_stream()
    with refused("LCH-5"):
        other.launch(device.compile([], stream))


def test_regions_and_overlaps(device, stream):
    buffer = device.allocate(16)
    with refused("BUF-3"):
        stream.upload(host(8).data, buffer, 12)
    with refused("CPY-3"):
        stream.copy(buffer, 0, buffer, 4, 8)
    buffer.close()  # nothing was enqueued


def test_things_of_unchecked_devices(device, stream):
    plain = CpuDevice(1, CpuSettings(timeout_s=TIMEOUT_S))
    with pytest.raises(UsageError, match="belongs to cpu:1"):
        stream.upload(host().data, plain.allocate(16), 0)
    with pytest.raises(UsageError, match="belongs to cpu:0"):
        stream.upload(host().data, device.inner.allocate(16), 0)
    mine = device.allocate(16)
    stream.copy(plain.allocate(16), 0, mine, 0, 16)
    stream.sync(TIMEOUT_S)
    with pytest.raises(UsageError):
        device.compile([], plain.create_stream())
    plain.close()


# --- STR-6 --------------------------------------------------------------------------------------


def test_two_threads_in_one_stream(device, stream):
    latch, inside, caught = HostEvent(), threading.Event(), []
    stream.wait(latch)

    def wait():
        inside.set()
        stream.sync(TIMEOUT_S)

    thread = threading.Thread(target=wait)
    thread.start()
    inside.wait(TIMEOUT_S)
    while not caught:
        try:
            stream.upload(host(4).data, device.allocate(4), 0)
        except UsageError as error:
            caught.append(error)
        if not thread.is_alive():
            break
    latch.release()
    thread.join(TIMEOUT_S)
    assert "two threads" in str(caught[0])
    assert "STR-6" in str(caught[0])


def test_one_thread_after_the_other(device, stream):
    buffer = device.allocate(4)
    thread = threading.Thread(target=lambda: stream.upload(host(4).data, buffer, 0))
    thread.start()
    thread.join(TIMEOUT_S)
    stream.sync(TIMEOUT_S)


# --- faults and stories -------------------------------------------------------------------------


def test_after_a_fault_everything_can_be_closed(device, stream):
    buffer, latch, event = device.allocate(16), HostEvent(), device.create_event()
    stream.wait(latch)
    stream.upload(host().data, buffer, 0)
    latch.release(DeviceFault("the other device is on fire"))
    with pytest.raises(DeviceFault, match="on fire") as caught:
        stream.sync(TIMEOUT_S)
    assert any("upload" in line for line in caught.value.details)
    with pytest.raises(DeviceFault):
        stream.record(event)
    assert event.is_recorded
    with pytest.raises(DeviceFault):
        event.sync(TIMEOUT_S)
    buffer.close()


def test_call_log(device, stream):
    buffer = device.allocate(64)
    for i in range(12):
        stream.upload(host(4).data, buffer, 4 * i)
    with pytest.raises(UsageError) as caught:
        stream.download(buffer, 62, host(4).data)
    details = caught.value.details
    assert len(details) == 8
    assert details[-1].endswith("cpu:0 q0.download(cpu:0 b0, 62, 4)")
    assert details[0].endswith("cpu:0 q0.upload(cpu:0 b0, 20, 4)")
    assert "calls of cpu:0 q0" in caught.value.__notes__[0]


def test_errors_of_the_device_have_a_story(device):
    device.allocate(8)
    with pytest.raises(OutOfDeviceMemory) as caught:
        device.allocate(1 << 60)
    assert caught.value.details[-1].endswith(f"cpu:0.allocate({1 << 60})")


def test_every_call_is_reported():
    noted = []
    (device,) = checked([CpuDevice(0)], on_call=noted.append)
    stream, buffer = device.create_stream(), device.allocate(4)
    stream.upload(host(4).data, buffer, 0)
    stream.sync(TIMEOUT_S)
    device.close()
    assert [c.verb for c in noted] == ["create_stream", "allocate", "upload", "sync"]
    assert [c.number for c in noted] == [0, 1, 2, 3]
    assert noted[2].operands == ("cpu:0 b0", 0, 4)
    assert str(noted[2]) == "2: cpu:0 q0.upload(cpu:0 b0, 0, 4)"
