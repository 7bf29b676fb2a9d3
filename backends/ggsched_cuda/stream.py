"""Streams: what ``QueuedStream`` has, captures, and what other libraries request."""

from typing import Protocol

from ggsched.backend.queued.stream import QueuedStream, StreamDevice
from ggsched_cuda import driver
from ggsched_cuda.async_errors import FaultWords
from ggsched_cuda.capture_sink import CapturingSink
from ggsched_cuda.cuda_context import CudaContext
from ggsched_cuda.event import Marker
from ggsched_cuda.graphs import CudaGraph
from ggsched_cuda.program import ProgramDevice
from ggsched_cuda.queue import CudaQueue


class OwnDevice(StreamDevice, ProgramDevice, Protocol):
    """What streams use of their device."""

    gpu: CudaContext
    event_timeout_s: float


class CudaStream(QueuedStream[CudaQueue]):
    """An in-order queue of commands (STR-1..6).

    Args:
        name: For messages and threads.
    """

    device: OwnDevice
    sink: CudaQueue | CapturingSink

    def __init__(self, device: OwnDevice, name: str) -> None:
        self.gpu = device.gpu
        self.gpu.enter()
        words = FaultWords(self.gpu.pinned.take_quad(), name)
        handle = driver.make_stream()
        super().__init__(device, CudaQueue(self.gpu, handle, words, name, device.event_timeout_s))

    @property
    def handle(self) -> int:
        """The driver's stream."""
        return self.queue.handle

    def unfinished(self) -> list[Marker]:
        """Return markers behind all that is enqueued, if some of that is not complete."""
        return self.sink.unfinished()

    def switch(self, sink: CapturingSink | None) -> None:
        """Capture commands from now on, or no more; the backlog is paused meanwhile."""
        self.sink = sink or self.queue
        self.queue.is_current = sink is None

    def replay(self, graph: CudaGraph) -> None:
        """Enqueue what was captured, as one command of this stream (CAP-1).

        Raises:
            UsageError: the graph was captured on another stream, or is closed.
        """
        self._require_usable()
        self.sink.require_eager("replay")
        executable, words, meets = graph.executable_on(self), graph.words, graph.meets
        self.queue.give("replay", lambda: self.queue.replay(executable, words, meets=meets))

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the driver's stream, for other libraries (INT-3)."""
        self._require_open()
        return (0, self.handle)
