"""Timeouts on lack of progress: slow work is not ended as long as it goes on.

A wait ends with ``SyncTimeout`` once nothing has progressed for the timeout. What progresses are
streams: the commands that they complete and, where a device counts them, the nodes or kernels of
the launch that runs. A node that computes is progress, however long it takes: on a thread while
the thread uses the processor, on a driver while the driver reports its kernel as running. A stream
that waits for an event progresses with the stream that recorded it.

A stream or event may say how far it has come by ``__progress__()``, which returns a value that
changes as work proceeds. One that does not have it progresses when it becomes done.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from ggsched.errors import GgschedError, SyncTimeout
from ggsched.units import seconds_text

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
