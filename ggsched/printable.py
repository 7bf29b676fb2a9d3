"""Text from outside as a terminal may show it: no character in it acts on the terminal.

Names in files, messages of plug-ins and generated tokens may contain escape sequences, which move
the cursor, change the title or paste text, and marks that reverse the order of what follows.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from typing import Final, TextIO

_ACTIVE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Controls but tab and newline, marks of direction, and halves of characters."""


def printable(text: str) -> str:
    r"""Return a text with what acts on a terminal written out, as ``\x1b`` or ``\u202e``."""
    return _ACTIVE.sub(_written_out, text)


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def is_terminal(file: TextIO | None) -> bool:
    """Whether people see what is written to a file as it is."""
    try:
        return file is not None and file.isatty()
    except ValueError:  # closed
        return False


_RESULTS: Final[ContextVar[TextIO | None]] = ContextVar("results", default=None)


def results() -> TextIO:
    """Return where results go: stdout, as it was when ``keeping_results_apart`` began."""
    return _RESULTS.get() or sys.stdout


@contextmanager
def keeping_results_apart(file: TextIO) -> Iterator[None]:
    """Let what anybody else prints on stdout, such as a plug-in, go to stderr meanwhile.

    Args:
        file: Where results go.
    """
    token = _RESULTS.set(file)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _RESULTS.reset(token)


def write_out(text: str) -> None:
    """Write a result on stdout: as it is into files and pipes, written out on a terminal."""
    _write(text, results())


def write_err(text: str) -> None:
    """Write a message on stderr: as it is into files and pipes, written out on a terminal."""
    _write(text, sys.stderr)


def _write(text: str, file: TextIO | None) -> None:
    if file is not None:  # else the process was started without it
        file.write(printable(text) if is_terminal(file) else text)
