"""Recording and waiting on a queue, behind commands that wait for events of other backends."""

import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from ggsched.backend.protocols import Event
from ggsched.backend.queued.backlog import Backlog, Drop, succeeded
from ggsched.backend.queued.error_state import ErrorState, reraise_copy
from ggsched.backend.queued.events import LatePoint, PointEvent, QueuePoint

P = TypeVar("P", bound=QueuePoint)


class CommandQueue(Generic[P]):
    """Commands of one stream; what a plug-in adds is its driver's queue.

    Args:
        name: Name of the stream, for messages and threads.
        timeout_s: How long it waits for an event of another backend before it fails.

    Attributes:
        faults: Why it is poisoned, and what has yet to be looked at.
        backlog: Commands that the driver's queue has yet to be given.
    """

    def __init__(self, name: str, timeout_s: float) -> None:
        self.name = name
        self.faults = ErrorState()
        self.backlog = Backlog(name, self.faults)
        self._timeout_s = timeout_s
        # Also when nobody closes the stream, and at the end of the process.
        self._cancel = weakref.finalize(self, self.backlog.cancel)

    # --- what the plug-in knows -----------------------------------------------------------------

    def point(self) -> P:
        """Return the present end of the driver's queue."""
        raise NotImplementedError

    def enqueue_wait(self, point: P) -> None:
        """Let the driver's queue wait for a point that is not done."""
        raise NotImplementedError

    def native(self, event: Event) -> PointEvent[P] | None:
        """Return an event that the driver's queue can wait for as what it is."""
        raise NotImplementedError

    def give(self, command: str, enqueue: Callable[[], None]) -> None:
        """Enqueue a command, behind what is in the backlog."""
        if self.backlog.is_pending:
            self.later(command, enqueue)
        else:
            enqueue()

    def later(self, command: str, enqueue: Callable[[], None], drop: Drop | None = None) -> None:
        """Put a command into the backlog; ``drop`` is told if it is dropped or fails."""
        self.backlog.add(command, enqueue, drop)

    # --- what is the same for all -----------------------------------------------------------------

    def record(self, event: PointEvent[P]) -> None:
        """Let an event stand for everything enqueued so far (EVT-1, EVT-6)."""
        fault = self.faults.known()
        if self.backlog.is_pending:
            late: LatePoint[P] = LatePoint(self.name)
            event.mark(late)
            self.later("record", lambda: late.issue(self.point()), late.drop)
        else:
            event.mark(self.point())
        if fault is not None:
            raise reraise_copy(fault)

    def wait(self, event: Event) -> None:
        """Hold later commands until an event is done (EVT-2, EVT-4)."""
        own = self.native(event)
        if own is None:
            if not succeeded(event):
                self.backlog.wait(event, self._timeout_s)
            return
        point = own.point
        if isinstance(point, LatePoint) and point.issued is None:
            self.backlog.wait_for_point(point)
        self.give("wait", lambda: self._wait_for(point))

    def _wait_for(self, point: P | LatePoint[P]) -> None:
        if isinstance(point, LatePoint):
            assert point.issued is not None  # the backlog has waited for it
            point = point.issued
        if point.is_done():
            self.faults.poison(point.failure())
        else:
            self.enqueue_wait(point)
        self.faults.add(point.verdicts)

    def cancel(self) -> None:
        """Give up waits for events of other backends; what is behind them never takes effect."""
        self._cancel()
