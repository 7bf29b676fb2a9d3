"""Waiting for a device with a timeout, which libraries do not have."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

SHORTEST_S: Final = 20e-6
LONGEST_S: Final = 1e-3

give_way: Callable[[], object] = getattr(os, "sched_yield", partial(time.sleep, 0.0))
"""Let other threads and processes run, and go on soon. Even a sleep of no time takes 50 to 80
microseconds where the system rounds timers up, as Linux does; this takes one."""


@dataclass(frozen=True, slots=True)
class Polling:
    """How a thread polls a device until it is done.

    At first it only gives way to other threads, because a sleep takes 50 microseconds longer than
    requested. Then it sleeps for a share of the time that it has waited, so that it sees the end at
    most that much too late.

    Attributes:
        spin_s: Seconds until it sleeps: more where the processor has nothing else to do, less where
            the device computes on that processor.
        share: Of the time waited, what a sleep takes.
    """

    spin_s: float
    share: float

    def wait_until(self, is_done: Callable[[], bool], timeout_s: float) -> bool:
        """Block until ``is_done`` or the timeout; return which."""
        if is_done():
            return True
        start = time.monotonic()
        while True:
            waited = time.monotonic() - start
            if waited >= timeout_s:
                return is_done()
            if waited < self.spin_s:
                give_way()
            else:
                pause = min(LONGEST_S, max(SHORTEST_S, waited * self.share))
                time.sleep(min(pause, timeout_s - waited))
            if is_done():
                return True
