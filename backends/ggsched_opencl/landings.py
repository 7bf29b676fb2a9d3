"""Downloads that are not complete yet, for drivers that read the source of an upload at the call.

By CPY-4 an upload reads its source in its turn, behind downloads into the same memory. NVIDIA's
driver copies pageable memory while ``clEnqueueWriteBuffer`` is called, so an upload that is given
to it too early sends what was there before.
"""

import threading
from typing import Final

from ggsched.backend.host_borrow import address_of
from ggsched.backend.protocols import HostMemory
from ggsched.backend.timeouts import late_error
from ggsched_opencl.driver import COMPLETE, Handle, status_of
from ggsched_opencl.event import POLLING


class Landings:
    """Host memory that downloads of one device have yet to write. Any thread may call it."""

    def __init__(self) -> None:
        self._pending: list[tuple[Handle, int, int]] = []
        self._lock: Final = threading.Lock()

    def add(self, event: Handle, target: HostMemory) -> None:
        """Note a download that was enqueued."""
        start = address_of(target)
        with self._lock:
            self._forget_complete()
            self._pending.append((event, start, start + target.nbytes))

    def meet(self, source: HostMemory) -> bool:
        """Whether a download into some of this memory is not complete; never blocks."""
        if not self._pending:
            return False
        start = address_of(source)
        with self._lock:
            self._forget_complete()
            return any(a < start + source.nbytes and start < b for _, a, b in self._pending)

    def require(self, source: HostMemory, where: str, timeout_s: float) -> None:
        """Block until no download into this memory is pending.

        Raises:
            SyncTimeout: one is after the timeout.
        """
        if not POLLING.wait_until(lambda: not self.meet(source), timeout_s):
            raise late_error(where, timeout_s, "a download into the source of an upload is")

    def _forget_complete(self) -> None:
        self._pending = [one for one in self._pending if status_of(one[0]) > COMPLETE]
