"""Timeouts on lack of progress: slow work is not ended as long as it goes on.

A wait ends with ``SyncTimeout`` once nothing has progressed for the timeout. What progresses are
streams: the commands that they complete and, where a device counts them, the nodes or kernels of
the launch that runs. A stream that waits for an event progresses with the stream that recorded it.

A stream or event may say how far it has come by ``__progress__()``, which returns a value that
changes as work proceeds. One that does not have it progresses when it becomes done.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from ggsched.errors import GgschedError, SyncTimeout

PARTS: Final = 8
"""Looks at the progress in one timeout: a chain of streams passes it on with each."""


class ProgressMark(NamedTuple):
    """How far a stream has come.

    Attributes:
        done: Commands that are complete.
        inner: Steps of the command that runs, as far as the device counts them.
        beats: Times that it saw progress of what it waits for.
        doing: What runs, for messages.
    """

    done: int = 0
    inner: object = 0
    beats: int = 0
    doing: str = ""


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


def doing(things: Iterable[Any]) -> str:
    """Return what streams are running, as far as they say."""
    marks = (progress_of(thing) for thing in things)
    words = [m.doing for m in marks if isinstance(m, ProgressMark) and m.doing]
    return ", ".join(words)


def wait_patiently(
    wait: Callable[[float], None],
    mark: Callable[[], object],
    timeout_s: float,
    *,
    beat: Callable[[], None] | None = None,
) -> None:
    """Wait as long as there is progress.

    Args:
        wait: Waits for a number of seconds at most, and raises ``SyncTimeout`` then.
        mark: Returns a value that changes with progress. Not called before a part of the timeout
            is over, so that a wait that ends soon costs no more than ``wait``.
        timeout_s: Seconds without progress after which it is given up.
        beat: Called when progress was seen.

    Raises:
        SyncTimeout: as ``wait`` raised it, after ``timeout_s`` without progress.
    """
    if timeout_s <= 0:
        wait(0.0)
        return
    last, idle = _UNKNOWN, 0
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
        else:
            return


_UNKNOWN: Final = object()
