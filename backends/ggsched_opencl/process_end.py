"""Calls of pyopencl that must not be under way when the interpreter ends.

Some calls release the interpreter's lock. A thread that comes back from one while the interpreter
is being finalized is ended by it, inside C++ code of pyopencl that cannot be unwound: the process
aborts. So when the process ends, no thread but the one that ends it begins such a call any more,
and those that are under way are waited for.
"""

import atexit
import threading
import time
from types import TracebackType
from typing import Final

_PATIENCE_S: Final = 5.0
_POLL_S: Final = 0.001


class Calls:
    """A context manager around each such call; entering and leaving takes 0.2 microseconds."""

    def __init__(self) -> None:
        self._inside: dict[int, int] = {}
        self._owner = 0  # the thread that ends the process, once it does
        self._for_ever = threading.Lock()

    def __enter__(self) -> None:
        me = threading.get_ident()
        self._inside[me] = self._inside.get(me, 0) + 1
        if self._owner and self._owner != me:
            del self._inside[me]
            self._for_ever.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        me = threading.get_ident()
        left = self._inside[me] - 1
        if left:
            self._inside[me] = left
        else:
            del self._inside[me]

    def end(self) -> None:
        """Let no other thread begin a call, and wait some seconds for those under way."""
        self._for_ever.acquire(blocking=False)
        self._owner = threading.get_ident()
        deadline = time.monotonic() + _PATIENCE_S
        while any(t != self._owner for t in list(self._inside)) and time.monotonic() < deadline:
            time.sleep(_POLL_S)


CALLS: Final = Calls()
atexit.register(CALLS.end)
