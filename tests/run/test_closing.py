"""Closing: everything, in any state, also twice."""

import numpy as np
import pytest

from ggsched.config import Settings
from ggsched.errors import BackendBroken, SyncTimeout, UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.run.release import close_all
from ggsched.scheduler import Scheduler
from ggsched_testing.sim import InjectedFaults, SimConfig, SimWorld
from tests.run.devices import TestDevice, assert_released
from tests.run.graphs import W, X, counter, harmless, only, plus_weight


def test_twice():
    device = TestDevice()
    scheduler = Scheduler([device], settings=Settings())
    scheduler.run(harmless(), {"x": X})
    scheduler.close()
    scheduler.close()
    assert_released(device)
    assert not device.is_closed  # it is the caller's


def test_use_after_close():
    scheduler = Scheduler([TestDevice()], settings=Settings())
    graph = harmless()
    scheduler.run(graph, {"x": X})
    executor = scheduler._order.last
    scheduler.close()
    for use in (
        lambda: scheduler.run(graph, {"x": X}),
        lambda: scheduler.prepare(graph),
        lambda: executor.run({"x": X}),
    ):
        with pytest.raises(UsageError, match=r"closed|released"):
            use()
    assert scheduler.resident_nbytes("state") == {}


def test_devices_that_were_opened_by_name_are_closed():
    with Scheduler(["cpu:0", "cpu:1"], settings=Settings()) as scheduler:
        graph = harmless()
        np.testing.assert_array_equal(only(graph, scheduler.run(graph, {"x": X})), 3 * X)
        devices = list(scheduler._store.devices)
    for device in devices:
        with pytest.raises(UsageError, match="closed"):
            device.allocate(1)


def test_one_name_twice():
    with pytest.raises(UsageError, match="cpu:0"):
        Scheduler(["cpu:0", "cpu:0"], settings=Settings())


def test_no_devices():
    with pytest.raises(UsageError):
        Scheduler([], settings=Settings())


def test_no_room_for_any_plan():
    with pytest.raises(UsageError, match="at least one"):
        Scheduler([TestDevice()], settings=Settings(), plan_limit=0)


def test_one_failure_does_not_keep_the_rest_open():
    device = TestDevice()
    scheduler = Scheduler([device], weights={"w": W}, settings=Settings())
    scheduler.run(plus_weight(), {"x": X})
    (buffer,) = [b for b in device.open_buffers if b is scheduler._store._resident["w"].buffer]

    def bad_close():
        type(buffer).close(buffer)
        raise OSError("cannot release")

    buffer.close = bad_close
    with pytest.raises(BackendBroken, match="test:0: .* raised OSError: cannot release"):
        scheduler.close()
    assert_released(device)


class Thing:
    def __init__(self, closed, error=None):
        self.closed, self.error = closed, error

    def close(self):
        self.closed.append(self)
        if self.error:
            raise self.error

    def __repr__(self):
        return "a thing"


def test_close_all_raises_the_first_failure_with_the_others_as_notes():
    closed = []
    things = [Thing(closed), Thing(closed, OSError("one")), Thing(closed, OSError("two"))]
    things.append(Thing(closed))
    with pytest.raises(OSError, match="one") as caught:
        close_all(things)
    assert caught.value.__notes__ == ["then, closing a thing: two"]
    assert closed == things


@pytest.mark.parametrize("block", [1 << 20, 64, 60, 7])
def test_states_start_as_zeros_and_can_be_cleared(monkeypatch, block):
    monkeypatch.setattr("ggsched.backend.fill.BLOCK_NBYTES", block)
    graph = counter()
    device = TestDevice()
    device.acquire_memory = lambda nbytes: np.full(nbytes, 0xFF, np.uint8)
    with Scheduler([device], settings=Settings()) as scheduler:
        for wanted in (1.0, 2.0, 3.0):
            assert (only(graph, scheduler.run(graph, {})) == wanted).all()
        scheduler.clear_states()
        assert (only(graph, scheduler.run(graph, {})) == 1.0).all()
    assert_released(device)


def test_a_failure_to_close_does_not_cover_up_what_led_there():
    """A device that hangs under the checked layer: it reports the timeout, the rest is its note."""
    g = GraphBuilder("hang")
    x = g.input("x", (4,))
    graph = g.build(g.silu(x))
    world = SimWorld([SimConfig()], faults=InjectedFaults(hang=frozenset({1})))
    settings = Settings(timeout_s=0.2, checked=True)
    with (
        pytest.raises(SyncTimeout) as info,
        Scheduler(world.open_all(), settings=settings) as scheduler,
    ):
        scheduler.run(graph, {"x": np.ones(4, np.float32)})
    assert any("then, closing" in note for note in info.value.__notes__)


def test_names_beside_open_devices_are_refused():
    with pytest.raises(UsageError, match=r"names \(cpu:1\) and open devices"):
        Scheduler(["cpu:1", TestDevice()])
