"""Ctrl-C, however it comes, and the line that says what it left undone."""

import signal
import sys
from types import FrameType
from typing import Any, Self


def is_interruption(error: BaseException) -> bool:
    """Whether it was raised because of Ctrl-C: modules in C raise others in its place."""
    chain: list[BaseException] = []  # which may end in itself
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    return any(isinstance(each, KeyboardInterrupt) for each in chain)


class Stopping:
    """While it is entered the first Ctrl-C is noted, and only the second one interrupts.

    What is computed ends between two steps then, and its state stays valid.

    Attributes:
        is_asked: Whether there was one.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True


def tell_interruption(what: str) -> None:
    """Say what was interrupted, below the ``^C`` that a terminal shows."""
    from ggsched.cli.console import write_line
    from ggsched.printable import is_terminal, write_err

    if is_terminal(sys.stderr):
        write_err("\n")
    write_line(f"ggsched: interrupted: {what}")
