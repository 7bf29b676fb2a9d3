"""Times of commands that have waited in a backlog are those of when they ran."""

from time import perf_counter

import numpy as np
import pytest

from ggsched.errors import DeviceFault
from tests.backends.device_settings import TIMEOUT_S, Latch, upload
from tests.backends.opencl_devices import opencl_device

CLOCK_S = 1e-3
"""By how much times of a device may be off, from the host's and from each other.

Intel's OpenCL stamps commands of one queue from several threads.
"""


def opencl(_):
    return opencl_device()


def cuda(monkeypatch):
    """Return a device of a GPU that only counts time."""
    pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")
    from tests.backends.fake_cuda import FakeDriver, fake_device, fake_gpu, install

    install(FakeDriver(), monkeypatch)
    return fake_device(fake_gpu(), "cuda:0/0")


@pytest.fixture(params=[pytest.param(opencl, marks=pytest.mark.opencl), cuda])
def device(request, monkeypatch):
    made = request.param(monkeypatch)
    yield made
    made.close()


def test_times_come_when_a_command_has_left_the_backlog(device):
    stream, latch, buffer = device.create_stream(), Latch(), device.allocate(16)
    latest = stream.__take_times__()
    stream.wait(latch)
    latest()
    taken = []
    for _ in range(2):
        upload(stream, buffer, np.ones(4, np.float32))
        taken.append(latest())
    assert latest() is None
    assert [t.parts() for t in taken] == [None, None]
    opened_s = perf_counter()
    latch.open()
    stream.sync(TIMEOUT_S)
    (first,), (second,) = (t.parts() for t in taken)
    assert opened_s <= first.start_s + CLOCK_S
    for span in (first, second):
        assert span.start_s <= span.end_s
    assert first.end_s <= second.end_s + CLOCK_S


def test_a_command_that_is_dropped_has_no_times(device):
    stream, latch, buffer = device.create_stream(), Latch(), device.allocate(16)
    latest = stream.__take_times__()
    stream.wait(latch)
    upload(stream, buffer, np.ones(4, np.float32))
    taken = latest()
    latch.open(DeviceFault("it broke"))
    with pytest.raises(DeviceFault, match="it broke"):
        stream.sync(TIMEOUT_S)
    assert list(taken.parts()) == []
