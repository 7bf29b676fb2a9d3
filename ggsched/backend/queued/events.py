"""Events as points of queues, recorded once."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from ggsched.backend.capture_errors import captured_event_error
from ggsched.backend.checks import check_timeout, closed_error, unrecorded_error
from ggsched.backend.protocols import Device
from ggsched.backend.queued.error_state import PendingStatus, first_fault, reraise_copy
from ggsched.backend.queued.polling import Polling
from ggsched.backend.timeouts import late_error
from ggsched.errors import DeviceFault


class QueuePoint(ABC):
    """One point of one queue, as long as anybody wants to know.

    Args:
        statuses: On the work before it.
        where: Name of the stream.

    Attributes:
        polling: How to wait for it.
    """

    __slots__ = ("statuses", "where")
    polling: Polling

    def __init__(self, statuses: Iterable[PendingStatus], where: str) -> None:
        self.statuses = tuple(statuses)
        self.where = where

    @abstractmethod
    def is_done(self) -> bool:
        """Whether the work before it is complete or has failed; never blocks."""

    @abstractmethod
    def failure(self) -> DeviceFault | None:
        """Return the fault if the library says that work before it failed."""

    def fault(self) -> DeviceFault | None:
        """Return the fault if work before it is known to have failed."""
        return self.failure() or first_fault(self.statuses)

    def require(self, timeout_s: float) -> None:
        """Block until done (STR-5, EVT-5).

        Raises:
            SyncTimeout: not in time; nothing has changed.
            DeviceFault: work before it failed (EVT-6).
        """
        if not self.polling.wait_until(self.is_done, timeout_s):
            raise late_error(self.where, timeout_s)
        fault = self.fault()
        if fault is not None:
            raise reraise_copy(fault)


P = TypeVar("P", bound=QueuePoint)


class LatePoint(Generic[P]):
    """A point behind commands that wait in a backlog: the queue has yet to be given them.

    Args:
        where: Name of the stream.

    Attributes:
        issued: The point of the queue, once the queue has all that is before it.
    """

    __slots__ = ("_fault", "_is_known", "_where", "issued")

    def __init__(self, where: str) -> None:
        self._where = where
        self.issued: P | None = None
        self._fault: DeviceFault | None = None
        self._is_known = threading.Event()

    def issue(self, point: P) -> None:
        """Be a point of the queue from now on."""
        self.issued = point
        self._is_known.set()

    def drop(self, fault: DeviceFault) -> None:
        """Fail: what is before it was dropped."""
        self._fault = fault
        self._is_known.set()

    def is_done(self) -> bool:
        """Whether the work before it is complete, has failed or was dropped; never blocks."""
        return self._fault is not None or (self.issued is not None and self.issued.is_done())

    def require_issued(self, timeout_s: float) -> None:
        """Block until the queue has all that is before it.

        Raises:
            SyncTimeout: not in time.
            DeviceFault: it was dropped.
        """
        if not self._is_known.wait(min(timeout_s, threading.TIMEOUT_MAX)):
            raise late_error(self._where, timeout_s)
        if self._fault is not None:
            raise reraise_copy(self._fault)

    def require(self, timeout_s: float) -> None:
        """Block until done, as ``QueuePoint.require``."""
        end = time.monotonic() + timeout_s
        self.require_issued(timeout_s)
        assert self.issued is not None  # else it was dropped
        self.issued.require(max(0.0, end - time.monotonic()))


class PointEvent(Generic[P]):
    """One point on one stream, recorded once (EVT-1..6).

    Args:
        device: Whose event it is.

    Attributes:
        capture: The capture that it was recorded in, or None (CAP-2).
    """

    __slots__ = ("_is_closed", "_point", "_progress", "capture", "device")

    def __init__(self, device: Device) -> None:
        self.device = device
        self.capture: object | None = None
        self._point: P | LatePoint[P] | None = None
        self._progress: Callable[[], object] | None = None
        self._is_closed = False

    @property
    def is_recorded(self) -> bool:
        """Whether a stream has recorded it."""
        if self._is_closed:
            raise closed_error("event")
        return self._point is not None or self.capture is not None

    @property
    def is_done(self) -> bool:
        """Whether its prefix is complete or has failed (EVT-5, EVT-6)."""
        return self.is_recorded and self.point.is_done()

    @property
    def point(self) -> P | LatePoint[P]:
        """The point that it stands for.

        Raises:
            UsageError: it was not recorded (EVT-3), is closed, or belongs to a capture (CAP-2).
        """
        if self.capture is not None and not self._is_closed:
            raise captured_event_error(self.device.facts.name)
        return self.recorded

    @property
    def recorded(self) -> P | LatePoint[P]:
        """The point, inside a capture too."""
        if self._is_closed:
            raise closed_error("event")
        if self._point is None:
            raise unrecorded_error(self.device.facts.name)
        return self._point

    def mark(
        self,
        point: P | LatePoint[P],
        capture: object | None = None,
        progress: Callable[[], object] | None = None,
    ) -> None:
        """Record it; the stream has checked that it may be."""
        self._point = point
        self.capture = capture
        self._progress = progress

    def __progress__(self) -> object:
        """Return how far the stream has come that recorded it; also after ``close``."""
        return None if self._progress is None else self._progress()

    def waiter(self, timeout_s: float) -> Callable[[], None]:
        """Return a call that waits, and outlives ``close``."""
        point = self.point
        return lambda: point.require(timeout_s)

    def sync(self, timeout_s: float) -> None:
        """Block until done (EVT-5); raises if it was not recorded (EVT-3) or failed (EVT-6)."""
        point = self.point
        check_timeout(timeout_s, self.device.facts.name)
        point.require(timeout_s)

    def close(self) -> None:
        """Release it; legal twice and before it is done (ERR-3)."""
        self._is_closed = True
        self._point = None
