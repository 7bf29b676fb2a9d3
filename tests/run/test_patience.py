"""Timeouts are about lack of progress: a slow device is waited for, one that hangs is not."""

import threading
import time

import numpy as np
import pytest

from ggsched.backend.progress import progress_of
from ggsched.backend.queued.backlog import Backlog
from ggsched.backend.queued.error_state import ErrorState
from ggsched.backend.queued.polling import Polling
from ggsched.config import Settings
from ggsched.errors import SyncTimeout
from ggsched.ir.builder import GraphBuilder
from ggsched.scheduler import Scheduler
from ggsched_cpu.device import CpuDevice
from tests.backends.device_settings import TIMEOUT_S, Latch
from tests.run.devices import TestDevice

NODE_S = 0.1
NODES = 8
X = np.ones(4, np.float32)


def chain():
    g = GraphBuilder("chain")
    x = g.input("x", (4,))
    for _ in range(NODES):
        x = g.gelu(x)
    return g.build(x)


def test_a_slow_device_is_waited_for():
    """Eight nodes of one launch take longer than the timeout, none of them alone."""

    def slow(out, inputs, params):
        time.sleep(NODE_S)
        np.copyto(out, inputs[0])

    settings = Settings(timeout_s=NODES * NODE_S * 0.75)
    with Scheduler([TestDevice(gelu=slow, is_async=True)], settings=settings) as scheduler:
        (y,) = scheduler.run(chain(), {"x": X}).values()
    assert np.array_equal(y, X)


@pytest.mark.parametrize("checked", [False, True])
def test_a_device_that_hangs_is_given_up(checked):
    may_end = threading.Event()

    def hang(out, inputs, params):
        may_end.wait(TIMEOUT_S)

    device = TestDevice(gelu=hang, is_async=True)
    scheduler = Scheduler([device], settings=Settings(timeout_s=0.02, checked=checked))
    with pytest.raises(SyncTimeout, match=r"no progress for 0\.02 s"):
        scheduler.run(chain(), {"x": X})
    may_end.set()
    scheduler.close()


def test_a_launch_on_the_cpu_tells_how_far_it_is():
    with Scheduler([CpuDevice()]) as scheduler:
        scheduler.run(chain(), {"x": X})
        (stream,) = scheduler._store._streams.values()
        before = progress_of(stream)
        scheduler.run(chain(), {"x": X})
        assert progress_of(stream) != before


class Slow(Latch):
    """An event whose stream makes progress a few times before it is done."""

    def __init__(self, steps):
        super().__init__()
        self.asked, self.steps = 0, steps

    def __progress__(self):
        self.asked += 1
        if self.asked == self.steps:
            self.open()
        return min(self.asked, self.steps)


@pytest.mark.parametrize("makes_progress", [True, False])
def test_a_backlog_waits_as_long_as_the_other_stream_makes_progress(makes_progress):
    faults = ErrorState()
    backlog, enqueued = Backlog("q:0 stream 0", faults), []
    backlog.wait(Slow(5) if makes_progress else Latch(), 0.0)
    backlog.add("a", lambda: enqueued.append("a"))
    backlog.drain(Polling(spin_s=0.0, share=1.0), TIMEOUT_S)
    assert enqueued == (["a"] if makes_progress else [])
    assert (faults.known() is None) == makes_progress
    backlog.cancel()
