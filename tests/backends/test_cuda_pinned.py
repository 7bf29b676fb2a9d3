"""Pinned memory of the backend ``cuda``: blocks, and pages of others that are locked."""

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")

from ggsched_cuda import driver
from ggsched_cuda.pinned import EXACT_NBYTES, SMALLEST, PinnedMemory


@pytest.fixture
def calls(monkeypatch):
    """What is requested of the driver; ``refuses`` makes it lock nothing."""

    class Calls(list):
        refuses = False

    made = Calls()

    def lock(address, nbytes):
        made.append(("lock", address, nbytes))
        return not made.refuses

    def take(nbytes):
        made.append(("take", 0, nbytes))
        return len(made) << 40

    monkeypatch.setattr(driver, "lock_pages", lock)
    monkeypatch.setattr(driver, "unlock_pages", lambda a: made.append(("unlock", a, 0)))
    monkeypatch.setattr(driver, "take_pinned", take)
    return made


def test_locked_pages_count_as_pinned_until_they_are_unlocked(calls):
    pinned, memory = PinnedMemory(), np.zeros(1 << 16, np.uint8)
    start = memory.ctypes.data
    assert not pinned.holds(start, 1 << 16)
    unlock = pinned.lock(memory.data)
    assert unlock is not None
    assert pinned.holds(start, 1 << 16)
    assert pinned.holds(start + 100, 50)
    assert not pinned.holds(start + 100, 1 << 16), "the end lies outside"
    assert pinned.lock(memory[: 1 << 12].data) is None, "they are locked already"
    unlock()
    assert not pinned.holds(start, 1)
    assert calls == [("lock", start, 1 << 16), ("unlock", start, 0)]


def test_pages_that_cannot_be_locked(calls):
    calls.refuses = True
    pinned, memory = PinnedMemory(), np.zeros(1 << 12, np.uint8)
    assert pinned.lock(memory.data) is None
    assert not pinned.holds(memory.ctypes.data, 1)


def test_blocks_are_reused_and_long_ones_waste_little(calls):
    pinned = PinnedMemory()
    small, large = pinned.take(5000), pinned.take(EXACT_NBYTES + 1)
    assert (small.nbytes, large.nbytes) == (2 * SMALLEST, 2 * EXACT_NBYTES)
    assert pinned.take(9 * EXACT_NBYTES).nbytes == 9 * EXACT_NBYTES
    pinned.give(large)
    assert pinned.take(2 * EXACT_NBYTES) is large
    assert pinned.holds(large.address, large.nbytes)
    assert not pinned.holds(large.address + large.nbytes, 1)
