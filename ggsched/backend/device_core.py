"""What every open device keeps: its facts, its buffers and streams, and whether it is open."""

import threading
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from ggsched.backend import checks
from ggsched.backend.base_buffer import BaseBuffer
from ggsched.backend.host_memory import allocate_host
from ggsched.backend.protocols import HostMemory, Stream
from ggsched.backend.timeouts import EVENT_TIMEOUT_S
from ggsched.errors import OutOfDeviceMemory, UsageError
from ggsched.topology.caps import DeviceFacts


class OpenStream(Stream, Protocol):
    """A stream that knows whether it was closed."""

    is_closed: bool


S = TypeVar("S", bound=OpenStream)


class DeviceCore(Generic[S]):
    """Counts memory and streams; what they are is up to the plug-in."""

    event_timeout_s: float = EVENT_TIMEOUT_S

    def __init__(self, facts: DeviceFacts) -> None:
        self.facts = facts
        self.is_closed = False
        self._lock = threading.RLock()
        self._buffers: WeakSet[BaseBuffer] = WeakSet()
        self._streams: WeakSet[S] = WeakSet()
        self._created = 0

    # --- hooks ------------------------------------------------------------------------------

    def acquire_memory(self, nbytes: int) -> Any:
        """Return fresh memory.

        Raises:
            MemoryError, OutOfDeviceMemory: there is none; the caller learns how much is free.
        """
        raise NotImplementedError

    def make_buffer(self, nbytes: int, memory: Any) -> BaseBuffer:
        """Return a buffer over fresh memory."""
        device: Any = self  # the whole one is a ``Device``
        return BaseBuffer(device, nbytes, memory)

    def make_stream(self, name: str) -> S:
        """Return a new stream of the device's kind."""
        raise NotImplementedError

    def counted_nbytes(self, nbytes: int) -> int:
        """Return what a buffer takes of the device's memory."""
        return nbytes

    # --- the contract -----------------------------------------------------------------------

    @property
    def free_nbytes(self) -> int:
        """Memory that no open buffer holds."""
        with self._lock:
            buffers = [b for b in self._buffers if not b.is_closed and not b.readonly]
        return self.facts.memory_nbytes - sum(self.counted_nbytes(b.nbytes) for b in buffers)

    def allocate(self, nbytes: int) -> BaseBuffer:
        """Return a fresh buffer (BUF-1)."""
        self._require_open()
        checks.check_length(self.facts, nbytes)
        with self._lock:
            if self.counted_nbytes(nbytes) > min(
                self.free_nbytes, self.facts.max_allocation_nbytes
            ):
                raise self._out_of_memory(nbytes)
            try:
                memory = self.acquire_memory(nbytes)
            except (MemoryError, OutOfDeviceMemory) as error:
                raise self._out_of_memory(nbytes) from error
            return self._register(self.make_buffer(nbytes, memory))

    def allocate_host(self, nbytes: int) -> HostMemory:
        """Return writable host memory; plain memory, aligned (BUF-6)."""
        self._require_open()
        return allocate_host(self.facts, nbytes)

    def create_stream(self) -> S:
        """Return a new stream."""
        self._require_open()
        with self._lock:
            if sum(not s.is_closed for s in self._streams) >= self.facts.max_streams:
                raise UsageError(
                    f"more than {self.facts.max_streams} streams",
                    where=self.facts.name,
                    hint="close streams that are no longer used",
                )
            stream = self.make_stream(f"{self.facts.name} stream {self._created}")
            self._created += 1
            self._streams.add(stream)
            return stream

    def close(self) -> None:
        """Close every stream and every buffer; legal twice (ERR-3)."""
        self.is_closed = True
        with self._lock:
            streams, buffers = list(self._streams), list(self._buffers)
        for stream in streams:
            stream.close()
        for buffer in buffers:
            buffer.close()

    # --- helpers ----------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self.is_closed:
            raise checks.closed_error(f"device {self.facts.name}")

    def _register(self, buffer: BaseBuffer) -> BaseBuffer:
        with self._lock:
            self._buffers.add(buffer)
        return buffer

    def _out_of_memory(self, nbytes: int) -> OutOfDeviceMemory:
        most, free = self.facts.max_allocation_nbytes, self.free_nbytes
        is_counted = self.counted_nbytes(nbytes) <= min(most, free)
        why = "the system gives no more; other programs may use it" if is_counted else ""
        return checks.out_of_memory_error(self.facts, nbytes, free, why)
