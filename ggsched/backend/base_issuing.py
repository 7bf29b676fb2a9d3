"""A stream over a library's queue that can only be waited for: not asked, and not for some time.

Such a library (ggml is one) has no function that tells whether work is complete, none that waits
for a limited time, and no command that waits for somebody else's event. So each stream has a thread
that may block. Where the library returns before work is complete, the thread hands over commands as
long as there are some, and waits when there are none, so that the device always has work.
"""

import threading
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, Protocol, TypeVar

from ggsched.backend import checks
from ggsched.backend.base_stream import MemoryDevice
from ggsched.backend.base_worker import Item, ThreadStream, thread_clock
from ggsched.backend.events import BaseEvent
from ggsched.backend.program_body import Command
from ggsched.backend.progress import Progress, wait_patiently
from ggsched.backend.protocols import Event

MAX_IN_FLIGHT: Final = 32
"""Commands after which a thread waits: what they borrow is free then."""


class LibraryQueue(Protocol):
    """A queue of a library, used by one thread."""

    def synchronize(self) -> None:
        """Block until everything that was enqueued is complete."""

    def record(self) -> Any:
        """Return an event of the library that stands for what was enqueued so far."""

    def wait(self, point: Any) -> None:
        """Let the queue wait for an event of the library, which it keeps meanwhile."""


Q = TypeVar("Q", bound=LibraryQueue)


class IssuingDevice(MemoryDevice, Protocol):
    """What streams use of their device.

    Attributes:
        here: Per thread, the queue that it runs, as ``running``.
        workers: Threads of streams, by the identity of their progress.
        is_native: Whether queues wait for each other by events of the library.
    """

    here: threading.local
    workers: "dict[int, Worker]"
    is_native: bool


class Worker:
    """What the thread of a stream knows, which is not the stream.

    Attributes:
        progress: Commands that are complete.
        issued: Commands that the library was given.
        points: Events of the library by position, of commands that may not be complete.
    """

    def __init__(
        self, device: IssuingDevice, queue: LibraryQueue, progress: Progress, is_async: bool
    ) -> None:
        self.progress, self.issued = progress, Progress(progress.where)
        self.points: dict[int, Any] = {}
        self._here, self._queue, self._is_async = device.here, queue, is_async
        self._timeout_s = device.event_timeout_s
        self._in_flight: list[object] = []

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
        progress = self.progress
        if progress.fault is None:
            progress.running = command
            try:
                call()
            except BaseException as error:  # there is no caller to raise it to
                self.settle()
                progress.fail(command, error)
            progress.running = None
        self._in_flight.append(call)  # it holds what is borrowed
        self.issued.finish_one()

    def settle(self) -> None:
        """Wait until all that the library was given is complete, and count it."""
        in_flight = len(self._in_flight)
        if not in_flight:
            return
        self._queue.synchronize()
        # Nothing of a command may stay borrowed once it counts as complete (CPY-4, LCH-1).
        self._in_flight.clear()
        for _ in range(in_flight):
            self.progress.finish_one()
        for position in [p for p in self.points if p <= self.progress.done]:
            del self.points[position]

    def call_settled(self, call: Callable[[], None]) -> None:
        """Make a call that may block until somebody else has seen what is complete here."""
        self.settle()
        call()

    def add_point(self, position: int) -> None:
        """Record an event of the library behind a number of commands."""
        self.points[position] = self._queue.record()

    def wait_for(self, other: "Worker", position: int) -> None:
        """Let the queue wait for commands of another stream."""
        theirs, recorded = other.progress, position + 1
        # The point is recorded behind the commands, unless one of them has failed by then.
        if theirs.failure_before(position) is None and other.issued.done < recorded:
            self.settle()  # the other one may wait for this stream
            wait_patiently(
                lambda timeout_s: other.issued.require(recorded, timeout_s),
                theirs.mark,
                self._timeout_s,
                beat=self.progress.beat,
            )
        fault = theirs.failure_before(position)
        if fault is not None:
            raise fault.error()
        point = other.points.get(recorded)
        if point is not None:  # else it is complete
            self._queue.wait(point)


class IssuingStream(ThreadStream, Generic[Q]):
    """An in-order queue of commands, over a queue of the library (STR-1..6).

    Args:
        queue: The library's queue.
        is_async: Whether the library may return before work is complete.
    """

    def __init__(self, device: IssuingDevice, name: str, queue: Q, *, is_async: bool) -> None:
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
        super().record(event)
        if self._is_native and not self.sink.is_capturing:
            add = self._worker.add_point
            self.run("record", partial(add, self.progress.enqueued + 1))

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
