"""Devices over a library with queues: what they make, and how they end."""

from collections.abc import Sequence
from time import perf_counter
from typing import Any, ClassVar, TypeVar

from ggsched.backend import checks
from ggsched.backend.base_buffer import BaseBuffer
from ggsched.backend.device_core import DeviceCore
from ggsched.backend.program import BoundNode
from ggsched.backend.protocols import Buffer, HostMemory, Program, Stream
from ggsched.backend.queued.events import PointEvent
from ggsched.backend.queued.polling import Polling
from ggsched.backend.queued.stream import QueuedStream
from ggsched.backend.timeouts import event_timeout
from ggsched.backend.timing import Clock
from ggsched.topology.caps import DeviceFacts, WaitPath

S = TypeVar("S", bound=QueuedStream[Any])


class QueuedDevice(DeviceCore[S]):
    """Makes streams whose queues are a library's.

    Args:
        timeout_s: How long a stream waits for an event of another backend before it fails;
            ``GGSCHED_TIMEOUT_S`` or 30 if not given.

    Attributes:
        polling: How to wait for the library.
        event_type: Of its events, which queues wait for natively.
    """

    polling: ClassVar[Polling]
    event_type: ClassVar[type[PointEvent[Any]]] = PointEvent

    def __init__(self, facts: DeviceFacts, timeout_s: float | None = None) -> None:
        super().__init__(facts)
        self.event_timeout_s = event_timeout() if timeout_s is None else timeout_s

    # --- what the plug-in knows -----------------------------------------------------------------

    def make_program(self, stream: S, nodes: Sequence[BoundNode]) -> Program:
        """Choose kernels and bind their arguments (LCH-3)."""
        raise NotImplementedError

    def reaches(self, buffer: Buffer) -> bool:
        """Whether the library copies from and to a buffer: only its own."""
        device: Any = self
        return buffer.device is device

    def waits_natively(self, other: DeviceFacts) -> bool:
        """Whether queues wait for events of another device: only for its own."""
        return other.name == self.facts.name

    def is_drained(self) -> bool:
        """Whether everything that closed streams were given is complete."""
        return True

    def end(self) -> None:
        """Release what the device has besides buffers and streams."""

    # --- what is the same for all -----------------------------------------------------------------

    def __clock__(self) -> Clock:
        """Return the clock of its streams' times, the host's; see ``ggsched.backend.timing``."""
        return perf_counter

    def create_event(self) -> PointEvent[Any]:
        """Return a fresh event (EVT-1)."""
        self._require_open()
        device: Any = self
        return self.event_type(device)

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> Program:
        """Choose kernels and bind their arguments (LCH-3)."""
        self._require_open()
        device: Any = self
        checks.check_compile(device, nodes, stream)
        own: Any = stream  # the check has compared its device
        if own.is_closed:
            raise checks.closed_error("stream")
        return self.make_program(own, nodes)

    def import_host(self, memory: HostMemory) -> BaseBuffer:
        """Return a read-only buffer over host memory, on devices that share it; refuse (TRU-1)."""
        self._require_open()
        checks.check_import(self.facts, memory)
        raise AssertionError("not declared")

    def copies_with(self, other: DeviceFacts) -> bool:
        """Whether streams copy from and to buffers of another device (CPY-6): host ones."""
        return other.is_host

    def wait_path(self, other: DeviceFacts) -> WaitPath:
        """How streams wait for events of another device (EVT-4)."""
        if not other.has_events:
            return "host"
        return "native" if self.waits_natively(other) else "thread"

    def close(self) -> None:
        """Close every stream and every buffer; legal twice (ERR-3).

        Waits for events of other backends that are not over are given up, and what is behind them.
        """
        if self.is_closed:
            return
        self.is_closed = True
        streams = list(self._streams)
        for stream in streams:
            stream.sink.abort()
        for stream in streams:
            stream.cancel()
        for stream in streams:
            stream.close()
        self.polling.wait_until(self.is_drained, self.event_timeout_s)
        for buffer in list(self._buffers):
            buffer.close()
        self.end()
