"""GPUs are opened once in a process, however often schedulers come and go; in software."""

import numpy as np
import pytest

from ggsched import Scheduler
from ggsched.backend.queued.polling import Polling
from ggsched.errors import BackendUnavailable
from ggsched.ir.builder import GraphBuilder
from tests.backends.software_kernels import in_software
from tests.kernels.test_fibers import NEEDS, Runner

pytestmark = NEEDS
TIMES = 12
POLLING = Polling(spin_s=0.0, share=0.1)


@pytest.fixture
def driver(compiled_kernels):
    with in_software(Runner(compiled_kernels)) as made:
        yield made


def sum_of(device):
    g = GraphBuilder("sum")
    graph = g.build(g.add(g.input("a", (64,)), g.input("b", (64,))))
    a, b = np.arange(64, dtype=np.float32), np.ones(64, np.float32)
    with Scheduler([device]) as scheduler:
        made = scheduler.run(graph, {"a": a, "b": b})
        np.testing.assert_array_equal(made[graph.outputs[0]], a + b)


def handles(driver):
    """Return how many streams and events are open, and how much memory is taken."""
    streams = len(driver._streams) - driver.counts["streams closed"]
    return streams, len(driver._events), driver._used, len(driver._pinned)


def test_schedulers_one_after_the_other(driver):
    """With a pool for each, a GPU refused the next one after some hundred schedulers."""
    sum_of("cuda:0")
    assert POLLING.wait_until(lambda: not driver._used, 10.0)
    before = handles(driver)
    for _ in range(TIMES):
        sum_of("cuda:0")
    assert POLLING.wait_until(lambda: handles(driver) == before, 10.0), handles(driver)
    assert driver.counts["pools"] == 1
    assert driver.counts["trims"] == 1 + TIMES


def test_memory_goes_back_behind_the_last_device(driver):
    from ggsched_cuda import open_backend

    first, second = open_backend().open_part(0, 0), open_backend().open_device(0)
    buffer = first.allocate(1 << 20)
    second.close()
    second.close()
    assert driver.counts["trims"] == 0
    first.close()
    assert driver.counts["trims"] == 1
    buffer.close()
    assert driver.counts["pools"] == 1


def test_a_gpu_that_is_lost_says_so(driver, monkeypatch):
    from ggsched_cuda import driver as real
    from ggsched_cuda import open_backend

    open_backend().open_device(0).close()
    monkeypatch.setattr(real, "query_stream", lambda stream: (719,))
    with pytest.raises(BackendUnavailable, match="start it again"):
        open_backend().open_device(0)
