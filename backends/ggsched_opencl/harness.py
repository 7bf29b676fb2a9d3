"""What the conformance kit needs to know: how to hold the queue of a stream itself."""

from functools import partial
from typing import Any

from ggsched.backend.protocols import Stream
from ggsched.backend.queued.stream import QueuedStream
from ggsched_opencl import driver
from ggsched_opencl.queue import OpenClQueue


class QueueLatch:
    """A user event that the queue of a stream waits for.

    A foreign event would keep what follows out of the queue (``ggsched.backend.queued.backlog``),
    and the order of the queue would not be tested. Behind a backlog it takes its turn.
    """

    def __init__(self, stream: QueuedStream[OpenClQueue]) -> None:
        gate = driver.make_gate(stream.queue.context)
        stream.queue.give("hold", partial(stream.queue.hold, gate))
        self._open = partial(driver.open_gate, gate)
        self._is_open = False

    def release(self) -> None:
        """Let the stream go on; legal twice."""
        if not self._is_open:
            self._is_open = True
            self._open()


class OpenClHarness:
    """Holds streams by user events."""

    def latch(self, stream: Stream) -> Any:
        """Hold a stream."""
        assert isinstance(stream, QueuedStream)
        return QueueLatch(stream)
