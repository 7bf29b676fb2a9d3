"""Kernels that raise, streams that hang, runs that are interrupted."""

import numpy as np
import pytest

from ggsched.config import Settings
from ggsched.errors import DeviceFault, SyncTimeout
from ggsched.passes.place import Constraints
from ggsched.scheduler import Scheduler
from tests.run.devices import (
    Failing,
    Latch,
    TestDevice,
    after_the_first,
    assert_released,
    raising,
)
from tests.run.graphs import W, X, chain, chain_result, harmless, only, plus_weight


class TestFault:
    @pytest.mark.parametrize("is_async", [False, True])
    @pytest.mark.parametrize("where", [0, 1])
    def test_names_command_and_node_and_releases_everything(self, is_async, where):
        devices = [
            TestDevice(f"test:{i}", gelu=Failing(ZeroDivisionError("by zero")), is_async=is_async)
            for i in range(2)
        ]
        graph, pins = chain(where)
        with Scheduler(devices, settings=Settings()) as scheduler:
            with pytest.raises(DeviceFault) as caught:
                scheduler.run(graph, {"x": X}, pins)
            assert "n1 gelu 'boom' failed: ZeroDivisionError: by zero" in str(caught.value)
            assert f"test:{where} stream 0" in str(caught.value)
            assert any(note.startswith("at c") for note in caught.value.__notes__)
            assert [e for d in devices for e in d.open_events] == []
        assert_released(*devices)

    @pytest.mark.parametrize("error", [ValueError("x"), MemoryError(), DeviceFault("inner")])
    def test_whatever_a_kernel_raises(self, error):
        device = TestDevice(gelu=Failing(error))
        graph, pins = chain()
        with (
            Scheduler([device], settings=Settings()) as scheduler,
            pytest.raises(DeviceFault, match=type(error).__name__),
        ):
            scheduler.run(graph, {"x": X}, pins)
        assert_released(device)

    def test_the_stream_stays_poisoned_and_says_why(self):
        device = TestDevice(gelu=Failing(ValueError("once")))
        graph, pins = chain()
        with Scheduler([device], settings=Settings()) as scheduler:
            for again in (graph, graph, harmless()):
                with pytest.raises(DeviceFault, match="'boom' failed: ValueError: once"):
                    scheduler.run(again, {"x": X}, pins if again is graph else None)
            with pytest.raises(DeviceFault, match="boom"):
                scheduler.clear_states()
        assert_released(device)

    def test_another_scheduler_on_the_same_device_works(self):
        device = TestDevice(gelu=Failing(ValueError("once")))
        graph, pins = chain()
        with (
            Scheduler([device], settings=Settings()) as scheduler,
            pytest.raises(DeviceFault),
        ):
            scheduler.run(graph, {"x": X}, pins)
        with Scheduler([device], settings=Settings()) as scheduler:
            found = only(graph, scheduler.run(graph, {"x": X}, pins))
        np.testing.assert_allclose(found, chain_result(X), rtol=1e-6)

    def test_many_plans_are_released_after_a_fault(self):
        device = TestDevice(gelu=Failing(ValueError("late")), is_async=True)
        graph, pins = chain()
        with Scheduler([device], weights={"w": W}, settings=Settings()) as scheduler:
            for factor in (1.0, 2.0, 3.0):
                scheduler.run(plus_weight(factor), {"x": X})
            with pytest.raises(DeviceFault):
                scheduler.run(graph, {"x": X}, pins)
        assert_released(device)

    def test_what_cannot_be_drained_is_not_evicted_but_released_in_the_end(self):
        device = TestDevice(gelu=Failing(ValueError("once")), is_async=True)
        graph, pins = chain()
        with Scheduler([device], weights={"w": W}, settings=Settings(), plan_limit=1) as scheduler:
            with pytest.raises(DeviceFault):
                scheduler.run(graph, {"x": X}, pins)
            for factor in (1.0, 2.0):
                with pytest.raises(DeviceFault, match="boom"):
                    scheduler.run(plus_weight(factor), {"x": X})
        assert_released(device)

    def test_a_weight_that_cannot_be_filled(self):
        device = TestDevice()

        def bad_write(memory, offset, source):
            raise OSError("bus error")

        device.write_memory = bad_write
        with Scheduler([device], weights={"w": W}, settings=Settings()) as scheduler:
            with pytest.raises(DeviceFault, match="bus error") as caught:
                scheduler.run(plus_weight(), {"x": X})
            assert "while filling 'w'" in caught.value.__notes__
            assert device.open_buffers == []
        assert_released(device)


class TestHang:
    def test_times_out_and_closes(self):
        latch = Latch()
        device = TestDevice(gelu=latch, is_async=True)
        device.on_sync = after_the_first(device, latch)
        graph, pins = chain()
        scheduler = Scheduler([device], settings=Settings(timeout_s=0.01))
        try:
            with pytest.raises(SyncTimeout, match=r"no progress for 0.01 s: \d+ command") as caught:
                scheduler.run(graph, {"x": X}, pins)
            assert "running: n1 gelu 'boom'" in str(caught.value)
            assert "HostSync" in caught.value.__notes__[0]
            with pytest.raises(SyncTimeout):
                scheduler.run(harmless(), {"x": X})
        finally:
            latch.free.set()
            scheduler.close()
        assert_released(device)

    def test_goes_on_once_the_device_answers(self):
        device = TestDevice(is_async=True, has_events=False)
        graph, pins = chain()
        with Scheduler([device], settings=Settings()) as scheduler:
            device.on_sync = raising(SyncTimeout("hangs"))
            with pytest.raises(SyncTimeout):
                scheduler.run(graph, {"x": -X}, pins)
            device.on_sync = lambda: None
            found = only(graph, scheduler.run(graph, {"x": X}, pins))
        np.testing.assert_allclose(found, chain_result(X), rtol=1e-6)
        assert_released(device)

    def test_nothing_is_enqueued_behind_a_run_that_did_not_end(self):
        """A plan orders itself after a complete run of itself, so a broken one is drained."""
        device = TestDevice(is_async=True, has_events=False)
        graph, pins = chain()
        with Scheduler([device], settings=Settings()) as scheduler:
            device.on_sync = raising(SyncTimeout("hangs"))
            with pytest.raises(SyncTimeout):
                scheduler.run(graph, {"x": X}, pins)
            (stream,) = device.open_streams
            enqueued = stream.progress.enqueued
            with pytest.raises(SyncTimeout):
                scheduler.run(graph, {"x": X}, pins)
            assert stream.progress.enqueued == enqueued
            device.on_sync = lambda: None

    def test_a_timeout_is_waited_out_once(self):
        device = TestDevice(is_async=True, has_events=False)
        graph, pins = chain()
        with Scheduler([device], settings=Settings(timeout_s=40)) as scheduler:
            scheduler.run(graph, {"x": X}, pins)
            device.synced.clear()
            device.on_sync = raising(SyncTimeout("hangs"))
            with pytest.raises(SyncTimeout):
                scheduler.run(graph, {"x": X}, pins)
            assert sum(device.synced) == 40
            device.on_sync = lambda: None

    @pytest.mark.parametrize("plans", [1, 4])
    def test_close_waits_once_for_each_stream_that_hangs(self, plans):
        devices = [TestDevice(f"test:{i}", is_async=True) for i in range(3)]
        scheduler = Scheduler(devices, weights={"w": W}, settings=Settings(timeout_s=40))
        for factor in range(plans):
            pins = Constraints(homes={"w": 0}, pins={0: 1, 1: 2})
            scheduler.run(plus_weight(factor + 2.0), {"x": X}, pins)
        for device in devices:
            device.on_sync = raising(SyncTimeout("hangs"))
            device.synced.clear()
        scheduler.close()
        for device in devices:
            assert sum(device.synced) <= 40
        assert_released(*devices)


class TestInterrupt:
    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
    def test_inside_a_kernel(self, error):
        device = TestDevice(gelu=Failing(error()))
        graph, pins = chain()
        with Scheduler([device], settings=Settings()) as scheduler:
            with pytest.raises(error):
                scheduler.run(graph, {"x": X}, pins)
            assert device.open_events == []
        assert_released(device)

    def test_while_the_host_waits(self):
        """The device goes on with the old run, so the next one waits for that first."""
        device = TestDevice(is_async=True, has_events=False)
        graph, pins = chain()
        with Scheduler([device], settings=Settings()) as scheduler:
            scheduler.run(graph, {"x": X}, pins)
            device.on_sync = raising(KeyboardInterrupt())
            with pytest.raises(KeyboardInterrupt):
                scheduler.run(graph, {"x": -X}, pins)
            device.on_sync = lambda: None
            device.synced.clear()
            found = only(graph, scheduler.run(graph, {"x": X}, pins))
            assert len(device.synced) == 2  # what was left, and the run's own
        np.testing.assert_allclose(found, chain_result(X), rtol=1e-6)
        assert_released(device)
