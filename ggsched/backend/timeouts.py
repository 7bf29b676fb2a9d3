"""How long anything may block."""

import os
from typing import Final

from ggsched.errors import SyncTimeout, UsageError

EVENT_TIMEOUT_S: Final = 30.0
"""How long a stream waits for an event of somebody else before it fails."""


def event_timeout() -> float:
    """Return ``GGSCHED_TIMEOUT_S``, or ``EVENT_TIMEOUT_S`` where it is not set.

    Raises:
        UsageError: it is no positive number.
    """
    text = os.environ.get("GGSCHED_TIMEOUT_S", "").strip()
    try:
        timeout = float(text) if text else EVENT_TIMEOUT_S
    except ValueError:
        timeout = -1.0
    if not timeout > 0:
        raise UsageError(f"{text!r} is no time", where="GGSCHED_TIMEOUT_S", hint="seconds > 0")
    return timeout


def late_error(what: str, where: str, timeout_s: float) -> SyncTimeout:
    """Return the error for what was not complete in time (STR-5)."""
    return SyncTimeout(
        f"{what} not complete after {timeout_s:g} s".lstrip(),
        where=where,
        hint="wait longer (GGSCHED_TIMEOUT_S), or look for an event that nobody records",
    )
