"""How long anything may block."""

import threading
from typing import Final

from ggsched.backend.settings import setting
from ggsched.config import Settings
from ggsched.errors import BackendUnavailable, SyncTimeout

EVENT_TIMEOUT_S: Final = Settings().timeout_s
"""How long a stream waits for an event of somebody else before it fails."""


def event_timeout() -> float:
    """Return ``GGSCHED_TIMEOUT_S``, or ``EVENT_TIMEOUT_S`` where it is not set.

    Raises:
        UsageError: it is not a positive number of seconds.
    """
    timeout_s: float = setting("timeout_s")
    return timeout_s


def start_thread(thread: threading.Thread, where: str) -> None:
    """Start a thread.

    Args:
        where: What needs it, e.g. a stream.

    Raises:
        BackendUnavailable: the system gives no more threads.
    """
    try:
        thread.start()
    except RuntimeError as error:  # Python's word for a limit of the system
        raise BackendUnavailable(
            "no thread can be started",
            where=where,
            why=str(error),
            hint="raise the limit of processes (ulimit -u, or that of the container), or use "
            "fewer devices and streams; GGSCHED_CPU_SYNC=1 needs none on cpu",
        ) from error


def late_error(where: str, timeout_s: float, what: str = "") -> SyncTimeout:
    """Return the error for what was not complete in time (STR-5).

    Args:
        where: What was waited for, e.g. a stream.
        timeout_s: For how long.
        what: What of it, where that is known: ``"3 commands are"``.
    """
    return SyncTimeout(
        f"{what and f'{what} '}not complete after {timeout_s:g} s",
        where=where,
        hint="wait longer (GGSCHED_TIMEOUT_S), or look for an event that is never recorded",
    )
