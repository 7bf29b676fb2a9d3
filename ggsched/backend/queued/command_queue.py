"""A library's queue as a stream gives it commands, behind those that wait for other backends."""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from ggsched.backend.protocols import Event, HostMemory
from ggsched.backend.queued.backlog import Backlog, Drop, succeeded
from ggsched.backend.queued.error_state import ErrorState, reraise_copy
from ggsched.backend.queued.events import LatePoint, PointEvent, QueuePoint
from ggsched.backend.queued.polling import Polling
from ggsched.backend.queued.times import QueueTimes
from ggsched.errors import DeviceFault

P = TypeVar("P", bound=QueuePoint)


class Launchable(Protocol):
    """What a stream launches.

    Attributes:
        stream: The only stream that launches it.
        steps: What the queue is given; empty once it is closed.
        labels: The node of each step.
        checks_ids: Whether one of them may meet an id out of range.
        is_closed: Whether it was closed.
    """

    stream: Any
    steps: Sequence[Any]
    labels: Sequence[str]
    checks_ids: bool
    is_closed: bool


class CommandSink(ABC):
    """Where commands of a stream go: into a queue, or into the graph of a capture.

    ``memory`` is what the device's ``acquire_memory`` returned.
    """

    is_capturing = False

    @abstractmethod
    def give(self, command: str, enqueue: Callable[[], None], *, is_timed: bool = True) -> None:
        """Enqueue a command, now or in its turn."""

    @abstractmethod
    def upload(self, source: HostMemory, memory: Any, offset: int) -> None:
        """Copy host bytes to the device."""

    @abstractmethod
    def download(self, memory: Any, offset: int, target: HostMemory) -> None:
        """Copy bytes of the device to the host."""

    @abstractmethod
    def copy(self, src: Any, src_offset: int, dst: Any, dst_offset: int, nbytes: int) -> None:
        """Copy bytes between devices whose memory the library copies, or within one."""

    @abstractmethod
    def fill(self, memory: Any, offset: int, nbytes: int, pattern: bytes) -> None:
        """Set bytes of the device to a repeated pattern."""

    @abstractmethod
    def launch(self, program: Any, steps: Sequence[Any]) -> None:
        """Run the steps of a program; one that fails poisons the stream."""

    @abstractmethod
    def record(self, event: Any) -> None:
        """Let an event stand for everything that came here so far."""

    @abstractmethod
    def wait(self, event: Event) -> None:
        """Hold later commands until an event is done."""

    @abstractmethod
    def require_eager(self, what: str) -> None:
        """Refuse what a captured stream cannot do."""

    @abstractmethod
    def abort(self) -> None:
        """Abort the capture, if there is one."""


class CommandQueue(CommandSink, Generic[P]):
    """Commands of one stream; what a plug-in adds is the library's queue.

    Args:
        name: Name of the stream, for messages and threads.
        timeout_s: How long it waits for an event of another backend before it fails.

    Attributes:
        polling: How to wait for the library.
        faults: Why it is poisoned, and what has yet to be looked at.
        backlog: Commands that the library's queue has yet to be given.
        times: Takes the times of commands, if somebody requested them.
        is_full: Whether the library's queue may block whoever enqueues more (STR-2).
    """

    polling: ClassVar[Polling]
    is_full = False

    def __init__(self, name: str, timeout_s: float) -> None:
        self.name = name
        self.faults = ErrorState()
        self.backlog = Backlog(name, self.faults)
        self.times: QueueTimes | None = None
        self._timeout_s = timeout_s
        self._progress = self.progress()
        # Also when nobody closes the stream, and at the end of the process.
        self._cancel = weakref.finalize(self, self.backlog.cancel)

    def progress(self) -> Callable[[], object]:
        """Return a function of how far the queue is, which does not keep the stream alive."""
        return self.backlog.progress()

    # --- what the plug-in knows -----------------------------------------------------------------

    @abstractmethod
    def point(self) -> P:
        """Return the present end of the library's queue."""

    @abstractmethod
    def enqueue_wait(self, point: P) -> None:
        """Let the library's queue wait for a point that is not done."""

    @abstractmethod
    def native(self, event: Event) -> PointEvent[P] | None:
        """Return an event that the library's queue can wait for as what it is."""

    @abstractmethod
    def end(self) -> None:
        """Release the library's queue: no more commands come, and those that have come run."""

    def enter(self) -> None:
        """Prepare a thread for calls of the library."""

    def errors(self) -> type[Exception] | tuple[()]:
        """Return what the library raises where it refuses a command."""
        return ()

    def refused(self, command: str, error: Exception) -> DeviceFault:
        """Return the fault of a command that the library refused."""
        raise error

    def is_idle(self) -> bool:
        """Whether everything that the library's queue was given is complete; never blocks."""
        return self.point().is_done()

    def complete(self, timeout_s: float) -> None:
        """Block until everything that the library's queue was given is complete (STR-5)."""
        try:
            self.point().require(timeout_s)
        except DeviceFault as fault:
            self.faults.poison(fault)
            raise

    def make_times(self) -> QueueTimes:
        """Return what takes times of commands from now on."""
        raise NotImplementedError

    def await_room(self) -> None:
        """Put a wait into the backlog until a queue that ``is_full`` takes another command."""

    def await_source(self, source: HostMemory) -> None:
        """Hold an upload until its source has its content, if the library reads that at the call.

        Nothing is to be done where the library reads it in the command's turn.
        """

    # --- what is the same for all -----------------------------------------------------------------

    def give(self, command: str, enqueue: Callable[[], None], *, is_timed: bool = True) -> None:
        """Enqueue a command, behind what is in the backlog, and where the queue has room."""
        times, backlog = self.times if is_timed else None, self.backlog
        if self.is_full or backlog.is_pending:
            self.await_room()
        if not backlog.is_pending:
            self._run(command, enqueue, times)
        elif times is None:
            self.later(command, lambda: self._run(command, enqueue, None))
        else:
            self.later(command, *times.behind(lambda: self._run(command, enqueue, times)))

    def later(self, command: str, enqueue: Callable[[], None], drop: Drop | None = None) -> None:
        """Put a command into the backlog; ``drop`` is called if it is dropped or fails."""

        def run() -> None:
            self.enter()
            enqueue()

        self.backlog.add(command, run, drop)

    def _run(self, command: str, enqueue: Callable[[], None], times: QueueTimes | None) -> None:
        try:
            if times is None:
                enqueue()
            else:
                times.run(enqueue)
        except self.errors() as error:
            raise self.refused(command, error) from error

    def record(self, event: PointEvent[P]) -> None:
        """Let an event stand for everything enqueued so far (EVT-1, EVT-6)."""
        fault = self.faults.known()
        if self.backlog.is_pending:
            late: LatePoint[P] = LatePoint(self.name)
            event.mark(late, progress=self._progress)
            self.later("record", lambda: late.issue(self.point()), late.drop)
        else:
            event.mark(self.point(), progress=self._progress)
        if fault is not None:
            raise reraise_copy(fault)

    def __progress__(self) -> object:
        """Return how far the stream has come; see ``ggsched.backend.progress``."""
        return self._progress()

    def wait(self, event: Event) -> None:
        """Hold later commands until an event is done (EVT-2, EVT-4)."""
        own = self.native(event)
        if own is None:
            if not succeeded(event):
                self.backlog.wait(event, self._timeout_s)
            return
        point = own.point
        if isinstance(point, LatePoint) and point.issued is None:
            self.backlog.wait_for_point(point)
        is_timed = self.times is not None and self.times.takes_waits
        self.give("wait", lambda: self._wait_for(point), is_timed=is_timed)

    def _wait_for(self, point: P | LatePoint[P]) -> None:
        if isinstance(point, LatePoint):
            if point.issued is None:  # dropped: the backlog's wait for it has poisoned the stream
                return
            point = point.issued
        if point.is_done():
            self.faults.poison(point.failure())
        else:
            self.enqueue_wait(point)
        self.faults.add(point.statuses)

    def require_eager(self, what: str) -> None:
        """Refuse nothing: there is no capture."""

    def abort(self) -> None:
        """Do nothing: there is no capture."""

    def cancel(self) -> None:
        """Give up waits for events of other backends; what is behind them never takes effect."""
        self._cancel()
