"""The cyclic garbage collector, which has nothing to find in a plan."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the collector from walking many objects that all stay alive and form no cycles.

    Planning makes such objects, checking makes maps of them. As a decorator it outlasts the locals
    of the function, so that the collector finds them gone.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
