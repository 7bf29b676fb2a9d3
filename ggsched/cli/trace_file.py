"""``--trace FILE``: what the devices were told, written when the command ends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ggsched.errors import UsageError

if TYPE_CHECKING:
    from ggsched.trace.recorder import Recorder


@contextmanager
def trace_to(path: str | None, name: str) -> Iterator["Recorder | None"]:
    """Give a recorder, and write its trace in the end, also after an error.

    Args:
        path: Where to; None for no trace and no recorder.
        name: Name of the trace.

    Raises:
        UsageError: the file cannot be written, which is found out before anything is recorded.
    """
    if path is None:
        yield None
        return
    from ggsched.trace.export import write_trace
    from ggsched.trace.recorder import Recorder

    _check_writable(path)
    recorder = Recorder()
    try:
        yield recorder
    finally:
        write_trace(recorder.trace(name), path)


def _check_writable(path: str) -> None:
    """Refuse a path that cannot be written, and leave what is there as it is."""
    is_new = not os.path.lexists(path)
    try:
        with open(path, "ab"):
            pass
        if is_new:
            os.remove(path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError("cannot write the trace", where=path, why=why) from error
