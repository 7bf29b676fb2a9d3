"""Waiting for events of other backends, which may be closed meanwhile."""

import numpy as np

from ggsched.backend.events import lasting_wait
from ggsched_cpu.device import CpuDevice, CpuSettings
from ggsched_testing.conformance.latch import HostEvent

TIMEOUT_S = 20.0


class Closable(HostEvent):
    """An event that cannot be asked any more when it is closed, but has a waiter that can."""

    def sync(self, timeout_s):
        assert not self.is_closed
        super().sync(timeout_s)

    def waiter(self, timeout_s):
        return lambda: HostEvent.sync(self, timeout_s)


def test_a_stream_outlives_the_close_of_a_foreign_event():
    device = CpuDevice(0, CpuSettings(timeout_s=TIMEOUT_S))
    stream, buffer = device.create_stream(), device.allocate(4)
    latch, event = HostEvent(), Closable()
    stream.wait(latch)
    stream.wait(event)
    stream.upload(np.full(4, 7, np.uint8).data, buffer, 0)
    event.release()
    event.close()
    latch.release()
    stream.sync(TIMEOUT_S)
    assert bytes(buffer.host_view()) == bytes([7] * 4)
    device.close()


def test_an_event_without_a_waiter():
    event = HostEvent()
    wait = lasting_wait(event, TIMEOUT_S)
    event.release()
    wait()
