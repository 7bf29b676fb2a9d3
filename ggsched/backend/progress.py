"""How far a stream has come. Events are positions in it, so an event costs two attributes."""

import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, NamedTuple

from ggsched.backend.checks import check_timeout
from ggsched.backend.program_body import Command
from ggsched.backend.timeouts import late_error
from ggsched.errors import DeviceFault, GgschedError, SyncTimeout
from ggsched.units import seconds_text

# --- waits that last as long as there is progress -------------------------------------------------

# A wait ends with ``SyncTimeout`` once nothing has progressed for the timeout. What progresses are
# streams: the commands that they complete and, where a device counts them, the nodes or kernels of
# the launch that runs. A node that computes is progress, however long it takes: on a thread while
# the thread uses the processor, on a driver while the driver reports its kernel as running. A
# stream that waits for an event progresses with the stream that recorded it.
#
# A stream or event may say how far it has come by ``__progress__()``, which returns a value that
# changes as work proceeds. One that does not have it progresses when it becomes done.


PARTS: Final = 8
"""Looks at the progress in one timeout: a chain of streams passes it on with each."""


_UNKNOWN: Final = object()


class ProgressMark(NamedTuple):
    """How far a stream has come.

    Attributes:
        done: Commands that are complete.
        inner: Steps of the command that runs, as far as the device counts them.
        beats: Times that it saw progress of what it waits for.
        doing: What runs, for messages.
        computed: Changes while what runs computes.
        since: When ``done`` or ``inner`` changed last, as seen by ``mark``, by
            ``time.monotonic``.
    """

    done: int = 0
    inner: object = 0
    beats: int = 0
    doing: str = ""
    computed: object = 0
    since: float = 0.0


def progress_of(thing: Any) -> object:
    """Return a value that changes while a stream or an event progresses; never blocks."""
    while True:
        progress = getattr(thing, "__progress__", None)
        if progress is not None:
            mark: object = progress()
            return mark
        inner = getattr(thing, "inner", None)  # of a device that checks or records
        if inner is None:
            break
        thing = inner
    try:
        return bool(thing.is_done)
    except GgschedError:  # closed, or being captured
        return None


def doing(things: Iterable[Any], for_s: float = 0.0) -> str:
    """Return what streams are running and how long each has run, as far as they say.

    Args:
        things: Streams.
        for_s: Leave out what has run for a shorter time.
    """
    now, marks = time.monotonic(), map(progress_of, things)
    return ", ".join(
        f"{mark.doing} for {seconds_text(max(0.0, now - mark.since))}"
        for mark in marks
        if isinstance(mark, ProgressMark) and mark.doing and now - mark.since >= for_s
    )


class LastChange:
    """Since when a position has not changed, as far as somebody has looked."""

    __slots__ = ("_position", "_since")

    def __init__(self) -> None:
        self._position: object = _UNKNOWN
        self._since = 0.0

    def at(self, position: object) -> float:
        """Return when a position was seen first, by ``time.monotonic``."""
        if position != self._position:
            self._position, self._since = position, time.monotonic()
        return self._since


def wait_patiently(
    wait: Callable[[float], None],
    mark: Callable[[], object],
    timeout_s: float,
    *,
    beat: Callable[[], None] | None = None,
    lasts: Callable[[], None] | None = None,
) -> None:
    """Wait as long as there is progress.

    Args:
        wait: Waits for a number of seconds at most, and raises ``SyncTimeout`` then.
        mark: Returns a value that changes with progress. Not called before a part of the timeout
            is over, so that a wait that ends soon costs no more than ``wait``.
        timeout_s: Seconds without progress after which it is given up.
        beat: Called when progress was seen.
        lasts: Called when the wait has taken once, twice, four times ... the timeout.

    Raises:
        SyncTimeout: as ``wait`` raised it, after ``timeout_s`` without progress.
    """
    if timeout_s <= 0:
        wait(0.0)
        return
    last, idle, parts, report_at = _UNKNOWN, 0, 0, PARTS
    while True:
        try:
            wait(timeout_s / PARTS)
        except SyncTimeout:
            now = mark()
            idle = idle + 1 if last in (_UNKNOWN, now) else 0
            if idle >= PARTS:
                raise
            if not idle and beat is not None:
                beat()
            last = now
            parts += 1
            if parts >= report_at and lasts is not None:
                lasts()
                report_at *= 2
        else:
            return


# --- the progress of a stream ---------------------------------------------------------------------


_NEVER: Final = 1 << 62
_COMPUTED_S: Final = 1e-3
"""Processor time that counts as progress: more than a thread takes that only wakes up."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The first command of a stream that failed (ERR-2).

    Attributes:
        where: The stream.
        command: The command, e.g. ``"n12 mul_mat 'ffn_up'"``.
        cause: What it raised.
        position: Its position on the stream, counted from one.
    """

    where: str
    command: str
    cause: BaseException
    position: int

    def error(self) -> DeviceFault:
        """Return a fresh error that names the command, with the cause chained."""
        fault = DeviceFault(
            f"{self.command} failed",
            where=self.where,
            why=f"{type(self.cause).__name__}: {self.cause}",
            hint="the stream is poisoned: close it and open another",
        )
        fault.__cause__ = self.cause
        return fault


def _commands(count: int) -> str:
    return "1 command is" if count == 1 else f"{count} commands are"


class Progress:
    """Counts the commands of one stream.

    ``enqueued`` is written by the thread that uses the stream, ``done`` by the thread that runs
    it; under the GIL plain integers do. The condition is touched only when a position is reached
    for which somebody sleeps: waking the host after each command would take the GIL from the
    thread that runs them.

    ``running`` is the command that runs: a name, or a body that may know how far it is (``at``).

    ``clock`` returns the processor time, in seconds, of the thread that runs the commands; None
    where nobody knows it. A body whose thread uses the processor progresses.
    """

    __slots__ = (
        "_beats",
        "_changed",
        "_condition",
        "_wake_at",
        "clock",
        "done",
        "enqueued",
        "fault",
        "running",
        "where",
    )

    def __init__(self, where: str) -> None:
        self.where = where
        self.enqueued = 0
        self.done = 0
        self.fault: Fault | None = None
        self.running: Any = None
        self.clock: Callable[[], float] | None = None
        self._beats = 0
        self._changed = LastChange()
        self._wake_at = _NEVER
        self._condition = threading.Condition()

    def mark(self) -> ProgressMark:
        """Return how far the stream has come."""
        running = self.running
        at = getattr(running, "at", None)
        inner: object = getattr(running, "position", 0)
        label = running if isinstance(running, str) else ""
        if at is not None:
            inner, label = at()
        computed, clock = 0, self.clock
        if clock is not None and running is not None and not isinstance(running, str):
            computed = int(clock() / _COMPUTED_S)
        since = self._changed.at((self.done, inner))
        return ProgressMark(self.done, inner, self._beats, label, computed, since)

    def beat(self) -> None:
        """Note that what the stream waits for has progressed."""
        self._beats += 1

    def finish_one(self) -> None:
        """Count a command as complete and wake those who wait for it.

        ``done`` is written before ``_wake_at`` is read, and a sleeper does it the other way
        round, so one of the two always sees the other.
        """
        self.done += 1
        if self.done >= self._wake_at:
            with self._condition:
                self._wake_at = _NEVER  # whoever has to sleep on sets it again
                self._condition.notify_all()

    def fail(self, command: Command, cause: BaseException) -> None:
        """Note the failure of the command after ``done``; only the first one counts (ERR-2).

        Frames of the traceback are cleared: they would keep memory borrowed (CPY-4).
        """
        if self.fault is None:
            name = command if isinstance(command, str) else command.failed_node(cause)
            self.fault = Fault(self.where, name, cause, self.done + 1)
            if isinstance(cause, Exception):
                traceback.clear_frames(cause.__traceback__)

    def failure_before(self, position: int) -> Fault | None:
        """Return the fault if it lies within the first ``position`` commands (EVT-6)."""
        fault = self.fault
        return fault if fault is not None and fault.position <= position else None

    def is_good(self, position: int) -> bool:
        """Whether ``position`` commands are complete and none of them failed."""
        return self.done >= position and self.failure_before(position) is None

    def require(self, position: int, timeout_s: float) -> None:
        """Block until ``position`` commands are complete (STR-5, EVT-5).

        Raises:
            SyncTimeout: they are not in time; nothing has changed.
            DeviceFault: one of them failed (EVT-6).
            UsageError: the timeout is NaN.
        """
        check_timeout(timeout_s, self.where)
        if not self.wait_for(position, timeout_s):
            raise late_error(self.where, timeout_s, _commands(position - self.done))
        fault = self.failure_before(position)
        if fault is not None:
            raise fault.error()

    def wait_for(self, position: int, timeout_s: float) -> bool:
        """Block until ``position`` commands are complete; return whether they are (STR-5)."""
        if self.done >= position:
            return True
        deadline = monotonic() + timeout_s
        with self._condition:
            while True:
                self._wake_at = min(self._wake_at, position)
                if self.done >= position:
                    return True
                left = min(deadline - monotonic(), threading.TIMEOUT_MAX)
                if left <= 0 or not self._condition.wait(left):
                    return self.done >= position
