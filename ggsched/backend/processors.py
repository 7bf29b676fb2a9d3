"""Which processors this process may use."""

import os
from collections.abc import Collection


def usable_processors() -> Collection[int]:
    """Return the numbers of the processors that this process may use, all where that is unknown."""
    if hasattr(os, "sched_getaffinity"):  # absent on macOS
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)
