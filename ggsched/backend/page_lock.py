"""Memory of the host that a device copies from and to at the full rate of its link.

This is not part of the contract, like times (``ggsched.backend.timing``): transfers are right
without it. A device that reads host memory faster once its pages are locked has
``__page_lock__(memory)``, which locks them and returns a call that unlocks them again, or None
where that cannot be done.
"""

from collections.abc import Callable
from typing import Final

from ggsched.backend.protocols import HostMemory

SMALLEST_NBYTES: Final = 4096
"""Shorter memory shares its page with others and is not worth the call."""


class PageLock:
    """Locked pages; ``close`` unlocks them, legal twice."""

    def __init__(self, unlock: Callable[[], None]) -> None:
        self._unlock: Callable[[], None] | None = unlock

    def close(self) -> None:
        """Unlock the pages; no command may use them any more."""
        unlock, self._unlock = self._unlock, None
        if unlock is not None:
            unlock()


def lock_pages(device: object, memory: HostMemory) -> PageLock | None:
    """Lock pages for a device, if that makes a difference there and is possible.

    Args:
        device: The device; wrappers are looked through.
        memory: Writable host memory that outlives the lock.
    """
    lock = _lock_of(device)
    if lock is None or memory.nbytes < SMALLEST_NBYTES:
        return None
    unlock = lock(memory)
    return None if unlock is None else PageLock(unlock)


def locks_pages(device: object) -> bool:
    """Whether it makes a difference to a device that pages are locked."""
    return _lock_of(device) is not None


def _lock_of(device: object) -> Callable[[HostMemory], Callable[[], None] | None] | None:
    while (inner := getattr(device, "inner", None)) is not None:
        device = inner
    lock: Callable[[HostMemory], Callable[[], None] | None] | None
    lock = getattr(device, "__page_lock__", None)
    return lock
