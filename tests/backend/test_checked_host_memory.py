"""The checked layer watches host memory that commands have borrowed (CPY-4, CPY-5)."""

import numpy as np
import pytest

from ggsched.backend.base import BaseDevice, host_facts
from ggsched.backend.checked import checked
from ggsched.errors import UsageError
from ggsched_cpu.device import CpuDevice
from tests.backend.conftest import TIMEOUT_S
from tests.support.errors import refused


def snapshot_device():
    return checked(BaseDevice(host_facts("base", ["add:f32"]), {}))


def host(nbytes=16, fill=0):
    return np.full(nbytes, fill, np.uint8)


def test_source_changed_too_early(device, stream):
    source, buffer = host(64, 1), device.allocate(64)
    stream.upload(source.data, buffer, 0)
    source[3] = 9
    with pytest.raises(UsageError, match=r"q0\.upload.*host source.*CPY-4"):
        stream.sync(TIMEOUT_S)
    stream.sync(TIMEOUT_S)


def test_source_changed_in_time(device, stream):
    source, buffer, event = host(64, 1), device.allocate(64), device.create_event()
    for _ in range(3):
        stream.upload(source.data, buffer, 0)
        stream.sync(TIMEOUT_S)
        source += 1
    stream.upload(source.data, buffer, 0)
    stream.record(event)
    event.sync(TIMEOUT_S)
    source += 1
    stream.sync(TIMEOUT_S)


def test_long_sources_are_looked_at_in_pieces(device, stream):
    source, buffer = host(5 << 20), device.allocate(5 << 20)
    stream.upload(source.data, buffer, 0)
    source[:] = 1
    with refused("CPY-4"):
        stream.sync(TIMEOUT_S)


def test_a_snapshot_may_be_rewritten():
    device = snapshot_device()
    stream, source, buffer = device.create_stream(), host(64, 1), device.allocate(64)
    stream.upload(source.data, buffer, 0)
    source += 1
    stream.sync(TIMEOUT_S)
    device.close()


def test_a_snapshot_of_what_is_on_its_way(device, stream):
    base = snapshot_device()
    first, second = checked([CpuDevice(1), base.inner])
    a, b = first.create_stream(), second.create_stream()
    x, y, through = first.allocate(16), second.allocate(16), host(16)
    a.download(x, 0, through.data)
    with pytest.raises(UsageError, match=r"read now.*CPY-4"):
        b.upload(through.data, y, 0)
    a.sync(TIMEOUT_S)
    b.upload(through.data, y, 0)
    for d in (first, second, base):
        d.close()


def test_staging_through_host_memory_is_no_misuse(device, stream):
    """A download and an upload of the same host memory, ordered by the devices alone."""
    other = device.create_stream()
    x, y, through = device.allocate(16), device.allocate(16), host(16)
    for i in range(3):
        x.host_view()[:] = bytes([i + 1] * 16)
        event, back = device.create_event(), device.create_event()
        stream.download(x, 0, through.data)
        stream.record(event)
        other.wait(event)
        other.upload(through.data, y, 0)
        other.record(back)
        stream.wait(back)
    other.sync(TIMEOUT_S)
    stream.sync(TIMEOUT_S)
    assert bytes(y.host_view()) == bytes([3] * 16)


def test_target_written_by_the_host(device, stream):
    buffer, target = device.allocate(16), host(16)
    stream.upload(host(16, 7).data, buffer, 0)
    stream.download(buffer, 0, target.data)
    while not stream.inner.is_done:
        pass
    target[5] = 1
    with pytest.raises(UsageError, match=r"q0\.download.*host target.*CPY-5"):
        stream.sync(TIMEOUT_S)


def test_imported_memory_has_to_stay(device):
    memory = host(64)
    buffer = device.import_host(memory.data)
    buffer.close()
    buffer = device.import_host(memory.data)
    memory += 1
    with pytest.raises(UsageError, match=r"imported host memory changed.*CPY-4"):
        buffer.close()
