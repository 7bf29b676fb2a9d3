"""Calls that always come to an end: whatever hangs is left behind and named."""

import threading
from collections.abc import Callable


class Hung(Exception):
    """A call that did not come to an end in time; its thread is left to itself."""


def guarded(call: Callable[[], None], timeout_s: float, name: str) -> BaseException | None:
    """Run a call in a daemon thread; return what it raised, or None.

    Raises:
        Hung: it has not come to an end in time.
    """
    raised: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:  # the caller's thread tells about it
            raised.append(error)

    thread = threading.Thread(target=work, name=f"conformance {name}", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        raise Hung(f"no end after {timeout_s:g} s")
    return raised[0] if raised else None
