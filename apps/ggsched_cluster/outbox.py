"""One direction of a connection: a thread that writes never waits for the one that reads.

What the kernel does not take at once is copied, and a thread writes it, which lives as long as
there is something left. So two machines may send each other any amount while neither reads.
"""

import threading
from collections import deque
from contextlib import suppress
from itertools import islice
from socket import MSG_DONTWAIT, SHUT_RDWR
from typing import Any, Final

from ggsched_cluster.transport import SYSTEM, Thread, Transport

_MAX_VIEWS: Final = 512
"""Views written by one call; Linux takes 1024."""


class Outbox:
    """A connection to write to.

    Args:
        address: ``tcp://HOST:PORT``.
        transport: Of the process.

    Attributes:
        target: The socket; None where the address cannot be connected to.
        is_broken: Whether what is written cannot arrive.
        written_nbytes: Bytes that the kernel has taken.
    """

    def __init__(self, address: str, transport: Transport = SYSTEM) -> None:
        self._left: deque[memoryview] = deque()
        self._lock = threading.Lock()
        self._writer: Thread | None = None
        self._transport = transport
        self.is_broken, self.written_nbytes = False, 0
        self.target: Any = None
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        try:
            self.target = transport.connect(host.strip("[]"), int(port))
        except (OSError, OverflowError, ValueError):  # also an address that is none
            self.is_broken = True

    def write(self, views: list[memoryview]) -> bool:
        """Write bytes, which may change when this returns; return False if they cannot arrive."""
        with self._lock:
            if self._left:
                self._left.extend(memoryview(bytes(view)) for view in views)
                return not self.is_broken
            left = deque(views)
            try:
                while left and not self.is_broken:
                    count = self.target.sendmsg(islice(left, _MAX_VIEWS), [], MSG_DONTWAIT)
                    self.written_nbytes += count
                    _drop(left, count)
            except BlockingIOError:
                self._left.extend(memoryview(bytes(view)) for view in left)
                self._writer = self._transport.thread(self._write_left, "ggsched outbox")
            except OSError:
                self.is_broken = True
            except BaseException:  # a signal between two parts: what follows would be misread
                self.is_broken = True
                raise
            return not self.is_broken

    def close(self, linger_s: float = 0.0) -> None:
        """Close the connection; what was written goes out for a time. Legal twice."""
        writer = self._writer
        if writer is not None:
            writer.join(linger_s)
            if writer.is_alive():
                with suppress(OSError):
                    self.target.shutdown(SHUT_RDWR)  # ends its call
                writer.join()
        if self.target is not None:
            self.target.close()

    def _write_left(self) -> None:
        while True:
            with self._lock:
                views = list(islice(self._left, _MAX_VIEWS))
                if not views:
                    return
            try:
                count = self.target.sendmsg(views)
            except OSError:
                self.is_broken, count = True, -1
            with self._lock:
                if self.is_broken:
                    self._left.clear()
                else:
                    self.written_nbytes += count
                    _drop(self._left, count)


def _drop(views: deque[memoryview], count: int) -> None:
    """Remove bytes that were written."""
    while views and count >= len(views[0]):
        count -= len(views.popleft())
    if count:
        views[0] = views[0][count:]
