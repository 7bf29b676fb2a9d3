"""The rules that need one device only, on the base and on what is built on it."""

import gc
import sys
import threading
import weakref
from functools import partial

import numpy as np
import pytest

from ggsched.backend.program import BoundNode
from ggsched.backend.protocols import Buffer, Device, Event, Stream
from ggsched.errors import DeviceFault, OutOfDeviceMemory, UsageError
from ggsched_cpu.program import Calls
from ggsched_testing.sim import SimConfig, SimWorld
from tests.backends.device_settings import (
    KINDS,
    TIMEOUT_S,
    base_device,
    cpu_device,
    download,
    far_device,
    node,
    upload,
    vector,
)
from tests.support.errors import refused


@pytest.fixture(params=KINDS)
def device(request):
    made = KINDS[request.param]()
    yield made
    made.close()


@pytest.fixture
def stream(device):
    return device.create_stream()


def failing(device, stream):
    """Return a program whose second node fails, on every kind of device."""
    a, b = device.allocate(16), device.allocate(16)
    good = node("add", [vector(a, 4), vector(a, 4)], vector(b, 4), 3)
    if device.facts.backend != "cpu":
        return device.compile([good, node("silu", [vector(a, 4)], vector(b, 4), 4)], stream)
    program = device.compile([good, good], stream)
    wrong = [partial(int, "0"), partial(int, "not a number")]
    program.body.pieces = [Calls(["n3 add", "n4 silu"], wrong)]
    return program


def record_and_sync(stream, event):
    stream.record(event)
    event.sync(TIMEOUT_S)


def wait_and_sync(stream, event):
    stream.wait(event)
    stream.sync(TIMEOUT_S)


def test_protocols(device, stream):
    assert isinstance(device, Device)
    assert isinstance(stream, Stream)
    assert isinstance(device.create_event(), Event)
    assert isinstance(device.allocate(4), Buffer)


def test_bytes_go_in_and_out(device, stream):
    buffer, other = device.allocate(64), device.allocate(64)
    upload(stream, buffer, np.arange(16, dtype=np.float32))
    stream.copy(buffer, 0, other, 0, 64)
    stream.copy(buffer, 32, other, 0, 16)
    stream.copy(buffer, 0, buffer, 32, 32)
    expected = [8, 9, 10, 11, *range(4, 16)]
    np.testing.assert_array_equal(download(stream, other, 16), expected)
    np.testing.assert_array_equal(download(stream, buffer, 16), [*range(8), *range(8)])


def test_launch(device, stream):
    a, b = device.allocate(64), device.allocate(64)
    upload(stream, a, np.arange(16, dtype=np.float32))
    first = node("add", [vector(a, 4, 16), vector(a, 4, 32)], vector(b, 4))
    again = node("add", [vector(b, 4), vector(b, 4)], vector(b, 4))
    program = device.compile([first, again], stream)
    stream.launch(program)
    np.testing.assert_array_equal(download(stream, b, 4), [24, 28, 32, 36])
    program.close()
    program.close()
    with pytest.raises(UsageError, match="closed"):
        stream.launch(program)


def test_zero_bytes(device, stream):
    empty, other = device.allocate(0), device.allocate(0)
    stream.upload(memoryview(b""), empty, 0)
    stream.copy(empty, 0, other, 0, 0)
    stream.download(other, 0, memoryview(bytearray()))
    stream.launch(device.compile([], stream))
    nothing = vector(empty, 0)
    stream.launch(device.compile([node("add", [nothing, nothing], nothing)], stream))
    stream.sync(TIMEOUT_S)


def test_alignment():
    for device in (base_device(), cpu_device(sync=True)):
        for nbytes in (1, 100, 4096):
            view = device.allocate(nbytes).host_view()
            assert np.frombuffer(view, np.uint8).ctypes.data % device.facts.alignment == 0
        assert device.allocate_host(64).nbytes == 64


@pytest.mark.parametrize(("offset", "nbytes"), [(-1, 4), (13, 4), (0, 17), (17, 0), (100, 1)])
def test_outside_the_buffer(device, stream, offset, nbytes):
    buffer, big = device.allocate(16), device.allocate(256)
    host = memoryview(bytearray(nbytes))
    with refused("BUF-3"):
        stream.upload(host, buffer, offset)
    with refused("BUF-3"):
        stream.download(buffer, offset, host)
    with refused("BUF-3"):
        stream.copy(buffer, offset, big, 0, nbytes)
    with refused("BUF-3"):
        stream.copy(big, 0, buffer, offset, nbytes)
    with refused("BUF-3"):
        stream.copy(big, 0, buffer, 0, -1)
    assert stream.is_done


def test_operand_outside_the_buffer(device, stream):
    buffer = device.allocate(16)
    inside, outside = vector(buffer, 4), vector(buffer, 4, 4)
    with pytest.raises(UsageError, match="n0 add"):
        device.compile([node("add", [inside, outside], inside)], stream)


def test_overlap(device, stream):
    buffer = device.allocate(64)
    for src, dst, nbytes in ((0, 0, 64), (0, 8, 16), (8, 0, 16), (15, 0, 16)):
        with refused("CPY-3"):
            stream.copy(buffer, src, buffer, dst, nbytes)
    stream.copy(buffer, 16, buffer, 0, 16)


def test_host_memory_is_checked(device, stream):
    buffer = device.allocate(16)
    with pytest.raises(UsageError, match="read-only"):
        stream.download(buffer, 0, memoryview(bytes(16)))
    for wrong in (
        np.zeros(4, np.float32),
        memoryview(np.zeros(4, np.float32)),
        memoryview(bytes(32))[::2],
        bytes(16),
    ):
        with pytest.raises(UsageError, match="memoryview"):
            stream.upload(wrong, buffer, 0)


def test_too_much_memory(device):
    total = device.facts.memory_nbytes
    with pytest.raises(OutOfDeviceMemory) as caught:
        device.allocate(total + 1)
    assert str(total + 1) in str(caught.value)
    assert str(total) in str(caught.value)
    with pytest.raises(UsageError):
        device.allocate(-1)
    assert device.allocate(16).nbytes == 16


def test_accounting():
    device = base_device(memory_nbytes=100, max_allocation_nbytes=80)
    first = device.allocate(60)
    with pytest.raises(OutOfDeviceMemory, match=r"requested 50 bytes, 40 of 100"):
        device.allocate(50)
    first.close()
    first.close()
    second = device.allocate(80)
    with pytest.raises(OutOfDeviceMemory):
        device.allocate(21)
    del second
    gc.collect()
    assert device.free_nbytes == 100
    with pytest.raises(OutOfDeviceMemory, match="at most 80"):
        device.allocate(81)


def test_events(device, stream):
    event = device.create_event()
    assert not event.is_recorded
    assert not event.is_done
    with refused("EVT-3"):
        stream.wait(event)
    with refused("EVT-3"):
        event.sync(TIMEOUT_S)
    upload(stream, device.allocate(16), np.zeros(4, np.float32))
    stream.record(event)
    with refused("EVT-3"):
        stream.record(event)
    device.create_stream().wait(event)
    stream.wait(event)
    event.sync(TIMEOUT_S)
    assert event.is_done
    event.close()
    event.close()
    for call in (lambda: event.sync(1), lambda: event.is_done, lambda: event.is_recorded):
        with pytest.raises(UsageError, match="closed"):
            call()


def test_event_of_another_device(device, stream):
    with pytest.raises(UsageError, match="another|belongs"):
        stream.record(base_device("base:9").create_event())


def test_no_wait_path():
    stream, other = base_device().create_stream(), far_device()
    event = other.create_event()
    other.create_stream().record(event)
    with refused("EVT-4"):
        stream.wait(event)


def test_devices_of_one_backend_wait_for_each_other():
    stream, other = base_device("base:0").create_stream(), base_device("base:1")
    event = other.create_event()
    other.create_stream().record(event)
    stream.wait(event)
    stream.sync(TIMEOUT_S)


def test_copies_between_devices(device, stream):
    host = base_device("base:1")
    source, target = host.allocate(16), host.allocate(16)
    mine = device.allocate(16)
    np.frombuffer(source.host_view(), np.float32)[:] = [1, 2, 3, 4]
    stream.copy(source, 0, mine, 0, 16)
    stream.copy(mine, 4, target, 0, 12)
    stream.sync(TIMEOUT_S)
    np.testing.assert_array_equal(np.frombuffer(target.host_view(), np.float32)[:3], [2, 3, 4])
    with pytest.raises(UsageError, match="neither"):
        stream.copy(source, 0, target, 0, 4)
    with refused("CPY-6"):
        stream.copy(mine, 0, FAR.allocate(16), 0, 16)
    for call in (
        lambda: stream.upload(memoryview(bytes(4)), source, 0),
        lambda: stream.download(source, 0, memoryview(bytearray(4))),
        lambda: device.compile([node("add", [vector(source, 4)] * 2, vector(mine, 4))], stream),
    ):
        with pytest.raises(UsageError, match="belongs"):
            call()


FAR = far_device()


def test_unknown_op(device, stream):
    buffer = device.allocate(16)
    odd = node("add", [vector(buffer, 4)] * 2, vector(buffer, 4))
    with pytest.raises(UsageError, match="does not support"):
        device.compile([type(odd)(0, "conv", odd.inputs, odd.output, {}, "n0 conv")], stream)


@pytest.mark.parametrize("op", ["mul_mat_id", "add_id"])
def test_experts_of_which_some_are_elsewhere(op):
    """A device that does not declare them refuses them."""
    (old,) = SimWorld([SimConfig(takes_expert_ranges=False)]).open_all()
    operand = vector(old.allocate(16), 4)
    asked = BoundNode(0, op, (operand,) * 3, operand, {"first": 1, "of": 5}, "n0")
    with pytest.raises(UsageError, match="does not declare takes_expert_ranges"):
        old.compile([asked], old.create_stream())


def test_program_of_another_stream(device, stream):
    program = device.compile([], stream)
    with refused("LCH-5"):
        device.create_stream().launch(program)
    with pytest.raises(UsageError, match="belongs"):
        device.compile([], base_device("base:9").create_stream())


def test_poison(device, stream):
    program = failing(device, stream)
    stream.launch(program)
    event, late = device.create_event(), device.create_event()
    with pytest.raises(DeviceFault, match="n4 silu failed"):
        record_and_sync(stream, event)
    with pytest.raises(DeviceFault, match="n4 silu failed") as caught:
        stream.sync(TIMEOUT_S)
    assert isinstance(caught.value.__cause__, ValueError)
    for call in (
        lambda: stream.launch(program),
        lambda: stream.upload(memoryview(b""), device.allocate(0), 0),
        lambda: stream.wait(event),
        lambda: stream.barrier(),
        lambda: stream.record(late),
        lambda: late.sync(TIMEOUT_S),
        lambda: event.sync(TIMEOUT_S),
    ):
        with pytest.raises(DeviceFault, match="n4 silu failed"):
            call()
    assert late.is_done
    stream.close()
    stream.close()


def test_other_streams_go_on_after_a_fault(device, stream):
    other, buffer = device.create_stream(), device.allocate(16)
    stream.launch(failing(device, stream))
    with pytest.raises(DeviceFault):
        stream.sync(TIMEOUT_S)
    upload(other, buffer, np.arange(4, dtype=np.float32))
    np.testing.assert_array_equal(download(other, buffer, 4), range(4))


def test_who_waits_for_a_failed_event_fails(device, stream):
    other, good, bad = device.create_stream(), device.create_event(), device.create_event()
    stream.record(good)
    stream.launch(failing(device, stream))
    with pytest.raises(DeviceFault):
        record_and_sync(stream, bad)
    good.sync(TIMEOUT_S)
    other.wait(good)
    other.sync(TIMEOUT_S)
    with pytest.raises(DeviceFault, match="wait"):
        wait_and_sync(other, bad)


def test_read_only_buffers():
    device = cpu_device(sync=True)
    memory = np.arange(4, dtype=np.float32)
    buffer, mine = device.import_host(memoryview(memory).cast("B")), device.allocate(16)
    stream = device.create_stream()
    total = node("add", [vector(buffer, 4)] * 2, vector(mine, 4))
    stream.launch(device.compile([total], stream))
    np.testing.assert_array_equal(download(stream, mine, 4), 2 * memory)
    assert buffer.host_view().readonly
    for call in (
        lambda: upload(stream, buffer, memory),
        lambda: stream.copy(mine, 0, buffer, 0, 16),
        lambda: device.compile([node("add", [vector(mine, 4)] * 2, vector(buffer, 4))], stream),
    ):
        with pytest.raises(UsageError, match="read-only"):
            call()
    assert device.import_host(memoryview(b"")).nbytes == 0
    with pytest.raises(UsageError, match="import"):
        base_device().import_host(memoryview(b""))


def test_host_view_needs_host_memory():
    with pytest.raises(UsageError, match="not host memory"):
        far_device().allocate(4).host_view()


def test_too_many_streams():
    device = base_device(max_streams=2)
    first, _second = device.create_stream(), device.create_stream()
    with pytest.raises(UsageError, match="more than 2"):
        device.create_stream()
    first.close()
    device.create_stream()


def test_use_after_close(device):
    stream, buffer = device.create_stream(), device.allocate(16)
    event, mine = device.create_event(), device.create_stream()
    mine.close()
    mine.close()
    for call in (
        lambda: mine.sync(1),
        lambda: mine.is_done,
        lambda: mine.barrier(),
        lambda: mine.record(event),
        lambda: mine.upload(memoryview(b""), buffer, 0),
    ):
        with pytest.raises(UsageError, match="closed"):
            call()
    device.close()
    device.close()
    for call in (
        lambda: device.allocate(4),
        lambda: device.allocate_host(4),
        lambda: device.create_stream(),
        lambda: device.create_event(),
        lambda: device.compile([], stream),
        lambda: stream.sync(1),
        lambda: buffer.host_view(),
    ):
        with pytest.raises(UsageError, match="closed"):
            call()


def test_host_memory_is_given_back(device, stream):
    buffer, source = device.allocate(16), np.zeros(16, np.uint8)
    gone = weakref.ref(source)
    stream.upload(source.data, buffer, 0)
    stream.sync(TIMEOUT_S)
    del source
    gc.collect()
    assert gone() is None


def test_many_threads_make_buffers_and_streams():
    """Each walk over what the device has made meets additions of the other threads."""
    device = base_device()
    start, errors = threading.Barrier(4), []

    def work():
        start.wait(TIMEOUT_S)
        try:
            for _ in range(200):
                kept = [device.allocate(16) for _ in range(4)]
                device.create_stream().close()
                assert device.free_nbytes <= device.facts.memory_nbytes - 64
                for buffer in kept:
                    buffer.close()
        except Exception as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
        device.close()
    assert not errors


def test_host_memory_of_a_length_that_makes_no_sense(device):
    with pytest.raises(UsageError, match="-1 bytes"):
        device.allocate_host(-1)
    with pytest.raises(OutOfDeviceMemory, match="host memory"):
        device.allocate_host(1 << 60)
