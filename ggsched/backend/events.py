"""Events as positions on a stream: making one costs no lock and no system call."""

from collections.abc import Callable
from functools import partial

from ggsched.backend.capture_errors import captured_event_error
from ggsched.backend.checks import closed_error, unrecorded_error
from ggsched.backend.progress import PARTS, Progress, progress_of, wait_patiently
from ggsched.backend.protocols import Device, Event


class BaseEvent:
    """One point on one stream, recorded once (EVT-1..6)."""

    __slots__ = ("_is_closed", "_position", "_progress", "capture", "device")

    def __init__(self, device: Device) -> None:
        self.device = device
        self.capture: object | None = None
        self._progress: Progress | None = None
        self._position = 0
        self._is_closed = False

    @property
    def is_recorded(self) -> bool:
        """Whether a stream has recorded it."""
        if self._is_closed:
            raise closed_error("event")
        return self._progress is not None or self.capture is not None

    @property
    def is_done(self) -> bool:
        """Whether its prefix is complete or has failed (EVT-5, EVT-6)."""
        if self._is_closed:
            raise closed_error("event")
        self.require_outside()
        progress = self._progress
        return progress is not None and progress.done >= self._position

    @property
    def is_pending(self) -> bool:
        """Whether waiting for it means anything: recorded, and not complete or failed."""
        return self._progress is not None and not self._progress.is_good(self._position)

    @property
    def recorded_at(self) -> tuple[Progress, int] | None:
        """The stream that recorded it and its position there; None before that."""
        return None if self._progress is None else (self._progress, self._position)

    def mark(self, progress: Progress) -> None:
        """Record it at the present end of a stream; the stream has checked that it may be."""
        self._progress = progress
        self._position = progress.enqueued

    def waiter(self, timeout_s: float) -> Callable[[], None]:
        """Return a call that waits, and outlives ``close``."""
        progress, position = self._recorded(), self._position
        return lambda: progress.require(position, timeout_s)

    def sync(self, timeout_s: float) -> None:
        """Block until done (EVT-5); raises if it was not recorded (EVT-3) or failed (EVT-6)."""
        if self._is_closed:
            raise closed_error("event")
        self._recorded().require(self._position, timeout_s)

    def __progress__(self) -> object:
        """Return how far the stream has come that recorded it; also after ``close``."""
        return None if self._progress is None else self._progress.mark()

    def close(self) -> None:
        """Release it; legal twice and before it is done (ERR-3)."""
        self._is_closed = True

    def require_outside(self) -> None:
        """Refuse an event that was recorded in a capture (CAP-2)."""
        if self.capture is not None:
            raise captured_event_error(self.device.facts.name)

    def _recorded(self) -> Progress:
        self.require_outside()
        if self._progress is None:
            raise unrecorded_error(self.device.facts.name)
        return self._progress


def lasting_wait(event: Event, timeout_s: float) -> Callable[[], None]:
    """Return a call that waits for an event of any backend.

    It outlives ``close`` where the event offers a ``waiter`` (EVT-5): somebody may close an event
    that is done before a stream which waits for it has come so far.
    """
    waiter = getattr(event, "waiter", None)
    if waiter is not None:
        wait: Callable[[], None] = waiter(timeout_s)
        return wait
    return lambda: event.sync(timeout_s)


def patient_wait(event: Event, timeout_s: float, beat: Callable[[], None]) -> Callable[[], None]:
    """Return a call that waits for an event as long as its stream progresses.

    Args:
        event: Of any backend; it may be closed meanwhile, see ``lasting_wait``.
        timeout_s: Seconds without progress after which the call raises ``SyncTimeout``.
        beat: Called when progress was seen.
    """
    wait = lasting_wait(event, timeout_s / PARTS)
    mark = partial(progress_of, event)
    return lambda: wait_patiently(lambda _: wait(), mark, timeout_s, beat=beat)
