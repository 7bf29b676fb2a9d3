"""Waiting for the device with a timeout, which the driver does not have."""

import time
from collections.abc import Callable
from typing import Final

SPIN_S: Final = 5e-3
SHORTEST_S: Final = 20e-6
LONGEST_S: Final = 1e-3
SHARE: Final = 1 / 64


def wait_until(is_done: Callable[[], bool], timeout_s: float) -> bool:
    """Block until ``is_done`` or the timeout; return which.

    For the time of a few decoding steps it only gives way to other threads, because a sleep takes
    50 microseconds longer than asked for. Then it sleeps for a share of the time that it has
    waited, so that it sees the end at most that much too late.
    """
    if is_done():
        return True
    start = time.monotonic()
    while True:
        waited = time.monotonic() - start
        if waited >= timeout_s:
            return is_done()
        if waited < SPIN_S:
            time.sleep(0)
        else:
            pause = min(LONGEST_S, max(SHORTEST_S, waited * SHARE))
            time.sleep(min(pause, timeout_s - waited))
        if is_done():
            return True
