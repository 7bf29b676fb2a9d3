"""Too little memory, wherever it runs out."""

import numpy as np
import pytest

from ggsched.config import Settings
from ggsched.errors import OutOfDeviceMemory
from ggsched.ir.builder import GraphBuilder
from ggsched.scheduler import Scheduler
from tests.run.devices import TestDevice, assert_released
from tests.run.graphs import N, W, X, harmless, only, plus_weight

WEIGHTS = {f"w{i}": W for i in range(3)}
SMALLEST = 128  # what ``harmless`` needs
STEP = 32


def big():
    """Add several weights and a state to an input."""
    g = GraphBuilder("big")
    y = g.input("x", (N,))
    for name in WEIGHTS:
        y = g.add(g.silu(y), g.weight(name, (N,)))
    return g.build(g.add(y, g.cpy(g.silu(y), g.state("s", (N,)))))


def scheduler_with(memory):
    device = TestDevice(memory_nbytes=memory, max_allocation_nbytes=memory)
    return device, Scheduler([device], weights=WEIGHTS, settings=Settings())


def needed():
    device, scheduler = scheduler_with(1 << 20)
    with scheduler:
        scheduler.run(big(), {"x": X})
        return sum(b.nbytes for b in device.open_buffers)


@pytest.mark.parametrize("memory", range(SMALLEST, needed(), STEP))
def test_nothing_stays_behind_and_less_still_runs(memory):
    device, scheduler = scheduler_with(memory)
    small = harmless()
    with scheduler:
        for _ in range(2):
            with pytest.raises(OutOfDeviceMemory):
                scheduler.run(big(), {"x": X})
            assert device.open_buffers == []
            assert scheduler.resident_nbytes("weight") == {}
            assert scheduler.resident_nbytes("state") == {}
        np.testing.assert_array_equal(only(small, scheduler.run(small, {"x": X})), 3 * X)
    assert_released(device)


def test_it_ran_out_everywhere():
    """Weights, the state and the arena each were the one too many."""
    asked = set()
    for memory in range(SMALLEST, needed(), STEP):
        device, scheduler = scheduler_with(memory)
        free = []
        usual = device.allocate

        def allocate(nbytes, usual=usual, free=free):
            free.append(nbytes)
            return usual(nbytes)

        device.allocate = allocate
        with scheduler, pytest.raises(OutOfDeviceMemory):
            scheduler.run(big(), {"x": X})
        asked.add(len(free))
    assert asked >= {3, 4, 5}


def test_exactly_enough():
    device, scheduler = scheduler_with(needed())
    with scheduler:
        scheduler.run(big(), {"x": X})
    assert_released(device)


def test_says_how_much_and_where():
    _, scheduler = scheduler_with(200)
    with (
        scheduler,
        pytest.raises(OutOfDeviceMemory, match=r"test:0: requested \d+ bytes, \d+ of 200 are free"),
    ):
        scheduler.run(big(), {"x": X})


def test_what_other_plans_use_stays():
    first = plus_weight(name="w0")
    _, scheduler = scheduler_with(needed() - STEP)
    with scheduler:
        before = only(first, scheduler.run(first, {"x": X}))
        with pytest.raises(OutOfDeviceMemory):
            scheduler.run(big(), {"x": X})
        assert scheduler.resident_nbytes("weight") == {"test:0": 4 * N}
        np.testing.assert_array_equal(only(first, scheduler.run(first, {"x": X})), before)


def test_a_single_buffer_that_is_too_large():
    device = TestDevice(max_allocation_nbytes=32)
    with (
        Scheduler([device], settings=Settings()) as scheduler,
        pytest.raises(OutOfDeviceMemory, match="one buffer holds at most 32 bytes"),
    ):
        scheduler.run(harmless(), {"x": X})
    assert_released(device)


def test_plans_that_are_merely_kept_give_way():
    first = plus_weight(name="w0")
    device, scheduler = scheduler_with(needed())
    with scheduler:
        before = only(first, scheduler.run(first, {"x": X}))
        for _ in range(2):
            scheduler.run(big(), {"x": X})
            np.testing.assert_array_equal(only(first, scheduler.run(first, {"x": X})), before)
        assert scheduler.resident_nbytes("weight") == {"test:0": 3 * 4 * N}
    assert_released(device)
