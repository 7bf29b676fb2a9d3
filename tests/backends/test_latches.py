"""What the kit holds streams by takes its turn: it holds nothing that was enqueued before it."""

import numpy as np
import pytest

from ggsched_testing.conformance.latch import HostEvent
from tests.backends.opencl_devices import opencl_device


@pytest.mark.opencl
def test_a_latch_stands_behind_commands_that_wait_for_another_backend():
    from ggsched_opencl.harness import QueueLatch

    device = opencl_device()
    stream, buffer, elsewhere = device.create_stream(), device.allocate(64), HostEvent()
    stream.wait(elsewhere)
    stream.upload(memoryview(np.arange(64, dtype=np.uint8)), buffer, 0)
    event = device.create_event()
    stream.record(event)
    latch = QueueLatch(stream)
    elsewhere.release()
    event.sync(10.0)  # the latch would hold it in front of the upload
    assert not stream.is_done
    latch.release()
    stream.sync(10.0)
    device.close()
