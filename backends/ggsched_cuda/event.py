"""Events: points of streams, and the verdicts on what lies before them."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ggsched.backend.checks import closed_error
from ggsched.errors import DeviceFault, SyncTimeout, UsageError
from ggsched_cuda import driver
from ggsched_cuda.driver import NOT_READY, READY
from ggsched_cuda.polling import wait_until
from ggsched_cuda.verdicts import LOST, Verdict, first_fault

if TYPE_CHECKING:
    from ggsched_cuda.card import Card
    from ggsched_cuda.device import CudaDevice


class Marker:
    """An event of the driver; it goes back to its card when nobody has it any more.

    A stream that waits for it already is not disturbed by that: the driver has taken down what to
    wait for when the wait was enqueued.
    """

    __slots__ = ("_card", "_state", "handle")

    def __init__(self, card: "Card") -> None:
        self.handle = card.take_event()
        self._card = card
        self._state = NOT_READY

    def state(self) -> int:
        """Return ``READY``, ``NOT_READY`` or the number of an error; never blocks."""
        if self._state == NOT_READY:
            self._card.enter()
            self._state = int(driver.query_event(self.handle)[0])
        return self._state

    def is_done(self) -> bool:
        """Whether the work before it is complete or has failed."""
        return self.state() != NOT_READY

    def __del__(self) -> None:
        self._card.give_event(self.handle)


class Point:
    """One point of one stream, as long as anybody wants to know.

    Attributes:
        marker: What was recorded there, or None if all was complete when it was taken.
        verdicts: On the work before it.
        where: Name of the stream.
        holds: Host memory that commands before it use.
    """

    __slots__ = ("holds", "marker", "verdicts", "where")

    def __init__(
        self, marker: Marker | None, verdicts: Sequence[Verdict], where: str, holds: Any = None
    ) -> None:
        self.marker = marker
        self.verdicts = tuple(verdicts)
        self.where = where
        self.holds = holds

    def is_done(self) -> bool:
        """Whether the work before it is complete or has failed; never blocks."""
        if self.marker is None or self.marker.is_done():
            self.holds = None
            return True
        return False

    def fault(self) -> DeviceFault | None:
        """Return the fault if work before it is known to have failed."""
        state = READY if self.marker is None else self.marker.state()
        if state not in (READY, NOT_READY):
            return DeviceFault(
                "a command failed", where=self.where, why=f"CUDA error {state}", hint=LOST
            )
        return first_fault(self.verdicts)

    def require(self, timeout_s: float) -> None:
        """Block until done (STR-5, EVT-5).

        Raises:
            SyncTimeout: not in time; nothing has changed.
            DeviceFault: work before it failed (EVT-6).
        """
        if not wait_until(self.is_done, timeout_s):
            raise late(self.where, timeout_s)
        fault = self.fault()
        if fault is not None:
            raise fault


def late(where: str, timeout_s: float) -> SyncTimeout:
    """Return the error for work that was not complete in time."""
    return SyncTimeout(
        f"not complete after {timeout_s:g} s",
        where=where,
        hint="wait longer (GGSCHED_TIMEOUT_S), or look for an event that nobody records",
    )


class CudaEvent:
    """One point on one stream, recorded once (EVT-1..6)."""

    __slots__ = ("_is_closed", "_point", "capture", "device")

    def __init__(self, device: "CudaDevice") -> None:
        self.device = device
        self.capture: object | None = None
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
            UsageError: it was not recorded (EVT-3), is closed, or belongs to a capture (CAP-2).
        """
        if self._point is not None and self.capture is not None:
            raise UsageError(
                "the event was recorded in a capture",
                where=self.device.facts.name,
                why="nothing of a capture runs before it is replayed (CAP-2)",
                hint="wait for an event that is recorded behind the replay",
            )
        return self.recorded

    @property
    def recorded(self) -> Point:
        """The point, inside a capture too."""
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

    def mark(self, point: Point, capture: object | None = None) -> None:
        """Record it; the stream has checked that it may be."""
        self._point = point
        self.capture = capture

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
