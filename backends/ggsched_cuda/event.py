"""Events: points of streams, and the statuses on what lies before them."""

from collections.abc import Sequence
from typing import Any, Final, Protocol

from ggsched.backend.queued.error_state import PendingStatus
from ggsched.backend.queued.events import PointEvent, QueuePoint
from ggsched.backend.queued.polling import Polling
from ggsched.errors import DeviceFault
from ggsched_cuda import driver
from ggsched_cuda.async_errors import LOST
from ggsched_cuda.driver import NOT_READY, READY

# A few decoding steps long; the processor has nothing else to do meanwhile.
POLLING: Final = Polling(spin_s=5e-3, share=1 / 64)


class EventPool(Protocol):
    """Where events of the driver come from and go back to; it is a ``CudaContext``."""

    def enter(self) -> None:
        """Make the GPU's context current on this thread."""

    def take_event(self) -> int:
        """Return an event of the driver, of any state."""

    def give_event(self, handle: int) -> None:
        """Take an event back."""


class Marker:
    """An event of the driver; it goes back to its GPU when nobody has it any more.

    A stream that waits for it already is not disturbed by that: the driver has taken down what to
    wait for when the wait was enqueued.
    """

    __slots__ = ("_state", "gpu", "handle")

    def __init__(self, gpu: EventPool) -> None:
        self.handle = gpu.take_event()
        self.gpu = gpu
        self._state = NOT_READY

    @classmethod
    def behind(cls, gpu: EventPool, stream: int) -> "Marker":
        """Record an event of the driver on one of its streams."""
        marker = cls(gpu)
        marker.record(stream)
        return marker

    def record(self, stream: int) -> None:
        """Stand behind what a stream of the driver was given so far; once."""
        driver.check(driver.record_event(self.handle, stream), "cuEventRecord")

    def state(self) -> int:
        """Return ``READY``, ``NOT_READY`` or the number of an error; never blocks."""
        if self._state == NOT_READY:
            self.gpu.enter()
            self._state = int(driver.query_event(self.handle)[0])
        return self._state

    def is_done(self) -> bool:
        """Whether the work before it is complete or has failed."""
        return self.state() != NOT_READY

    def __del__(self) -> None:
        self.gpu.give_event(self.handle)


class Point(QueuePoint):
    """One point of one stream.

    Attributes:
        marker: What was recorded there, or None if all was complete when it was taken.
        holds: Host memory that commands before it use.
    """

    __slots__ = ("holds", "marker")
    polling = POLLING

    def __init__(
        self,
        marker: Marker | None,
        statuses: Sequence[PendingStatus],
        where: str,
        holds: Any = None,
    ) -> None:
        super().__init__(statuses, where)
        self.marker = marker
        self.holds = holds

    def is_done(self) -> bool:
        """Whether the work before it is complete or has failed; never blocks."""
        if self.marker is None or self.marker.is_done():
            self.holds = None
            return True
        return False

    def failure(self) -> DeviceFault | None:
        """Return the fault if the driver's event says so."""
        state = READY if self.marker is None else self.marker.state()
        if state in (READY, NOT_READY):
            return None
        why = f"CUDA error {state}"
        return DeviceFault("a command failed", where=self.where, why=why, hint=LOST)


class CudaEvent(PointEvent[Point]):
    """One point on one stream, recorded once (EVT-1..6)."""

    __slots__ = ()
