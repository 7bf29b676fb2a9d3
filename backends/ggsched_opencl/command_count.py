"""How many kernels of a queue are complete, for timeouts on lack of progress."""

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final

from ggsched.backend.progress import LastChange, ProgressMark
from ggsched_opencl.driver import COMPLETE, RUNNING, Handle, status_of

_MOST: Final = 4096
"""Kernels that are remembered; of more the oldest are forgotten."""


class CommandCount:
    """Kernels of one queue, in order. Transfers are left out: their events hold host memory.

    Any thread may call it.
    """

    def __init__(self) -> None:
        self._pending: deque[tuple[Handle, str]] = deque(maxlen=_MOST)
        self._done = 0
        self._changed = LastChange()

    def launch(self) -> Callable[[tuple[Handle, str]], None]:
        """Forget earlier kernels if all are complete; return what remembers one and its node."""
        pending = self._pending
        if pending and status_of(pending[-1][0]) <= COMPLETE:
            self.clear()
        return pending.append

    def done(self) -> int:
        """Return a number that grows as kernels complete."""
        pending = self._pending
        try:
            while status_of(pending[0][0]) <= COMPLETE:
                pending.popleft()
                self._done += 1
        except IndexError:  # nothing is pending
            pass
        return self._done

    def mark(self, behind: tuple[int, int]) -> ProgressMark:
        """Return how far the queue is, and the node whose kernel runs.

        Args:
            behind: How far the backlog is, and times that it saw progress of what it waits for.
        """
        done = self.done()
        handled, beats = behind
        since = self._changed.at((done, handled))
        try:
            kernel, label = self._pending[0]
        except IndexError:  # nothing is pending
            return ProgressMark(done, handled, beats, since=since)
        computed = monotonic() if status_of(kernel) == RUNNING else 0.0
        return ProgressMark(done, handled, beats, label, computed, since)

    def clear(self) -> None:
        """Forget kernels that are complete."""
        self._done += len(self._pending)
        self._pending.clear()
