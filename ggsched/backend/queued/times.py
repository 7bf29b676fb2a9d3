"""Times of what a queue is given: those of the last command, also if it comes late."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from ggsched.backend.timing import LateTaken, Taken
from ggsched.errors import DeviceFault


class QueueTimes(ABC):
    """Takes the times of each command that a queue is given.

    Attributes:
        takes_waits: Whether waits for events have times as well.
    """

    takes_waits: ClassVar[bool] = False

    def __init__(self) -> None:
        self._taken: Taken | None = None
        self._late: LateTaken | None = None  # of the command that leaves the backlog

    @abstractmethod
    def begin(self) -> None:
        """Note that a command begins here, whatever became of the one before it."""

    @abstractmethod
    def end(self) -> Taken | None:
        """Return the times of the command that was begun and is enqueued now."""

    def run(self, enqueue: Callable[[], None]) -> None:
        """Enqueue a command and take its times."""
        taken: Taken | None = None
        try:
            self.begin()
            enqueue()
            taken = self.end()
        finally:
            if self._late is None:
                self._taken = taken
            else:
                self._late.taken = taken

    def behind(
        self, run: Callable[[], None]
    ) -> tuple[Callable[[], None], Callable[[DeviceFault], None]]:
        """Return how to run a command that is put into a backlog now, and how to drop it."""
        late = self._taken = LateTaken()

        def run_late() -> None:
            self._late = late
            try:
                run()
            finally:
                self._late = None
                late.is_over = True

        def drop(_: DeviceFault) -> None:
            late.is_over = True

        return run_late, drop

    def latest(self) -> Taken | None:
        """Return the times of the last command; see ``ggsched.backend.timing.Latest``."""
        taken, self._taken = self._taken, None
        return taken
