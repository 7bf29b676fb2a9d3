"""Events: the last command of a stream at some time, and the verdicts on what lies before it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ggsched.backend.checks import closed_error
from ggsched.errors import DeviceFault, SyncTimeout, UsageError
from ggsched_opencl.driver import COMPLETE, Handle, status_of
from ggsched_opencl.polling import wait_until
from ggsched_opencl.verdicts import Verdict, first_fault

if TYPE_CHECKING:
    from ggsched_opencl.device import OpenClDevice


class Point:
    """One point of one stream, as long as anybody wants to know.

    Attributes:
        handle: The command before it, or None if all was complete when it was taken.
        verdicts: On the work before it.
        where: Name of the stream.
    """

    __slots__ = ("handle", "verdicts", "where")

    def __init__(self, handle: Handle, verdicts: Sequence[Verdict], where: str) -> None:
        self.handle = handle
        self.verdicts = tuple(verdicts)
        self.where = where

    def is_done(self) -> bool:
        """Whether the work before it is complete or has failed; never blocks."""
        return self.handle is None or status_of(self.handle) <= COMPLETE

    def fault(self) -> DeviceFault | None:
        """Return the fault if work before it is known to have failed."""
        if self.handle is not None and status_of(self.handle) < COMPLETE:
            return DeviceFault(
                "a command failed",
                where=self.where,
                why=f"OpenCL status {status_of(self.handle)}",
                hint="the stream is poisoned: close it and open another",
            )
        return first_fault(self.verdicts)

    def require(self, timeout_s: float) -> None:
        """Block until done (STR-5, EVT-5).

        Raises:
            SyncTimeout: not in time; nothing has changed.
            DeviceFault: work before it failed (EVT-6).
        """
        if not wait_until(self.is_done, timeout_s):
            raise SyncTimeout(
                f"not complete after {timeout_s:g} s",
                where=self.where,
                hint="wait longer (GGSCHED_TIMEOUT_S), or look for an event that nobody records",
            )
        fault = self.fault()
        if fault is not None:
            raise fault


class OpenClEvent:
    """One point on one stream, recorded once (EVT-1..6)."""

    __slots__ = ("_is_closed", "_point", "device")

    def __init__(self, device: "OpenClDevice") -> None:
        self.device = device
        self._point: Point | None = None
        self._is_closed = False

    @property
    def is_recorded(self) -> bool:
        """Whether a stream has recorded it."""
        if self._is_closed:
            raise closed_error("event")
        return self._point is not None

    @property
    def is_done(self) -> bool:
        """Whether its prefix is complete or has failed (EVT-5, EVT-6)."""
        return self.is_recorded and self.point.is_done()

    @property
    def point(self) -> Point:
        """The point that it stands for.

        Raises:
            UsageError: it was not recorded (EVT-3), or is closed.
        """
        if self._is_closed:
            raise closed_error("event")
        if self._point is None:
            raise UsageError(
                "the event was not recorded",
                where=self.device.facts.name,
                why="waiting for it would never end (EVT-3)",
                hint="record it on a stream first",
            )
        return self._point

    def mark(self, point: Point) -> None:
        """Record it; the stream has checked that it may be."""
        self._point = point

    def waiter(self, timeout_s: float) -> Callable[[], None]:
        """Return a call that waits, and outlives ``close``."""
        point = self.point
        return lambda: point.require(timeout_s)

    def sync(self, timeout_s: float) -> None:
        """Block until done (EVT-5); raises if it was not recorded (EVT-3) or failed (EVT-6)."""
        self.point.require(timeout_s)

    def close(self) -> None:
        """Release it; legal twice and before it is done (ERR-3)."""
        self._is_closed = True
        self._point = None
