"""Threads hand the interpreter over sooner while one of them feeds a device.

A thread that comes back from a call of a driver waits for the interpreter until the thread that has
it has had it for the switch interval, 5 ms by default, in which a link takes as much as is on its
way. With a tenth of that an upload beside a thread that plans or compiles keeps most of its rate.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

INTERVAL_S: Final = 5e-4

_LOCK: Final = threading.Lock()
_before: list[float] = []
"""The interval to come back to, once for each block that is open."""


@contextmanager
def quick_switching() -> Iterator[None]:
    """Let the switch interval of the process be short in the block; blocks of threads may overlap.

    What somebody else sets meanwhile stays.
    """
    with _LOCK:
        _before.append(_before[0] if _before else sys.getswitchinterval())
        if len(_before) == 1:
            sys.setswitchinterval(min(INTERVAL_S, _before[0]))
    try:
        yield
    finally:
        with _LOCK:
            before = _before.pop()
            is_ours = abs(sys.getswitchinterval() - min(INTERVAL_S, before)) < 1e-6
            if not _before and is_ours:
                sys.setswitchinterval(before)
