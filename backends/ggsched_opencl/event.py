"""Events: the last command of a stream at some time, and the statuses on what lies before it."""

from collections.abc import Sequence
from typing import Final

from ggsched.backend.queued.error_state import POISONED, PendingStatus
from ggsched.backend.queued.events import PointEvent, QueuePoint
from ggsched.backend.queued.polling import Polling
from ggsched.errors import DeviceFault
from ggsched_opencl.driver import COMPLETE, Handle, status_of

# Short, since a device that is a processor needs it for threads of its own.
POLLING: Final = Polling(spin_s=60e-6, share=1 / 16)
GPU_POLLING: Final = Polling(spin_s=5e-3, share=1 / 64)
"""Of devices that leave the processor to the host."""


class Point(QueuePoint):
    """One point of one queue.

    Attributes:
        handle: The command before it, or None if all was complete when it was taken.
    """

    __slots__ = ("handle", "polling")

    def __init__(
        self,
        handle: Handle,
        statuses: Sequence[PendingStatus],
        where: str,
        polling: Polling = POLLING,
    ) -> None:
        super().__init__(statuses, where)
        self.handle = handle
        self.polling = polling

    def is_done(self) -> bool:
        """Whether the work before it is complete or has failed; never blocks."""
        return self.handle is None or status_of(self.handle) <= COMPLETE

    def failure(self) -> DeviceFault | None:
        """Return the fault if the status of the command says so."""
        status = COMPLETE if self.handle is None else status_of(self.handle)
        if status >= COMPLETE:
            return None
        why = f"OpenCL status {status}"
        return DeviceFault("a command failed", where=self.where, why=why, hint=POISONED)


class OpenClEvent(PointEvent[Point]):
    """One point on one stream, recorded once (EVT-1..6)."""

    __slots__ = ()
