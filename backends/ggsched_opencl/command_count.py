"""How many kernels of a queue are complete, for timeouts on lack of progress."""

from collections import deque
from collections.abc import Callable
from typing import Final

from ggsched_opencl.driver import COMPLETE, Handle, status_of

_MOST: Final = 4096
"""Kernels that are remembered; of more the oldest are forgotten."""


class CommandCount:
    """Kernels of one queue, in order. Transfers are left out: their events hold host memory.

    Any thread may call it.
    """

    def __init__(self) -> None:
        self._pending: deque[Handle] = deque(maxlen=_MOST)
        self._done = 0

    def launch(self) -> Callable[[Handle], None]:
        """Forget earlier kernels if all are complete; return what remembers one."""
        pending = self._pending
        if pending and status_of(pending[-1]) <= COMPLETE:
            self.clear()
        return pending.append

    def done(self) -> int:
        """Return a number that grows as kernels complete."""
        pending = self._pending
        try:
            while status_of(pending[0]) <= COMPLETE:
                pending.popleft()
                self._done += 1
        except IndexError:  # nothing is pending
            pass
        return self._done

    def clear(self) -> None:
        """Forget kernels that are complete."""
        self._done += len(self._pending)
        self._pending.clear()
