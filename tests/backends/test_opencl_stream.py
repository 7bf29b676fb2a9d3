"""Queues of OpenCL: order, events, waits for others, timeouts, faults, cleanup. Nothing sleeps."""

import gc
import weakref

import numpy as np
import pytest

from ggsched.backend.host_borrow import address_of
from ggsched.errors import DeviceFault, SyncTimeout, UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import I32
from ggsched_opencl import driver
from ggsched_opencl.event import GPU_POLLING
from ggsched_opencl.landings import Landings
from ggsched_opencl.locked_memory import MOST_NBYTES
from ggsched_opencl.queue import KERNELS_PER_MARK
from ggsched_testing.eager import bound_nodes
from ggsched_testing.generators.values import ATOL, RTOL, LeafRule
from ggsched_testing.oracle.interpreter import run_oracle
from tests.backends.against_oracle import tame
from tests.backends.device_settings import (
    Latch,
    cpu_device,
    download,
    node,
    upload,
    vector,
)
from tests.backends.opencl_devices import TIMEOUT_S, doubler, opencl_device, recorded, waiters
from tests.support.errors import refused

pytestmark = pytest.mark.opencl

SHORT_S = 0.01


@pytest.fixture
def device():
    made = opencl_device()
    yield made
    made.close()


# --- order -----------------------------------------------------------------------------------


def test_commands_take_effect_in_order(device):
    stream, buffer, other = device.create_stream(), device.allocate(16), device.allocate(16)
    program = doubler(device, stream, buffer)
    ones, out = np.ones(4, np.float32), np.zeros((3, 4), np.float32)
    for i in range(3):
        upload(stream, buffer, ones * i)
        stream.launch(program)
        stream.copy(buffer, 0, other, 0, 16)
        stream.launch(program)
        stream.download(other, 0, memoryview(out[i]).cast("B"))
    stream.barrier()
    stream.sync(TIMEOUT_S)
    np.testing.assert_array_equal(out, np.outer([0, 2, 4], ones))


def early_reader(device, monkeypatch):
    """Let the driver read the source of an upload at the call, as that of NVIDIA does."""
    enqueue = driver.enqueue_upload

    def early(queue, source, buffer, offset):
        return enqueue(queue, memoryview(bytes(source)), buffer, offset)

    monkeypatch.setattr(driver, "enqueue_upload", early)
    device.landings = Landings()


@pytest.mark.parametrize("through_event", [False, True])
@pytest.mark.parametrize("in_backlog", [False, True])
def test_an_upload_is_held_until_its_source_has_come(
    device, monkeypatch, through_event, in_backlog
):
    early_reader(device, monkeypatch)
    stream, other = device.create_stream(), device.create_stream()
    x, y, latch = device.allocate(16), device.allocate(16), Latch()
    source, through, out = (np.full(4, v, np.float32) for v in (5, 0, 0))
    gate = driver.make_gate(device.context)
    if in_backlog:
        stream.wait(latch)
    else:
        stream.queue.hold(gate)
    upload(stream, x, source)
    stream.download(x, 0, memoryview(through).cast("B"))
    last = other if through_event else stream
    if through_event:
        other.wait(recorded(stream))
    upload(last, y, through)
    last.download(y, 0, memoryview(out).cast("B"))
    latch.open()
    driver.open_gate(gate)
    last.sync(TIMEOUT_S)
    np.testing.assert_array_equal(out, source)


def test_only_downloads_into_the_source_hold_an_upload(device, monkeypatch):
    early_reader(device, monkeypatch)
    stream, x = device.create_stream(), device.allocate(16)
    out = np.zeros(8, np.float32)
    stream.download(x, 0, memoryview(out[4:]).cast("B"))
    upload(stream, x, out[:4])
    assert not stream.backlog.is_pending
    stream.sync(TIMEOUT_S)
    upload(stream, x, out[4:])
    assert not stream.backlog.is_pending


def test_commands_run_behind_the_callers_back(device):
    stream, buffer, latch = device.create_stream(), device.allocate(16), Latch()
    assert stream.is_done
    stream.wait(latch)
    upload(stream, buffer, np.ones(4, np.float32))
    stream.launch(doubler(device, stream, buffer))
    out = np.zeros(4, np.float32)
    stream.download(buffer, 0, memoryview(out).cast("B"))
    event = recorded(stream)
    assert not stream.is_done
    assert not event.is_done
    assert not out.any()
    latch.open()
    event.sync(TIMEOUT_S)
    assert event.is_done
    assert stream.is_done
    assert (out == 2).all()


def test_host_memory_is_kept_until_the_copy_is_done(device):
    stream, buffer, latch = device.create_stream(), device.allocate(16), Latch()
    source, target = np.full(4, 3, np.float32), np.zeros(4, np.float32)
    refs = weakref.ref(source), weakref.ref(target)
    stream.wait(latch)
    stream.upload(memoryview(source).cast("B"), buffer, 0)
    stream.download(buffer, 0, memoryview(target).cast("B"))
    del source, target
    gc.collect()
    assert all(ref() is not None for ref in refs)
    latch.open()
    stream.sync(TIMEOUT_S)
    assert all(ref() is None for ref in refs)
    assert (download(stream, buffer, 4) == 3).all()


def test_a_closed_program_may_still_be_running(device):
    """Kernel objects are used again, with other arguments, while commands are enqueued."""
    stream, latch = device.create_stream(), Latch()
    a, b = device.allocate(16), device.allocate(16)
    for buffer in (a, b):
        upload(stream, buffer, np.ones(4, np.float32))
    stream.wait(latch)
    for buffer in (a, b, b):
        program = doubler(device, stream, buffer)
        stream.launch(program)
        program.close()
        program.close()
    latch.open()
    assert (download(stream, a, 4) == 2).all()
    assert (download(stream, b, 4) == 4).all()


def test_scratch_and_tables_outlive_a_closed_program(device):
    g = GraphBuilder()
    sorted_, turned = (
        g.argsort(g.input("x", (3000,))),
        g.rope(g.input("y", (2, 1, 8)), g.input("at", (2,), I32)),
    )
    graph = g.build(sorted_, turned)
    values = tame(graph, at=LeafRule("ids", bound=50))
    expected = run_oracle(graph, values)
    stream, latch = device.create_stream(), Latch()
    buffers = {t.id: device.allocate(t.nbytes) for t in graph.tensors}
    for name, array in values.items():
        upload(stream, buffers[graph.named(name).id], array)
    stream.wait(latch)
    program = device.compile(bound_nodes(graph, buffers), stream)
    stream.launch(program)
    program.close()
    del program
    gc.collect()
    others = [device.allocate(12_000) for _ in range(4)]
    second = device.create_stream()
    for other in others:
        upload(second, other, np.full(3000, np.nan, np.float32))
    second.sync(TIMEOUT_S)
    latch.open()
    got = download(stream, buffers[sorted_.id], 3000).view(np.int32)
    np.testing.assert_array_equal(got, expected[sorted_.id])
    got = download(stream, buffers[turned.id], 16).reshape(2, 1, 8)
    np.testing.assert_allclose(got, expected[turned.id], ATOL, RTOL)


def test_streams_are_apart_and_events_join_them(device):
    first, second = device.create_stream(), device.create_stream()
    buffer, latch = device.allocate(16), Latch()
    first.wait(latch)
    upload(first, buffer, np.ones(4, np.float32))
    event = recorded(first)
    second.sync(TIMEOUT_S)
    second.wait(event)
    second.launch(doubler(device, second, buffer))
    after = recorded(second)
    event.close()
    assert not second.is_done
    latch.open()
    first.wait(after)
    assert (download(first, buffer, 4) == 2).all()


def test_an_event_covers_what_was_before_it_only(device):
    stream, latch = device.create_stream(), Latch()
    empty = recorded(stream)
    assert empty.is_done
    buffer = device.allocate(16)
    upload(stream, buffer, np.ones(4, np.float32))
    event = recorded(stream)
    stream.wait(latch)
    upload(stream, buffer, np.zeros(4, np.float32))
    event.sync(TIMEOUT_S)
    assert not stream.is_done
    latch.open()
    stream.sync(TIMEOUT_S)
    assert event.is_done


def test_many_waits_in_turn(device):
    first, second = device.create_stream(), device.create_stream()
    buffer = device.allocate(16)
    upload(first, buffer, np.ones(4, np.float32))
    programs = [doubler(device, s, buffer) for s in (first, second)]
    for _ in range(20):
        for stream, other, program in ((first, second, programs[0]), (second, first, programs[1])):
            stream.wait(recorded(other))
            stream.launch(program)
    first.wait(recorded(second))
    assert (download(first, buffer, 4) == 2.0**40).all()


# --- timeouts --------------------------------------------------------------------------------


def test_a_timeout_leaves_everything_as_it_was(device):
    stream, buffer, latch = device.create_stream(), device.allocate(16), Latch()
    stream.wait(latch)
    upload(stream, buffer, np.ones(4, np.float32))
    event = recorded(stream)
    for waiting in (stream.sync, event.sync):
        with pytest.raises(SyncTimeout, match="stream 0"):
            waiting(SHORT_S)
        with pytest.raises(SyncTimeout):
            waiting(0.0)
    latch.open()
    assert (download(stream, buffer, 4) == 1).all()
    event.sync(0.0)


def test_an_event_that_never_comes_is_a_fault_in_the_end():
    device = opencl_device(timeout_s=SHORT_S)
    stream, latch = device.create_stream(), Latch()
    stream.wait(latch)
    event = recorded(stream)
    with pytest.raises(DeviceFault, match="wait for an event.*SyncTimeout"):
        event.sync(TIMEOUT_S)
    with pytest.raises(DeviceFault, match="wait for an event"):
        stream.sync(TIMEOUT_S)
    device.close()


# --- other backends --------------------------------------------------------------------------


def test_waiting_for_a_worker_thread_and_back(device):
    cpu = cpu_device(sync=False)
    theirs, ours, latch = cpu.create_stream(), device.create_stream(), Latch()
    host, buffer = cpu.allocate(16), device.allocate(16)
    theirs.wait(latch)
    upload(theirs, host, np.ones(4, np.float32))
    ours.wait(recorded(theirs))
    ours.copy(host, 0, buffer, 0, 16)
    ours.launch(doubler(device, ours, buffer))
    ours.copy(buffer, 0, host, 0, 16)
    theirs.wait(recorded(ours))
    out = np.zeros(4, np.float32)
    theirs.download(host, 0, memoryview(out).cast("B"))
    assert not theirs.is_done
    latch.open()
    theirs.sync(TIMEOUT_S)
    assert (out == 2).all()
    cpu.close()


def test_an_event_may_be_closed_once_it_is_waited_for(device):
    cpu = cpu_device(sync=False)
    theirs, ours, latch = cpu.create_stream(), device.create_stream(), Latch()
    theirs.wait(latch)
    events = [recorded(theirs), recorded(theirs)]
    for event in events:
        ours.wait(event)
        event.close()
    latch.open()
    ours.sync(TIMEOUT_S)
    cpu.close()


def test_two_logical_devices(device):
    other = opencl_device(1)
    assert other.facts.name == "opencl:1"
    assert not device.copies_with(other.facts)
    assert device.wait_path(other.facts) == "thread"
    ours, theirs, latch = device.create_stream(), other.create_stream(), Latch()
    buffer, staging = other.allocate(16), np.zeros(4, np.float32)
    with pytest.raises(UsageError, match="copy path"):
        ours.copy(buffer, 0, device.allocate(16), 0, 16)
    theirs.wait(latch)
    upload(theirs, buffer, np.ones(4, np.float32))
    theirs.download(buffer, 0, memoryview(staging).cast("B"))
    ours.wait(recorded(theirs))
    mine = device.allocate(16)
    ours.upload(memoryview(staging).cast("B"), mine, 0)
    latch.open()
    assert (download(ours, mine, 4) == 1).all()
    other.close()


def test_a_done_event_costs_no_thread(device):
    stream, latch = device.create_stream(), Latch()
    latch.open()
    stream.wait(latch)
    stream.sync(TIMEOUT_S)
    assert not waiters()


# --- refusals --------------------------------------------------------------------------------


def test_what_makes_no_sense_is_refused_at_once(device):
    stream, other = device.create_stream(), device.create_stream()
    buffer, latch = device.allocate(16), Latch()
    event = device.create_event()
    with refused("EVT-3"):
        stream.wait(event)
    with refused("EVT-3"):
        event.sync(TIMEOUT_S)
    assert not event.is_done
    stream.record(event)
    with refused("EVT-3"):
        stream.record(event)
    with refused("BUF-3"):
        upload(stream, buffer, np.zeros(5, np.float32))
    with pytest.raises(UsageError, match="read-only"):
        stream.download(buffer, 0, memoryview(bytes(16)))
    with refused("CPY-3"):
        stream.copy(buffer, 0, buffer, 4, 12)
    with refused("LCH-5"):
        other.launch(doubler(device, stream, buffer))
    latch.device.facts = type(latch.device.facts)(
        **{f: getattr(latch.device.facts, f) for f in latch.device.facts.__slots__}
        | {"has_events": False}
    )
    with refused("EVT-4"):
        stream.wait(latch)
    x = vector(buffer, 3, offset=2)
    with pytest.raises(UsageError, match="multiples of 4"):
        device.compile([node("silu", [x], x)], stream)
    stream.sync(TIMEOUT_S)
    stream.upload(memoryview(b""), buffer, 16)
    stream.copy(buffer, 0, buffer, 0, 0)


@pytest.mark.parametrize("is_gpu", [False, True])
def test_events_of_kernels_that_are_kept(device, is_gpu):
    """GPUs keep one of some kernels, and name the first that may run; points spin longer there."""
    device.landings = Landings() if is_gpu else None
    each = KERNELS_PER_MARK if is_gpu else 1
    count = KERNELS_PER_MARK + 3
    buffer, stream = device.allocate(16), device.create_stream()
    x = vector(buffer, 4)
    program = device.compile([node("add", [x, x], x)] * count, stream)
    program.labels = [f"n{i}" for i in range(count)]
    stream.launch(program)
    kept = [label for _, label in stream.queue._counted._pending]
    assert kept == program.labels[::each]
    assert (stream.queue.point().polling is GPU_POLLING) == is_gpu
    stream.sync(TIMEOUT_S)


# --- host memory that GPUs copy by themselves --------------------------------------------------


def test_host_memory_of_gpus_is_given_out_again_when_nobody_has_it(device):
    assert device.allocate_host(64).nbytes == 64
    locked = device._compiled.locked
    assert not locked._free
    device.landings = Landings()
    memory = device.allocate_host(5000)
    assert memory.nbytes == 5000
    assert device.allocate_host(0).nbytes == 0
    place, other = address_of(memory), device.allocate_host(5000)
    x, stream, target = device.allocate(5000), device.create_stream(), bytearray(5000)
    memory[:] = bytes(i % 251 for i in range(5000))
    stream.upload(memory, x, 0)
    stream.download(x, 0, memoryview(target))
    stream.sync(TIMEOUT_S)
    assert target == memory
    part = np.frombuffer(memory, np.uint8)[3:]
    del memory
    gc.collect()
    assert not locked._free[8192]
    assert address_of(other) != place
    del part
    gc.collect()
    assert len(locked._free[8192]) == 1
    assert address_of(device.allocate_host(8000)) == place


def test_large_host_memory_is_not_locked(device, monkeypatch):
    device.landings = Landings()
    monkeypatch.setattr(driver, "locked_memory", lambda *_: pytest.fail("locked"))
    assert device.allocate_host(MOST_NBYTES + 1).nbytes == MOST_NBYTES + 1
    monkeypatch.setattr(driver, "locked_memory", lambda *_: None)  # the driver has none
    assert device.allocate_host(77).nbytes == 77
