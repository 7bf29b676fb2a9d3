"""Calls that always come to an end: whatever hangs is left behind and named."""

import threading
from collections.abc import Callable


class Hung(Exception):
    """A call that does not get on; its thread is left to itself."""


def guarded(
    call: Callable[[], None],
    timeout_s: float,
    name: str,
    progress: Callable[[], object] = lambda: None,
) -> BaseException | None:
    """Run a call in a daemon thread; return what it raised, or None.

    Args:
        call: What to run.
        timeout_s: How long it may go without an end and without progress.
        name: For the thread.
        progress: Something that changes as the call gets on, however slow the machine is.

    Raises:
        Hung: it has neither ended nor got on for that long.
    """
    raised: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:  # the caller's thread raises it
            raised.append(error)

    thread = threading.Thread(target=work, name=f"conformance {name}", daemon=True)
    thread.start()
    seen = object()
    while thread.is_alive():
        if seen == (seen := progress()):
            raise Hung(f"no progress for {timeout_s:g} s")
        thread.join(timeout_s)
    return raised[0] if raised else None
