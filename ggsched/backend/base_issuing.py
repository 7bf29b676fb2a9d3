"""A stream over a library's queue that can only be waited for: not asked, and not for some time.

Such a library has no function that tells whether work is complete, none that waits for a limited
time, and no command that waits for somebody else's event. So each stream has a thread that may
block. Where the library returns before work is complete, the thread hands over commands as long as
there are some, and waits when there are none, so that the device always has work.
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, Protocol, TypeVar

from ggsched.backend import checks
from ggsched.backend.arrays import Array, bind
from ggsched.backend.base import BaseDevice
from ggsched.backend.base_buffer import own_buffer
from ggsched.backend.base_worker import Item, ThreadStream, attempt, thread_clock
from ggsched.backend.events import BaseEvent
from ggsched.backend.program import BoundNode, Operand
from ggsched.backend.program_body import Command
from ggsched.backend.progress import Progress, wait_patiently
from ggsched.backend.protocols import Event, HostMemory
from ggsched.backend.reference import compute
from ggsched.backend.timeouts import event_timeout
from ggsched.topology.caps import DeviceFacts

MAX_IN_FLIGHT: Final = 32
"""Commands after which a thread waits: what they borrow is free then."""


class LibraryQueue(Protocol):
    """A queue of a library, used by one thread.

    Attributes:
        borrowed: What commands that were enqueued use, until ``synchronize`` drops it.
    """

    borrowed: list[object]

    def read(self, memory: Any, offset: int, target: HostMemory) -> None:
        """Enqueue a transfer to the host; the target is written later, perhaps."""

    def write(self, memory: Any, offset: int, source: HostMemory) -> None:
        """Enqueue a transfer to the device; the source is read later, perhaps."""

    def copy(self, src: Any, src_offset: int, dst: Any, dst_offset: int, size: int) -> None:
        """Enqueue a copy within the device."""

    def synchronize(self) -> None:
        """Block until everything that was enqueued is complete."""

    def record(self) -> Any:
        """Return an event of the library that stands for what was enqueued so far."""

    def wait(self, point: Any) -> None:
        """Let the queue wait for an event of the library, which it keeps meanwhile."""


Q = TypeVar("Q", bound=LibraryQueue)


class HostWrites:
    """Host memory that reads of a device have yet to write, by queue.

    Where a library does not say when it reads the source of an upload, it may do so when it is
    called, although something before it in the queue, or in one that it waits for, is to write it.
    """

    def __init__(self) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        self._changed = threading.Condition(threading.RLock())

    def add(self, queue: int, start: int, nbytes: int) -> None:
        """Note that a queue is to write host memory."""
        with self._changed:
            self._ranges.setdefault(queue, []).append((start, start + nbytes))

    def clear(self, queue: int) -> None:
        """Note that all of a queue is complete."""
        if queue in self._ranges:
            with self._changed:
                del self._ranges[queue]
                self._changed.notify_all()

    def writers(self, start: int, nbytes: int) -> list[int]:
        """Return the queues that are to write some of a range."""
        if not self._ranges:
            return []
        with self._changed:
            return [
                queue
                for queue, ranges in self._ranges.items()
                if any(s < start + nbytes and start < e for s, e in ranges)
            ]

    def wait(self, start: int, nbytes: int) -> None:
        """Block until other queues have written a range; their threads do not wait for this."""
        with self._changed:
            self._changed.wait_for(lambda: not self.writers(start, nbytes))


class IssuingDevice(BaseDevice, Generic[Q]):
    """A device whose streams are ``IssuingStream``s.

    Args:
        is_native: Whether queues wait for each other by events of the library.

    Attributes:
        here: Per thread, the queue that it runs, as ``running``.
        workers: Threads of streams, by the identity of their progress.
    """

    def __init__(self, facts: DeviceFacts, *, is_native: bool) -> None:
        super().__init__(facts, {})
        self.is_native, self.host_writes = is_native, HostWrites()
        self.here = threading.local()
        self.workers: dict[int, Worker] = {}
        self.event_timeout_s = event_timeout()

    @property
    def running(self) -> Q:
        """The queue of the stream whose thread calls."""
        queue: Q = self.here.running
        return queue

    def read_memory(self, memory: Any, offset: int, target: HostMemory) -> None:
        """Enqueue a transfer to the host."""
        self.running.read(memory, offset, target)

    def write_memory(self, memory: Any, offset: int, source: HostMemory) -> None:
        """Enqueue a transfer to the device; the queue keeps the source."""
        self.running.write(memory, offset, source)
        self.running.borrowed.append(source)

    def copy_memory(
        self, src: Any, src_offset: int, dst: Any, dst_offset: int, nbytes: int
    ) -> None:
        """Enqueue a copy within the device."""
        self.running.copy(src, src_offset, dst, dst_offset, nbytes)

    def elements(self, operand: Operand) -> Array:
        """Return the elements of an operand, in the turn of the command that runs."""
        window = memoryview(bytearray(operand.nbytes))
        self.running.read(own_buffer(operand.buffer).memory, operand.offset, window)
        self.running.synchronize()
        return bind(operand, window)

    def run_by_reference(self, node: BoundNode) -> None:
        """Compute a node on the host."""

        def kernel(out: Array, inputs: Sequence[Array], _: object) -> None:
            self.running.synchronize()
            compute(node, out, inputs)

        self._run_staged(node, kernel)


class Worker:
    """What the thread of a stream knows, which is not the stream.

    Attributes:
        progress: Commands that are complete.
        issued: Commands that the library was given.
        points: Events of the library by position, of commands that may not be complete.
    """

    def __init__(
        self, device: IssuingDevice[Any], queue: LibraryQueue, progress: Progress, is_async: bool
    ) -> None:
        self.progress, self.issued = progress, Progress(progress.where)
        self.points: dict[int, Any] = {}
        self._here, self._queue, self._is_async = device.here, queue, is_async
        self._timeout_s = device.event_timeout_s
        self._in_flight: list[tuple[object, tuple[Progress, int] | None]] = []
        self._awaited: tuple[Progress, int] | None = None

    def run(self, commands: "SimpleQueue[Item]") -> None:
        """Run commands until None comes; after a fault skip them (ERR-2)."""
        self._here.running = self._queue
        self.progress.clock = thread_clock()
        while True:
            try:
                item = commands.get(block=not self._in_flight)
            except Empty:
                self.settle()
                continue
            if item is None:
                break
            self._run_one(*item)
            del item
            if not self._is_async or len(self._in_flight) >= MAX_IN_FLIGHT:
                self.settle()
        self.settle()
        self._here.running = None

    def _run_one(self, command: Command, call: Callable[[], None]) -> None:
        attempt(self.progress, command, call, self.settle)
        self._in_flight.append((call, self._awaited))  # the call holds what is borrowed
        self._awaited = None
        self.issued.finish_one()

    def settle(self) -> None:
        """Wait until all that the library was given is complete, and count it.

        What is behind a wait counts after what was waited for, which another thread counts (EVT-5).
        """
        if not self._in_flight:
            return
        self._queue.synchronize()
        # Nothing of a command may stay borrowed once it counts as complete (CPY-4, LCH-1).
        awaited = [before for _, before in self._in_flight]
        self._in_flight.clear()
        for before in awaited:
            if before is not None:
                theirs, position = before
                theirs.wait_for(position, self._timeout_s)
            self.progress.finish_one()
        for position in [p for p in self.points if p <= self.progress.done]:
            del self.points[position]

    def call_settled(self, call: Callable[[], None]) -> None:
        """Make a call that may block until somebody else has seen what is complete here."""
        self.settle()
        call()

    def add_point(self, position: int) -> None:
        """Record an event of the library as the command of a position."""
        self.points[position] = self._queue.record()

    def wait_for(self, other: "Worker", position: int) -> None:
        """Let the queue wait for commands of another stream."""
        theirs = other.progress
        if theirs.failure_before(position) is None and other.issued.done < position:
            self.settle()  # the other one may wait for this stream
            wait_patiently(
                lambda timeout_s: other.issued.require(position, timeout_s),
                theirs.mark,
                self._timeout_s,
                beat=self.progress.beat,
            )
        fault = theirs.failure_before(position)
        if fault is not None:
            raise fault.error()
        point = other.points.get(position)
        if point is not None:  # else it is complete
            self._queue.wait(point)
            self._awaited = theirs, position


class IssuingStream(ThreadStream, Generic[Q]):
    """An in-order queue of commands, over a queue of the library (STR-1..6).

    Args:
        queue: The library's queue.
        is_async: Whether the library may return before work is complete.
    """

    def __init__(self, device: IssuingDevice[Q], name: str, queue: Q, *, is_async: bool) -> None:
        super().__init__(device, name)
        self.queue = queue
        self._workers, self._is_native = device.workers, device.is_native
        self._worker = Worker(device, queue, self.progress, is_async)
        self._workers[id(self.progress)] = self._worker
        self._may_block = False

    def worker(self) -> Callable[[], None]:
        """Return what the thread runs."""
        return partial(self._worker.run, self._queue)

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        settled = partial(self._worker.call_settled, work) if self._may_block else work
        super()._submit(command, settled)

    def record(self, event: Event) -> None:
        """Let an event stand for everything enqueued so far (EVT-1)."""
        progress = self.progress
        is_usable = not (self.is_closed or self.sink.is_capturing or progress.fault)
        if self._is_native and is_usable:
            checks.check_record(self.device, event)
            self.run("record", partial(self._worker.add_point, progress.enqueued + 1))
        super().record(event)  # behind the record, which is the last that it stands for

    def wait(self, event: Event) -> None:
        """Hold later commands until an event is done (EVT-2, EVT-4)."""
        other = None if self.sink.is_capturing else self._recorder(event)
        if other is None:
            self._may_block = True
            try:
                super().wait(event)
            finally:
                self._may_block = False
            return
        self._require_usable()
        checks.check_wait(self.device, event)
        worker, position = other
        self.run("wait for an event", partial(self._worker.wait_for, worker, position))

    def _recorder(self, event: Event) -> tuple[Worker, int] | None:
        """Return the stream of this device that recorded an event which is not done."""
        if not (self._is_native and isinstance(event, BaseEvent) and event.device is self.device):
            return None
        event.require_outside()
        recorded = event.recorded_at
        if recorded is None or not event.is_pending:
            return None
        worker = self._workers.get(id(recorded[0]))
        return None if worker is None or worker is self._worker else (worker, recorded[1])

    def close(self) -> None:
        """Let the worker finish what is enqueued, and end it; legal twice (ERR-3).

        The library's queue is released as soon as no program of the stream has it.
        """
        if not self.is_closed:
            super().close()
            del self._workers[id(self.progress)], self._worker, self.queue, self._thread
