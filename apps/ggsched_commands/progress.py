"""What happens before there are results, on a terminal only: devices, plans, weights, kernels."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner

from ggsched.cli.console import live_on
from ggsched.printable import printable
from ggsched.units import nbytes_text

_SHOWN_PER_S: Final = 10


class Busy:
    """A line that says what is being done, until ``stop``.

    It is called with the name and the bytes of each weight that has been loaded.
    """

    def __init__(self, live: Live | None) -> None:
        self._live = live
        self._nbytes = 0
        self._shown_s = 0.0

    def __call__(self, name: str, nbytes: int) -> None:
        """Show how much has been loaded."""
        self._nbytes += nbytes
        now = time.monotonic()
        if now - self._shown_s > 1 / _SHOWN_PER_S:
            self._shown_s = now
            self.stage(f"loading weights: {nbytes_text(self._nbytes)} ({name})")

    def stage(self, what: str) -> None:
        """Show what is being done."""
        if self._live is not None:
            self._live.update(Spinner("dots", printable(what)), refresh=True)

    def stop(self) -> None:
        """Show nothing any more: what is written from now on has the terminal for itself."""
        if self._live is not None:
            self._live.stop()
            self._live = None


@contextmanager
def loading(console: Console, what: str = "opening devices") -> Iterator[Busy]:
    """Give a line that says what is being done, which vanishes in the end; none off a terminal.

    Warnings and messages that come meanwhile are written above it. Results are not for this
    console: call ``stop`` before the first of them.
    """
    if not console.is_terminal:
        yield Busy(None)
        return
    live = Live(
        Spinner("dots", what),
        console=console,
        refresh_per_second=_SHOWN_PER_S,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=True,
    )
    busy = Busy(live)
    with live_on(console, busy.stop), live:
        try:
            yield busy
        finally:
            busy.stop()
