"""What a device of OpenCL compiled is there for the next one, and for no two at once."""

import numpy as np
import pytest

from ggsched.errors import DeviceFault
from tests.backends.device_settings import download, upload
from tests.backends.opencl_devices import doubler, opencl_device

pytestmark = pytest.mark.opencl


@pytest.fixture
def built(monkeypatch):
    """Names of contexts in which something was compiled; nothing is kept before and after."""
    from ggsched_opencl import compiled, driver

    found, build = [], driver.build_program
    monkeypatch.setattr(
        driver, "build_program", lambda c, text, d: found.append(c) or build(c, text, d)
    )
    compiled.forget()
    yield found
    compiled.forget()


def doubled(device):
    stream, buffer = device.create_stream(), device.allocate(16)
    upload(stream, buffer, np.ones(4, np.float32))
    stream.launch(doubler(device, stream, buffer))
    return download(stream, buffer, 4).tolist()


def test_the_next_device_has_what_a_closed_one_compiled(built):
    for _ in range(3):
        device = opencl_device()
        assert doubled(device) == [2, 2, 2, 2]
        device.close()
    assert len(built) == 1


def test_open_devices_share_nothing(built):
    devices = [opencl_device(i) for i in range(6)]
    assert len({id(d.context) for d in devices}) == 6
    assert all(doubled(d) == [2, 2, 2, 2] for d in devices)
    assert len(built) == 6
    for device in devices:
        device.close()
    again = [opencl_device(i) for i in range(6)]
    assert all(doubled(d) == [2, 2, 2, 2] for d in again)
    assert len(built) == 6 + 2, "four are kept"
    for device in again:
        device.close()


def test_nobody_takes_a_context_in_which_a_command_was_refused(built, monkeypatch):
    from ggsched_opencl import driver

    device = opencl_device()
    stream, buffer = device.create_stream(), device.allocate(16)
    with monkeypatch.context() as patch:
        patch.setattr(driver, "enqueue_upload", lambda *_: 1 / 0)
        patch.setattr(driver, "errors", lambda: ZeroDivisionError)
        with pytest.raises(DeviceFault):
            upload(stream, buffer, np.ones(4, np.float32))
    old = device.context
    device.close()
    other = opencl_device()
    assert other.context is not old
    other.close()


def test_nobody_takes_a_context_in_which_a_command_failed(built):
    from ggsched_opencl.driver import cl

    device = opencl_device()
    stream = device.create_stream()
    failed = cl.UserEvent(device.context)
    failed.set_status(-5)
    stream.queue.newest = failed
    old = device.context
    device.close()
    other = opencl_device()
    assert other.context is not old
    other.close()
